package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

// How a source's files are read, and how many of their rows do not fit, stands where people look at the dataset: in the
// command, on its page and in why. Who may not see the quarantine does not learn of it.
func TestBadRowsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(w.roots, "bad")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "2026-01-01.csv"), []byte("id;v\n1;9\n2;ten\n3;1;2\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "2026-01-02.csv"), []byte("id;v\n4;7\n"), 0o600))
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`name: measures
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    outputs: [rows, quarantine]
    config:
      path: `+dir+`
      pattern: "{date}.csv"
      format: csv
      types: { id: BIGINT, v: BIGINT }
      on_bad_rows: quarantine
publish: { measured: { from: { job: raw, output: rows } } }
`), 0o600))
	env := w.env(t, writer)
	must(t, env, "deploy", file)

	const bad = "measures/raw/quarantine"
	require.Equal(t, &registry.BadRows{Dataset: bad, Rows: 2, Partitions: 1, Newest: "2026-01-01"},
		decode[registry.Dataset](t, env, "datasets", "get", "measured").BadRows)
	told := must(t, env, "datasets", "get", "measured")
	require.Regexp(t, `Read as +csv, ";" between values, names in the first line; as in 2026-01-0\d.csv\n`, told)
	require.Regexp(t, "Bad rows +2, in partitions: 1, the last being 2026-01-01; see "+bad, told)
	const reason = "of its files, 2 rows did not fit and went to " + bad
	require.Contains(t, must(t, env, "why", "measured"), reason)
	require.Contains(t, must(t, env, "why-not", "measured", "2026-01-01"), reason)
	require.NotContains(t, must(t, env, "why-not", "measured", "2026-01-02"), "did not fit")
	page := text(w.page(t, writer, "/datasets/measured"))
	require.Contains(t, page, "Bad rows 2 in 1 partitions, kept in "+bad)
	require.Contains(t, page, `Read as csv, ";" between values`)

	told = must(t, w.env(t, reader), "datasets", "get", "measured")
	require.Contains(t, told, "Read as")
	require.NotContains(t, told, "Bad rows")
	require.NotContains(t, text(w.page(t, reader, "/datasets/measured")), "Bad rows")
	require.NotContains(t, must(t, w.env(t, reader), "why", "measured"), "did not fit")

	must(t, w.env(t, admin), "roles", "create", "lab")
	must(t, w.env(t, admin), "datasets", "visibility", "measured", "--role", "role:lab")
	require.Contains(t, dagctl(t, env, "datasets", "get", bad).err, "there is no dataset", "it has rows of these files")
}
