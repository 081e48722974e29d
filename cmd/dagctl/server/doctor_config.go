package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/migrations"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/storage/health"
)

// oldTaskKey is the age at which doctor suggests a new task key.
const oldTaskKey = 365 * 24 * time.Hour

// checkConfig reads a server's config as `dagctl serve` on this machine would, and tries its bucket, its runtimes and
// its keys. With a database it also checks that the storage is that of its installation.
func checkConfig(ctx context.Context, c *cli.CLI, path, databaseURL string) []finding {
	cfg, err := loadConfig(path, c.Getenv)
	if err != nil {
		return []finding{failed("config", err)}
	}
	findings := []finding{{Check: "config", OK: true, Detail: path}}
	if err := cfg.Validate(); err != nil {
		findings = problemsOf("config", err)
	}
	findings = append(findings, checkStorage(ctx, &cfg, databaseURL)...)
	findings = append(findings, checkRuntimes(&cfg)...)
	findings = append(findings, checkBackends(ctx, &cfg)...)
	return append(findings, checkTaskKeys(ctx, &cfg, time.Now())...)
}

// problemsOf returns a finding for each problem of an error.
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

// checkRuntimes describes each runtime. Validate has checked the map of runtimes already, except for the names of
// operators.
func checkRuntimes(cfg *Config) (findings []finding) {
	engines, err := engine.New(engine.Config{}) // none starts: nothing is asked of them
	if err != nil {
		return []finding{failed("runtimes", err)}
	}
	builtin, err := standard.New(operators.Options{Engines: engines})
	if err != nil {
		return []finding{failed("runtimes", err)}
	}

	if len(cfg.RuntimeMap().Check(nil)) == 0 { // otherwise the findings of Validate have them
		for _, p := range cfg.RuntimeMap().Check(builtin.Names()) {
			findings = append(findings, finding{Check: "runtimes", Detail: p.Location + ": " + p.Message})
		}
	}
	for _, name := range cfg.RuntimeMap().Names() {
		var parts []string
		for _, b := range cfg.RuntimeMap()[name] {
			parts = append(parts, describeBackend(b))
		}
		detail := name + " → " + strings.Join(parts, "; ")
		findings = append(findings, finding{Check: "runtime", OK: true, Detail: detail})
	}
	return findings
}

// checkBackends inspects the queues and functions themselves, with the AWS credentials of this machine.
func checkBackends(ctx context.Context, cfg *Config) (findings []finding) {
	if len(cfg.RuntimeMap().Check(nil)) > 0 {
		return nil // the findings of Validate have them
	}
	amazon, err := cfg.aws(ctx)
	if err != nil {
		return []finding{failed("runtimes", err)}
	}
	for _, f := range cfg.RuntimeMap().Inspect(ctx, amazon) {
		detail := f.Runtime + ", " + f.Detail
		findings = append(findings, finding{Check: "runtime", OK: f.OK, Detail: detail, Hint: f.Hint})
	}
	return findings
}

// describeBackend returns what a runtime is mapped to, as text.
func describeBackend(b backends.Backend) string {
	text := string(b.Kind)
	switch b.Kind {
	case backends.SQS:
		text += " " + b.QueueURL
	case backends.Lambda:
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

// checkTaskKeys reads the keys of capability tokens, and signs and verifies with the first one.
func checkTaskKeys(ctx context.Context, cfg *Config, now time.Time) (findings []finding) {
	const check = "task keys"
	keys, err := cfg.readTaskKeys(ctx)
	if err != nil {
		return []finding{failed(check, err)}
	}

	if len(keys) == 0 {
		return []finding{{Check: check, OK: true, Detail: "none: tasks run only in the server's process"}}
	}
	seen := map[string]string{}
	for i, key := range keys {
		f := finding{Check: check, OK: true, Detail: fmt.Sprintf("%s: ES256, id %s", key.Source, key.ID)}
		if i == 0 {
			f.Detail += ", signs"
		}
		if other, twice := seen[key.ID]; twice {
			f.OK, f.Hint = false, "remove one of them"
			f.Detail = fmt.Sprintf("%s is the same key as %s", key.Source, other)
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

	token, err := signer.Issue(authz.Capability{
		OrgID: uuid.New(), TaskID: uuid.New(), Attempt: 1, ExpiresAt: now.Add(time.Minute),
	}, now)
	if err == nil {
		_, err = signer.Verify(token, now)
	}
	if err != nil {
		return append(findings, failed(check, err))
	}
	return findings
}

// checkKeyFile checks who may read the file of a key, and how old the file is.
func checkKeyFile(f *finding, key authz.TaskKey, info os.FileInfo, signs bool, now time.Time) {
	age := now.Sub(info.ModTime())
	f.Detail += fmt.Sprintf(", %d days old", int(age/(24*time.Hour)))
	switch mode := info.Mode().Perm(); {
	case key.CanSign() && mode&0o077 != 0:
		f.OK, f.Hint = false, "chmod 600 "+key.Source
		f.Detail = fmt.Sprintf("%s: others than its owner may use it (mode %04o)", key.Source, mode)
	case signs && age > oldTaskKey:
		f.Hint = "make a new key and let both verify for a day: docs/config.md, Keys of tasks"
	}
}

// checkStorage tries to write and read the folder, and to write, read and list the bucket.
func checkStorage(ctx context.Context, cfg *Config, databaseURL string) (findings []finding) {
	const check = "storage"
	if _, err := os.Stat(cfg.Storage.Root); cfg.Storage.Root == "" || cfg.Storage.S3 == nil && err != nil {
		return nil // Validate says the first, and a server makes its folder
	}
	s, err := storage.New(cfg.Storage.storage(nil, nil))
	if err != nil {
		return []finding{failed(check, err)}
	}

	for _, f := range s.Check(ctx) {
		findings = append(findings, finding{Check: check, OK: f.OK, Detail: f.Detail, Hint: f.Hint})
	}
	if cfg.Storage.S3 == nil {
		findings = append(findings, checkFolder(ctx, s, cfg.Storage.Root))
	}
	if databaseURL != "" {
		findings = append(findings, checkInstallation(ctx, s, databaseURL)...)
	}
	if err := s.Close(); err != nil {
		findings = append(findings, failed(check, err))
	}
	return findings
}

// checkFolder writes and reads the folder of the files.
func checkFolder(ctx context.Context, s *storage.Storage, root string) finding {
	if err := s.Probe(ctx); err != nil {
		f := failed("storage", err)
		f.Hint = cmp.Or(f.Hint, "docs/operations.md, When the storage cannot be used")
		return f
	}
	return finding{Check: "storage", OK: true, Detail: "folder " + root + " can be written and read"}
}

// checkInstallation checks that the storage is that of the database's installation. A database that does not answer is
// another check's.
func checkInstallation(ctx context.Context, s *storage.Storage, databaseURL string) []finding {
	pool, err := pg.Open(ctx, databaseURL, pg.WithMaxConns(1))
	if err != nil {
		return nil
	}
	defer pool.Close()
	if pending, err := migrations.Pending(ctx, pool); err != nil || len(pending) > 0 {
		return nil
	}
	if err := health.Check(ctx, pool, s); err != nil {
		return []finding{failed("storage", err)}
	}
	return []finding{{Check: "storage", OK: true, Detail: s.MarkerPlace() + " fits the database"}}
}
