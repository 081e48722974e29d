package operators_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
)

// byColumn is raw → wide → narrow → last, and beside narrow jobs that depend on all of wide.
const byColumn = `
name: columns
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 1m }
    config: { path: data, pattern: "{date}.csv", format: csv }
    partition_by: { time: day }
  - name: wide
    operator: sql
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT station, celsius, celsius * 2 AS twice FROM raw WHERE celsius > 0" }
  - name: narrow
    operator: sql
    inputs: [{ from: { job: wide } }]
    config: { query: "SELECT station, max(celsius) AS highest FROM wide GROUP BY station" }
  - name: last
    operator: sql
    inputs: [{ from: { job: narrow } }]
    config: { query: "SELECT highest FROM narrow" }
  - name: counted
    operator: sql
    inputs: [{ from: { job: wide } }]
    config: { query: "SELECT count(*) AS n FROM wide" }
  - name: filtered
    operator: sql
    inputs: [{ from: { job: wide }, where: { twice: [2] } }]
    config: { query: "SELECT station FROM wide" }
  - name: latest
    operator: sql
    inputs: [{ from: { job: raw } }, { from: { job: wide }, map: latest }]
    config: { query: "SELECT w.station FROM raw r JOIN wide w ON r.station = w.station" }
  - name: everything
    operator: sql
    inputs: [{ from: { job: wide } }]
    config: { query: "SELECT * FROM wide" }
  - name: program
    operator: command
    inputs: [{ from: { job: wide } }]
    config: { argv: [cat] }
`

func columnPrints(t *testing.T, text string, epochs map[string]int, on bool) map[string]dag.Fingerprint {
	t.Helper()
	registry, err := operators.Builtin(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, Command: anyProgram, ReuseByColumn: on})
	require.NoError(t, err)
	catalog := registry.Catalog(nil)
	catalog.Names = nil // definitions of versions that serve may name columns that are gone
	doc, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: []byte(text)}, catalog)
	require.Empty(t, problems.Error())
	definitions, err := dag.Define(doc, catalog)
	require.NoError(t, err)
	prints, err := definitions.Fingerprints(epochs)
	require.NoError(t, err)
	return prints
}

// An edit changes the fingerprints of those jobs that depend on what it changes.
func TestFingerprintsByColumn(t *testing.T) {
	t.Parallel()
	const whole = " everything latest program"
	for _, c := range []struct {
		name, old, edited, changed string
	}{
		{"another column", "celsius * 2 AS twice FROM raw", "celsius * 2 AS twice, 1 AS one FROM raw", "wide" + whole},
		{"a dropped column", "celsius, celsius * 2 AS twice FROM raw", "celsius FROM raw", "wide filtered" + whole},
		{"a changed column", "celsius * 2 AS", "celsius * 3 AS", "wide filtered" + whole},
		{"another order of columns", "station, celsius,", "celsius, station,", "wide" + whole},
		{"a column that is read", "station, celsius,", "station, celsius + 1 AS celsius,", // WHERE may mean the alias
			"wide narrow last counted filtered" + whole},
		{"a column read in part", "SELECT station, celsius,", "SELECT lower(station) AS station, celsius,",
			"wide narrow last filtered" + whole},
		{"other rows", "celsius > 0", "celsius > 1", "wide narrow last counted filtered" + whole},
		{"a column that makes rows", "celsius * 2 AS twice FROM raw", "celsius * 2 AS twice, unnest([1]) AS u FROM raw",
			"wide narrow last counted filtered" + whole},
		{"an unnamed column", "celsius * 2 AS twice FROM raw", "celsius * 2 AS twice, celsius + 1 FROM raw",
			"wide narrow last counted filtered" + whole},
		{"storage", "config: { query: \"SELECT station, celsius,",
			"storage: postgres\n    config: { query: \"SELECT station, celsius,",
			"wide narrow last counted filtered" + whole},
		{"the source", "path: data", "path: other", "raw wide narrow last counted filtered" + whole},
		{"further down", "AS highest FROM", "AS highest, min(celsius) AS lowest FROM", "narrow"},
		{"a comment", "celsius > 0", "celsius /* degrees */ > 0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, byColumn, c.old)
			before := columnPrints(t, byColumn, nil, true)
			after := columnPrints(t, strings.Replace(byColumn, c.old, c.edited, 1), nil, true)
			var want, got []string
			want = append(want, strings.Fields(c.changed)...)
			for name := range before {
				require.Equal(t, before[name].Value == after[name].Value, before[name].Base == after[name].Base, name)
				if before[name] != after[name] {
					got = append(got, name)
				}
			}
			require.ElementsMatch(t, want, got)
		})
	}
}

// A job that is computed anew as a whole has other rows, whatever its definition says.
func TestEpochsAreInTheKeysOfColumns(t *testing.T) {
	t.Parallel()
	before := columnPrints(t, byColumn, nil, true)
	after := columnPrints(t, byColumn, map[string]int{"wide": 1}, true)
	for name := range before {
		require.Equal(t, before[name].Base, after[name].Base, name)
		require.Equal(t, name == "raw", before[name].Value == after[name].Value, name)
	}
}

// Where the option is off, jobs depend on the whole definitions of their inputs.
func TestFingerprintsWithoutColumns(t *testing.T) {
	t.Parallel()
	before := columnPrints(t, byColumn, nil, false)
	after := columnPrints(t, strings.Replace(byColumn, "AS twice FROM", "AS twice, 1 AS one FROM", 1), nil, false)
	for name := range before {
		require.Equal(t, name == "raw", before[name] == after[name], name)
	}
}
