package examples_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/sqltext"
)

func TestEarthquakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "earthquakes")
	server := w.serve(t)
	w.settle(t)

	s := session(t)
	run := func(format string, args ...any) {
		require.NoError(t, s.Exec(t.Context(), fmt.Sprintf(format, args...)))
	}
	doc := document(t, w.dir)
	query := func(job string) any {
		j, ok := doc.Job(job)
		require.True(t, ok, job)
		return j.Config["query"]
	}

	run(`CREATE VIEW feed AS SELECT f.* FROM (SELECT unnest(features) AS f FROM read_json(%s, sample_size = -1,
		maximum_object_size = 16777216))`,
		sqltext.Literal(filepath.Join(w.dir, "data", "all_week.geojson")))
	run("CREATE TABLE earthquakes AS %s", query("events"))
	run("CREATE VIEW events AS FROM earthquakes; CREATE TABLE earthquakes_daily AS %s", query("daily"))
	for _, p := range doc.Publish {
		w.equal(t, s, p.Name, p.Name)
	}

	// Any Postgres client finds the events in a view with the dataset's name, with the indexes that the file defines.
	require.Equal(t, 1679, w.count(t, `SELECT count(*) FROM data_local.earthquakes`))
	require.Equal(t, 2, w.count(t, `SELECT count(*) FROM pg_indexes WHERE schemaname = 'data_local' AND
		(indexdef LIKE '%(occurred_at)' OR indexdef LIKE '%(region, magnitude)')`))
	server.Stop(t)
}
