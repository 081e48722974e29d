package dispatcher_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/testmysql"
)

const rememberers = `
name: work
jobs:
  - name: page
    operator: http_source
    source: { kind: manual }
    config: { url: "URL/page", format: json }
  - name: api
    operator: http_api
    source: { kind: manual }
    config: { url: "URL/api", records: items }
  - name: pg
    operator: postgres_query
    source: { kind: manual }
    config:
      { host: PGHOST, port: PGPORT, database: PGNAME, user: PGUSER, password: { secret: PG }, sslmode: disable,
        query: "SELECT 1 AS v" }
  - name: my
    operator: mysql_query
    source: { kind: manual }
    config:
      { host: MYHOST, port: MYPORT, database: MYNAME, user: MYUSER, password: { secret: MY }, sslmode: disable,
        query: "SELECT 1 AS v" }
publish:
  from_page: { from: { job: page } }
  from_api: { from: { job: api } }
  from_pg: { from: { job: pg } }
  from_my: { from: { job: my } }
`

// Sources that remember what they have read publish it again once it was purged, though it says the same, and no more
// often than that.
func TestWhatWasPurgedIsReadAgain(t *testing.T) {
	t.Parallel()
	var spared atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("If-None-Match") != "" {
			spared.Add(1)
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", `"one"`)
		if r.URL.Path == "/page" {
			fmt.Fprint(w, `[{"v": 1}]`)
			return
		}
		fmt.Fprint(w, `{"items": [{"v": 1}]}`)
	}))
	t.Cleanup(server.Close)

	w := dispatchertest.NewWorld(t)
	url := testdb.Empty(t)
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	pg, my := testdb.Behind(t, url, nil), testmysql.New(t)
	document := strings.NewReplacer("URL", server.URL, "PGHOST", pg.Host, "PGPORT", fmt.Sprint(pg.Port), "PGNAME",
		pg.Database, "PGUSER", pg.User, "MYHOST", my.Host, "MYPORT", fmt.Sprint(my.Port), "MYNAME", my.Database,
		"MYUSER", my.User).Replace(rememberers)
	w.Secret("PG", pg.Password, authz.Binding{AddJobs: []string{"work/pg"},
		AddHosts: []string{fmt.Sprintf("http://%s:%d", pg.Host, pg.Port)}})
	w.Secret("MY", my.Password, authz.Binding{AddJobs: []string{"work/my"},
		AddHosts: []string{fmt.Sprintf("http://%s:%d", my.Host, my.Port)}})
	w.Serve(document)

	jobs := []string{"page", "api", "pg", "my"}
	run := func() (revisions []int64) {
		t.Helper()
		for _, job := range jobs {
			w.Want(job)
		}
		w.Settle()
		for _, job := range jobs {
			revisions = append(revisions, w.Published(job)["all"])
		}
		return revisions
	}
	require.Equal(t, []int64{1, 1, 1, 1}, run())
	require.Equal(t, []int64{1, 1, 1, 1}, run(), "the same rows are no news")
	require.Equal(t, int32(1), spared.Load())

	for _, job := range jobs {
		_, err := w.D.Upkeep.Purge(t.Context(), w.Caller, "from_"+job, upkeep.PurgeRequest{Reason: "a mistake"},
			time.Now())
		require.NoError(t, err)
		require.Empty(t, w.Read("from_"+job))
		require.Equal(t, "work/"+job+" all: it was purged, and comes back when its job runs and its source has it; at "+
			"once: dagctl run work/"+job, w.WhyNot("from_"+job, "all").Reasons[0].Text)
	}
	require.Equal(t, []int64{2, 2, 2, 2}, run())
	for _, job := range jobs {
		require.Equal(t, map[string][]string{"all": {"1"}}, w.Read("from_"+job))
	}
	require.Equal(t, []int64{2, 2, 2, 2}, run(), "it is there")
	require.Equal(t, int32(2), spared.Load())
}
