package dispatcher_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

const fed = `
name: fed
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    max_attempts: 1
    config: { path: ".", pattern: "{date}.csv", format: csv }
  - name: sums
    operator: sql
    partition_by: none
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT max(v) AS v FROM raw" }
publish: { fed_raw: { from: { job: raw } }, fed_sums: { from: { job: sums } } }
`

// An empty day has the types that stand, so it does not make texts of the numbers of all days.
func TestAnEmptyFileHasTheTypesThatStand(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "id,v\n1,9\n2,10\n")
	w.Serve(dispatchertest.Edit(fed, "publish: {", `  - name: tens
    operator: sql
    partition_by: none
    inputs: [{ from: { job: raw }, where: { v: 10 } }]
    config: { query: "SELECT id, v FROM raw" }
publish: { fed_tens: { from: { job: tens } },`))
	w.Drop("2026-01-02.csv", "")
	w.Drop("2026-01-03.csv", "id,v\n,\n")
	w.Poll()
	w.Settle()
	require.Len(t, w.Read("fed_raw"), 3)
	require.Equal(t, []string{"10"}, w.Read("fed_sums")["all"])
	require.Equal(t, []string{"2,10"}, w.Read("fed_tens")["all"])
}

// Two tasks that find different columns at the same time: what the first commits stands, the other reads by that.
func TestTheFirstReadingStands(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "id,v\n1,9\n2,10\n")
	w.Drop("2026-01-02.csv", "id,v\n1,1.5\n")
	w.Drop("2026-01-03.csv", "id,v\n")
	build := w.Deploy(fed)
	w.Advance()
	tasks := w.Claim(w.D)
	require.Len(t, tasks, 3)

	var ends []error
	for _, task := range tasks {
		done := w.Do(w.D, task)
		require.NoError(t, done.Outcome.Err)
		ends = append(ends, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)))
	}
	require.NoError(t, ends[0])
	require.ErrorIs(t, ends[1], dispatcher.ErrReadingMoved)
	require.ErrorIs(t, ends[2], dispatcher.ErrReadingMoved)
	for _, task := range tasks[1:] {
		require.NoError(t, w.D.HandBack(t.Context(), task, "again", dispatchertest.Later(0), dispatchertest.Later(0)))
	}
	w.Settle()
	status, why := w.Status(build.Version.ID)
	require.EqualValues(t, "Failed", status)
	require.Contains(t, why, `2026-01-02.csv line 2, column v: "1.5" does not fit BIGINT`)

	w.Drop("2026-01-02.csv", "id,v\n1,11\n")
	w.Serve(fed)
	require.Equal(t, []string{"11"}, w.Read("fed_sums")["all"])
}

// What checks reject does not decide how the next file is read.
func TestARejectedFileSettlesNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "<html>\nsorry\n")
	checked := dispatchertest.Edit(fed, "format: csv }", "format: csv }\n    checks: [{ row_count: { min: 2 } }]")
	w.Deploy(checked)
	w.Settle()
	require.Zero(t, w.Count(`SELECT FROM dataset_readings`))
	w.Drop("2026-01-01.csv", "id,v\n1,9\n2,10\n")
	w.Serve(checked)
	require.Equal(t, []string{"10"}, w.Read("fed_sums")["all"])
}

func TestBadRowsGoToTheQuarantine(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	apart := dispatchertest.Edit(fed, "format: csv }", "format: csv, on_bad_rows: quarantine }")
	_, err := w.TryDeploy(apart)
	require.True(t, fault.Is(err, fault.Invalid))

	apart = dispatchertest.Edit(apart, "max_attempts: 1", "outputs: [rows, quarantine]")
	apart = dispatchertest.Edit(apart, "inputs: [{ from: { job: raw }", "inputs: [{ from: { job: raw, output: rows }")
	apart = dispatchertest.Edit(apart, "fed_raw: { from: { job: raw } }",
		"fed_raw: { from: { job: raw, output: rows } }, fed_bad: { from: { job: raw, output: quarantine } }")
	w.Drop("2026-01-01.csv", "id,v\n1,9\n2,10\n4,Doe, K\n")
	w.Serve(apart)
	require.Equal(t, []string{"1,9", "2,10"}, w.Read("fed_raw")["2026-01-01"])
	require.Equal(t, []string{`2026-01-01.csv,4,<nil>,4,Doe, K,has 3 values, not 2,4,Doe, K`}, w.Read("fed_bad")["2026-01-01"])

	w.Drop("2026-01-01.csv", "id,v\n1,9\n4,x\xe9\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"1,9"}, w.Read("fed_raw")["2026-01-01"])
	require.Equal(t, []string{`2026-01-01.csv,3,v,x\xE9,is no BIGINT,4,x\xE9`}, w.Read("fed_bad")["2026-01-01"])
	badOf := func(name string) *registry.BadRows {
		found, err := w.D.Registry.Dataset(t.Context(), w.Caller, name)
		require.NoError(t, err)
		return found.BadRows
	}
	require.Equal(t, &registry.BadRows{Dataset: "fed_bad", Rows: 1, Partitions: 1, Newest: "2026-01-01"},
		badOf("fed_raw"))
	require.Contains(t, dispatchertest.CodesIn(w.WhyNot("fed_raw", "2026-01-01").Reasons), "bad_rows")
	require.NotContains(t, dispatchertest.CodesIn(w.WhyNot("fed_raw", "2026-01-02").Reasons), "bad_rows")

	w.Drop("2026-01-01.csv", "id,v\n1,9\n")
	w.Poll()
	w.Settle()
	require.Empty(t, w.Read("fed_bad")["2026-01-01"])
	require.Equal(t, &registry.BadRows{Dataset: "fed_bad"}, badOf("fed_raw"))
	require.Nil(t, badOf("fed_bad"))
	require.Nil(t, badOf("fed_sums"))
}

// ofFormat is fed with files of a format, in a storage.
func ofFormat(format, storage string) string {
	return dispatchertest.Edit(fed, "{date}.csv", "{date}."+format, "format: csv", "format: "+format,
		"max_attempts: 1", "storage: "+storage+"\n    max_attempts: 1")
}

// A column that had no value in the first files has no type yet: the file that shows one decides, and what was
// published before has that type, too, and does not make texts of numbers. A table cannot change: there, the error says
// what to do.
func TestAColumnOfNullsGetsItsTypeLater(t *testing.T) {
	t.Parallel()
	for format, files := range map[string][2]string{
		"csv":    {"id,v\n1,\n", "id,v\n1,9\n2,10\n"},
		"ndjson": {`{"id":1,"v":null}`, `{"id":1,"v":9}` + "\n" + `{"id":2,"v":10}`},
		"json":   {`[{"id":1,"v":null}]`, `[{"id":1,"v":9},{"id":2,"v":10}]`},
	} {
		for _, storage := range []string{"parquet", "postgres"} {
			t.Run(format+" in "+storage, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				yaml := ofFormat(format, storage)
				w.Drop("2026-01-01."+format, files[0])
				w.Serve(yaml)
				w.Drop("2026-01-02."+format, files[1])
				w.Poll()
				w.Settle()

				if storage == "postgres" {
					id := w.TaskOf("raw", "2026-01-02")
					var text string
					w.Row(`SELECT error_message FROM tasks WHERE id = $1 AND status = 'Failed'`, id)(&text)
					require.Contains(t, text, `column "v" is VARCHAR in the table`)
					require.Contains(t, text, "2026-01-02")
					require.Contains(t, text, "`types`")

					declared := dispatchertest.Edit(yaml, "format: "+format, "format: "+format+", types: { v: BIGINT }")
					w.Serve(declared)
				}
				require.Equal(t, []string{"1,<nil>"}, w.Read("fed_raw")["2026-01-01"])
				require.Equal(t, []string{"10"}, w.Read("fed_sums")["all"])
			})
		}
	}
}

// A key that no file had before is an error that names it, and not a column that half of the partitions lack.
func TestNewKeysInLaterFiles(t *testing.T) {
	t.Parallel()
	for format, files := range map[string][3]string{
		"ndjson": {`{"id":1,"v":9}`, `{"id":1,"v":10}` + "\n" + `{"id":2,"v":11,"w":1}`, "2026-01-02.ndjson line 2, column w"},
		"json": {`[{"id":1,"v":9}]`, `[{"id":1,"v":10},` + "\n" + `{"id":2,"v":11,"w":1}]`,
			"2026-01-02.json line 2, column w"},
		"csv": {"id,v\n1,9\n", "id,v,w\n1,10,1\n", `2026-01-02.csv line 1: column "w" is new`},
	} {
		for _, storage := range []string{"parquet", "postgres"} {
			t.Run(format+" in "+storage, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				yaml := ofFormat(format, storage)
				w.Drop("2026-01-01."+format, files[0])
				w.Serve(yaml)
				w.Drop("2026-01-02."+format, files[1])
				w.Poll()
				w.Settle()
				var text string
				w.Row(`SELECT error_message FROM tasks WHERE id = $1`, w.TaskOf("raw", "2026-01-02"))(&text)
				require.Contains(t, text, files[2])
				require.Contains(t, text, "`types`")
				require.Equal(t, []string{"9"}, w.Read("fed_sums")["all"])

				// As it says: with a type, the column is there, and NULL where it was not.
				declared := "format: " + format + ", types: { w: BIGINT }"
				if format == "csv" {
					declared += ", optional_columns: [w]"
				}
				w.Serve(dispatchertest.Edit(yaml, "format: "+format, declared))
				require.Equal(t, []string{"1,9,<nil>"}, w.Read("fed_raw")["2026-01-01"])
			})
		}
	}
}

// A task that read by a reading whose type is open publishes nothing once another task has settled the type.
func TestAnOpenReadingThatWasSettledMeanwhile(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "id,v\n1,\n")
	w.Serve(fed)
	w.Drop("2026-01-02.csv", "id,v\n1,\n")
	w.Drop("2026-01-03.csv", "id,v\n1,9\n")
	w.Poll()
	tasks := w.Claim(w.D)
	require.Len(t, tasks, 2)
	slices.SortFunc(tasks, func(a, b dispatcher.Claimed) int { return -strings.Compare(a.Slot, b.Slot) })

	ends := []error{nil, dispatcher.ErrReadingMoved}
	for i, task := range tasks {
		done := w.Do(w.D, task)
		require.NoError(t, done.Outcome.Err)
		require.ErrorIs(t, w.D.CompleteAttempt(t.Context(), task, done, dispatchertest.Later(0)), ends[i])
	}
	require.NoError(t, w.D.HandBack(t.Context(), tasks[1], "again", dispatchertest.Later(0), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, []string{"1,<nil>"}, w.Read("fed_raw")["2026-01-02"])
	require.Equal(t, []string{"9"}, w.Read("fed_sums")["all"])
}
