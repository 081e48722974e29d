package dispatcher

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// landed reads files as they come.
const landed = `
name: landed
jobs:
  - name: raw
    operator: file_source
    source: { kind: poll, every: 10s }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv, types: { n: INTEGER } }
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    config: { query: "SELECT sum(n)::BIGINT AS n FROM raw" }
publish:
  landed_sums: { from: { job: sums } }
`

func TestFilesFlow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("2024-01-01.csv", "n\n1\n2\n")
	w.drop("2024-01-02.csv", "n\n10\n")
	w.serve(landed)
	require.Equal(t, map[string][]string{"2024-01-01": {"3"}, "2024-01-02": {"10"}}, w.read("landed_sums"))
	runs := map[string]int{"raw": 2, "sums": 2}
	expect := func(what, day, sum string, raw, sums int) {
		t.Helper()
		w.poll()
		w.settle()
		runs["raw"], runs["sums"] = runs["raw"]+raw, runs["sums"]+sums
		require.Equal(t, []string{sum}, w.read("landed_sums")[day], what)
		require.Equal(t, runs["raw"], w.attempts("raw"), what)
		require.Equal(t, runs["sums"], w.attempts("sums"), what)
	}
	w.drop("2024-01-03.csv", "n\n5\n")
	expect("a new file", "2024-01-03", "5", 1, 1)
	expect("nothing new", "2024-01-03", "5", 0, 0)
	w.drop("2024-01-03.csv", "n\n5\n")
	expect("written again, with the same content", "2024-01-03", "5", 0, 0)
	w.drop("2024-01-01.csv", "n\n7\n")
	expect("a changed file", "2024-01-01", "7", 1, 1)
	w.drop("2024-01-01.csv", "n\n1\n2\n")
	expect("changed back", "2024-01-01", "3", 1, 1)
	w.drop("2024-01-01.csv", "n\n7\n")
	expect("and once more", "2024-01-01", "7", 1, 1)
	require.Equal(t, map[string]int64{"2024-01-01": 4, "2024-01-02": 1, "2024-01-03": 1}, w.published("sums"))
}

func TestAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("2024-01-01.csv", "n\n1\n")
	w.serve(landed)
	w.drop("2024-01-02.csv", "n\nnot a number\n")
	w.poll()
	for range 5 {
		w.settle()
		w.promote(later(time.Hour))
	}
	require.Equal(t, []string{"2024-01-01 Completed", "2024-01-02 Failed error"}, w.tasks("raw"))
	require.Equal(t, 1, w.count(`SELECT FROM waiting WHERE reason = 'dead'`))
	w.poll()
	w.settle()
	require.Len(t, w.tasks("raw"), 2, "the same file is not tried for ever")

	w.drop("2024-01-02.csv", "n\n4\n")
	w.poll()
	w.settle()
	require.Equal(t, []string{"2024-01-01 Completed", "2024-01-02 Canceled merged", "2024-01-02 Completed"}, w.tasks("raw"))
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}, "2024-01-02": {"4"}}, w.read("landed_sums"))
	require.Zero(t, w.count(`SELECT FROM waiting`))
}

// A content that failed, was replaced by another that failed, and came back is tried again: its task had only given way.
func TestContentThatComesBackAfterFailures(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	for _, content := range []string{"bad 1", "bad 2"} {
		w.probe.put("raw", firstDay, content)
		w.poll()
		for range 4 {
			w.settle()
			w.promote(later(time.Hour))
		}
	}
	require.Equal(t, []string{firstDay + " Completed", firstDay + " Canceled merged", firstDay + " Failed error"}, w.tasks("raw"))
	w.probe.put("raw", firstDay, "bad 1")
	w.poll()
	require.Equal(t, []string{firstDay + " Completed", firstDay + " Queued", firstDay + " Canceled merged"}, w.tasks("raw"))
	w.check()
}

// What is read while it changes is told by what was read, not by what was found.
func TestAFileThatChangesBetweenFindingAndReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("2024-01-01.csv", "n\n1\n")
	w.serve(landed)
	w.drop("2024-01-01.csv", "n\n2\n")
	w.poll()
	w.drop("2024-01-01.csv", "n\n3\n")
	w.settle()
	require.Equal(t, []string{"3"}, w.read("landed_sums")["2024-01-01"])
	w.poll()
	w.settle()
	require.Equal(t, []string{"3"}, w.read("landed_sums")["2024-01-01"])
	require.Equal(t, 2, w.attempts("raw"))
}

func TestABuildWhoseSourceCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.probe.fail("raw", errors.New("unplugged"))
	deployed := w.deploy(pair)
	w.advance()
	status, _ := w.status(deployed.Version.ID)
	require.Equal(t, registry.Building, status, "it may be there in a moment")
	w.probe.fail("raw", nil)
	w.settle()
	require.Equal(t, []string{"m(a)"}, w.read("pair_made")[firstDay])

	for name, c := range map[string]struct {
		err error
		at  time.Duration
	}{"for long": {errors.New("unplugged"), 2 * enumerateFor}, "for good": {operators.Permanent(errors.New("unplugged")), 0}} {
		t.Run(name, func(t *testing.T) {
			w.probe.fail("raw", c.err)
			deployed := w.deploy(edit(pair, "list: raw", fmt.Sprintf("list: raw, note: %q", name)))
			_, err := w.d.advanceBuilds(t.Context(), later(c.at))
			require.NoError(t, err)
			status, reason := w.status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Equal(t, "source raw: enumerate: unplugged", reason)
			require.Equal(t, []string{"m(a)"}, w.read("pair_made")[firstDay])
			require.Zero(t, w.count(`SELECT FROM ready`))
			w.probe.fail("raw", nil)
			w.settle()
			w.serve(edit(pair, "list: raw", fmt.Sprintf("list: raw, note: %q", name)))
		})
	}
}

const scheduled = `
name: scheduled
jobs:
  - name: tick
    operator: hook
    source: { kind: cron, schedule: "0 6 * * *", timezone: America/New_York }
    partition_by: { time: day, timezone: America/New_York }
    config: { tag: t }
  - name: after
    operator: hook
    inputs: [{ from: { job: tick } }]
    execution_strategy: PerPartition
    config: { tag: a }
publish:
  ticks: { from: { job: after } }
`

func TestAScheduleFiresOnceOverAllDispatchers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(scheduled)
	require.Empty(t, w.tasks("tick"), "a schedule waits for its time")
	at := instant(t, "2027-11-07T11:00:00Z") // 06:00, on the day the clocks were set back
	w.exec(`UPDATE sources SET next_fire_at = $1`, at)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		d := w.dispatcher(fmt.Sprint("process", i))
		g.Go(func() error {
			_, err := d.fireSources(ctx, at.Add(time.Second))
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, []string{"2027-11-06 Queued"}, w.tasks("tick"), "the last day that was over then")
	var next time.Time
	w.row(`SELECT next_fire_at FROM sources`)(&next)
	require.Equal(t, instant(t, "2027-11-08T11:00:00Z"), next.UTC())
	w.exec(`UPDATE sources SET next_fire_at = $1`, at) // a clock that was set back, a row that was restored
	_, err := w.d.fireSources(t.Context(), at.Add(time.Second))
	require.NoError(t, err)
	require.Len(t, w.tasks("tick"), 1, "an instant fires once")
	w.settle()
	require.Equal(t, map[string][]string{"2027-11-06": {"a(t())"}}, w.read("ticks"))
}

// What a schedule missed is caught up on without waiting between the windows, or passed over, as it says.
func TestAScheduleThatMissedWindows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"passed over": {scheduled, []string{"2026-10-31 Queued"}},
		"caught up":   {edit(scheduled, "timezone: America/New_York }\n    partition_by", "timezone: America/New_York, catchup: true }\n    partition_by"), []string{"2026-10-31 Queued", "2026-11-01 Queued", "2026-11-02 Queued"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(c.yaml)
			w.exec(`UPDATE sources SET next_fire_at = $1`, instant(t, "2026-11-01T11:00:00Z"))
			for more := true; more; {
				var err error
				more, err = w.d.fireSources(t.Context(), instant(t, "2026-11-03T12:00:00Z"))
				require.NoError(t, err)
			}
			require.Equal(t, c.want, w.tasks("tick"))
			w.check()
		})
	}
}

// A changed schedule is followed from the cutover on: the old one does not fire once more.
func TestAChangedSchedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(scheduled, `"0 6 * * *"`, `"*/5 * * * *"`))
	var before, after time.Time
	w.row(`SELECT next_fire_at FROM sources`)(&before)
	w.serve(edit(scheduled, `"0 6 * * *"`, `"*/5 * * * *"`, "{ tag: a }", "{ tag: b }"))
	w.row(`SELECT next_fire_at FROM sources`)(&after)
	require.Equal(t, before, after, "an edit elsewhere leaves it alone")
	w.serve(edit(scheduled, `"0 6 * * *"`, `"0 0 1 1 *"`))
	w.row(`SELECT next_fire_at FROM sources`)(&after)
	require.Equal(t, time.January, after.Month())
	require.Equal(t, 5, after.UTC().Hour())
	w.serve(edit(scheduled, "source: { kind: cron, schedule: \"0 6 * * *\", timezone: America/New_York }", "source: { kind: manual }"))
	require.Zero(t, w.count(`SELECT FROM sources WHERE next_fire_at IS NOT NULL`))
}

// One source that cannot be fired holds up no other.
func TestAPoisonedSource(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(scheduled)
	w.exec(`UPDATE sources SET next_fire_at = now() - interval '1 second'`)
	w.exec(`INSERT INTO sources (org_id, dag_name, job_name, next_fire_at) SELECT org_id, 'gone', 'gone', now() - interval '1 hour' FROM sources`)
	_, err := w.d.fireSources(t.Context(), later(0))
	require.ErrorContains(t, err, "gone/gone")
	require.Len(t, w.tasks("tick"), 1)
	var reason string
	w.row(`SELECT error FROM sources WHERE dag_name = 'gone' AND next_fire_at > now()`)(&reason)
	require.Contains(t, reason, "there is no job gone/gone")
}

func TestAPollOfWhatCannotBeEnumerated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(scheduled, `kind: cron, schedule: "0 6 * * *", timezone: America/New_York`, "kind: poll, every: 1h"))
	today := time.Now().In(must(time.LoadLocation("America/New_York"))).Format(time.DateOnly)
	require.Contains(t, w.read("ticks"), today, "it fires at deploy, for the day there is")
	w.poll()
	w.settle()
	require.Equal(t, 2, w.attempts("tick"))
	require.Equal(t, int64(2), w.published("after")[today])
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
