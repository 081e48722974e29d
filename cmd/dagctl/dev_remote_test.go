package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/worker"
)

// everywhereDAG has a runtime of its own for every job, including the one that reads files.
const everywhereDAG = `name: everywhere
jobs:
  - name: landing
    runtime: ecs_platform
    operator: file_source
    source: { kind: poll, every: 1s }
    config: { path: numbers.csv, format: csv }
  - name: doubled
    runtime: lambda
    operator: sql
    inputs: [{ from: { job: landing } }]
    config: { query: "SELECT n * 2 AS n FROM landing" }
  - name: counted
    runtime: ecs_udf
    operator: udf
    inputs: [{ from: { job: doubled } }]
    outputs: [out]
    udf: { folder: count, entrypoint: run.sh }
  - name: shouted
    runtime: python
    operator: handler
    inputs: [{ from: { job: counted } }]
    config: { handler: "rows:shout" }
publish:
  doubled: { from: { job: doubled } }
  counted: { from: { job: counted } }
  shouted: { from: { job: shouted } }
`

// TestDevServesEveryRuntime runs a DAG file that names the runtimes of a large installation. dagctl dev has a worker
// for each of them, and explains how to start the worker with the user's own function.
func TestDevServesEveryRuntime(t *testing.T) {
	t.Parallel()
	dir, data := t.TempDir(), processtest.DataFolder(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "count"), 0o700))
	for name, text := range map[string]string{
		"dag.yaml": everywhereDAG, "numbers.csv": "n\n21\n",
		"count/run.sh": "#!/bin/sh\ncat > task.json\nprintf 'files\\n1\\n' > outputs/out/n.csv\necho counting\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	dev := startProcess(t, nil, "dev", dir, "--addr", "127.0.0.1:0", "--data", data)
	said := regexp.MustCompile(`waits everywhere/shouted is for a worker of yours: handler rows:shout on the runtime python\n  start it with DAGCTL_URL=(\S+) DAGCTL_TOKEN=\$\(cat (\S+)\)\n`)
	eventually(t, "dev says what it lacks", func() (bool, error) { return said.MatchString(dev.log.String()), nil })
	url, tokenFile := said.FindStringSubmatch(dev.log.String())[1], said.FindStringSubmatch(dev.log.String())[2]
	if missing := sandbox.Available(); missing != nil {
		eventually(t, "users' code fails for what the machine lacks", func() (bool, error) {
			listed := must(t, nil, "tasks", "list", "--job", "counted", "--data", data, "--output", "json")
			return strings.Contains(listed, missing.Error()), nil
		})
		require.Contains(t, dev.log.String(), "fails jobs of operator udf: "+missing.Error())
		return
	}

	var waiting views.Task
	eventually(t, "the rest is done", func() (bool, error) {
		tasks := decode[[]views.Task](t, nil, "tasks", "list", "--job", "shouted", "--data", data)
		if len(tasks) > 0 {
			waiting = tasks[0]
		}
		return len(tasks) > 0, nil
	})
	require.Contains(t, must(t, nil, "why", waiting.ID.String(), "--data", data),
		"no live worker serves the runtime python with the handler rows:shout; start one: "+
			"DAGCTL_URL="+url+" DAGCTL_TOKEN=$(cat "+tokenFile+") PROGRAM")

	token, err := os.ReadFile(tokenFile)
	require.NoError(t, err)
	own, err := worker.New(worker.Config{URL: url, Token: strings.TrimSpace(string(token)), Runtime: "python",
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), DrainTimeout: time.Second})
	require.NoError(t, err)
	worker.Handle(own, "rows:shout", func(ctx context.Context, task *worker.Task, _ struct{}) (any, error) {
		out, err := task.Output("")
		if err != nil {
			return nil, err
		}
		return nil, worker.Write(ctx, out, slices.Values([]map[string]string{{"word": "HELLO"}}))
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- own.Run(ctx) }()
	eventually(t, "all is done", func() (bool, error) {
		return strings.Contains(dev.log.String(),
			"everywhere v1 is Active"), nil
	})
	stop()
	require.NoError(t, <-ended)
	for dataset, row := range map[string]string{"doubled": " n\n42\n", "counted": "files\n    1\n",
		"shouted": "word\nHELLO\n"} {
		require.Contains(t, must(t, nil, "datasets", "preview", dataset, "--data", data), row)
	}

	require.NoError(t, dev.cmd.Process.Signal(syscall.SIGINT))
	require.ErrorContains(t, dev.cmd.Wait(), fmt.Sprint("exit status ", cli.ExitInterrupted))
	stays, err := os.Stat(tokenFile)
	require.NoError(t, err, "workers that run on need no other token when the server is back")
	require.Equal(t, os.FileMode(0o600), stays.Mode().Perm())
	log, err := os.ReadFile(filepath.Join(data, "dagctl.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), "the worker's exit could not be reported", "the server outlives its workers")
}

// TestDevTakesAConfig maps a runtime in the config file; dev then starts no worker for it.
func TestDevTakesAConfig(t *testing.T) {
	t.Parallel()
	dir := starterFolder(t)
	file := filepath.Join(dir, "dag.yaml")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), "    operator: sql",
		"    runtime: here\n    operator: sql", 1)), 0o600))
	config := filepath.Join(t.TempDir(), "dev.yaml")
	start := func(lines string) result {
		require.NoError(t, os.WriteFile(config, []byte(lines), 0o600))
		return dagctl(t, nil, "dev", dir, "--once", "--config", config, "--addr", "127.0.0.1:0",
			"--data", processtest.DataFolder(t))
	}
	r := start("runtimes: { here: in-process }\nworkers: { pool_size: 2 }\n")
	require.Zero(t, r.code, r.err)
	require.Contains(t, r.out, "daily_temperatures: 4 rows")

	for lines, says := range map[string]string{
		"runtimes: { here: cloud }": `"cloud" is not a kind of runtime`,
		"runtime: {}":               "field runtime not found",
		"worker_listen: :7071":      "not for dagctl dev",
	} {
		r := start(lines)
		require.Equal(t, cli.ExitFailed, r.code, lines)
		require.Contains(t, r.err, says)
	}
	require.NoError(t, os.WriteFile(config, []byte("listen: 0.0.0.0:7070"), 0o600))
	open := dagctl(t, nil, "dev", dir, "--config", config, "--data", processtest.DataFolder(t))
	require.Equal(t, cli.ExitFailed, open.code)
	require.Contains(t, open.err, "does not listen on 0.0.0.0:7070")
}
