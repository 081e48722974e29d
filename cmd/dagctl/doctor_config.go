package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// oldTaskKey is the age after which doctor reminds of a new key of tasks.
const oldTaskKey = 365 * 24 * time.Hour

// checkConfig reads a server's config as `dagctl serve` on this machine would, and holds its bucket, runtimes and keys
// against what is here.
func (c *cli) checkConfig(ctx context.Context, path string) []finding {
	cfg, err := loadConfig(path, c.getenv)
	if err != nil {
		return []finding{failed("config", err)}
	}
	findings := []finding{{Check: "config", OK: true, Detail: path}}
	if err := cfg.validate(); err != nil {
		findings = problemsOf("config", err)
	}
	findings = append(findings, checkStorage(ctx, &cfg)...)
	findings = append(findings, checkRuntimes(&cfg)...)
	findings = append(findings, checkBackends(ctx, &cfg)...)
	return append(findings, checkTaskKeys(ctx, &cfg, time.Now())...)
}

// problemsOf makes a finding of each problem of an error.
func problemsOf(check string, err error) (findings []finding) {
	var f *fault.Error
	if !errors.As(err, &f) || len(f.Problems) == 0 {
		return []finding{failed(check, err)}
	}
	for _, p := range f.Problems {
		findings = append(findings, finding{Check: check, Detail: p.Location + ": " + p.Message, Hint: p.Suggestion})
	}
	return findings
}

// checkRuntimes tells what each runtime is. That the map makes sense is part of the config's own check, but for the names
// of operators.
func checkRuntimes(cfg *serverConfig) (findings []finding) {
	builtin, err := operators.Builtin(operators.Options{})
	if err != nil {
		return []finding{failed("runtimes", err)}
	}
	if len(cfg.runtimes().Check(nil)) == 0 { // otherwise they are told already
		for _, p := range cfg.runtimes().Check(builtin.Names()) {
			findings = append(findings, finding{Check: "runtimes", Detail: p.Location + ": " + p.Message})
		}
	}
	for _, name := range cfg.runtimes().Names() {
		var parts []string
		for _, b := range cfg.runtimes()[name] {
			parts = append(parts, describeBackend(b))
		}
		findings = append(findings, finding{Check: "runtime", OK: true, Detail: name + " → " + strings.Join(parts, "; ")})
	}
	return findings
}

// checkBackends looks at the queues and functions themselves, with the AWS credentials of this machine.
func checkBackends(ctx context.Context, cfg *serverConfig) (findings []finding) {
	if len(cfg.runtimes().Check(nil)) > 0 {
		return nil // told already
	}
	amazon, err := cfg.aws(ctx)
	if err != nil {
		return []finding{failed("runtimes", err)}
	}
	for _, f := range cfg.runtimes().Inspect(ctx, amazon) {
		findings = append(findings, finding{Check: "runtime", OK: f.OK, Detail: f.Runtime + ", " + f.Detail, Hint: f.Hint})
	}
	return findings
}

func describeBackend(b dispatcher.Backend) string {
	text := string(b.Kind)
	switch b.Kind {
	case dispatcher.SQS:
		text += " " + b.QueueURL
	case dispatcher.Lambda:
		text += " " + b.Function
		if b.Qualifier != "" {
			text += ":" + b.Qualifier
		}
	}
	if len(b.Operators) > 0 {
		text += " for operators " + strings.Join(b.Operators, ", ")
	}
	if len(b.Orgs) > 0 {
		text += " for orgs " + strings.Join(b.Orgs, ", ")
	}
	return text
}

// checkTaskKeys reads the keys of capability tokens and has the first one sign.
func checkTaskKeys(ctx context.Context, cfg *serverConfig, now time.Time) (findings []finding) {
	const check = "task keys"
	keys, err := cfg.readTaskKeys(ctx)
	if err != nil {
		return []finding{failed(check, err)}
	}
	if len(keys) == 0 {
		return []finding{{Check: check, OK: true, Detail: "none: tasks run in the server's process alone"}}
	}
	seen := map[string]string{}
	for i, key := range keys {
		f := finding{Check: check, OK: true, Detail: fmt.Sprintf("%s: ES256, id %s", key.Source, key.ID)}
		if i == 0 {
			f.Detail += ", signs"
		}
		if other, twice := seen[key.ID]; twice {
			f.OK, f.Detail, f.Hint = false, fmt.Sprintf("%s is the same key as %s", key.Source, other), "leave one of them out"
		}
		seen[key.ID] = key.Source
		if info, err := os.Stat(key.Source); err == nil { // a file
			checkKeyFile(&f, key, info, i == 0, now)
		}
		findings = append(findings, f)
	}
	signer, err := authz.NewSigner(authz.SignerConfig{Issuer: "doctor", Keys: keys})
	if err != nil {
		return append(findings, failed(check, err))
	}
	token, err := signer.Issue(authz.Capability{OrgID: uuid.New(), TaskID: uuid.New(), Attempt: 1, ExpiresAt: now.Add(time.Minute)}, now)
	if err == nil {
		_, err = signer.Verify(token, now)
	}
	if err != nil {
		return append(findings, failed(check, err))
	}
	return findings
}

// checkKeyFile looks at who may read a key, and how old it is as far as its file tells.
func checkKeyFile(f *finding, key authz.TaskKey, info os.FileInfo, signs bool, now time.Time) {
	age := now.Sub(info.ModTime())
	f.Detail += fmt.Sprintf(", %d days old", int(age/(24*time.Hour)))
	switch mode := info.Mode().Perm(); {
	case key.CanSign() && mode&0o077 != 0:
		f.OK, f.Detail, f.Hint = false, fmt.Sprintf("%s: others than its owner may use it (mode %04o)", key.Source, mode), "chmod 600 "+key.Source
	case signs && age > oldTaskKey:
		f.Hint = "make a new key and let both verify for a day: docs/config.md, Keys of tasks"
	}
}
