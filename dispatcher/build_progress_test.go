package dispatcher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

func TestCriticalPath(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		steps   []step
		path    []string
		seconds float64
	}{
		"nothing":            {nil, nil, 0},
		"one":                {[]step{{"a", nil, 2}}, []string{"a"}, 2},
		"a chain":            {[]step{{"a", nil, 2}, {"b", []string{"a"}, 3}}, []string{"a", "b"}, 5},
		"the longer way":     {[]step{{"a", nil, 2}, {"b", nil, 5}, {"c", []string{"a", "b"}, 1}}, []string{"b", "c"}, 6},
		"through what is up": {[]step{{"a", nil, 2}, {"b", []string{"a"}, 0}, {"c", []string{"b"}, 1}}, []string{"a", "c"}, 3},
		"two outputs":        {[]step{{"a", nil, 2}, {"a", nil, 3}}, []string{"a"}, 3},
		"a circle":           {[]step{{"a", []string{"b"}, 1}, {"b", []string{"a"}, 1}}, []string{"b", "a"}, 2},
	} {
		path, seconds := criticalPath(c.steps)
		require.Equal(t, c.path, path, name)
		require.InDelta(t, c.seconds, seconds, 1e-9, name)
	}
}

func TestTook(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		n      int
		mean   float64
		atOnce int
		want   float64
	}{{0, 3, 4, 0}, {-1, 3, 4, 0}, {1, 3, 4, 3}, {4, 3, 4, 3}, {8, 3, 4, 6}, {2, 3, 1, 6}, {2, 3, 0, 6}} {
		require.InDelta(t, c.want, took(c.n, c.mean, c.atOnce), 1e-9, "%+v", c)
	}
}

// progressOf tells done/total by job; -1 is a total nobody knows yet.
func progressOf(b *BuildProgress) map[string][2]int {
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
	w := lettersWorld(t)
	first := w.deploy(letters)
	look := func(number int) VersionDetail {
		t.Helper()
		v, err := w.d.VersionDetail(t.Context(), w.caller, "letters", number, time.Now())
		require.NoError(t, err)
		return v
	}
	// Before its source is read nobody can tell; then everything downstream of it follows by the mappings.
	require.Equal(t, map[string][2]int{"raw": {0, -1}, "upper": {0, -1}, "other": {0, -1}, "joined": {0, -1}}, progressOf(look(1).Build))
	w.advance()
	require.Equal(t, map[string][2]int{"raw": {0, 2}, "upper": {0, 2}, "other": {0, 2}, "joined": {0, 1}}, progressOf(look(1).Build))
	tasks := w.claim(w.d)
	require.Len(t, tasks, 2)
	w.d.execute(t.Context(), tasks[0])
	b := look(1).Build
	require.Equal(t, [2]int{1, 2}, progressOf(b)["raw"])
	require.Equal(t, int64(1), b.Datasets[0].Running)
	require.Positive(t, b.Datasets[0].Rate)
	require.Equal(t, registry.Create, b.Datasets[0].Action)
	require.Equal(t, "letters_upper", b.Datasets[1].Dataset)
	require.Equal(t, []string{"raw"}, b.CriticalPath)
	require.Positive(t, b.Seconds)
	require.Equal(t, int64(1), b.Completed)
	w.d.execute(t.Context(), tasks[1])
	w.settle()
	status, reason := w.status(first.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Nil(t, look(1).Build, "it serves")

	// An edit: only what it changes is shown, against what serves and what failed.
	w.deploy(edit(letters, "SELECT upper(content) AS content", "SELECT CAST(upper(content) || 'x' AS INTEGER) AS content"))
	w.advance()
	require.Equal(t, map[string][2]int{"upper": {0, 2}, "joined": {0, 1}}, progressOf(look(2).Build))
	require.Equal(t, registry.Rebuild, look(2).Build.Datasets[0].Action)
	require.Equal(t, []string{"upper", "joined"}, look(2).Build.CriticalPath)
	w.d.execute(t.Context(), w.claim(w.d)[0])
	b = look(2).Build
	require.Equal(t, int64(1), b.Datasets[0].Failed+b.Retrying, "%+v", b)

	// A reader who may not know of a dataset is told of its job alone.
	reader := w.caller
	reader.Role = authz.RoleReader
	dag, err := w.d.DAG(t.Context(), reader, "letters")
	require.NoError(t, err)
	require.Equal(t, progressOf(b), progressOf(dag.Build))
	w.exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'letters_upper'`)
	dag, err = w.d.DAG(t.Context(), reader, "letters")
	require.NoError(t, err)
	require.Empty(t, dag.Build.Datasets[0].Dataset)
	require.Equal(t, "letters_joined", dag.Build.Datasets[1].Dataset)
}

func TestAPlanHasACriticalPath(t *testing.T) {
	t.Parallel()
	w := lettersWorld(t)
	w.serve(letters)
	changed := edit(letters, "SELECT upper(content) AS content", "SELECT upper(content) || '?' AS content")
	p, err := w.d.Plan(t.Context(), w.caller, "letters", registry.DeployRequest{YAML: changed})
	require.NoError(t, err)
	require.Equal(t, []string{"upper", "joined"}, p.CriticalPath)
	require.Positive(t, p.CriticalSeconds)
}
