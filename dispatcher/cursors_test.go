package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
)

// chained is a source by cursor, a job that is made of all of it, and one that takes what is new.
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

// ledger is a chain of blocks, one letter each, whose source reads what lies beyond the cursor.
type ledger struct {
	mu     sync.Mutex
	blocks string
}

func (l *ledger) set(blocks string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocks = blocks
}

func (l *ledger) read(ctx context.Context, t *operators.Task) (operators.Result, error) {
	l.mu.Lock()
	blocks := l.blocks
	l.mu.Unlock()
	var rows []string
	for height := t.Cursor.Value + 1; height < int64(len(blocks)); height++ {
		rows = append(rows, fmt.Sprintf("(%d, %s)", height, duck.Literal(blocks[height:height+1])))
	}
	if len(rows) == 0 {
		return operators.Result{Unchanged: true}, nil
	}
	return operators.Result{}, copyToParquet(ctx, "SELECT * FROM (VALUES "+strings.Join(rows, ", ")+") AS b(height, content)",
		filepath.Join(t.OutputDirs[0], "part.parquet"))
}

func chainWorld(t *testing.T, blocks string) (*world, *ledger) {
	t.Helper()
	w, l := newWorld(t), &ledger{blocks: blocks}
	w.probe.on("chain", l.read)
	w.serve(chained)
	return w, l
}

// grow reads what the ledger has by now, and leaves what follows to the test.
func (w *world) grow(l *ledger, blocks string) {
	w.t.Helper()
	l.set(blocks)
	w.poll()
	source := w.one(w.d)
	require.Equal(w.t, "chain", source.job.Name)
	w.d.execute(w.t.Context(), source)
	w.route()
}

// claimed takes the task of a job out of what is claimable.
func (w *world) claimOf(job string) claimed {
	w.t.Helper()
	var found *claimed
	for _, t := range w.claim(w.d) {
		if t.job.Name == job {
			found = &t
		} else {
			w.d.execute(w.t.Context(), t)
		}
	}
	require.NotNil(w.t, found, "no task of %s", job)
	return *found
}

// cursor tells "epoch:position" of a consumer.
func (w *world) cursor(job string) (text string) {
	w.t.Helper()
	w.row(`SELECT string_agg(format('%s:%s', c.epoch, c.cursor_value), ' ') FROM dataset_cursors c JOIN jobs j ON j.id = c.job_id WHERE j.name = $1`, job)(&text)
	return text
}

func (w *world) reorganize(from string) []Invalidated {
	w.t.Helper()
	made, err := w.d.Invalidate(w.t.Context(), w.caller, "chained_chain", InvalidateRequest{From: from, Reason: "reorg"}, time.Now())
	require.NoError(w.t, err)
	return made
}

func TestSegmentsOfACursor(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "abc")
	require.Equal(t, map[string]int64{"0-3": 1}, w.published("chain"))
	require.Equal(t, []string{"w(a+b+c)"}, w.read("chained_whole")["all"])
	require.Equal(t, "0:2", w.cursor("whole"))
	l.set("abcde")
	w.poll()
	w.settle()
	require.Equal(t, map[string]int64{"0-3": 1, "3-5": 1}, w.published("chain"))
	require.Equal(t, []string{"w(a+b+c+d+e)"}, w.read("chained_whole")["all"])
	require.Equal(t, []string{"n(a+b+c)", "n(d+e)"}, w.read("chained_news")["all"])
	require.Equal(t, "0:4", w.cursor("news"))
	require.Equal(t, []string{"0:2", "0:4"}, texts(t, w.pool, `SELECT format('%s:%s', epoch, cursor_value) FROM events WHERE scope = 'cursor' AND partition_key IS NULL ORDER BY id`))
	w.poll() // nothing new
	w.settle()
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, 2, w.attempts("news"))
	require.Equal(t, "0:4", w.cursor("news"))
}

// What is queued takes in what comes; what was claimed once reads the same again however often it fails, and what came
// meanwhile is read by the task after it.
func TestARangeIsKeptOverRetries(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "a")
	var reads []string
	fail := true
	w.probe.on("news", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		read, err := contents(ctx, task, 0)
		reads = append(reads, strings.Join(read, "+"))
		if err == nil && fail {
			return operators.Result{}, errors.New("not now")
		}
		return operators.Result{}, errors.Join(err, w.probe.write(ctx, task, reads[len(reads)-1]))
	})
	l.set("ab")
	w.poll()
	w.d.execute(t.Context(), w.one(w.d))
	w.grow(l, "abc") // two events, and the one task that is queued for the first takes the second in
	w.settle()
	require.Equal(t, "0:0", w.cursor("news"), "only an accepted completion moves it")
	l.set("abcd") // while it waits for its retry
	w.poll()
	w.settle()
	w.promote(later(time.Hour))
	w.settle()
	fail = false
	w.promote(later(2 * time.Hour))
	w.settle()
	w.route()
	w.settle()
	require.Subset(t, []string{"b+c", "d"}, reads)
	require.Equal(t, "d", reads[len(reads)-1])
	require.Greater(t, len(reads), 2)
	require.Equal(t, "0:3", w.cursor("news"))
	require.Equal(t, 1, w.count(`SELECT FROM dataset_cursors c JOIN jobs j ON j.id = c.job_id WHERE j.name = 'news' AND c.claimed_to IS NULL`))
	w.check()
}

// The same positions with other rows: nothing of it is taken for what was read before.
func TestTheSameCursorValueAfterAReorganization(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	w.grow(l, "abcd")
	w.settle()
	require.Equal(t, []string{"w(a+b+c+d)"}, w.read("chained_whole")["all"])
	l.set("abxy")
	made := w.reorganize("3") // in the middle of a segment: all of it goes
	require.Len(t, made, 1)
	require.Equal(t, "2-4", made[0].Partition)
	require.True(t, made[0].Withdrawn)
	require.Equal(t, "1:1", w.cursor("whole"), "rewound before anybody hears of it")
	require.Equal(t, map[string]int64{"0-2": 1}, w.published("chain"))
	w.settle()
	require.Equal(t, map[string]int64{"0-2": 1, "2-4": 2}, w.published("chain"))
	require.Equal(t, []string{"w(a+b+x+y)"}, w.read("chained_whole")["all"])
	require.Contains(t, w.read("chained_news")["all"], "n(x+y)")
	require.Equal(t, "1:3", w.cursor("news"))
	require.Equal(t, []string{"0:1", "0:3", "1:3"}, texts(t, w.pool, `SELECT format('%s:%s', epoch, cursor_value) FROM events WHERE scope = 'cursor' ORDER BY id`))
	require.Equal(t, 1, w.count(`SELECT FROM data_invalidations WHERE scope = 'range' AND epoch = 1 AND range_start = 2 AND reason = 'reorg'`))
	runs := w.attempts("whole")
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.settle()
	require.Equal(t, runs, w.attempts("whole"))
}

// A re-organisation that comes while a task reads what it takes back: the task's work is not published.
func TestATaskOfAnOlderEpochIsSuperseded(t *testing.T) {
	t.Parallel()
	for _, job := range []string{"whole", "news"} {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			w, l := chainWorld(t, "ab")
			w.grow(l, "abcd")
			slow := w.claimOf(job)
			done := w.do(w.d, slow)
			w.reorganize("2")
			w.route() // the invalidation before its replacement rows
			require.NoError(t, w.d.complete(t.Context(), slow, done, time.Now()))
			require.Equal(t, "1:1", w.cursor(job))
			var state string
			w.row(`SELECT state FROM tasks WHERE id = $1`, slow.TaskID)(&state)
			require.Contains(t, state, "superseded")
			require.NotContains(t, fmt.Sprint(w.read("chained_"+job)), "c")
			l.set("abxy")
			w.settle()
			require.Contains(t, fmt.Sprint(w.read("chained_"+job)), "x+y)")
			require.NotContains(t, fmt.Sprint(w.read("chained_"+job)), "d")
			require.Equal(t, "1:3", w.cursor(job))
			w.check()
		})
	}
}

// The claim and the invalidation at the same moment, the consumer's first one too: either the task is pinned in the new
// epoch or its work is not published.
func TestAClaimThatMeetsAReorganization(t *testing.T) {
	t.Parallel()
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprint("first ", first), func(t *testing.T) {
			t.Parallel()
			w, l := chainWorld(t, "ab")
			w.grow(l, "abcd")
			if first {
				w.exec(`DELETE FROM dataset_cursors`)
			}
			g, ctx := errgroup.WithContext(t.Context())
			var tasks []claimed
			g.Go(func() (err error) {
				tasks, err = w.d.claim(ctx, w.d.inProcessRuntimes(), w.d.WorkerID, 100, time.Now())
				return err
			})
			g.Go(func() error {
				_, err := w.d.Invalidate(ctx, w.caller, "chained_chain", InvalidateRequest{From: "2", Reason: "reorg"}, time.Now())
				return err
			})
			require.NoError(t, g.Wait())
			for _, task := range tasks {
				w.d.execute(t.Context(), task)
			}
			require.NotContains(t, fmt.Sprint(w.read("chained_whole")), "c+d")
			l.set("abxy")
			w.settle()
			require.Equal(t, []string{"w(a+b+x+y)"}, w.read("chained_whole")["all"])
			require.NotContains(t, fmt.Sprint(w.read("chained_news")), "d")
		})
	}
}

// A correction changes no row of the segments: who followed the cursor reads them again, in a new epoch.
func TestACorrectionOfSegments(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	w.grow(l, "abcd")
	w.settle()
	made, err := w.d.Invalidate(t.Context(), w.caller, "chained_chain", InvalidateRequest{From: "0", To: "1", Reason: "correction"}, time.Now())
	require.NoError(t, err)
	require.Len(t, made, 1)
	require.Equal(t, "0-2", made[0].Partition)
	require.Equal(t, "1:-1", w.cursor("news"))
	runs := w.attempts("news")
	w.settle()
	require.Equal(t, runs+1, w.attempts("news"))
	require.Equal(t, map[string]int64{"0-2": 2, "2-4": 1}, w.published("chain"))
	for name, c := range map[string]struct{ from, to, reason, want string }{
		"no position":   {"blue", "", "manual", "neither a position"},
		"no end":        {"0", "1", "reorg", "no end to give"},
		"nothing there": {"100", "", "reorg", "no such partition"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.d.Invalidate(t.Context(), w.caller, "chained_chain", InvalidateRequest{From: c.from, To: c.to, Reason: c.reason}, time.Now())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// What lies beyond a segment that waits for its checks is not published, and once they rejected it, it is read again.
func TestAHeldSegmentBlocksLaterOnes(t *testing.T) {
	t.Parallel()
	w, l := newWorld(t), &ledger{blocks: "ab"}
	w.probe.on("chain", l.read)
	w.serve(edit(chained, "    config: { tag: c }", "    config: { tag: c }\n    checks: [{ name: no_z, sql: \"SELECT * FROM output WHERE content = 'z'\" }]"))
	require.Equal(t, map[string]int64{"0-2": 1}, w.published("chain"))
	w.grow(l, "abz")
	check := w.one(w.d)
	require.NotNil(t, check.check)
	l.set("abzd")
	w.poll()
	next := w.one(w.d)
	require.Equal(t, "chain", next.job.Name)
	w.d.execute(t.Context(), next)
	require.Contains(t, w.task(next.TaskID), "Failed handed_back", "it waits for what is held")
	require.Equal(t, map[string]int64{"0-2": 1}, w.published("chain"))
	w.d.execute(t.Context(), check)
	require.Equal(t, []string{"w(a+b)"}, w.read("chained_whole")["all"])
	l.set("abcd")
	w.promote(later(time.Minute))
	w.settle()
	require.Equal(t, map[string]int64{"0-2": 1, "2-4": 1}, w.published("chain"))
	require.Equal(t, []string{"w(a+b+c+d)"}, w.read("chained_whole")["all"])
	_, err := w.d.Accept(t.Context(), w.caller, "chained_chain", DecideRequest{Partition: "2-3", Reason: "it was fine"})
	require.ErrorContains(t, err, "does not follow")
}

// Two attempts that read the same part: one is published, and the other reads on from there.
func TestTwoSegmentsFromTheSamePosition(t *testing.T) {
	t.Parallel()
	w, l := newWorld(t), &ledger{blocks: "ab"}
	w.probe.on("chain", l.read)
	w.serve(edit(chained, "kind: poll, every: 1h", "kind: manual"))
	for range 2 {
		_, err := w.d.Enqueue(t.Context(), w.caller, "chained", "chain", []EnqueueItem{{}})
		require.NoError(t, err)
	}
	w.settle()
	require.Equal(t, map[string]int64{"0-2": 1}, w.published("chain"))
	_, err := w.d.Enqueue(t.Context(), w.caller, "chained", "chain", []EnqueueItem{{Partition: "5-6"}})
	require.ErrorContains(t, err, "leave `partition` out")
	_, err = w.d.PublishEvent(t.Context(), w.caller, "chained_chain", PublishRequest{Partition: "0-2"}, time.Now())
	require.ErrorContains(t, err, "kept by cursor")
}

func TestASourceThatWritesBehindItsCursor(t *testing.T) {
	t.Parallel()
	w, l := chainWorld(t, "ab")
	w.probe.on("chain", func(ctx context.Context, task *operators.Task) (operators.Result, error) {
		task.Cursor.Value = -1
		return l.read(ctx, task)
	})
	w.poll()
	w.settle()
	require.Equal(t, map[string]int64{"0-2": 1}, w.published("chain"))
	require.Equal(t, 1, w.count(`SELECT FROM tasks WHERE status = 'Failed' AND error_message LIKE '%everything up to 1 is there already%'`))
}
