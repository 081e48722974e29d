package main

import (
	"encoding/csv"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/registry"
)

// quartersDAG sums days by quarter, these by year, and the last four quarters, and compares days with their quarters.
const quartersDAG = `name: reports
jobs:
` + landingJob + `  - name: quarterly
    operator: sql
    inputs: [{ from: { job: landing }, map: { window: quarter, require: available } }]
    config: { query: "SELECT getvariable('partition') AS quarter, sum(n) AS n, getvariable('start') AS begins,
      getvariable('end') AS ends FROM landing" }
  - name: yearly
    operator: sql
    inputs: [{ from: { job: quarterly }, map: { window: year, require: available } }]
    config: { query: "SELECT getvariable('partition') AS year, sum(n) AS n FROM quarterly" }
  - name: trailing
    operator: sql
    inputs: [{ from: { job: quarterly }, map: { window: { last: 4 }, require: available } }]
    config: { query: "SELECT getvariable('partition') AS quarter, sum(n) AS n FROM quarterly" }
  - name: strict
    operator: sql
    inputs: [{ from: { job: quarterly }, map: { window: year } }]
    config: { query: "SELECT sum(n) AS n FROM quarterly" }
  - name: shares
    operator: sql
    inputs: [{ from: { job: landing }, as: day }, { from: { job: quarterly }, map: within }]
    config: { query: "SELECT getvariable('partition') AS day, day.n || '/' || quarterly.n AS share FROM day, quarterly" }
publish:
  shares: { from: { job: shares } }
  quarters: { from: { job: quarterly } }
  years: { from: { job: yearly } }
  trailing_quarters: { from: { job: trailing } }
  whole_years: { from: { job: strict } }
`

// TestQuartersAndYears lands days, and finds quarters and years made of them; a changed day computes its own anew.
func TestQuartersAndYears(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := func(day string, n int) { w.landText(t, day, fmt.Sprintf("n\n%d\n", n)) }
	n("2025-12-31", 1)
	n("2026-01-01", 10)
	n("2026-03-31", 100)
	n("2026-04-01", 1000)
	n("2026-09-30", 10_000)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "reports", quartersDAG))

	env := w.env(t, writer)
	rows := func(dataset string, args ...string) (text []string) {
		out := must(t, env, append([]string{"datasets", "export", dataset, "-o", "-", "--format", "csv"}, args...)...)
		all, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		require.NoError(t, err)
		for _, row := range all[1:] {
			text = append(text, strings.Join(row[:2], " "))
		}
		return text
	}
	require.Equal(t, []string{"2025-Q4 1", "2026-Q1 110", "2026-Q2 1000", "2026-Q3 10000"}, rows("quarters"))
	require.Equal(t, []string{"2026-Q1 110", "2026-Q2 1000"}, rows("quarters", "--partition", "2026-Q1..2026-Q2"))
	require.Equal(t, []string{"2025 1", "2026 11110"}, rows("years"))
	require.Equal(t, []string{"2026-Q2 1111", "2026-Q3 11111", "2026-Q4 11110"},
		rows("trailing_quarters", "--partition", "2026-Q2..2026-Q4"))
	require.Equal(t, []string{"2025-12-31 1/1", "2026-01-01 10/110", "2026-03-31 100/110", "2026-04-01 1000/1000",
		"2026-09-30 10000/10000"}, rows("shares"))
	require.Empty(t, w.partitions(t, "whole_years"), "no year has all of its quarters")
	whole := must(t, env, "datasets", "export", "quarters", "-o", "-", "--format", "csv", "--partition", "2026-Q1")
	require.Contains(t, whole, "2026-01-01")
	require.Contains(t, whole, "2026-04-01")

	// A day that changes computes its quarter, the year of that, and the quarters that look back to it.
	quarters, years, shares := w.revisions(t, "quarters"), w.revisions(t, "years"), w.revisions(t, "shares")
	n("2026-03-31", 200)
	n("2026-12-31", 100_000)
	eventually(t, "the year is made of its new quarters", func() (bool, error) {
		return strings.Join(rows("years"), ", ") == "2025 1, 2026 111210", nil
	})
	eventually(t, "the whole year is made of its new quarters", func() (bool, error) {
		out := dagctl(t, env, "datasets", "export", "whole_years", "-o", "-", "--format", "csv", "--partition", "2026")
		return strings.Contains(out.out, "111210"), nil
	})
	require.Equal(t, []string{"2026-Q1", "2026-Q4"}, changed(quarters, w.revisions(t, "quarters")))
	require.Equal(t, []string{"2026"}, changed(years, w.revisions(t, "years")))
	eventually(t, "the days of the quarter are compared with what it is now", func() (bool, error) {
		return strings.HasPrefix(strings.Join(rows("shares"), ", "),
			"2025-12-31 1/1, 2026-01-01 10/210, 2026-03-31 200/210, 2026-04-01 1000/1000,"), nil
	})
	eventually(t, "the new day is compared with its quarter", func() (bool, error) {
		return slices.Contains(w.partitions(t, "shares"), "2026-12-31"), nil
	})
	require.Equal(t, []string{"2026-01-01", "2026-03-31", "2026-12-31"}, changed(shares, w.revisions(t, "shares")))

	// Ranges of commands, and what is none of them.
	quarters = w.revisions(t, "quarters")
	b := decode[control.Backfill](t, env, "backfill", "reports/quarterly", "--from", "2026-Q1", "--to", "2026-Q4",
		"--existing", "all", "--propagate", "none", "--wait")
	require.Equal(t, 4, b.Done)
	require.Equal(t, []string{"2026-Q1", "2026-Q2", "2026-Q3", "2026-Q4"},
		changed(quarters, w.revisions(t, "quarters")))
	failed := dagctl(t, env, "backfill", "reports/quarterly", "--from", "2026-01", "--to", "2026-Q4")
	require.Contains(t, failed.err, `"2026-01" is not a quarter such as 2001-Q1`)
	failed = dagctl(t, env, "backfill", "reports/yearly", "--from", "2027", "--to", "2026")
	require.Contains(t, failed.err, "the first partition, 2027, comes after the last one, 2026")

	page := text(w.page(t, writer, "/datasets/quarters"))
	require.Contains(t, page, "Q4")
	require.Contains(t, text(w.page(t, writer, "/datasets/years")), "2020s")
}

// revisions returns the revision that readers see of each partition of a dataset.
func (w *world) revisions(t *testing.T, dataset string) map[string]int64 {
	t.Helper()
	list, err := cli.Fetch[registry.Revision](t.Context(), w.as(writer), cli.DatasetPath(dataset)+"/partitions",
		nil, cli.Page{Limit: 1000})
	require.NoError(t, err)
	revisions := map[string]int64{}
	for _, p := range list {
		revisions[p.Key] = p.Revision
	}
	return revisions
}

// changed lists the partitions that are new or have another revision than before.
func changed(before, after map[string]int64) (keys []string) {
	for key, revision := range after {
		if before[key] != revision {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// TestQuartersOfAnHour lands files of minutes; their keys have colons, in files, tables, addresses and commands.
func TestQuartersOfAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := filepath.Join(w.roots, "often")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	for name, n := range map[string]int{"2001-10-28T0145": 1, "2001-10-28T0230": 10, "2001-10-28T0244": 100,
		"2001-10-28T0600": 1000, "2001-10-28T0210": 5} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name+".csv"), fmt.Appendf(nil, "n\n%d\n", n), 0o600))
	}
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "often", `name: often
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: 15m, timezone: Australia/Lord_Howe }
    config: { path: often, pattern: "{date}T{hour}{minute}.csv", format: csv }
  - name: kept
    operator: sql
    inputs: [{ from: { job: landing } }]
    storage: postgres
    config: { query: "SELECT getvariable('partition') AS p, sum(n) AS n FROM landing" }
  - name: spans
    operator: sql
    inputs: [{ from: { job: kept }, map: { window: 6h, require: available } }]
    config: { query: "SELECT getvariable('partition') AS p, sum(n) AS n, getvariable('end') - getvariable('start') AS w
      FROM kept" }
publish:
  quarter_hours: { from: { job: kept } }
  spans: { from: { job: spans } }
`))

	// The clocks go from 02:00 to 02:30, so nothing is of 02:10; its file is left out and named.
	require.Equal(t, []string{"2001-10-28T01:45", "2001-10-28T02:30", "2001-10-28T06:00"},
		w.partitions(t, "quarter_hours"))
	env := w.env(t, writer)
	export := func(dataset, partition string) string {
		return must(t, env, "datasets", "export", dataset, "-o", "-", "--format", "csv", "--partition", partition)
	}
	require.Equal(t, "p,n\n2001-10-28T02:30,110\n", export("quarter_hours", "2001-10-28T02:30"))
	require.Equal(t, "p,n\n2001-10-28T02:30,110\n2001-10-28T06:00,1000\n",
		export("quarter_hours", "2001-10-28T02:30..2001-10-28T06:00"))
	require.Contains(t, export("spans", "2001-10-28T00"), "2001-10-28T00,111,05:30:00")

	path := "/datasets/quarter_hours?partition=" + url.QueryEscape("2001-10-28T02:30")
	require.Contains(t, text(w.page(t, writer, path)), "110")
	must(t, env, "run", "often/spans", "--partition", "2001-10-28T00", "--watch")
	failed := dagctl(t, env, "run", "often/spans", "--partition", "2001-10-28T05")
	require.Contains(t, failed.err, `"2001-10-28T05" is not a span of 6 hours such as 2001-01-31T00`)
	failed = dagctl(t, env, "run", "often/kept", "--partition", "2001-10-28T02:15")
	require.Contains(t, failed.err, "there is no span of 15 minutes 2001-10-28T02:15 in Australia/Lord_Howe")
}
