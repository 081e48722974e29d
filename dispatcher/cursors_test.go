package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
)

// chained has a source by cursor, a job that reads all of it, and a job that reads only new segments.
const chained = `
name: chained
jobs:
  - name: chain
    operator: hook
    source: { kind: poll, every: 1h }
    partition_by: { cursor: height }
    config: { tag: c }
  - name: whole
    operator: hook
    inputs: [{ from: { job: chain } }]
    config: { tag: w }
  - name: news
    operator: hook
    inputs: [{ from: { job: chain } }]
    update_strategy: append
    unique_key: [content]
    config: { tag: n }
publish:
  chained_chain: { from: { job: chain } }
  chained_whole: { from: { job: whole } }
  chained_news: { from: { job: news } }
`

func chainWorld(t *testing.T, blocks string) (*dispatchertest.World, *dispatchertest.Ledger) {
	t.Helper()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: blocks}
	w.Probe.On("chain", l.Read)
	w.Serve(chained)
	return w, l
}

// grow reads the ledger's new rows, and leaves the tasks that follow to the test.
func grow(w *dispatchertest.World, l *dispatchertest.Ledger, blocks string) {
	w.T.Helper()
	l.Set(blocks)
	w.Poll()
	source := w.One(w.D)
	require.Equal(w.T, "chain", source.Job.Name)
	dispatchertest.Execute(w.T.Context(), w.D, source)
	w.Route()
}

// claimed claims the task of a job.
func claimOf(w *dispatchertest.World, job string) dispatcher.Claimed {
	w.T.Helper()
	var found *dispatcher.Claimed
	for _, t := range w.Claim(w.D) {
		if t.Job.Name == job {
			found = &t
		} else {
			dispatchertest.Execute(w.T.Context(), w.D, t)
		}
	}
	require.NotNil(w.T, found, "no task of %s", job)
	return *found
}

// cursor returns the cursor of a consumer as "epoch:position".
func cursor(w *dispatchertest.World, job string) (text string) {
	w.T.Helper()
	w.Row(`SELECT string_agg(format('%s:%s', c.epoch, c.cursor_value), ' ') FROM dataset_cursors c
		JOIN jobs j ON j.id = c.job_id WHERE j.name = $1`, job)(&text)
	return text
}

func reorganize(w *dispatchertest.World, from string) []dispatcher.Invalidated {
	w.T.Helper()
	made, err := w.D.Invalidate(w.T.Context(), w.Caller, "chained_chain", dispatcher.InvalidateRequest{From: from,
		Reason: "reorg"}, time.Now())
	require.NoError(w.T, err)
	return made
}

func TestSegmentsOfACursor(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "abc")
	require.Equal(t, map[string]int64{"0-3": 1}, w.Published("chain"))
	require.Equal(t, []string{"w(a+b+c)"}, w.Read("chained_whole")["all"])
	require.Equal(t, "0:2", cursor(w, "whole"))
	l.Set("abcde")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"0-3": 1, "3-5": 1}, w.Published("chain"))
	require.Equal(t, []string{"w(a+b+c+d+e)"}, w.Read("chained_whole")["all"])
	require.Equal(t, []string{"n(a+b+c)", "n(d+e)"}, w.Read("chained_news")["all"])
	require.Equal(t, "0:4", cursor(w, "news"))
	require.Equal(t, []string{"0:2", "0:4"}, dispatchertest.Texts(t, w.Pool, `SELECT format('%s:%s', epoch,
		cursor_value) FROM events WHERE scope = 'cursor' AND partition_key IS NULL ORDER BY id`))
	w.Poll() // nothing new
	w.Settle()
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, 2, w.Attempts("news"))
	require.Equal(t, "0:4", cursor(w, "news"))
}

// A queued task also reads rows that arrive later. Once claimed, it reads the same rows however often it fails, and
// the next task reads rows that arrived in the meantime.
func TestARangeIsKeptOverRetries(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "a")
	var reads []string
	fail := true
	w.Probe.On("news", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		read, err := dispatchertest.Contents(ctx, task, 0)
		reads = append(reads, strings.Join(read, "+"))
		if err == nil && fail {
			return operators.Result{}, errors.New("not now")
		}
		return operators.Result{}, errors.Join(err, w.Probe.Write(ctx, task, reads[len(reads)-1]))
	})
	l.Set("ab")
	w.Poll()
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	grow(w, l, "abc") // two events; the task that the first one queues covers both
	w.Settle()
	require.Equal(t, "0:0", cursor(w, "news"), "only an accepted completion moves it")
	l.Set("abcd") // while it waits for its retry
	w.Poll()
	w.Settle()
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	fail = false
	w.Promote(dispatchertest.Later(2 * time.Hour))
	w.Settle()
	w.Route()
	w.Settle()
	require.Subset(t, []string{"b+c", "d"}, reads)
	require.Equal(t, "d", reads[len(reads)-1])
	require.Greater(t, len(reads), 2)
	require.Equal(t, "0:3", cursor(w, "news"))
	require.Equal(t, 1, w.Count(`SELECT FROM dataset_cursors c JOIN jobs j ON j.id = c.job_id WHERE j.name = 'news'
		AND c.claimed_to IS NULL`))
	w.Check()
}

// The same positions come with other rows: none of them is mistaken for a row that was read before.
func TestTheSameCursorValueAfterAReorganization(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	grow(w, l, "abcd")
	w.Settle()
	require.Equal(t, []string{"w(a+b+c+d)"}, w.Read("chained_whole")["all"])
	l.Set("abxy")
	made := reorganize(w, "3") // in the middle of a segment, which is withdrawn as a whole
	require.Len(t, made, 1)
	require.Equal(t, "2-4", made[0].Partition)
	require.True(t, made[0].Withdrawn)
	require.Equal(t, "1:1", cursor(w, "whole"), "rewound before anybody hears of it")
	require.Equal(t, map[string]int64{"0-2": 1}, w.Published("chain"))
	w.Settle()
	require.Equal(t, map[string]int64{"0-2": 1, "2-4": 2}, w.Published("chain"))
	require.Equal(t, []string{"w(a+b+x+y)"}, w.Read("chained_whole")["all"])
	require.Contains(t, w.Read("chained_news")["all"], "n(x+y)")
	require.Equal(t, "1:3", cursor(w, "news"))
	require.Equal(t, []string{"0:1", "0:3", "1:3"}, dispatchertest.Texts(t, w.Pool, `SELECT format('%s:%s', epoch,
		cursor_value) FROM events WHERE scope = 'cursor' ORDER BY id`))
	require.Equal(t, 1, w.Count(`SELECT FROM data_invalidations WHERE scope = 'range' AND epoch = 1 AND range_start = 2
		AND reason = 'reorg'`))
	runs := w.Attempts("whole")
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Settle()
	require.Equal(t, runs, w.Attempts("whole"))
}

// A reorg arrives while a task reads the rows that it takes back: the task's output is not published.
func TestATaskOfAnOlderEpochIsSuperseded(t *testing.T) {
	t.Parallel()
	for _, job := range []string{"whole", "news"} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			w, l := chainWorld(t, "ab")
			grow(w, l, "abcd")
			slow := claimOf(w, job)
			done := w.Do(w.D, slow)
			reorganize(w, "2")
			w.Route() // the invalidation before its replacement rows
			require.NoError(t, w.D.CompleteAttempt(t.Context(), slow, done, time.Now()))
			require.Equal(t, "1:1", cursor(w, job))
			var state string
			w.Row(`SELECT state FROM tasks WHERE id = $1`, slow.TaskID)(&state)
			require.Contains(t, state, "superseded")
			require.NotContains(t, fmt.Sprint(w.Read("chained_"+job)), "c")
			l.Set("abxy")
			w.Settle()
			require.Contains(t, fmt.Sprint(w.Read("chained_"+job)), "x+y)")
			require.NotContains(t, fmt.Sprint(w.Read("chained_"+job)), "d")
			require.Equal(t, "1:3", cursor(w, job))
			w.Check()
		})
	}
}

// The claim and the invalidation happen at the same moment, also for the consumer's first claim: either the task is
// pinned in the new epoch or its output is not published.
func TestAClaimThatMeetsAReorganization(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("first ", first), func(t *testing.T) {
			t.Parallel()
			w, l := chainWorld(t, "ab")
			grow(w, l, "abcd")
			if first {
				w.Exec(`DELETE FROM dataset_cursors`)
			}
			g, ctx := errgroup.WithContext(t.Context())
			var tasks []dispatcher.Claimed
			g.Go(func() (err error) {
				tasks, err = w.D.Claim(ctx, w.D.InProcessRuntimes(), w.D.WorkerID, 100, time.Now())
				return err
			})
			g.Go(func() error {
				_, err := w.D.Invalidate(ctx, w.Caller, "chained_chain", dispatcher.InvalidateRequest{From: "2",
					Reason: "reorg"}, time.Now())
				return err
			})
			require.NoError(t, g.Wait())
			for _, task := range tasks {
				dispatchertest.Execute(t.Context(), w.D, task)
			}
			require.NotContains(t, fmt.Sprint(w.Read("chained_whole")), "c+d")
			l.Set("abxy")
			w.Settle()
			require.Equal(t, []string{"w(a+b+x+y)"}, w.Read("chained_whole")["all"])
			require.NotContains(t, fmt.Sprint(w.Read("chained_news")), "d")
		})
	}
}

// A correction changes no row of the segments: consumers that follow the cursor read them again, in a new epoch.
func TestACorrectionOfSegments(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	grow(w, l, "abcd")
	w.Settle()
	made, err := w.D.Invalidate(t.Context(), w.Caller, "chained_chain", dispatcher.InvalidateRequest{From: "0", To: "1",
		Reason: "correction"}, time.Now())
	require.NoError(t, err)
	require.Len(t, made, 1)
	require.Equal(t, "0-2", made[0].Partition)
	require.Equal(t, "1:-1", cursor(w, "news"))
	runs := w.Attempts("news")
	w.Settle()
	require.Equal(t, runs+1, w.Attempts("news"))
	require.Equal(t, map[string]int64{"0-2": 2, "2-4": 1}, w.Published("chain"))
	for name, c := range map[string]struct{ from, to, reason, want string }{
		"no position":   {"blue", "", "manual", "neither a position"},
		"no end":        {"0", "1", "reorg", "everything from its first position on"},
		"nothing there": {"100", "", "reorg", "no such partition"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.D.Invalidate(t.Context(), w.Caller, "chained_chain", dispatcher.InvalidateRequest{From: c.from,
				To: c.to, Reason: c.reason}, time.Now())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Segments after one that waits for its checks are not published; once the checks reject it, they are read again.
func TestAHeldSegmentBlocksLaterOnes(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "ab"}
	w.Probe.On("chain", l.Read)
	w.Serve(dispatchertest.Edit(chained, "    config: { tag: c }",
		"    config: { tag: c }\n    checks: [{ name: no_z, sql: \"SELECT * FROM output WHERE content = 'z'\" }]"))
	require.Equal(t, map[string]int64{"0-2": 1}, w.Published("chain"))
	l.Set("abz")
	w.Poll()
	w.Unchecked(w.One(w.D))
	check := w.One(w.D)
	require.NotNil(t, check.Check)
	l.Set("abzd")
	w.Poll()
	next := w.One(w.D)
	require.Equal(t, "chain", next.Job.Name)
	dispatchertest.Execute(t.Context(), w.D, next)
	require.Contains(t, w.Task(next.TaskID), "Failed handed_back", "it waits for what is held")
	require.Equal(t, map[string]int64{"0-2": 1}, w.Published("chain"))
	dispatchertest.Execute(t.Context(), w.D, check)
	require.Equal(t, []string{"w(a+b)"}, w.Read("chained_whole")["all"])
	l.Set("abcd")
	w.Promote(dispatchertest.Later(time.Minute))
	w.Settle()
	require.Equal(t, map[string]int64{"0-2": 1, "2-4": 1}, w.Published("chain"))
	require.Equal(t, []string{"w(a+b+c+d)"}, w.Read("chained_whole")["all"])
	_, err := w.D.Control.Accept(t.Context(), w.Caller, "chained_chain", control.DecideRequest{Partition: "2-3",
		Reason: "it was fine"})
	require.ErrorContains(t, err, "does not follow")
}

// Two attempts read the same part: one is published, and the other reads on from there.
func TestTwoSegmentsFromTheSamePosition(t *testing.T) {
	t.Parallel()
	w, l := dispatchertest.NewWorld(t), &dispatchertest.Ledger{Blocks: "ab"}
	w.Probe.On("chain", l.Read)
	w.Serve(dispatchertest.Edit(chained, "kind: poll, every: 1h", "kind: manual"))
	for range 2 {
		_, err := w.D.Enqueue(t.Context(), w.Caller, "chained", "chain", []dispatcher.EnqueueItem{{}})
		require.NoError(t, err)
	}
	w.Settle()
	require.Equal(t, map[string]int64{"0-2": 1}, w.Published("chain"))
	_, err := w.D.Enqueue(t.Context(), w.Caller, "chained", "chain", []dispatcher.EnqueueItem{{Partition: "5-6"}})
	require.ErrorContains(t, err, "leave `partition` out")
	_, err = w.D.Control.PublishEvent(t.Context(), w.Caller, "chained_chain", control.PublishRequest{Partition: "0-2"},
		time.Now())
	require.ErrorContains(t, err, "partitioned by cursor")
}

func TestASourceThatWritesBehindItsCursor(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	w.Probe.On("chain", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		task.Cursor.Value = -1
		return l.Read(ctx, task)
	})
	w.Poll()
	w.Settle()
	require.Equal(t, map[string]int64{"0-2": 1}, w.Published("chain"))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE status = 'Failed'
		AND error_message LIKE '%the rows up to 1 exist already%'`))
}
