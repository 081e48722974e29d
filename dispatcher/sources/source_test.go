package sources_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

func TestFilesFlow(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n2\n")
	w.Drop("2024-01-02.csv", "n\n10\n")
	w.Serve(dispatchertest.Landed)
	require.Equal(t, map[string][]string{"2024-01-01": {"3"}, "2024-01-02": {"10"}}, w.Read("landed_sums"))
	runs := map[string]int{"raw": 2, "sums": 2}
	expect := func(what, day, sum string, raw, sums int) {
		t.Helper()
		w.Poll()
		w.Settle()
		runs["raw"], runs["sums"] = runs["raw"]+raw, runs["sums"]+sums
		require.Equal(t, []string{sum}, w.Read("landed_sums")[day], what)
		require.Equal(t, runs["raw"], w.Attempts("raw"), what)
		require.Equal(t, runs["sums"], w.Attempts("sums"), what)
	}
	w.Drop("2024-01-03.csv", "n\n5\n")
	expect("a new file", "2024-01-03", "5", 1, 1)
	expect("nothing new", "2024-01-03", "5", 0, 0)
	w.Drop("2024-01-03.csv", "n\n5\n")
	expect("written again, with the same content", "2024-01-03", "5", 0, 0)
	w.Drop("2024-01-01.csv", "n\n7\n")
	expect("a changed file", "2024-01-01", "7", 1, 1)
	w.Drop("2024-01-01.csv", "n\n1\n2\n")
	expect("changed back", "2024-01-01", "3", 1, 1)
	w.Drop("2024-01-01.csv", "n\n7\n")
	expect("and once more", "2024-01-01", "7", 1, 1)
	require.Equal(t, map[string]int64{"2024-01-01": 4, "2024-01-02": 1, "2024-01-03": 1}, w.Published("sums"))
}

func TestAFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n")
	w.Serve(dispatchertest.Landed)
	w.Drop("2024-01-02.csv", "n\nnot a number\n")
	w.Poll()
	for range 5 {
		w.Settle()
		w.Promote(dispatchertest.Later(time.Hour))
	}
	require.Equal(t, []string{"2024-01-01 Completed", "2024-01-02 Failed error"}, w.Tasks("raw"))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	w.Poll()
	w.Settle()
	require.Len(t, w.Tasks("raw"), 2, "the same file is not tried for ever")

	w.Drop("2024-01-02.csv", "n\n4\n")
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"2024-01-01 Completed", "2024-01-02 Canceled merged", "2024-01-02 Completed"},
		w.Tasks("raw"))
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}, "2024-01-02": {"4"}}, w.Read("landed_sums"))
	require.Zero(t, w.Count(`SELECT FROM waiting`))
}

// A file whose name is no day holds up no other one: people are told of it until it is renamed.
func TestAFileWhoseNameIsNoPartition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n")
	w.Drop("2024-02-30.csv", "n\n2\n")
	leftOut := func() string {
		t.Helper()
		list, err := w.D.Views.Sources(t.Context(), w.Caller)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Empty(t, list[0].Error)
		return list[0].LeftOut
	}
	const why = "1 file is left out: 2024-02-30.csv: 2024-02-30 is not a date"
	w.Serve(dispatchertest.Landed)
	require.Equal(t, []string{"2024-01-01 Completed"}, w.Tasks("raw"), "the build goes on without it")
	require.Contains(t, leftOut(), why)

	w.Drop("2024-01-02.csv", "n\n3\n")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"1"}, "2024-01-02": {"3"}}, w.Read("landed_sums"))
	require.Contains(t, leftOut(), why)
	reasons, err := json.Marshal(w.WhyNot("landed_sums", "2024-02-29"))
	require.NoError(t, err)
	require.Contains(t, string(reasons), why)

	require.NoError(t, os.Rename(filepath.Join(w.Landing, "2024-02-30.csv"),
		filepath.Join(w.Landing, "2024-02-29.csv")))
	w.Poll()
	w.Settle()
	require.Empty(t, leftOut())
	require.Equal(t, []string{"2"}, w.Read("landed_sums")["2024-02-29"])
}

// Content that failed, was replaced by other content that failed, and came back is tried again: its first task had
// only been merged into another one.
func TestContentThatComesBackAfterFailures(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	for _, content := range []string{"bad 1", "bad 2"} {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		for range dag.DefaultMaxAttempts + 1 {
			w.Settle()
			w.Promote(dispatchertest.Later(time.Hour))
		}
	}
	require.Equal(t, []string{dispatchertest.FirstDay + " Completed", dispatchertest.FirstDay + " Canceled merged",
		dispatchertest.FirstDay + " Failed error"}, w.Tasks("raw"))
	w.Probe.Put("raw", dispatchertest.FirstDay, "bad 1")
	w.Poll()
	require.Equal(t, []string{dispatchertest.FirstDay + " Completed", dispatchertest.FirstDay + " Queued",
		dispatchertest.FirstDay + " Canceled merged"}, w.Tasks("raw"))
	w.Check()
}

// Content that could not be read and gave way to what was read before leaves no dead task. If it comes once more, it is
// tried again.
func TestASourceThatGoesBackToWhatWasRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	look := func(content string) []string {
		w.Probe.Put("raw", dispatchertest.FirstDay, content)
		w.Poll()
		for range dag.DefaultMaxAttempts + 1 {
			w.Settle()
			w.Promote(dispatchertest.Later(time.Hour))
		}
		return w.Tasks("raw")[1:]
	}
	require.Equal(t, []string{dispatchertest.FirstDay + " Failed error"}, look("bad"))
	require.Equal(t, []string{dispatchertest.FirstDay + " Canceled superseded"}, look("a"))
	require.Zero(t, w.Count(`SELECT FROM waiting`))
	require.Equal(t, []string{dispatchertest.FirstDay + " Failed error"}, look("bad"))
	w.Check()
}

// A file that could not be read and was deleted leaves no dead task, whether it was found while the version served or
// by a build. If it comes back as it was, it is tried again.
func TestAFileThatCouldNotBeReadAndIsGone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	const day = "2024-01-09"
	die := func() {
		for range dag.DefaultMaxAttempts + 1 {
			w.Settle()
			w.Promote(dispatchertest.Later(time.Hour))
		}
	}
	look := func(content string) []string {
		w.Probe.Put("raw", day, content)
		w.Poll()
		die()
		return w.Tasks("raw")[1:]
	}

	require.Equal(t, []string{day + " Failed error"}, look("bad"))
	require.Equal(t, []string{day + " Canceled superseded"}, look(""))
	require.Equal(t, []string{"Failed Canceled SYSTEM what it was to read is not there any more: the file is gone"},
		dispatchertest.Texts(t, w.Pool, `SELECT concat_ws(' ', from_status, to_status, actor, state) FROM task_events
			WHERE from_status = 'Failed' AND to_status = 'Canceled'`))
	require.Zero(t, w.Count(`SELECT FROM waiting`))
	require.Equal(t, []string{day + " Failed error"}, look("bad"))
	require.Equal(t, []string{day + " Failed error"}, look("bad"), "what is listed stays for a person")
	look("")

	// A build that failed for it goes on once it is gone.
	w.Probe.Put("raw", day, "bad")
	edited := dispatchertest.Edit(dispatchertest.Pair, "list: raw", "list: raw, note: other")
	failed := w.Deploy(edited)
	die()
	status, _ := w.Status(failed.Version.ID)
	require.Equal(t, registry.Failed, status)
	w.Probe.Put("raw", day, "")
	w.Serve(edited)
	require.Equal(t, map[string][]string{dispatchertest.FirstDay: {"m(a)"}}, w.Read("pair_made"))
	require.Zero(t, w.Count(`SELECT FROM waiting`))
	w.Check()
}

// If a file changes while it is read, its revision is identified by the content that was read, not by the content that
// was found.
func TestAFileThatChangesBetweenFindingAndReading(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2024-01-01.csv", "n\n1\n")
	w.Serve(dispatchertest.Landed)
	w.Drop("2024-01-01.csv", "n\n2\n")
	w.Poll()
	w.Drop("2024-01-01.csv", "n\n3\n")
	w.Settle()
	require.Equal(t, []string{"3"}, w.Read("landed_sums")["2024-01-01"])
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"3"}, w.Read("landed_sums")["2024-01-01"])
	require.Equal(t, 2, w.Attempts("raw"))
}

func TestABuildWhoseSourceCannotBeRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Probe.Fail("raw", errors.New("unplugged"))
	deployed := w.Deploy(dispatchertest.Pair)
	_, err := w.D.Builds.AdvanceBuilds(t.Context(), time.Now())
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	status, reason := w.Status(deployed.Version.ID)
	require.Equal(t, registry.Building, status, "it may be there in a moment")
	require.Contains(t, reason, "source raw cannot be read yet: enumerate: unplugged")
	w.Probe.Fail("raw", nil)
	w.Settle()
	require.Equal(t, []string{"m(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])

	for name, c := range map[string]struct {
		err error
		at  time.Duration
	}{"for long": {errors.New("unplugged"), 2 * builds.EnumerateFor},
		"for good": {operators.Permanent(errors.New("unplugged")), 0}} {
		t.Run(name, func(t *testing.T) {
			w.Probe.Fail("raw", c.err)
			deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Pair, "list: raw",
				fmt.Sprintf("list: raw, note: %q", name)))
			_, err := w.D.Builds.AdvanceBuilds(t.Context(), dispatchertest.Later(c.at))
			require.NoError(t, err)
			status, reason := w.Status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Equal(t, "source raw: enumerate: unplugged", reason)
			require.Equal(t, []string{"m(a)"}, w.Read("pair_made")[dispatchertest.FirstDay])
			require.Zero(t, w.Count(`SELECT FROM ready`))
			w.Probe.Fail("raw", nil)
			w.Settle()
			w.Serve(dispatchertest.Edit(dispatchertest.Pair, "list: raw", fmt.Sprintf("list: raw, note: %q", name)))
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
	w := dispatchertest.NewWorld(t)
	w.Serve(scheduled)
	require.Empty(t, w.Tasks("tick"), "a schedule waits for its time")
	at := instant(t, "2027-11-07T11:00:00Z") // 06:00, on the day the clocks were set back
	w.Exec(`UPDATE sources SET next_fire_at = $1`, at)
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 4 {
		d := w.Dispatcher(fmt.Sprint("process", i))
		g.Go(func() error {
			_, err := d.Sources.Fire(ctx, at.Add(time.Second))
			return err
		})
	}
	require.NoError(t, g.Wait())
	require.Equal(t, []string{"2027-11-06 Queued"}, w.Tasks("tick"), "the last day that was over then")
	var next time.Time
	w.Row(`SELECT next_fire_at FROM sources`)(&next)
	require.Equal(t, instant(t, "2027-11-08T11:00:00Z"), next.UTC())
	w.Exec(`UPDATE sources SET next_fire_at = $1`, at) // as after the clock was set back or the row was restored
	_, err := w.D.Sources.Fire(t.Context(), at.Add(time.Second))
	require.NoError(t, err)
	require.Len(t, w.Tasks("tick"), 1, "an instant fires once")
	w.Settle()
	require.Equal(t, map[string][]string{"2027-11-06": {"a(t())"}}, w.Read("ticks"))
}

// Missed times of a schedule are caught up on without pauses between them, or skipped, depending on catchup.
func TestAScheduleThatMissedWindows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		yaml string
		want []string
	}{
		"passed over": {scheduled, []string{"2026-10-31 Queued"}},
		"caught up": {dispatchertest.Edit(scheduled, "timezone: America/New_York }\n    partition_by",
			"timezone: America/New_York, catchup: true }\n    partition_by"), []string{"2026-10-31 Queued",
			"2026-11-01 Queued", "2026-11-02 Queued"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(c.yaml)
			w.Exec(`UPDATE sources SET next_fire_at = $1`, instant(t, "2026-11-01T11:00:00Z"))
			for more := true; more; {
				var err error
				more, err = w.D.Sources.Fire(t.Context(), instant(t, "2026-11-03T12:00:00Z"))
				require.NoError(t, err)
			}
			require.Equal(t, c.want, w.Tasks("tick"))
			w.Check()
		})
	}
}

// A changed schedule applies from the cutover on: the old one does not fire again.
func TestAChangedSchedule(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(scheduled, `"0 6 * * *"`, `"*/5 * * * *"`))
	var before, after time.Time
	w.Row(`SELECT next_fire_at FROM sources`)(&before)
	w.Serve(dispatchertest.Edit(scheduled, `"0 6 * * *"`, `"*/5 * * * *"`, "{ tag: a }", "{ tag: b }"))
	w.Row(`SELECT next_fire_at FROM sources`)(&after)
	require.Equal(t, before, after, "an edit elsewhere leaves it alone")
	w.Serve(dispatchertest.Edit(scheduled, `"0 6 * * *"`, `"0 0 1 1 *"`))
	w.Row(`SELECT next_fire_at FROM sources`)(&after)
	require.Equal(t, time.January, after.Month())
	require.Equal(t, 5, after.UTC().Hour())
	w.Serve(dispatchertest.Edit(scheduled,
		"source: { kind: cron, schedule: \"0 6 * * *\", timezone: America/New_York }", "source: { kind: manual }"))
	require.Zero(t, w.Count(`SELECT FROM sources WHERE next_fire_at IS NOT NULL`))
}

// One source that cannot be fired does not delay others.
func TestAPoisonedSource(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(scheduled)
	w.Exec(`UPDATE sources SET next_fire_at = now() - interval '1 second'`)
	w.Exec(`INSERT INTO sources (org_id, dag_name, job_name, next_fire_at)
		SELECT org_id, 'gone', 'gone', now() - interval '1 hour' FROM sources`)
	_, err := w.D.Sources.Fire(t.Context(), dispatchertest.Later(0))
	require.ErrorContains(t, err, "gone/gone")
	require.Len(t, w.Tasks("tick"), 1)
	var reason string
	w.Row(`SELECT error FROM sources WHERE dag_name = 'gone' AND next_fire_at > now()`)(&reason)
	require.Contains(t, reason, "there is no job gone/gone")
}

func TestAPollOfWhatCannotBeEnumerated(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(scheduled, `kind: cron, schedule: "0 6 * * *", timezone: America/New_York`,
		"kind: poll, every: 1h"))
	today := time.Now().In(must(time.LoadLocation("America/New_York"))).Format(time.DateOnly)
	require.Contains(t, w.Read("ticks"), today, "it fires at deploy, for the day there is")
	w.Poll()
	w.Settle()
	require.Equal(t, 2, w.Attempts("tick"))
	require.Equal(t, int64(2), w.Published("after")[today])
}

// A polled source whose task waits for its retry is not begun anew by each of its times: its failures add up.
func TestAPollWhoseTaskWaitsForItsRetry(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(scheduled, `kind: cron, schedule: "0 6 * * *", timezone: America/New_York`,
		"kind: poll, every: 1h", "\n    partition_by: { time: day, timezone: America/New_York }", ""))
	w.Settle()
	w.Probe.On("tick", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("no answer")
	})

	w.Poll()
	w.Settle()
	for n := range dag.DefaultMaxAttempts - 1 {
		w.Poll()
		require.Len(t, w.Tasks("tick"), 2, "after %d failures", n+1)
		w.Promote(dispatchertest.Later(time.Hour))
		w.Settle()
	}
	require.Equal(t, []string{"all Completed", "all Failed error"}, w.Tasks("tick"))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	status := func() views.SourceStatus {
		list, err := w.D.Views.Sources(t.Context(), w.Caller)
		require.NoError(t, err)
		require.Len(t, list, 1)
		return list[0]
	}
	require.Empty(t, status().Failing, "the dead task says it")
	w.Poll()
	since := status().FailingSince
	require.Equal(t, "no answer", status().Failing)
	require.NotNil(t, since)
	w.Poll()
	require.Len(t, w.Tasks("tick"), 3, "the next time tries again, and is one look")
	running := w.Claim(w.D)
	w.Poll()
	require.Len(t, w.Tasks("tick"), 3, "while it looks, too")
	dispatchertest.Execute(t.Context(), w.D, running[0])
	w.Settle()

	readNow(w, "scheduled", "tick")
	w.Fire()
	require.Len(t, w.Tasks("tick"), 4, "who asks for it now does not wait for the retry")
	require.Equal(t, "no answer", status().Failing)
	require.Equal(t, since, status().FailingSince, "none has succeeded since")

	w.Probe.On("tick", nil)
	w.Settle()
	require.Equal(t, "all Completed", w.Tasks("tick")[3])
	require.Empty(t, status().Failing)
	w.Poll()
	require.Len(t, w.Tasks("tick"), 5)
	require.Empty(t, status().Failing)
	w.Check()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// instant parses a time in RFC 3339.
func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	require.NoError(t, err)
	return at
}

// After a listing, the dead tasks of a source are looked up, however many tasks others have. A connection keeps the
// plans that it chose while the tables were small.
func TestListingsReadNoTasksOfOthers(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	pool, err := pg.Open(t.Context(), w.URL, pg.WithMaxConns(1), pg.WithApplicationName(dispatchertest.Watched))
	require.NoError(t, err)
	w.D = w.Dispatcher("two", func(c *service.Config) { c.Pool = pool })
	w.Probe.Put("raw", "2024-01-09", "bad")
	w.Poll()

	const many = 3000
	w.Exec(`
		WITH copies AS (
			INSERT INTO tasks SELECT copy.* FROM (SELECT * FROM tasks LIMIT 1) AS r, generate_series(1, $1) AS n,
				jsonb_populate_record(NULL::tasks, to_jsonb(r) || jsonb_build_object('id', gen_random_uuid(),
				'job_id', gen_random_uuid(), 'dedupe_key', 'source:' || n, 'slot', n::text)) AS copy
			RETURNING id, org_id, job_id, slot)
		INSERT INTO waiting (task_id, org_id, origin_job_id, slot, reason, rank)
		SELECT id, org_id, job_id, slot, 'dead', 0 FROM copies`, many)
	for range 3 {
		w.Poll()
	}

	pool.Close()
	require.Empty(t, w.ReadInSequence(many))
}
