package usage_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/usage"
	"github.com/dagctl/dagctl/internal/pg"
)

// reads counts the statements that read usage of days, by job.
type reads struct{ days atomic.Int64 }

func (r *reads) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	r.days.Add(int64(strings.Count(q.SQL, "usage_days")))
	return ctx
}

func (*reads) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Trends of owners come with the sums of outputs: what jobs used is read once, and is the same as when it is read by
// itself, as it is over more steps.
func TestTrendsOfOwnersAreReadOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Upkept, "from: { job: made }", "from: { job: made }, owner: letters"))
	w.Exec(`DELETE FROM usage_days`)
	w.Exec(`
		INSERT INTO usage_days (org_id, dag_name, job_name, output, day, attempts, tasks, failed, seconds, rows, bytes,
			durations)
		SELECT c.org_id, c.dag_name, job, output, day, 1, 1, 0, extract(day FROM day), 10, extract(day FROM day) * 100, '{1}'
		FROM dag_current_versions c, unnest('{raw,made,gone}'::text[]) AS job, generate_series(0, 1) AS output,
			generate_series('2026-03-01Z'::timestamptz, '2026-03-31Z', '1 day') AS day`)
	count := new(reads)
	pool, err := pg.OpenRequests(t.Context(), w.URL, pg.WithMaxConns(3),
		func(c *pgxpool.Config) { c.ConnConfig.Tracer = count })
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	us := usage.New(&dispatcher.Dispatcher{Config: dispatcher.Config{Pool: w.Pool, Requests: pool,
		Registry: w.D.Registry}}, nil)
	us.Prices = usage.Prices{Currency: "EUR", Second: 1, Written: 1e6}

	ask := func(step usage.Step, since time.Time, days int) map[string][]float64 {
		until := since.Add(time.Duration(days) * 24 * time.Hour)
		c, err := us.Costs(t.Context(), w.Caller,
			usage.Question{By: usage.ByOwner, Step: step, Since: since, Until: until}, until)
		require.NoError(t, err)
		trends := map[string][]float64{}
		for _, row := range c.Rows {
			trends[row.Owner] = row.Trend
		}
		require.Contains(t, trends, "letters")
		require.Contains(t, trends, "", "of what has no owner")
		return trends
	}
	first := time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC) // a Monday
	few := ask(usage.Day, first, 14)
	once := count.days.Load()
	many := ask(usage.Day, first, 28)
	require.Equal(t, once+1, count.days.Load()-once, "steps by themselves are another statement")
	weeks := ask(usage.Week, first, 14)
	for owner, trend := range few {
		require.InDeltaSlice(t, many[owner][:14], trend, 1e-9, owner)
		sums := []float64{0, 0}
		for i, v := range trend {
			sums[i/7] += v
		}
		require.InDeltaSlice(t, sums, weeks[owner], 1e-9, owner)
	}
}
