package dispatcher_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// splitFiles is a source whose files have rows of many days, with a job downstream of each of them.
const splitFiles = `
name: flown
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day, column: date }
    max_attempts: 1
    config: { path: ".", pattern: "*.csv", format: csv, types: { date: DATE } }
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw } }]
    config: { query: "SELECT count(*) AS n, sum(v)::BIGINT AS v FROM raw" }
publish: { flown_raw: { from: { job: raw } }, flown_sums: { from: { job: sums } } }
`

// days writes the rows of a file: those of a day are its values.
func days(values map[string]string) string {
	text := "date,v\n"
	for day, list := range values {
		for _, v := range strings.Fields(list) {
			text += day + "," + v + "\n"
		}
	}
	return text
}

func TestOnlyDaysWhoseRowsHaveChangedAreMadeAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1 2", "2026-01-02": "3", "2026-02-28": "4"}))
	w.Serve(splitFiles)
	require.Equal(t, map[string][]string{"2026-01-01": {"2026-01-01,1", "2026-01-01,2"},
		"2026-01-02": {"2026-01-02,3"}, "2026-02-28": {"2026-02-28,4"}}, w.Read("flown_raw"))
	require.Equal(t, map[string]int64{"2026-01-01": 1, "2026-01-02": 1, "2026-02-28": 1}, w.Published("sums"))
	require.Equal(t, 1, w.Count(`SELECT FROM partition_versions WHERE state = 'Split' AND partition_key = 'all'`))

	// The rows of a day are the same in another order, too.
	w.Drop("a.csv", days(map[string]string{"2026-02-28": "4", "2026-01-02": "30", "2026-01-01": "2 1"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 1, "2026-01-02": 2, "2026-02-28": 1}, w.Published("raw"))
	require.Equal(t, map[string]int64{"2026-01-01": 1, "2026-01-02": 2, "2026-02-28": 1}, w.Published("sums"))
	require.Equal(t, []string{"1,30"}, w.Read("flown_sums")["2026-01-02"])
	require.Equal(t, 1, w.Count(`SELECT FROM partition_versions WHERE state = 'Split' AND partition_key = 'all'`))

	// Rows that come late, of a month that is over and of a day that is there, in a file of their own.
	w.Drop("b.csv", days(map[string]string{"2025-12-31": "9", "2026-02-28": "5"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2025-12-31": 1, "2026-01-01": 1, "2026-01-02": 2, "2026-02-28": 2},
		w.Published("raw"))
	require.Equal(t, []string{"2,9"}, w.Read("flown_sums")["2026-02-28"])

	// A day whose rows are gone is empty, and so are its consumers; nothing is left to do then.
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1 2", "2026-02-28": "4"}))
	w.Poll()
	w.Settle()
	require.Empty(t, w.Read("flown_raw")["2026-01-02"])
	require.Equal(t, int64(3), w.Published("raw")["2026-01-02"])
	require.Equal(t, []string{"0,<nil>"}, w.Read("flown_sums")["2026-01-02"])
	tasks := w.Attempts("raw")
	w.Drop("c.csv", "date,v\n")
	w.Poll()
	w.Settle()
	require.Equal(t, tasks+1, w.Attempts("raw"))
	require.Equal(t, int64(3), w.Published("raw")["2026-01-02"])
	w.Poll()
	w.Settle()
	require.Equal(t, tasks+1, w.Attempts("raw"), "files that have been read are not read again")
}

func TestRowsWithoutADatePublishNothing(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ yaml, rows, want string }{
		"null": {splitFiles, "date,v\n2026-01-01,1\n,2\n,3\n",
			"2 of 3 rows do not fit: a.csv line 3, column date: the row has no value there, by which rows are split " +
				"into partitions; a.csv line 4, column date: "},
		"null, with a way out": {splitFiles, "date,v\n,2\n", "by which rows are split into partitions; mend the " +
			"file; or keep such rows apart"},
		"skipped": {dispatchertest.Edit(splitFiles, "time: day,", "time: day, timezone: Europe/Berlin,", "DATE",
			"TIMESTAMPTZ"), "date,v\n2026-03-29 02:30:00,1\n", "clocks were put forward; mend the file; or write " +
			"times that the clocks skip with their offset from UTC, as 02:30:00+01:00; or keep such rows apart"},
		"missing": {dispatchertest.Edit(splitFiles, "column: date", "column: day"), "date,v\n2026-01-01,1\n",
			`by column "day": there is no such column`},
		"type": {dispatchertest.Edit(splitFiles, "column: date", "column: v"), "date,v\n2026-01-01,1\n",
			`by column "v": it is BIGINT, and rows are split by a DATE, a TIMESTAMP or a TIMESTAMPTZ`},
		"hour": {dispatchertest.Edit(splitFiles, "time: day", "time: hour"), "date,v\n2026-01-01,1\n",
			`it is DATE, and a DATE has no time of day`},
		"zone": {dispatchertest.Edit(splitFiles, "time: day,", "time: hour, timezone: Europe/Berlin,", "DATE",
			"TIMESTAMP"), "date,v\n2026-03-29 02:30:00,1\n", `there is no such hour in Europe/Berlin`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("a.csv", c.rows)
			build := w.Deploy(c.yaml)
			w.Settle()
			status, why := w.Status(build.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, why, c.want)
			require.Zero(t, w.Count(`SELECT FROM partition_versions`))
		})
	}
}

// The days are those of the zone, also on the days of 23 and 25 hours.
func TestInstantsAreSplitInTheZone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", "date,v\n2026-03-28T23:30:00Z,1\n2026-03-29T21:59:00Z,2\n2026-03-29T22:00:00Z,3\n"+
		"2026-10-24T22:00:00Z,4\n2026-10-25T22:59:00Z,5\n2026-10-25T23:00:00Z,6\n")
	w.Serve(dispatchertest.Edit(splitFiles, "time: day,", "time: day, timezone: Europe/Berlin,", "DATE", "TIMESTAMPTZ"))
	require.Equal(t, map[string][]string{"2026-03-29": {"2,3"}, "2026-03-30": {"1,3"}, "2026-10-25": {"2,9"},
		"2026-10-26": {"1,6"}}, w.Read("flown_sums"))
}

// Rows are split into partitions of every width, also of parts of an hour that clocks show twice.
func TestRowsAreSplitByEveryWidth(t *testing.T) {
	t.Parallel()
	rows := func(times ...string) string {
		text := "date,v\n"
		for i, at := range times {
			text += fmt.Sprintf("%s,%d\n", at, i+1)
		}
		return text
	}
	for name, c := range map[string]struct {
		by, of, rows string
		want         map[string][]string
	}{
		"quarters": {"time: quarter,", "DATE", rows("2026-01-01", "2026-03-31", "2026-04-01", "2025-12-31"),
			map[string][]string{"2025-Q4": {"1,4"}, "2026-Q1": {"2,3"}, "2026-Q2": {"1,3"}}},
		"years": {"time: year,", "DATE", rows("2026-01-01", "2026-12-31", "2025-12-31"),
			map[string][]string{"2025": {"1,3"}, "2026": {"2,3"}}},
		"weeks": {"time: week,", "DATE", rows("2026-01-01", "2026-01-05"),
			map[string][]string{"2026-W01": {"1,1"}, "2026-W02": {"1,2"}}},
		"minutes": {"time: minute,", "TIMESTAMP", rows("2026-01-31 05:14:59", "2026-01-31 05:15:00"),
			map[string][]string{"2026-01-31T05:14": {"1,1"}, "2026-01-31T05:15": {"1,2"}}},
		"15m": {"time: 15m,", "TIMESTAMP", rows("2026-01-31 05:14:59", "2026-01-31 05:15:00", "2026-01-31 05:29:59"),
			map[string][]string{"2026-01-31T05:00": {"1,1"}, "2026-01-31T05:15": {"2,5"}}},
		"6h": {"time: 6h,", "TIMESTAMP", rows("1969-12-31 23:59:00", "2026-01-31 05:59:59", "2026-01-31 06:00:00"),
			map[string][]string{"1969-12-31T18": {"1,1"}, "2026-01-31T00": {"1,2"}, "2026-01-31T06": {"1,3"}}},
		"15m in Berlin": {"time: 15m, timezone: Europe/Berlin,", "TIMESTAMPTZ",
			rows("2026-10-25T00:10:00Z", "2026-10-25T00:50:00Z", "2026-10-25T01:10:00Z", "2026-10-25T01:59:00Z",
				"2026-10-25T02:00:00Z"),
			map[string][]string{"2026-10-25T02:00": {"1,1"}, "2026-10-25T02:45": {"3,9"}, "2026-10-25T03:00": {"1,5"}}},
		"10m on Lord Howe": {"time: 10m, timezone: Australia/Lord_Howe,", "TIMESTAMPTZ",
			rows("2026-04-04T14:45:00Z", "2026-04-04T15:05:00Z", "2026-04-04T15:29:00Z", "2026-04-04T15:30:00Z"),
			map[string][]string{"2026-04-05T01:40": {"1,1"}, "2026-04-05T01:50": {"2,5"}, "2026-04-05T02:00": {"1,4"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("a.csv", c.rows)
			w.Serve(dispatchertest.Edit(splitFiles, "time: day,", c.by, "DATE", c.of))
			require.Equal(t, c.want, w.Read("flown_sums"))
		})
	}
}

const splitQuery = `
name: cut
jobs:
  - name: whole
    operator: file_source
    source: { kind: poll, every: 10s }
    config: { path: a.csv, format: csv, types: { date: DATE } }
  - name: parts
    operator: sql
    inputs: [{ from: { job: whole } }]
    partition_by: { time: month, column: date }
    config: { query: "SELECT date, v FROM whole" }
  - name: sums
    operator: sql
    inputs: [{ from: { job: parts } }]
    config: { query: "SELECT sum(v)::BIGINT AS v FROM parts" }
publish: { cut_parts: { from: { job: parts } }, cut_sums: { from: { job: sums } } }
`

func TestAQueryOverAWholeIsSplit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1 2", "2026-01-02": "3", "2026-02-28": "4"}))
	w.Serve(splitQuery)
	require.Equal(t, map[string][]string{"2026-01": {"6"}, "2026-02": {"4"}}, w.Read("cut_sums"))

	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1 2", "2026-01-02": "3", "2026-02-28": "5"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01": 1, "2026-02": 2}, w.Published("sums"))
	runs := w.Attempts("parts")
	w.Serve(dispatchertest.Edit(splitQuery, "name: cut\n", "name: cut\ndescription: Months.\n"))
	require.Equal(t, runs, w.Attempts("parts"), "what the marker says is current")

	// From split to unsplit and back: the generation from before is found again.
	was := w.Generation(w.Serve(splitQuery).Version.ID, "parts")
	whole := dispatchertest.Edit(splitQuery, "    partition_by: { time: month, column: date }\n", "")
	require.NotEqual(t, was, w.Generation(w.Serve(whole).Version.ID, "parts"))
	require.Equal(t, map[string][]string{"all": {"11"}}, w.Read("cut_sums"))
	require.Equal(t, was, w.Generation(w.Serve(splitQuery).Version.ID, "parts"))
	require.Equal(t, map[string][]string{"2026-01": {"6"}, "2026-02": {"5"}}, w.Read("cut_sums"))
}

// A check decides about each day. One that it rejects is rejected until its rows are others.
func TestAChecksHoldOneDayOfMany(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	checked := dispatchertest.Edit(splitFiles, "types: { date: DATE } }", "types: { date: DATE } }\n"+
		`    checks: [{ name: small, sql: "SELECT * FROM output WHERE v > 100" }]`)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-02": "2"}))
	w.Serve(checked)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "3", "2026-01-02": "200"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 2, "2026-01-02": 1}, w.Published("raw"))

	w.Drop("b.csv", days(map[string]string{"2026-01-03": "1"}))
	w.Poll()
	w.Settle()
	require.Equal(t, 3, w.Count(`SELECT FROM partition_versions WHERE partition_key = '2026-01-02'`), "one is of sums")
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "3", "2026-01-02": "20"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 2, "2026-01-02": 3, "2026-01-03": 1}, w.Published("raw"))
}

// Of two runs that read at once, the one that began later counts, and what it took for the same must still stand.
func TestTwoSplitsAtOnceLeaveOne(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-02": "2"}))
	w.Serve(splitFiles)

	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-02": "20"}))
	w.Poll()
	task := w.One(w.D)
	done := w.Do(w.D, task)
	require.NotNil(t, done.Outcome.Split)
	w.Exec(`UPDATE partition_versions SET revision = 7 WHERE partition_key = '2026-01-01'
		AND dataset_version = (SELECT dataset_version FROM partition_versions WHERE state = 'Split')`)
	require.ErrorIs(t, w.D.CompleteAttempt(t.Context(), task, done, time.Now()), dispatcher.ErrBaseMoved)
	require.NoError(t, w.D.HandBack(t.Context(), task, "again", time.Now(), time.Now()))
	w.Settle()
	require.Equal(t, []string{"2026-01-02,20"}, w.Read("flown_raw")["2026-01-02"])

	// What an attempt wrote and did not commit is found and removed.
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-02": "21"}))
	w.Poll()
	task = w.One(w.D)
	w.Do(w.D, task)
	before := len(w.Files())
	require.NoError(t, w.D.HandBack(t.Context(), task, "it was lost", time.Now(), time.Now()))
	w.Settle()
	w.GC(time.Now().Add(100 * time.Hour))
	require.LessOrEqual(t, len(w.Files()), before)
	require.Empty(t, w.Lost())
}

func TestMorePartitionsThanMayBe(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	var rows strings.Builder
	rows.WriteString("date,v\n")
	for day := range 1001 {
		fmt.Fprintf(&rows, "%s,1\n", time.Date(2020, 1, 1+day, 0, 0, 0, 0, time.UTC).Format(time.DateOnly))
	}
	w.Drop("a.csv", rows.String())
	build := w.Deploy(dispatchertest.Edit(splitFiles, "max_attempts: 1", "max_attempts: 1\n    storage: postgres"))
	w.Settle()
	_, why := w.Status(build.Version.ID)
	require.Contains(t, why, "they belong to 1001 partitions, and one task makes 1000 at most")
}

func TestSplitsInTables(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	tables := dispatchertest.Edit(splitFiles, "max_attempts: 1", "max_attempts: 1\n    storage: postgres")
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-02": "2"}))
	w.Serve(tables)
	w.Drop("a.csv", days(map[string]string{"2026-01-01": "1", "2026-01-03": "3"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 1, "2026-01-02": 2, "2026-01-03": 1}, w.Published("raw"))
	require.Equal(t, []string{"0,<nil>"}, w.Read("flown_sums")["2026-01-02"])
}

func TestPurgedDaysStayAwayUntilTheirRowsChange(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	kept := dispatchertest.Edit(splitFiles, "flown_raw: { from: { job: raw } }",
		"flown_raw: { from: { job: raw }, retention: 240h }")
	today := time.Now().UTC().Format(time.DateOnly)
	w.Drop("a.csv", days(map[string]string{"2020-01-01": "1", today: "2"}))
	w.Serve(kept)
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), time.Now()))
	require.Equal(t, map[string]int64{today: 1}, w.Published("raw"))
	w.Drop("a.csv", days(map[string]string{"2020-01-01": "1", today: "3"}))
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{today: 2}, w.Published("raw"))
}

// A worker elsewhere uploads all rows; the server splits them when it seals them.
func TestUploadsOfWorkersAreSplit(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(`
name: work
jobs:
  - name: raw
    operator: file_source
    runtime: poll
    source: { kind: manual }
    partition_by: { time: day, column: date }
    config: { path: ".", pattern: "*.csv", format: csv }
publish: { far_split: { from: { job: raw } } }
`)
	const both = "SELECT * FROM (VALUES (DATE '2026-01-01', 1), (DATE '2026-01-02', 2)) AS t(date, v)"
	f := claimFar(w.Tenant, "raw", "")
	uploaded := f.upload("a.parquet", both)
	_, err := f.commit(protocol.Events{Outputs: uploaded}, time.Now())
	require.Equal(t, []string{"body.outputs[0]: a job that splits its rows commits only with its end"},
		dispatchertest.ProblemsOf(err))
	_, err = f.complete(f.completed(uploaded), time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string][]string{"2026-01-01": {"2026-01-01,1"}, "2026-01-02": {"2026-01-02,2"}},
		w.Read("far_split"))

	f = claimFar(w.Tenant, "raw", "")
	_, err = f.complete(f.completed(f.upload("a.parquet", both+" WHERE v = 1")), time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 1, "2026-01-02": 2}, w.Published("raw"))
	require.Empty(t, w.Read("far_split")["2026-01-02"])

	f = claimFar(w.Tenant, "raw", "")
	_, err = f.complete(f.completed(nil), time.Now())
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, map[string]int64{"2026-01-01": 2, "2026-01-02": 2}, w.Published("raw"))
}
