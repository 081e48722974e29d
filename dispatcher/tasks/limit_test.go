package tasks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/operators"
)

// Limits are exact, however many processes claim, complete and fail at the same time.
func TestMaxConcurrencyIsExact(t *testing.T) {
	t.Parallel()
	for _, max := range []int{1, 3} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(dispatchertest.Edit(dispatchertest.Limited, "MAX", fmt.Sprint(max)))
			const n = 40
			for i := range n {
				w.Probe.Put("raw", fmt.Sprintf("k%02d", i), "a")
			}
			w.Poll()

			var running, most, failed atomic.Int32
			w.Probe.On("raw", func(context.Context, *operators.Task) (operators.Result, error) {
				now := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); now > m && !most.CompareAndSwap(m, now); m = most.Load() {
				}
				if rand.IntN(3) == 0 {
					failed.Add(1)
					return operators.Result{}, errors.New("unlucky")
				}
				return operators.Result{Unchanged: true}, nil
			})

			g, ctx := errgroup.WithContext(t.Context())
			for i := range 8 {
				d := w.Dispatcher(fmt.Sprint("worker", i))
				g.Go(func() error {
					for {
						if _, err := d.PromoteDue(ctx, dispatchertest.Later(0)); err != nil {
							return err
						}
						tasks, err := d.Claim(ctx, []string{"dispatcher"}, d.WorkerID, 2, dispatchertest.Later(0))
						if err != nil {
							return err
						}
						for _, task := range tasks {
							dispatchertest.Execute(ctx, d, task)
						}
						var open int
						if err := w.Pool.QueryRow(ctx,
							`SELECT count(*) FROM tasks WHERE status <> 'Completed'`).Scan(&open); err != nil ||
							open == 0 {
							return err
						}
					}
				})
			}

			require.NoError(t, g.Wait())
			require.LessOrEqual(t, int(most.Load()), max)
			require.Equal(t, n, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`))
			require.Equal(t, n+int(failed.Load()), w.Attempts("raw"))
			var held int
			w.Row(`SELECT held FROM limits`)(&held)
			require.Zero(t, held)
			w.Check()
		})
	}
}

// Jobs that share keys in different combinations neither lose a slot nor deadlock.
func TestConcurrencyKeysAcrossJobs(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml := "name: keys\njobs:\n"
	for i := range 3 {
		yaml += fmt.Sprintf("  - { name: job%d, operator: listed, source: { kind: poll, every: 1h }, "+
			"partition_by: key, config: { list: l%d }, scaling: { max_concurrency: 2 }, "+
			"concurrency_key: \"account-{partition}\" }\n", i, i)
		for k := range 12 {
			w.Probe.Put(fmt.Sprint("l", i), fmt.Sprint("k", k), "a")
		}
	}

	w.Probe.On("job0", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Unchanged: true}, nil
	})
	w.Probe.On("job1", w.Probe.Hooks["job0"])
	w.Probe.On("job2", w.Probe.Hooks["job0"])
	w.Deploy(yaml)
	w.Advance()

	g, ctx := errgroup.WithContext(t.Context())
	for i := range 6 {
		d := w.Dispatcher(fmt.Sprint("worker", i))
		g.Go(func() error {
			for {
				tasks, err := d.Claim(ctx, []string{"dispatcher"}, d.WorkerID, 2, dispatchertest.Later(0))
				if err != nil {
					return err
				}
				for _, task := range tasks {
					dispatchertest.Execute(ctx, d, task)
				}
				var open, twice int
				if err := w.Pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM tasks WHERE status <> 'Completed'),
					(SELECT count(*) FROM (SELECT FROM tasks WHERE status = 'Running' GROUP BY concurrency_key
					HAVING count(*) > 1) AS q)`).Scan(&open, &twice); err != nil {
					return err
				}
				if twice > 0 {
					return errors.New("two tasks of one key run at once")
				}
				if open == 0 {
					return nil
				}
			}
		})
	}

	require.NoError(t, g.Wait())
	require.Zero(t, w.Count(`SELECT FROM limits WHERE held <> 0`))
	w.Settle()
}

// Raising a limit admits tasks that wait for it.
func TestABoundThatIsRaised(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(dispatchertest.Limited, "MAX", "1"))
	for i := range 6 {
		w.Probe.Put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	w.Poll()
	task := w.One(w.D)
	w.Deploy(dispatchertest.Edit(dispatchertest.Limited, "MAX", "4"))
	w.Advance()
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
	w.Check()
	require.Len(t, w.Claim(w.D), 3)
	dispatchertest.Execute(t.Context(), w.D, task)
	w.Check()
	require.Len(t, w.Claim(w.D), 1)
}

// Tasks that a completion admits continue in the slot of its runner, as far as their limits allow.
func TestARunnerGoesOnWithWhatItLetIn(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(dispatchertest.Limited, "MAX", "1"))
	for i := range 3 {
		w.Probe.Put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	w.Poll()
	task := w.One(w.D)
	for left := 2; left >= 0; left-- {
		var next []dispatcher.Claimed
		w.D.Attempt(t.Context(), &task, func(c dispatcher.Claimed) { next = append(next, c) })
		require.Equal(t, "Completed", w.Task(task.TaskID))
		require.Len(t, next, min(left, 1))
		require.Zero(t, w.Count(`SELECT FROM ready`))
		require.Equal(t, max(left-1, 0), w.Count(`SELECT FROM waiting WHERE reason = 'limit'`))
		require.Equal(t, min(left, 1), w.Count(`SELECT FROM leases`))
		require.Equal(t, min(left, 1), w.Count(`SELECT FROM limits WHERE held = 1`))
		w.Check()
		if left > 0 {
			task = next[0]
		}
	}
}

// Numbers fill a template with all their digits: two orders do not share a limit because their numbers round alike.
func TestConcurrencyKeysKeepDigits(t *testing.T) {
	t.Parallel()
	for payload, want := range map[string]string{
		`{"id": 9007199254740993}`: "d/order 9007199254740993", `{"id": 1000000}`: "d/order 1000000",
		`{"id": 1.0}`: "d/order 1", `{"id": "1.0"}`: "d/order 1.0", `{}`: "d/order {payload.id}",
	} {
		require.Equal(t, want, tasks.RenderKey("{partition}/order {payload.id}", "d",
			json.RawMessage(payload)))
	}
}

// Keys that are too long for an index stay apart.
func TestLongKeysEndInTheirHash(t *testing.T) {
	t.Parallel()
	key := func(text string) string {
		return tasks.RenderKey("k {payload.to}", "", json.RawMessage(`{"to": "`+text+`"}`))
	}
	for _, letter := range []string{"a", "é", "語"} {
		long := strings.Repeat(letter, 5000)
		require.NotEqual(t, key(long), key(long+"b"))
		require.Less(t, len(key(long)), 801)
		require.True(t, utf8.ValidString(key(long)))
		require.Contains(t, key(long), "k "+letter)
	}
	require.Equal(t, "k "+strings.Repeat("a", 798), key(strings.Repeat("a", 798)))
}
