package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/operators"
)

const limited = `
name: limited
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    max_attempts: 20
    retry: { initial_seconds: 0.01, max_seconds: 0.01 }
    config: { list: raw }
    scaling: { max_concurrency: MAX }
`

// Limits are exact, whoever claims, completes and fails at the same time.
func TestMaxConcurrencyIsExact(t *testing.T) {
	t.Parallel()
	for _, max := range []int{1, 3} {
		t.Run(fmt.Sprint(max), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(edit(limited, "MAX", fmt.Sprint(max)))
			const n = 40
			for i := range n {
				w.probe.put("raw", fmt.Sprintf("k%02d", i), "a")
			}
			w.poll()
			var running, most, failed atomic.Int32
			w.probe.on("raw", func(context.Context, *operators.Task) (operators.Result, error) {
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
				d := w.dispatcher(fmt.Sprint("worker", i))
				g.Go(func() error {
					for {
						if _, err := d.promoteDue(ctx, later(0)); err != nil {
							return err
						}
						tasks, err := d.claim(ctx, []string{"dispatcher"}, d.WorkerID, 2, later(0))
						if err != nil {
							return err
						}
						for _, task := range tasks {
							d.execute(ctx, task)
						}
						var open int
						if err := w.pool.QueryRow(ctx, `SELECT count(*) FROM tasks WHERE status <> 'Completed'`).Scan(&open); err != nil || open == 0 {
							return err
						}
					}
				})
			}
			require.NoError(t, g.Wait())
			require.LessOrEqual(t, int(most.Load()), max)
			require.Equal(t, n, w.count(`SELECT FROM tasks WHERE status = 'Completed'`))
			require.Equal(t, n+int(failed.Load()), w.attempts("raw"))
			var held int
			w.row(`SELECT held FROM limits`)(&held)
			require.Zero(t, held)
			w.check()
		})
	}
}

// Jobs that share keys in different combinations neither lose a slot nor stop.
func TestConcurrencyKeysAcrossJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	yaml := "name: keys\njobs:\n"
	for i := range 3 {
		yaml += fmt.Sprintf("  - { name: job%d, operator: listed, source: { kind: poll, every: 1h }, partition_by: key, config: { list: l%d }, scaling: { max_concurrency: 2 }, concurrency_key: \"account-{partition}\" }\n", i, i)
		for k := range 12 {
			w.probe.put(fmt.Sprint("l", i), fmt.Sprint("k", k), "a")
		}
	}
	w.probe.on("job0", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Unchanged: true}, nil
	})
	w.probe.on("job1", w.probe.hooks["job0"])
	w.probe.on("job2", w.probe.hooks["job0"])
	w.deploy(yaml)
	w.advance()
	g, ctx := errgroup.WithContext(t.Context())
	for i := range 6 {
		d := w.dispatcher(fmt.Sprint("worker", i))
		g.Go(func() error {
			for {
				tasks, err := d.claim(ctx, []string{"dispatcher"}, d.WorkerID, 2, later(0))
				if err != nil {
					return err
				}
				for _, task := range tasks {
					d.execute(ctx, task)
				}
				var open, twice int
				if err := w.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM tasks WHERE status <> 'Completed'),
					(SELECT count(*) FROM (SELECT FROM tasks WHERE status = 'Running' GROUP BY concurrency_key HAVING count(*) > 1) AS q)`).Scan(&open, &twice); err != nil {
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
	require.Zero(t, w.count(`SELECT FROM limits WHERE held <> 0`))
	w.settle()
}

// A raised bound lets those in that wait for it.
func TestABoundThatIsRaised(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(limited, "MAX", "1"))
	for i := range 6 {
		w.probe.put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	w.poll()
	task := w.one(w.d)
	w.deploy(edit(limited, "MAX", "4"))
	w.advance()
	require.NoError(t, w.d.Reconcile(t.Context(), later(0)))
	w.check()
	require.Len(t, w.claim(w.d), 3)
	w.d.execute(t.Context(), task)
	w.check()
	require.Len(t, w.claim(w.d), 1)
}

// What a completion lets in goes on in the slot of its runner, as much as its limits allow and no more.
func TestARunnerGoesOnWithWhatItLetIn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(edit(limited, "MAX", "1"))
	for i := range 3 {
		w.probe.put("raw", fmt.Sprintf("k%02d", i), "a")
	}
	w.poll()
	task := w.one(w.d)
	for left := 2; left >= 0; left-- {
		var next []claimed
		w.d.attempt(t.Context(), task, func(c claimed) { next = append(next, c) })
		require.Equal(t, "Completed", w.task(task.TaskID))
		require.Len(t, next, min(left, 1))
		require.Zero(t, w.count(`SELECT FROM ready`))
		require.Equal(t, max(left-1, 0), w.count(`SELECT FROM waiting WHERE reason = 'limit'`))
		require.Equal(t, min(left, 1), w.count(`SELECT FROM leases`))
		require.Equal(t, min(left, 1), w.count(`SELECT FROM limits WHERE held = 1`))
		w.check()
		if left > 0 {
			task = next[0]
		}
	}
}
