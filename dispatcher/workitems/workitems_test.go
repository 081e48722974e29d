package workitems_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
)

func TestMain(m *testing.M) { dispatchertest.Main(m) }

// upTo returns a kind whose items count to a number, each step by one, and says from where each turn began.
func upTo(most int, seen func(position string)) workitems.Kind {
	return workitems.Kind{
		Name: "counting", Objects: []string{"a"}, Every: time.Hour,
		Begin: func(context.Context, string, time.Time) (workitems.Step, error) {
			return func(_ context.Context, position string) (workitems.Progress, error) {
				seen(position)
				n, err := strconv.Atoi("0" + position)
				return workitems.Progress{Position: strconv.Itoa(n + 1), Rows: 1, Over: n+1 >= most}, err
			}, nil
		},
	}
}

func newRunner(w *dispatchertest.World, kinds ...workitems.Kind) *workitems.Runner {
	return workitems.New(w.Pool, slog.New(slog.DiscardHandler), kinds...)
}

// start begins what is due and waits for its end.
func start(t *testing.T, r *workitems.Runner) {
	t.Helper()
	_, err := r.Start(t.Context(), time.Now())
	require.NoError(t, err)
	r.End()
}

func rows(w *dispatchertest.World, column string) []string {
	return dispatchertest.Texts(w.T, w.Pool, `SELECT coalesce((`+column+`)::text, '') FROM work_items ORDER BY object`)
}

func TestAProcessThatStopsLeavesThePosition(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	stopping := newRunner(w, upTo(5, func(position string) {
		if position == "2" {
			cancel()
		}
	}))
	_, err := stopping.Start(ctx, time.Now())
	require.NoError(t, err)
	stopping.End()
	require.Equal(t, []string{"2"}, rows(w, "position"))
	require.Equal(t, []string{""}, rows(w, "lease_token"), "it gives its lease back")

	var seen []string
	start(t, newRunner(w, upTo(5, func(position string) { seen = append(seen, position) })))
	require.Equal(t, []string{"2", "3", "4"}, seen)
	require.Equal(t, []string{"5"}, rows(w, "rows"))
	require.Equal(t, []string{"true"}, rows(w, "began_at IS NULL AND ended_at IS NOT NULL"))
	start(t, newRunner(w, upTo(5, func(string) { t.Error("it rests for an hour") })))
}

func TestAKilledProcessLosesItsLeaseOnly(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	start(t, newRunner(w, upTo(3, func(string) {})))
	w.Exec(`UPDATE work_items SET lease_token = gen_random_uuid(), leased_until = clock_timestamp() + interval '1 hour',
		due_at = now(), position = '1', began_at = now()`)
	start(t, newRunner(w, upTo(3, func(string) { t.Error("another process has it") })))

	w.Exec(`UPDATE work_items SET leased_until = clock_timestamp()`)
	var seen []string
	start(t, newRunner(w, upTo(3, func(position string) { seen = append(seen, position) })))
	require.Equal(t, []string{"1", "2"}, seen)
}

func TestWhoLostItsLeaseStops(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	start(t, newRunner(w, upTo(5, func(position string) {
		if position == "1" {
			w.Exec(`UPDATE work_items SET lease_token = gen_random_uuid(), position = '40'`)
		}
		if position == "2" {
			t.Error("it went on without a lease")
		}
	})))
	require.Equal(t, []string{"40"}, rows(w, "position"))
}

func TestOneProcessWorksOnAnItem(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	var at, steps atomic.Int32
	kind := upTo(20, func(string) {
		if at.Add(1) > 1 {
			t.Error("two at once")
		}
		steps.Add(1)
		at.Add(-1)
	})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			r := newRunner(w, kind)
			if _, err := r.Start(t.Context(), time.Now()); err != nil {
				t.Error(err)
			}
			r.End()
		})
	}
	all.Wait()
	require.EqualValues(t, 20, steps.Load())
}

func TestWhatFailsWaits(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	fails := true
	kind := upTo(3, func(string) {})
	begin := kind.Begin
	kind.Begin = func(ctx context.Context, object string, now time.Time) (workitems.Step, error) {
		step, err := begin(ctx, object, now)
		return func(ctx context.Context, position string) (workitems.Progress, error) {
			if fails && position == "1" {
				return workitems.Progress{}, errors.New("no luck")
			}
			return step(ctx, position)
		}, err
	}
	r := newRunner(w, kind)
	for n := range 3 {
		w.Exec(`UPDATE work_items SET due_at = now()`)
		start(t, r)
		require.Equal(t, []string{strconv.Itoa(n+1) + " no luck 1"}, rows(w, `failures || ' ' || error || ' ' || position`))
	}
	require.Equal(t, []string{"true"}, rows(w, `due_at BETWEEN clock_timestamp() AND clock_timestamp() + interval '5 s'`))

	fails = false
	w.Exec(`UPDATE work_items SET due_at = now()`)
	start(t, r)
	require.Equal(t, []string{"0 3"}, rows(w, `failures || ' ' || position`))
}

// Passes go on where the last one ended, and begin anew once in a while.
func TestAWholePassOnceInAWhile(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	var seen []string
	kind := upTo(2, func(position string) { seen = append(seen, position) })
	kind.Whole = 24 * time.Hour
	r := newRunner(w, kind)
	for range 2 {
		w.Exec(`UPDATE work_items SET due_at = now()`)
		start(t, r)
	}
	require.Equal(t, []string{"", "1", "2"}, seen)

	w.Exec(`UPDATE work_items SET due_at = now(), whole_at = now() - interval '25 hours'`)
	start(t, r)
	require.Equal(t, []string{"", "1", "2", "", "1"}, seen)
}

func TestAnItemThatIsNotNeededGoes(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	kind := upTo(2, func(string) {})
	kind.Begin = func(context.Context, string, time.Time) (workitems.Step, error) {
		return func(context.Context, string) (workitems.Progress, error) {
			return workitems.Progress{Gone: true}, nil
		}, nil
	}
	start(t, newRunner(w, kind))
	require.Empty(t, rows(w, "object"))
}

// What is asked for while it is under way is done once more, and then it is gone.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	ask := func() {
		var b pg.Batch
		workitems.Ask(&b, "counting", []string{"a"})
		require.NoError(t, pg.InTx(t.Context(), w.Pool, b.Send))
	}
	var seen []string
	counting := upTo(3, func(position string) {
		if seen = append(seen, position); len(seen) == 2 {
			ask()
			ask()
		}
	})
	counting.Objects = nil
	begin := counting.Begin
	counting.Begin = func(ctx context.Context, object string, now time.Time) (workitems.Step, error) {
		step, err := begin(ctx, object, now)
		return func(ctx context.Context, position string) (workitems.Progress, error) {
			done, err := step(ctx, position)
			done.Gone = done.Over
			return done, err
		}, err
	}

	ask()
	ask()
	start(t, newRunner(w, counting))
	require.Equal(t, []string{"", "1", "2", "", "1", "2"}, seen)
	require.Empty(t, rows(w, "object"))
}
