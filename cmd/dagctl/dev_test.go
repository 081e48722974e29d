package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/examples/processtest"
)

// output collects what a running command prints.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// starterFolder returns a folder with the files that `dagctl init` writes.
func starterFolder(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "starter")
	must(t, nil, "init", dir)
	return dir
}

func TestDevOnceRunsTheStarter(t *testing.T) {
	t.Parallel()
	dir, data := starterFolder(t), processtest.DataFolder(t)
	args := []string{"dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", data}
	yaml := filepath.Join(dir, "dag.yaml")
	text, err := os.ReadFile(yaml)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(yaml, bytes.Replace(text, []byte("every: 10s"), []byte("every: 1h"), 1), 0o600))
	out := must(t, nil, args...)
	require.Regexp(t, `^dagctl dev: http://127\.0\.0\.1:\d+/\?token=\S+\n`, out)
	require.Contains(t, out, "starter v1 is Active")
	require.Contains(t, out, "daily_temperatures: 4 rows in 2 partitions\nstation  lowest  mean  highest  "+
		"readings\nharbour     3.1   4.2      5.4         3\n")
	require.NoFileExists(t, filepath.Join(data, cli.DevServerFile))
	require.NoFileExists(t, filepath.Join(data, cli.DevTokenFile))

	again := must(t, nil, args...)
	require.NotContains(t, again, "new version")
	require.NotContains(t, again, "is Building")
	require.Contains(t, again, "daily_temperatures: 4 rows in 2 partitions")
	require.NotContains(t, again, "done", "what was done before is not reported again")

	// With --once nobody waits for the next time of a source.
	file := filepath.Join(dir, "data", "readings", "2026-01-03.csv")
	require.NoError(t, os.WriteFile(file, []byte("station,time,celsius\nharbour,2026-01-03T08:00:00Z,4.0\n"), 0o600))
	require.Contains(t, must(t, nil, args...), "daily_temperatures: 5 rows in 3 partitions")
	require.NoError(t, os.Remove(file))

	elsewhere := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "dag.yaml"), []byte(producerDAG), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "numbers.csv"), []byte("n\n21\n"), 0o600))
	other := must(t, nil, "dev", elsewhere, "--once", "--addr", "127.0.0.1:0", "--data", data)
	require.Contains(t, other, "producer v1 is Active")
	require.NotContains(t, other, "starter", "no file of it is in this folder")

	reset := must(t, nil, append(args, "--reset")...)
	require.Contains(t, reset, "v1 (")
	require.Contains(t, reset, "new version")
}

// A file that somebody has rolled back from is not deployed again before it changes.
func TestDevLeavesARollbackAlone(t *testing.T) {
	t.Parallel()
	dir, data := starterFolder(t), processtest.DataFolder(t)
	args := []string{"dev", dir, "--addr", "127.0.0.1:0", "--data", data}
	sql := filepath.Join(dir, "sql", "daily.sql")
	first, err := os.ReadFile(sql)
	require.NoError(t, err)
	save := func(text string) { require.NoError(t, os.WriteFile(sql, []byte(text), 0o600)) }
	during := func(what string, do func(), says ...string) {
		ctx, interrupt := context.WithCancelCause(t.Context())
		defer interrupt(errInterrupted)
		var out, errs output
		ended := make(chan int, 1)
		go func() {
			ended <- run(ctx, args, cli.Environment{In: strings.NewReader(""), Out: &out, Err: &errs,
				Getenv: func(string) string { return "" }})
		}()
		for i, text := range says {
			eventually(t, what+": "+text, func() (bool, error) { return strings.Contains(out.String(), text), nil })
			if i == 0 {
				do()
			}
		}
		interrupt(errInterrupted)
		require.Equal(t, cli.ExitInterrupted, <-ended, errs.String())
	}
	nothing := func() {}

	edited := "SELECT station, count(*) AS readings FROM readings GROUP BY station"
	during("edits", func() { save(edited) }, "starter v1 is Active", "starter v2 is Active")
	during("rolls back", func() { must(t, nil, "rollback", "starter", "--yes", "--data", data) },
		"starter v2 is Active", "starter v1 is Active")
	during("starts again", nothing, "starter v2 was rolled back", "starter v1 is Active")
	during("saves", func() { save(string(first) + "\n-- better\n") }, "starter v2 was rolled back",
		"starter v3 is Active")
	during("saves what was rolled back", func() { save(edited) }, "starter v3 is Active", "starter v2 is Active")
}

func TestDevOnceFailsWhereATaskDoes(t *testing.T) {
	t.Parallel()
	dir := starterFolder(t)
	broken := filepath.Join(dir, "sql", "daily.sql")
	require.NoError(t, os.WriteFile(broken, []byte("SELECT CAST(station AS INTEGER) AS station FROM readings"), 0o600))
	r := dagctl(t, nil, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", processtest.DataFolder(t))
	require.Equal(t, cli.ExitFailed, r.code, r.out+r.err)
	require.Contains(t, r.out, "dead starter/daily")
	require.Contains(t, r.err, "not everything completed")

	require.NoError(t, os.WriteFile(filepath.Join(dir, "dag.yaml"), []byte("name: x\n"), 0o600))
	r = dagctl(t, nil, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", processtest.DataFolder(t))
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.err, "dag.yaml:1:1")
}

// A source that always fails is begun anew by each of its times; with --once that ends when no attempt is left.
func TestDevOnceFailsWhereASourceAlwaysDoes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "dag.yaml"), []byte(`name: away
jobs:
  - name: source
    operator: command
    source: { kind: poll, every: 1s }
    max_attempts: 2
    retry: { initial_seconds: 1, multiplier: 1, max_seconds: 1 }
    config: { argv: [/bin/false] }
`), 0o600))
	r := dagctl(t, nil, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", processtest.DataFolder(t))
	require.Equal(t, cli.ExitFailed, r.code, r.out+r.err)
	require.Contains(t, r.out, "dead away/source")
	require.Contains(t, r.out, "`dagctl run away/source` does at once")
	require.NotContains(t, r.out, "tasks retry", "the next time has ended that task by then")
	require.Contains(t, r.err, "not everything completed")
}

func TestDevServesAndFollowsSaves(t *testing.T) {
	t.Parallel()
	dir, data := starterFolder(t), processtest.DataFolder(t)
	ctx, interrupt := context.WithCancelCause(t.Context())
	defer interrupt(errInterrupted)
	var out, errs output
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"dev", dir, "--addr", "127.0.0.1:0", "--data", data},
			cli.Environment{In: strings.NewReader(""), Out: &out, Err: &errs,
				Getenv: func(string) string { return "" }})
	}()
	eventually(t, "v1 is active", func() (bool, error) {
		return strings.Contains(out.String(), "starter v1 is Active"),
			nil
	})

	info, err := os.Stat(filepath.Join(data, cli.DevTokenFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.Contains(t, must(t, nil, "status", "--data", data), "starter  v1")
	require.Equal(t, "dev, admin of local\n", must(t, nil, "whoami", "--data", data))
	second := dagctl(t, nil, "dev", dir, "--addr", "127.0.0.1:0", "--data", data)
	require.Equal(t, cli.ExitConflict, second.code)
	require.Contains(t, second.err, "a dev server is already running on the data folder")

	outside := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(outside, []byte(producerDAG), 0o600))
	refused := dagctl(t, nil, "plan", outside, "--data", data)
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "it serves those under "+dir)
	require.Contains(t, refused.err, "or start `dagctl dev` in the folder where it is")

	address := regexp.MustCompile(`http://\S+`).FindString(out.String())
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := http.Client{Jar: jar}
	response, err := browser.Get(address)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, "/", response.Request.URL.Path, "the address signs a browser in")
	dags, err := browser.Get(strings.SplitN(address, "?", 2)[0] + "dags")
	require.NoError(t, err)
	defer dags.Body.Close()
	page, err := html.Parse(dags.Body)
	require.NoError(t, err)
	require.Contains(t, text(page), "starter")
	stranger, err := http.Get(strings.SplitN(address, "?", 2)[0] + "dags")
	require.NoError(t, err)
	require.NoError(t, stranger.Body.Close())
	require.Equal(t, http.StatusUnauthorized, stranger.StatusCode)

	sql := filepath.Join(dir, "sql", "daily.sql")
	require.NoError(t, os.WriteFile(sql, []byte("SELECT station, count(*) AS readings FROM readings GROUP BY station"),
		0o600))
	eventually(t, "the save is deployed", func() (bool, error) {
		return strings.Contains(out.String(),
			"starter v2 is Active"), nil
	})

	dag := filepath.Join(dir, "dag.yaml")
	good, err := os.ReadFile(dag)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dag, append(good, "nonsense: 1\n"...), 0o600))
	eventually(t, "the problem is printed", func() (bool, error) {
		return strings.Contains(errs.String(), `nonsense`),
			nil
	})
	require.NoError(t, os.WriteFile(dag, good, 0o600))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "data", "readings", "2026-01-03.csv"),
		[]byte("station,time,celsius\nharbour,2026-01-03T06:00:00Z,1\n"), 0o600))
	must(t, nil, "datasets", "get", "daily_temperatures", "--data", data)
	eventually(t, "the new file flows through", func() (bool, error) {
		return strings.Contains(dagctl(t, nil, "datasets", "partitions", "daily_temperatures", "--data", data).out,
			"2026-01-03"), nil
	})

	interrupt(errInterrupted)
	require.Equal(t, cli.ExitInterrupted, <-ended, errs.String())
	require.NoFileExists(t, filepath.Join(data, cli.DevServerFile))
}

const producerDAG = `name: producer
jobs:
  - name: numbers
    operator: file_source
    source: { kind: poll, every: 1s }
    config: { path: numbers.csv, format: csv }
publish:
  numbers: { from: { job: numbers } }
`

func TestDevDeploysProducersFirst(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "dag.yaml"), []byte(text), 0o600))
	}
	write("a-consumer", `name: consumer
jobs:
  - name: doubled
    operator: sql
    inputs:
      - from: { dataset: numbers }
    partition_by: none
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT n * 2 AS n FROM numbers" }
publish:
  doubled: { from: { job: doubled } }
`)
	write("b-producer", producerDAG)
	write("c-other", strings.NewReplacer("name: producer", "name: other", "  numbers: {",
		"  others: {").Replace(producerDAG))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "b-producer", "numbers.csv"), []byte("n\n21\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "c-other", "numbers.csv"), []byte("n\n7\n"), 0o600))
	out := must(t, nil, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", processtest.DataFolder(t))
	require.Contains(t, out, "doubled: 1 row in 1 partition\n n\n42\n")
	require.Contains(t, out, "others: 1 row in 1 partition\nn\n7\n", "a path is relative to its own DAG file")
}

// TestDevRecoversFromAKill kills a dev server and starts another one on the same data folder.
func TestDevRecoversFromAKill(t *testing.T) {
	t.Parallel()
	path, err := binary()
	require.NoError(t, err)
	dir, data := starterFolder(t), processtest.DataFolder(t)
	cmd, log := exec.Command(path, "dev", dir, "--addr", "127.0.0.1:0", "--data", data), new(output)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	eventually(t, "it works", func() (bool, error) { return strings.Contains(log.String(), "is Building"), nil })
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // it says: killed

	stale := dagctl(t, nil, "status", "--data", data)
	require.Equal(t, cli.ExitServer, stale.code)
	require.Contains(t, stale.err, "does not answer")
	out := must(t, nil, "dev", dir, "--once", "--addr", "127.0.0.1:0", "--data", data)
	require.Contains(t, out, "daily_temperatures: 4 rows in 2 partitions")
}
