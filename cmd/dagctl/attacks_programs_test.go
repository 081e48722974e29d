//go:build linux && (amd64 || arm64)

package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/internal/sandbox/attacks"
	"github.com/dagctl/dagctl/query"
)

// granted are the attacks that a kind of program may do: they reach nothing of others.
var granted = map[string]*regexp.Regexp{
	// A program has TCP and UDP, may ask which addresses the machine has, and has a channel for commits.
	"dispatcher": regexp.MustCompile(`^sockets: (socket (2|10|16) [12] 0|connect .*|bind|pair .*)$|^processes: inherited$`),
	"bare":       regexp.MustCompile(`^$`),
	// The root, the processes, the sockets and the network are the program's own.
	"spaces": regexp.MustCompile(`^sockets: (socket (1|2|10|16) [12] 0|bind|pair .*)$|^processes: list /proc$|` +
		`^files: (list (/|/dev/shm|/etc|/tmp)|write (/dev/shm|/tmp)/dagctl-was-here)$`),
}

// attackByPrograms runs a program that tries all that package attacks knows: as a command, and as users' code on a
// worker, with namespaces and without.
func (a *arena) attackByPrograms(t *testing.T) {
	stranger := filepath.Join(a.roots, "stranger")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", stranger, "../../internal/sandbox/attacks/stranger")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	text, err := build.CombinedOutput()
	require.NoError(t, err, string(text))
	bundle := strings.TrimSpace(must(t, a.env(t, "acme"), "udf", "push", folderOf(t, stranger)))

	server, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	name := fmt.Sprintf("@dagctl-attacks-%d", os.Getpid())
	abstract, err := net.Listen("unix", name)
	require.NoError(t, err)
	t.Cleanup(func() { abstract.Close() })
	target := attacks.Target{Secret: a.secret, Address: server.Addr().String(), Abstract: name,
		PID: a.server.cmd.Process.Pid}

	program := func(runtime string, args ...string) string {
		list := []string{}
		for _, arg := range args {
			list = append(list, yamlText(arg))
		}
		common := "source: { kind: poll, every: 1h }, outputs: [out], max_attempts: 1, timeout_seconds: 4, "
		if runtime == "dispatcher" {
			return "operator: command, " + common + "config: { argv: [./stranger, " + strings.Join(list, ", ") + "] }"
		}
		return "operator: udf, runtime: " + runtime + ", " + common + "udf: { bundle: " + bundle +
			", entrypoint: stranger }, config: { memory_mb: 64, args: [" + strings.Join(list, ", ") + "] }"
	}
	if sandbox.Namespaces() != nil { // then both workers have the other walls
		granted["spaces"] = granted["bare"]
	}
	runtimes := []string{"dispatcher"}
	if sandbox.Available() == nil {
		runtimes = append(runtimes, "bare", "spaces")
	}

	t.Run("reach", func(t *testing.T) {
		var jobs []attackJob
		for _, runtime := range runtimes {
			jobs = append(jobs, attackJob{runtime, program(runtime, jsonText(target))})
		}
		for _, r := range a.run(t, "programs", jobs) {
			require.Equal(t, "Completed", r.Status, "%s: %s", r.name, r.Error)
			var rows query.Rows
			require.NoError(t, a.client("acme").Get(t.Context(),
				cli.DatasetPath(r.DAG+"/"+r.Job+"/out")+"/rows?limit=1000",
				nil, &rows))
			require.Greater(t, len(rows.Rows), 80)
			a.add("programs: "+r.name, len(rows.Rows))
			for _, row := range rows.Rows {
				if answer, _ := row[1].(string); answer == "" && !granted[r.name].MatchString(row[0].(string)) {
					assert.Fail(t, "possible", "%s: %s", r.name, row[0])
				}
			}
		}
	})
	t.Run("exhaust", func(t *testing.T) {
		var jobs []attackJob
		for _, what := range attacks.Exhaustions {
			for _, runtime := range runtimes {
				if runtime != "dispatcher" && strings.Contains("file files removed mapped hidden", what) {
					continue // 2 GiB may be written there
				}
				jobs = append(jobs, attackJob{what + " " + runtime, program(runtime, "exhaust", what)})
			}
		}
		for n := range 3 { // crowds come together
			jobs = append(jobs, attackJob{fmt.Sprint("crowd ", n), program("dispatcher", "exhaust", "crowd")})
		}
		for _, r := range a.attackByJobs(t, "programs: exhaustion", jobs) {
			t.Logf("%.60q %s %.200q", r.name, r.Status, r.Error)
			assert.Equal(t, "dead", r.Waiting, r.name)
		}
	})
	t.Run("outputs", a.attackByOutputs)
}

// attackByOutputs lets programs leave what is no output.
func (a *arena) attackByOutputs(t *testing.T) {
	var jobs []attackJob
	for name, script := range map[string]string{
		"a link":           `ln -s ` + a.secret + ` "$dir/x.csv"`,
		"a link to /etc":   `ln -s /etc/passwd "$dir/x.csv"`,
		"a linked Parquet": `ln -s ` + a.secret + ` "$dir/x.parquet"`,
		"a loop":           `ln -s x.csv "$dir/x.csv"`,
		"a pipe":           `mkfifo "$dir/x.csv"`,
		"a folder":         `mkdir "$dir/x.csv"`,
		"no folder":        `rm -rf "$dir"`,
		"another folder":   `rm -rf "$dir"; ln -s /etc "$dir"`,
		"hostile Parquet":  `printf 'PAR1\377\377\377\177PAR1' > "$dir/x.parquet"`,
		"a bomb":           `head -c 50000000 /dev/zero | gzip > "$dir/x.csv.gz"`,
		"names":            `printf '\042; DROP TABLE x; --,b\n1,2\n' > "$dir/x.csv"`,
		"a long result":    `head -c 3000000 /dev/zero | tr '\0' x`,
		"another's task":   `echo '{"tasks": [{"job": "quiet/note"}]}'`,
		"many tasks":       `echo '{"tasks": [{"job": "j0"}, {"job": "j0", "priority": 99999999999}]}'`,
		"a state":          `printf '{"operator_state": "'; head -c 2000000 /dev/zero | tr '\0' x; echo '"}'`,
		"a deep result":    `printf '{"result": '; head -c 90000 /dev/zero | tr '\0' '['; echo`,
		"a wrong result":   `echo '{"result": 1e999999, "unchanged": "x", "source_version": {}}'`,
		"commits":          `echo '{"outputs": [{"name": "../x", "files": ["../../../etc/passwd"]}]}' >&3; head -n 1 <&4`,
		"a long commit":    `head -c 3000000 /dev/zero | tr '\0' x >&3; echo >&3; head -n 1 <&4`,
		"the server":       `cat /proc/$PPID/environ; env; cat /proc/1/environ`,
		"its memory":       `cat /proc/self/maps /proc/self/status > /dev/null; cat /proc/$PPID/maps`,
		"signals":          `kill -9 $PPID; kill -9 -1; exit 65`,
		"other folders":    `ls -R / > "$dir/_listing"; cat ../../*/*/*; cat ` + a.secret,
	} {
		script = `task=$(cat); dir=$(echo "$task" | sed 's/.*"dir": *"\([^"]*\)".*/\1/'); ` + script
		jobs = append(jobs, attackJob{name, "operator: command, source: { kind: poll, every: 1h }, max_attempts: 1, " +
			"timeout_seconds: 10, config: { argv: [/bin/sh, -c, " + yamlText(script) + "] }"})
	}
	for _, r := range a.attackByJobs(t, "programs: outputs", jobs) {
		t.Logf("%.60q %s %.300q", r.name, r.Status, r.Error)
	}
}

// folderOf returns a folder that has a copy of a file only.
func folderOf(t *testing.T, file string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "code")
	require.NoError(t, os.Mkdir(dir, 0o755))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o755))
	return dir
}
