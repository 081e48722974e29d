package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// deployReaders deploys a DAG that reads daily_highest by jobs of some names, each with a query of its own.
func (w *world) deployReaders(t *testing.T, dag string, queries map[string]string) {
	t.Helper()
	text := "name: " + dag + "\njobs:\n"
	for _, name := range sortedNames(queries) {
		text += "  - name: " + name + `
    operator: sql
    inputs: [{ from: { dataset: daily_highest }, as: d }]
    execution_strategy: PerPartition
    max_attempts: 1
    config: { query: "` + queries[name] + `" }
`
	}
	text += "publish:\n"
	for _, name := range sortedNames(queries) {
		text += fmt.Sprintf("  %s_%s: { from: { job: %s } }\n", dag, name, name)
	}
	must(t, w.env(t, admin), "deploy", writeDAG(t, t.TempDir(), dag, text))
}

func sortedNames(m map[string]string) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// deploySeldom deploys readingsDAG with a source that nobody reads unasked.
func (w *world) deploySeldom(t *testing.T) {
	t.Helper()
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy",
		writeDAG(t, t.TempDir(), "x", strings.Replace(readingsDAG, "every: 1s", "every: 12h", 1)))
}

// watchLines decodes what `run --watch -o json` printed: the last state of each task by DAG/JOB, and the end.
func watchLines(t *testing.T, out string) (last map[string]string, end map[string]int) {
	t.Helper()
	last = map[string]string{}
	for line := range strings.Lines(out) {
		var e struct {
			Event, DAG, Job, Status string
			Summary                 struct{ Tasks, Completed, Failed, Canceled int }
		}
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		switch e.Event {
		case "task":
			last[e.DAG+"/"+e.Job] = e.Status
		case "end":
			end = map[string]int{"tasks": e.Summary.Tasks, "completed": e.Summary.Completed, "failed": e.Summary.Failed}
		}
	}
	require.NotNil(t, end, out)
	return last, end
}

// What a run set off is followed to its end, over two DAGs, from one task to twenty.
func TestARunIsWatchedToItsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploySeldom(t)
	queries := map[string]string{}
	for i := range 20 {
		queries[fmt.Sprintf("reader%02d", i)] = "SELECT * FROM d"
	}
	w.deployReaders(t, "fan", queries)

	// A source that is read.
	w.land(t, "2026-01-02")
	read := dagctl(t, w.env(t, writer), "run", "readings/landing", "--watch", "-o", "json")
	require.Zero(t, read.code, read.err)
	last, end := watchLines(t, read.out)
	require.Equal(t, map[string]int{"tasks": 22, "completed": 22, "failed": 0}, end)
	require.Len(t, last, 22)
	require.Equal(t, "Completed", last["fan/reader19"])
	again := must(t, w.env(t, writer), "run", "readings/landing", "--watch")
	require.Equal(t, "Nothing was set off.\n", again)

	// A partition that is computed.
	require.Contains(t, dagctl(t, w.env(t, writer), "run", "readings/daily").err, "--partition, `all` if it has none")
	computed := must(t, w.env(t, writer), "run", "readings/daily", "--partition", "2026-01-02", "--watch")
	require.Regexp(t, `readings/daily@2026-01-02 Completed in \d+m?s`, computed)
	require.Contains(t, computed, "fan/reader07@2026-01-02 Completed in")
	require.Contains(t, computed, "21 tasks completed.")
	require.NotContains(t, computed, "2026-01-01")

	// A task of a manual job.
	require.Contains(t, must(t, w.env(t, writer), "run", "readings/note", "--payload", `{"text": "hello"}`, "--watch"),
		"1 task completed.")
	// Those of a batch.
	batch := filepath.Join(t.TempDir(), "notes.ndjson")
	notes := `{"payload": {"text": "a"}}` + "\n" + `{"payload": {"text": "b"}}`
	require.NoError(t, os.WriteFile(batch, []byte(notes), 0o600))
	require.Contains(t, must(t, w.env(t, writer), "run", "readings/note", "--batch", batch, "--watch"),
		"2 tasks completed.")
	// A source that cannot be read.
	require.NoError(t, os.RemoveAll(filepath.Join(w.roots, "landing")))
	unread := dagctl(t, w.env(t, writer), "run", "readings/landing", "--watch")
	require.Equal(t, cli.ExitFailed, unread.code)
	require.Regexp(t, `The source could not be read: .*is not in any of the folders`, unread.out)

	refused := dagctl(t, w.env(t, writer), "run", "readings/landing", "--watch", "-o", "yaml")
	require.Equal(t, cli.ExitFailed, refused.code)
	require.Contains(t, refused.err, "use --output json or table")
}

// A consumer that fails makes the watching fail, with its reason; one that is hidden is not there at all.
func TestWatchedConsumersFailOrAreHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploySeldom(t)
	w.deployReaders(t, "good", map[string]string{"fine": "SELECT * FROM d",
		"picky": "SELECT CASE WHEN max(highest) > 50 THEN error('too hot') END AS x FROM d"})
	w.deployReaders(t, "vault", map[string]string{
		"secret": "SELECT CASE WHEN max(highest) > 50 THEN error('secret_mark') END AS x FROM d"})
	must(t, w.env(t, admin), "roles", "create", "role:finance")
	must(t, w.env(t, admin), "datasets", "visibility", "vault_secret", "--role", "role:finance")

	w.landText(t, "2026-01-02", "station,celsius\nharbour,51\n")
	watched := dagctl(t, w.env(t, writer), "run", "readings/landing", "--watch")
	require.Equal(t, cli.ExitFailed, watched.code, watched.out)
	require.Contains(t, watched.out, "good/fine@2026-01-02 Completed")
	require.Regexp(t, "good/picky@2026-01-02 Failed: .*too hot", watched.out)
	require.Contains(t, watched.out, "3 tasks completed, 1 failed.")
	require.NotContains(t, watched.out+watched.err, "vault")
	require.NotContains(t, watched.out+watched.err, "secret")

	landing := decode[[]views.Task](t, w.env(t, admin), "tasks", "list", "--job", "landing", "--limit", "1")[0]
	path := "/v1/tasks/" + landing.ID.String() + "/caused"
	jobs := func(caller string) (names []string) {
		var found views.Caused
		require.NoError(t, w.as(caller).Get(t.Context(), path, nil, &found))
		for _, task := range found.Tasks {
			names = append(names, task.DAG+"/"+task.Job)
			if task.Job != "landing" {
				require.NotNil(t, task.By)
			}
		}
		return names
	}
	require.NotContains(t, jobs(writer), "vault/secret")
	eventually(t, "an admin sees it", func() (bool, error) { return slices.Contains(jobs(admin), "vault/secret"), nil })

	// What is hidden, of another org, or unknown is absent.
	secret := decode[[]views.Task](t, w.env(t, admin), "tasks", "list", "--job", "secret", "--limit", "1")[0]
	for _, tried := range []struct{ caller, path string }{
		{writer, "/v1/tasks/" + secret.ID.String() + "/caused"},
		{foreign, path},
		{writer, "/v1/tasks/" + uuid.NewString() + "/caused"},
		{foreign, "/v1/sources/readings/landing/caused?since=2026-01-01T00:00:00Z"},
		{writer, "/v1/dags/readings/backfills/" + uuid.NewString() + "/caused"},
	} {
		status, text := w.send(t, tried.caller, http.MethodGet, tried.path, "", nil)
		require.Equal(t, http.StatusNotFound, status, "%s %s: %s", tried.caller, tried.path, text)
		require.NotContains(t, text, "secret")
	}
	status, text := w.send(t, reader, http.MethodGet,
		"/v1/sources/readings/landing/caused?since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status, text)
	require.Contains(t, text, "until is before since")
}

// A revision that checks reject is no good end, although its task completed.
func TestARejectedOutputIsNoGoodEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploySeldom(t)
	w.landText(t, "2026-01-02", "station,celsius\n,51\n")
	watched := dagctl(t, w.env(t, writer), "run", "readings/landing", "--watch")
	require.Equal(t, cli.ExitFailed, watched.code, watched.out)
	require.Contains(t, watched.out, "readings/daily@2026-01-02 Completed, but checks rejected what it made")
	require.Contains(t, watched.out, "1 task completed, 1 failed.")
}

// An interrupt ends the watching, and nothing else.
func TestAnInterruptEndsOnlyTheWatching(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deploySeldom(t)
	must(t, w.env(t, writer), "pause", "readings/note")
	ctx, interrupt := context.WithCancelCause(t.Context())
	out, errs := firstWrite{then: func() { interrupt(errInterrupted) }}, new(bytes.Buffer)
	env := w.env(t, writer)
	code := run(ctx, []string{"run", "readings/note", "--payload", `{"text": "hello"}`, "--watch"}, cli.Environment{
		In: strings.NewReader(""), Out: &out, Err: errs, Getenv: func(name string) string { return env[name] }})
	require.Equal(t, cli.ExitInterrupted, code)
	require.Contains(t, out.String(), "readings/note Queued, waits: paused")
	require.Contains(t, errs.String(), "Not watched any longer; what was set off goes on.")

	must(t, w.env(t, writer), "resume", "readings/note")
	eventually(t, "the task runs", func() (bool, error) {
		return slices.ContainsFunc(w.tasks(t), func(task views.Task) bool {
			return task.Job == "note" && task.Status == "Completed"
		}), nil
	})
}

// firstWrite calls a function after its first write.
type firstWrite struct {
	bytes.Buffer
	then func()
}

func (f *firstWrite) Write(p []byte) (int, error) {
	n, err := f.Buffer.Write(p)
	f.then()
	return n, err
}
