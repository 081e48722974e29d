package operators_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

func TestHTTPSourceRemembers(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	var validators, conditional, asked atomic.Int64
	body.Store("a\n1\n")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Header.Get("If-None-Match") != "" {
			conditional.Add(1)
		}
		text := body.Load().(string)
		if validators.Load() > 0 {
			w.Header().Set("ETag", fmt.Sprintf("%q", text))
			if r.Header.Get("If-None-Match") == w.Header().Get("ETag") {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
		fmt.Fprint(w, text)
	}))

	t.Cleanup(server.Close)
	w := newWorld(t, builtin(t, "http_source"))
	a := assignment("http_source", map[string]any{"url": server.URL, "format": "csv"})
	next := func() operators.Outcome {
		a.Attempt++
		out := w.mustRun(t, a)
		if out.State != nil {
			a.State = out.State
		}
		return out
	}

	first := next()
	require.Len(t, first.Written, 1)
	again := next()
	require.True(t, again.Unchanged, "the same content, though the server has no validators")
	require.Equal(t, first.SourceVersion, again.SourceVersion)
	require.Zero(t, conditional.Load())

	validators.Store(1)
	require.True(t, next().Unchanged)
	require.True(t, next().Unchanged)
	require.Equal(t, int64(1), conditional.Load())

	body.Store("a\n2\n")
	changed := next()
	require.Equal(t, [][]any{{int64(2)}}, w.rows(t, a, changed.Written[0]))
	require.NotEqual(t, first.SourceVersion, changed.SourceVersion)

	// Another config is another table, so the state of the old one does not count.
	a.Config = map[string]any{"url": server.URL, "format": "csv", "types": map[string]any{"a": "VARCHAR"}}
	require.Equal(t, [][]any{{"2"}}, w.rows(t, a, next().Written[0]))
}

func TestHTTPSourceReachesPublicAddressesOnly(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("it was reached")
	}))
	t.Cleanup(server.Close)
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	op, _ := registry.Get("http_source")
	out := newWorld(t, op).run(t, assignment("http_source", map[string]any{"url": server.URL + "/?key=s3cret",
		"format": "csv"}))
	require.ErrorContains(t, out.Err, "it is not public")
	require.NotContains(t, out.Err.Error(), "s3cret")
	require.False(t, out.Retryable)
}

func TestFileSourceSeesWhatChanged(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	op := builtin(t, "file_source").(operators.Enumerator)
	versions := func(now time.Time) map[string]string {
		units, err := op.Enumerate(t.Context(), operators.Enumeration{
			Config:      map[string]any{"path": ".", "pattern": "{key}.csv", "format": "csv"},
			PartitionBy: dag.Partitioning{Kind: dag.ByKey}, Roots: []string{root}, Now: now,
		})
		require.NoError(t, err)
		found := map[string]string{}
		for _, unit := range units {
			found[unit.Partition] = unit.Version
		}
		return found
	}

	writeFile(t, root, "a.csv", "x\n1\n")
	writeFile(t, root, "b.csv", "x\n1\n")
	now := time.Now()
	first := versions(now)
	require.Len(t, first, 2)
	require.Equal(t, first["a"], first["b"], "the version depends only on the content")

	require.NoError(t, os.Chtimes(filepath.Join(root, "a.csv"), now, now.Add(-time.Hour)))
	require.Equal(t, first, versions(now), "a touched file has the same version")

	// Same size, same mtime, other content, while the mtime is too young to be trusted.
	at := time.Now()
	writeFile(t, root, "b.csv", "x\n2\n")
	require.NoError(t, os.Chtimes(filepath.Join(root, "b.csv"), at, at))

	second := versions(at.Add(time.Second))
	require.NotEqual(t, first["b"], second["b"])
	writeFile(t, root, "b.csv", "x\n3\n")
	require.NoError(t, os.Chtimes(filepath.Join(root, "b.csv"), at, at))

	third := versions(at.Add(time.Second))
	require.NotEqual(t, second["b"], third["b"])

	writeFile(t, root, "c.csv", "x\n1\n")
	require.NoError(t, os.Remove(filepath.Join(root, "a.csv")))
	last := versions(time.Now())
	require.Equal(t, map[string]string{"b": third["b"], "c": first["a"]}, last)
}

// A document is refused if no file could ever be given to one of the job's partitions.
func TestPatternsThatMakeNoPartitionAreRefused(t *testing.T) {
	t.Parallel()
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines()})
	require.NoError(t, err)
	op, _ := registry.Get("file_source")
	day, month := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}, dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month}
	hour, key := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Hour}, dag.Partitioning{Kind: dag.ByKey}
	in := func(unit dag.TimeUnit) dag.Partitioning { return dag.Partitioning{Kind: dag.ByTime, Unit: unit} }
	for _, test := range []struct {
		pattern string
		by      dag.Partitioning
		want    string
	}{
		{"x.csv", dag.Partitioning{}, ""},
		{"", dag.Partitioning{}, ""},
		{"{date}.csv", day, ""},
		{"{date}/{hour}.csv", hour, ""},
		{"{month}.csv", month, ""},
		{"{date}.csv", month, ""},
		{"{year}.csv", in(dag.Year), ""},
		{"{quarter}.csv", in(dag.Year), ""},
		{"{month}.csv", in(dag.Quarter), ""},
		{"{quarter}.csv", in(dag.Quarter), ""},
		{"{date}T{hour}{minute}.csv", in("15m"), ""},
		{"{date}T{hour}{minute}.csv", in("6h"), ""},
		{"{date}T{hour}.csv", day, ""},
		{"{year}.csv", key, ""},
		{"{key}.csv", key, ""},
		{"{date}.csv", key, ""},
		{"", day, "a single file cannot make partitions"},
		{"x.csv", day, "needs other placeholders"},
		{"{month}.csv", day, "needs other placeholders"},
		{"{date}.csv", hour, "needs other placeholders"},
		{"{date}T{hour}.csv", in("15m"), "needs other placeholders in the pattern: {date}, {hour} and {minute}"},
		{"{year}.csv", in(dag.Quarter), "needs other placeholders in the pattern: {date}, {month} or {quarter}"},
		{"{month}.csv", in(dag.Week), "needs other placeholders in the pattern: {date}"},
		{"{hour}.csv", key, "needs {key}"},
	} {
		fault := op.Spec().CheckJob(&dag.Job{Operator: "file_source", Outputs: []string{"rows"}, PartitionBy: test.by,
			Config: map[string]any{"pattern": test.pattern}})
		if test.want == "" {
			require.Nil(t, fault, "%s %s", test.pattern, test.by)
			continue
		}
		require.NotNil(t, fault, "%s %s", test.pattern, test.by)
		require.Contains(t, fault.Message, test.want)
	}
}

// A file belongs to the partition that the most exact time in its name lies in.
func TestPartitionsOfNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, name string
		unit          dag.TimeUnit
		want          string
	}{
		{"{date}.csv", "2024-06-30.csv", dag.Quarter, "2024-Q2"},
		{"{date}.csv", "2024-12-30.csv", dag.Year, "2024"},
		{"{date}.csv", "2024-12-30.csv", dag.Week, "2025-W01"},
		{"{month}.csv", "2024-12.csv", dag.Quarter, "2024-Q4"},
		{"q-{quarter}.csv", "q-2024-Q3.csv", dag.Quarter, "2024-Q3"},
		{"q-{quarter}.csv", "q-2024-Q3.csv", dag.Year, "2024"},
		{"{year}/*.csv", "2024/a.csv", dag.Year, "2024"},
		{"{date}T{hour}.csv", "2024-06-30T23.csv", "6h", "2024-06-30T18"},
		{"{date}T{hour}{minute}.csv", "2024-06-30T2359.csv", "15m", "2024-06-30T23:45"},
		{"{date}T{hour}{minute}.csv", "2024-06-30T2359.csv", dag.Minute, "2024-06-30T23:59"},
	} {
		p, err := operators.CompileNamePattern(c.pattern)
		require.NoError(t, err)
		key, ok, err := p.PartitionOf(c.name, dag.Partitioning{Kind: dag.ByTime, Unit: c.unit})
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, c.want, key)
	}
}

// Names are any bytes; what is said of them is text, which PostgreSQL takes.
func TestFilesWhoseNamesAreNoText(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	writeFile(t, root, "good.csv", "x\n1\n")
	writeFile(t, root, "bad\xff.csv", "x\n1\n")
	found, err := builtin(t, "file_source").(operators.Resumer).Resume(t.Context(), operators.Enumeration{
		Config:      map[string]any{"path": ".", "pattern": "{key}.csv", "format": "csv"},
		PartitionBy: dag.Partitioning{Kind: dag.ByKey}, Roots: []string{root}, Now: time.Now(),
	})
	require.NoError(t, err)
	require.Len(t, found.Units, 1)
	require.True(t, utf8.ValidString(found.LeftOut.Text()))
	require.Contains(t, found.LeftOut.Text(), "1 file is left out: bad\uFFFD.csv")
}
