package examples_test

import (
	"flag"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/query"
)

var pipelineFlights = flag.Int("pipeline-flights", 90_000,
	"flights of TestPipelines, a multiple of 90; a trial had three million")

// TestPipelines runs the pipelines of the trial: days become months, quarters and years; two files are joined into a
// Postgres table; and months of flights come late and out of order, through two DAGs.
func TestPipelines(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "pipelines")
	for _, name := range []string{"weather", "quakes", "flights"} {
		require.NoError(t, os.MkdirAll(filepath.Join(w.dir, name, "data"), 0o755))
	}
	w.writeWeather(t)
	w.copyInto(t, "quakes/data/all_week.geojson", "earthquakes/data/all_week.geojson")
	w.copyInto(t, "quakes/data/airports.csv", "us-flights/data/airports.csv")
	server := w.serve(t)
	processtest.Eventually(t, "all four serve", func() bool {
		return w.count(t, `SELECT count(*) FROM dag_versions WHERE status = 'Active'`) == 4
	})
	w.settle(t)
	rows := func(sql string) [][]any {
		t.Helper()
		return ask[query.Answer](t, w, "query", sql).Rows
	}

	require.Equal(t, "[[48 1461]]", fmt.Sprint(rows("SELECT count(*), sum(days)::INT FROM weather_months")))
	require.Equal(t, "[[16 1461]]", fmt.Sprint(rows("SELECT count(*), sum(days)::INT FROM weather_quarters")))
	require.Equal(t, "[[36 0]]", fmt.Sprint(rows(`SELECT count(*), count(*) FILTER (WHERE y.more IS DISTINCT FROM
		(SELECT m.rain FROM weather_months AS m WHERE m.month = y.month) - y.rain_a_year_ago)
		FROM weather_year_over_year AS y`)))
	near := w.count(t, `SELECT count(*) FROM data_local.quakes_near_airports WHERE km < 160`)
	require.Positive(t, near)
	require.Equal(t, near, w.count(t, `SELECT count(DISTINCT id) FROM data_local.quakes_near_airports`))

	// January and March first.
	address, _, _ := strings.Cut(server.URL, "/?")
	monthly := "SELECT _partition, sum(flights)::BIGINT::VARCHAR, any_value(price) FROM monthly_delays " +
		"GROUP BY 1 ORDER BY 1"
	w.landFlights(t, address, "first", "NOT day BETWEEN 31 AND 58")
	day := *pipelineFlights / 90
	require.Equal(t, fmt.Sprintf("[[2026-01 %d 71] [2026-03 %d 73]]", 31*day, 31*day), fmt.Sprint(rows(monthly)))
	ran := func(job, partitions string) int {
		return w.count(t, `SELECT count(*) FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1
			AND t.status = 'Completed' AND t.partitions[1] LIKE $2`, job, partitions)
	}
	january, march := ran("scored", "2026-01-%"), ran("scored", "2026-03-%")

	w.landFlights(t, address, "february", "true")
	require.Equal(t, fmt.Sprintf("[[2026-01 %d 71] [2026-02 %d 72] [2026-03 %d 73]]", 31*day, 28*day, 31*day),
		fmt.Sprint(rows(monthly)))
	require.Equal(t, 28, ran("scored", "2026-02-%"))
	require.Equal(t, []int{january, march}, []int{ran("scored", "2026-01-%"), ran("scored", "2026-03-%")})
	server.Stop(t)
}

// writeWeather writes four years of days, one of them a leap year.
func (w *world) writeWeather(t *testing.T) {
	t.Helper()
	var b strings.Builder
	b.WriteString("date,rain,highest\n")
	for i := range 1461 {
		day := time.Date(2012, 1, 1+i, 0, 0, 0, 0, time.UTC)
		fmt.Fprintf(&b, "%s,%d,%.1f\n", day.Format(time.DateOnly), i*7%13, 14-9*math.Cos(float64(i)*2*math.Pi/365.25))
	}
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "weather/data/daily.csv"), []byte(b.String()), 0o600))
}

// copyInto copies a file of another example.
func (w *world) copyInto(t *testing.T, to, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, to), content, 0o600))
}

// landFlights writes the file of flights, of the days for which a condition holds, says so to the webhook, and waits
// until all is computed.
func (w *world) landFlights(t *testing.T, address, key, where string) {
	t.Helper()
	processtest.Must(t, w.dir, "query", fmt.Sprintf(`
		SELECT CAST(TIMESTAMP '2026-01-01' + INTERVAL (day) DAY AS DATE) AS date, 'C' || (i %% 7) AS carrier,
			CAST(hash(i) %% 60 AS INTEGER) - 20 AS delay
		FROM (SELECT i, i %% 90 AS day FROM range(%d) AS r(i)) WHERE %s`, *pipelineFlights, where),
		"--output", "parquet", "--file", filepath.Join(w.dir, "flights/data/flights.parquet"), "--data", w.data)

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		address+"/v1/hooks/local/landed-4f1d9b7c2a8e4b6d9f0a1c3e5b7d9f2a", strings.NewReader("{}"))
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusAccepted, response.StatusCode)

	limit := 2*time.Minute + time.Duration(*pipelineFlights)*time.Millisecond
	processtest.Within(t, limit, "the webhook is answered", func() bool {
		return w.count(t, `SELECT count(*) FROM sources WHERE job_name = 'flights'
			AND (next_fire_at IS NOT NULL OR reading_until IS NOT NULL)`) == 0
	})
	w.settleWithin(t, limit)
}
