package views_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// progressOf returns done/total by job; a total of -1 is not known yet.
func progressOf(b *views.BuildProgress) map[string][2]int {
	found := map[string][2]int{}
	for _, d := range b.Datasets {
		total := -1
		if d.Total != nil {
			total = *d.Total
		}
		found[d.Job] = [2]int{d.Done, total}
	}
	return found
}

func TestProgressOfABuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	first := w.Deploy(dispatchertest.Letters)
	look := func(number int) views.VersionDetail {
		t.Helper()
		v, err := w.D.Views.VersionDetail(t.Context(), w.Caller, "letters", number, time.Now())
		require.NoError(t, err)
		return v
	}
	// Before the source is read, the totals are unknown; afterwards the mappings give the totals of everything
	// downstream.
	require.Equal(t, map[string][2]int{"raw": {0, -1}, "upper": {0, -1}, "other": {0, -1}, "joined": {0, -1}},
		progressOf(look(1).Build))
	w.Advance()
	require.Equal(t, map[string][2]int{"raw": {0, 2}, "upper": {0, 2}, "other": {0, 2}, "joined": {0, 1}},
		progressOf(look(1).Build))
	tasks := w.Claim(w.D)
	require.Len(t, tasks, 2)
	dispatchertest.Execute(t.Context(), w.D, tasks[0])
	b := look(1).Build
	require.Equal(t, [2]int{1, 2}, progressOf(b)["raw"])
	require.Equal(t, int64(1), b.Datasets[0].Running)
	require.Positive(t, b.Datasets[0].Rate)
	require.Equal(t, deploy.Create, b.Datasets[0].Action)
	require.Equal(t, "letters_upper", b.Datasets[1].Dataset)
	require.Equal(t, []string{"raw"}, b.CriticalPath)
	require.Positive(t, b.Seconds)
	require.Equal(t, int64(1), b.Completed)
	dispatchertest.Execute(t.Context(), w.D, tasks[1])
	w.Settle()
	status, reason := w.Status(first.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Nil(t, look(1).Build, "it serves")

	// After an edit, only the changed jobs are shown.
	w.Deploy(dispatchertest.Edit(dispatchertest.Letters, "SELECT upper(content) AS content",
		"SELECT CAST(upper(content) || 'x' AS INTEGER) AS content"))
	w.Advance()
	require.Equal(t, map[string][2]int{"upper": {0, 2}, "joined": {0, 1}}, progressOf(look(2).Build))
	require.Equal(t, deploy.Rebuild, look(2).Build.Datasets[0].Action)
	require.Equal(t, []string{"upper", "joined"}, look(2).Build.CriticalPath)
	dispatchertest.Execute(t.Context(), w.D, w.Claim(w.D)[0])
	b = look(2).Build
	require.Equal(t, int64(1), b.Datasets[0].Failed+b.Retrying, "%+v", b)

	// A reader who may not see a dataset sees only its job.
	reader := w.Caller
	reader.Role = authz.RoleReader
	dag, err := w.D.Views.DAG(t.Context(), reader, "letters")
	require.NoError(t, err)
	require.Equal(t, progressOf(b), progressOf(dag.Build))
	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'letters_upper'`)
	dag, err = w.D.Views.DAG(t.Context(), reader, "letters")
	require.NoError(t, err)
	require.Empty(t, dag.Build.Datasets[0].Dataset)
	require.Empty(t, dag.Build.Datasets[1].Dataset, "it is computed from that")
	w.Exec(`UPDATE datasets SET opened = true WHERE name = 'letters_joined'`)
	dag, err = w.D.Views.DAG(t.Context(), reader, "letters")
	require.NoError(t, err)
	require.Equal(t, "letters_joined", dag.Build.Datasets[1].Dataset)
}

func TestAPlanHasACriticalPath(t *testing.T) {
	t.Parallel()
	w := dispatchertest.LettersWorld(t)
	w.Serve(dispatchertest.Letters)
	changed := dispatchertest.Edit(dispatchertest.Letters, "SELECT upper(content) AS content",
		"SELECT upper(content) || '?' AS content")
	p, err := w.D.Views.Plan(t.Context(), w.Caller, "letters", registry.DeployRequest{YAML: changed})
	require.NoError(t, err)
	require.Equal(t, []string{"upper", "joined"}, p.CriticalPath)
	require.Positive(t, p.CriticalSeconds)
}

// What a source that splits its rows has already is known, so the totals of what reads it are.
func TestProgressOfABuildAfterASplit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "date,v\n2026-01-01,1\n2026-01-02,2\n")
	const split = `
name: mail
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day, column: date }
    config: { path: ".", pattern: "*.csv", format: csv, types: { date: DATE } }
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT sum(v)::BIGINT AS v FROM raw" }
  - name: twice
    operator: sql
    inputs: [{ from: { job: sums } }]
    config: { query: "SELECT 2 * v AS v FROM sums" }
`
	w.Serve(split)
	edited := dispatchertest.Edit(split, "sum(v)::BIGINT", "max(v)::BIGINT")
	for _, c := range w.Plan(edited).Changes[1:] {
		require.Equal(t, 2, *c.Partitions, c.Job)
	}
	w.Deploy(edited)
	w.Advance()
	v, err := w.D.Views.VersionDetail(t.Context(), w.Caller, "mail", 2, time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string][2]int{"sums": {0, 2}, "twice": {0, 2}}, progressOf(v.Build))
}

// Once a source or a job that is built anew has split its rows, its partitions are known, and those of what reads them.
func TestProgressOfABuildOfASplit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "date,v\n2026-01-01,1\n2026-01-02,2\n")
	const split = `
name: mail
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: "a.csv", format: csv, types: { date: DATE } }
  - name: days
    operator: sql
    inputs: [{ from: { job: raw } }]
    partition_by: { time: day, column: date }
    config: { query: "SELECT * FROM raw" }
  - name: sums
    operator: sql
    inputs: [{ from: { job: days } }]
    config: { query: "SELECT sum(v)::BIGINT AS v FROM days" }
`
	w.Serve(split)
	version := 1
	progress := func() map[string][2]int {
		t.Helper()
		v, err := w.D.Views.VersionDetail(t.Context(), w.Caller, "mail", version, time.Now())
		require.NoError(t, err)
		return progressOf(v.Build)
	}
	next := func() {
		t.Helper()
		w.Advance()
		dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
		w.Route()
	}

	version++
	w.Deploy(dispatchertest.Edit(split, "types: { date: DATE }", "types: { date: DATE, v: INTEGER }"))
	require.Equal(t, map[string][2]int{"raw": {0, 1}, "days": {0, -1}, "sums": {0, -1}}, progress())
	next()
	require.Equal(t, map[string][2]int{"raw": {1, 1}, "days": {0, -1}, "sums": {0, -1}}, progress())
	next()
	require.Equal(t, map[string][2]int{"raw": {1, 1}, "days": {2, 2}, "sums": {0, 2}}, progress())
	w.Settle()

	version++
	w.Deploy(dispatchertest.Edit(split, "    config: { path: ",
		"    partition_by: { time: day, column: date }\n    config: { path: ",
		"    partition_by: { time: day, column: date }\n    config: { query: \"SELECT * FROM raw\" }",
		"    config: { query: \"SELECT v FROM raw\" }"))
	require.Equal(t, map[string][2]int{"raw": {0, -1}, "days": {0, -1}, "sums": {0, -1}}, progress())
	next()
	require.Equal(t, map[string][2]int{"raw": {2, 2}, "days": {0, 2}, "sums": {0, 2}}, progress())
}
