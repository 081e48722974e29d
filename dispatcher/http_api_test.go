package dispatcher_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

const paged = `
name: paged
jobs:
  - name: raw
    operator: http_api
    source: { kind: poll, every: 1h }
    outputs: [rows, quarantine]
    max_attempts: 3
    config:
      url: "%s/orders"
      records: items
      pagination: { by: cursor, param: after, path: next }
      on_bad_rows: quarantine
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw, output: rows } }]
    config: { query: "SELECT sum(v)::BIGINT AS v FROM raw" }
publish: { paged_sums: { from: { job: sums } }, paged_bad: { from: { job: raw, output: quarantine } } }
`

// Pages become rows by the types that the first ones showed; the same rows publish nothing; and a run that is told to
// wait for longer than it may take leaves what is published as it is, and is tried again.
func TestPagesOfAnAPIArePublishedOnceTheyAreRead(t *testing.T) {
	t.Parallel()
	var second atomic.Value // rows of the second page
	var busy atomic.Bool
	second.Store(`{"id": 3, "v": 30}`)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Query().Get("after") == "":
			fmt.Fprint(w, `{"items": [{"id": 1, "v": 10}, {"id": 2, "v": 20}], "next": "x"}`)
		case busy.Load():
			w.Header().Set("Retry-After", "7200")
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			fmt.Fprintf(w, `{"items": [%s], "next": null}`, second.Load())
		}
	}))
	t.Cleanup(server.Close)

	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(paged, server.URL))
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"60"}, w.Read("paged_sums")["all"])
	runs := w.Attempts("raw")
	w.Poll()
	w.Settle()
	require.Equal(t, runs+1, w.Attempts("raw"))
	require.Equal(t, 1, w.Attempts("sums"), "nothing was published the second time")

	second.Store(`{"id": 3, "v": 31}, {"id": 4, "v": "many"}`)
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"61"}, w.Read("paged_sums")["all"])
	bad := w.Read("paged_bad")["all"]
	require.Len(t, bad, 1)
	require.True(t, strings.HasPrefix(bad[0], `the answers,4,v,"many",is no BIGINT`), bad[0])

	second.Store(`{"id": 3, "v": 32}`)
	busy.Store(true)
	w.Poll()
	w.Settle()
	require.Equal(t, []string{"61"}, w.Read("paged_sums")["all"], "half a listing is not published")
	var says string
	w.Row(`SELECT error_message FROM tasks WHERE attempt = 1 AND error_message IS NOT NULL`)(&says)
	require.Contains(t, says, "429 Too Many Requests, and it is to be asked again in 2h0m0s")
	busy.Store(false)
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, []string{"62"}, w.Read("paged_sums")["all"])
}
