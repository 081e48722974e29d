package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher/usage"
)

// countUsage counts until all attempts are counted that have ended.
func (w *world) countUsage(t *testing.T) {
	t.Helper()
	w.app.Dispatcher.Usage.Margin = 0
	eventually(t, "usage is counted", func() (bool, error) {
		step, err := w.app.Dispatcher.Usage.Counting().Begin(t.Context(), "", time.Now())
		if err == nil {
			err = step.Whole(t.Context())
		}
		if err != nil {
			return false, err
		}
		var counted bool
		err = w.pool.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM task_events e, usage_progress p
			WHERE e.to_status = 'Completed' AND e.id >= p.after)`).Scan(&counted)
		return counted, err
	})
}

func TestCostsForEachRole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *server.Config) {
		c.Prices = server.PricesConfig{Currency: "EUR", Second: 1, Written: 1000, StoredByMonth: 0.02}
	})
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	must(t, w.env(t, admin), "roles", "create", "hr")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:hr")
	w.countUsage(t)

	costs := decode[usage.Costs](t, w.env(t, admin), "costs")
	require.Equal(t, "EUR", costs.Currency)
	require.Positive(t, costs.Total.Bytes)
	var sum float64
	for _, r := range costs.Rows {
		require.Equal(t, "readings", r.DAG)
		sum += *r.Money
	}
	require.InDelta(t, *costs.Total.Money, sum, 1e-9)
	require.Len(t, costs.Points, 7)

	by := func(caller string, by usage.By) (names []string, total usage.Total) {
		found := decode[usage.Costs](t, w.env(t, caller), "costs", "--by", string(by))
		for _, r := range found.Rows {
			names = append(names, r.Name())
		}
		return names, found.Total
	}
	names, whole := by(admin, usage.ByDataset)
	require.Contains(t, names, "daily_highest")
	names, seen := by(reader, usage.ByDataset)
	require.NotContains(t, names, "daily_highest", "its name is hidden")
	require.Equal(t, whole.Tasks, seen.Tasks, "tasks are outlines")
	require.Less(t, seen.Bytes, whole.Bytes, "what is hidden has no bytes")
	names, none := by(foreign, usage.ByJob)
	require.Empty(t, names)
	require.Zero(t, none.Tasks)

	csv := must(t, w.env(t, admin), "costs", "--output", "csv", "--by", "dag")
	require.Contains(t, csv, "readings,")
	require.Contains(t, csv, ",EUR")
	require.Contains(t, must(t, w.env(t, admin), "costs", "--dag", "readings"), "readings/daily")
	wrong := dagctl(t, w.env(t, admin), "costs", "--step", "minute")
	require.NotZero(t, wrong.code)
	status, _ := w.send(t, admin, http.MethodGet, "/v1/costs?dag=nothing", "", nil)
	require.Equal(t, http.StatusNotFound, status)
	status, _ = w.send(t, admin, http.MethodGet, "/v1/costs?step=hour&since=2020-01-01T00:00:00Z", "", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status)

	page := w.page(t, admin, "/costs?by=job&step=hour")
	requireAccessible(t, page, "/costs")
	require.Contains(t, cellsOf(rows(page, 0)), "readings/daily")
	hidden := w.page(t, reader, "/costs?by=dataset")
	requireAccessible(t, hidden, "/costs")
	require.NotContains(t, cellsOf(rows(hidden, 0)), "daily_highest")
	requireAccessible(t, w.page(t, foreign, "/costs"), "/costs")
	status, body := w.send(t, admin, http.MethodGet, "/costs?since=yesterday", "", nil)
	require.Equal(t, http.StatusUnprocessableEntity, status, body)

	home := w.page(t, admin, "/")
	requireAccessible(t, home, "/")
	require.Contains(t, text(home), "Cost of 7 days")
	require.Contains(t, text(home), "No source has a schedule", "what polls each second is no news")
}

func TestTrendOfAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	w.countUsage(t)
	var trend usage.Trend
	require.NoError(t, w.as(writer).Get(t.Context(), "/v1/jobs/readings/daily/trend", nil, &trend))
	require.Len(t, trend.Days, 1)
	require.EqualValues(t, 2, trend.Days[0].Tasks)
	require.Positive(t, trend.Days[0].P50)
	require.GreaterOrEqual(t, trend.Days[0].P95, trend.Days[0].P50)
	require.Len(t, trend.Freshness, 2)
	require.NotNil(t, trend.Freshness[0].Delay)
	const path = "/dags/readings/jobs/daily"
	require.NotContains(t, text(w.page(t, writer, path)), "How long attempts took", "one day is no trend")

	_, err := w.pool.Exec(t.Context(), `INSERT INTO usage_days
		SELECT org_id, dag_name, job_name, output, day - interval '1 day', attempts + 7, tasks, failed, seconds, rows,
			bytes, durations FROM usage_days`)
	require.NoError(t, err)
	page := w.page(t, writer, path)
	requireAccessible(t, page, path)
	require.Contains(t, text(page), "Line chart of seconds over day, 4 rows")
	days := rows(page, 1)
	require.Equal(t, []string{"2", "2"}, days[0][1:3])
	require.Equal(t, []string{"2", "9"}, days[1][1:3])
	require.Len(t, days[0], 9)

	must(t, w.env(t, admin), "roles", "create", "hr")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:hr")
	var hidden usage.Trend
	require.NoError(t, w.as(reader).Get(t.Context(), "/v1/jobs/readings/daily/trend", nil, &hidden))
	require.True(t, hidden.Redacted)
	require.Empty(t, hidden.Freshness)
	require.Zero(t, hidden.Days[0].Bytes)
	require.Len(t, rows(w.page(t, reader, path), 1)[0], 7, "neither rows nor bytes")
	status, _ := w.send(t, foreign, http.MethodGet, "/v1/jobs/readings/daily/trend", "", nil)
	require.Equal(t, http.StatusNotFound, status)
}

func TestWhatComesNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.land(t, "2026-01-01")
	file := filepath.Join(t.TempDir(), "dag.yaml")
	document := strings.NewReplacer(
		"tags: [weather]", "due: { within: 2h }", "every: 1s", "every: 6h").Replace(readingsDAG)
	require.NoError(t, os.WriteFile(file, []byte(document), 0o600))
	must(t, w.env(t, writer), "deploy", file)

	next := func(caller string) (kinds []string) {
		var found usage.Forecast
		require.NoError(t, w.as(caller).Get(t.Context(), "/v1/forecast", nil, &found))
		for _, n := range found.Items {
			require.Greater(t, n.At, time.Now().Add(-time.Minute))
			kinds = append(kinds, n.Kind)
		}
		return kinds
	}
	require.ElementsMatch(t, []string{"due", "fires"}, next(writer))
	require.Empty(t, next(foreign))
	home := w.page(t, writer, "/")
	requireAccessible(t, home, "/")
	shown := cellsOf(rows(home, len(all(home, "table"))-1))
	require.Contains(t, shown, "readings/landing")
	require.Contains(t, shown, "daily_highest@")
	require.Contains(t, shown, "likely late")

	must(t, w.env(t, admin), "roles", "create", "hr")
	must(t, w.env(t, admin), "datasets", "visibility", "daily_highest", "--role", "role:hr")
	require.Equal(t, []string{"fires"}, next(reader), "hidden names never appear")
}

// cellsOf is the text of all cells.
func cellsOf(rows [][]string) string { return fmt.Sprint(rows) }
