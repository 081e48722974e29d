package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

const deliveringDAG = `name: orders
jobs:
  - name: due
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: key
    config: { path: landing, pattern: "{key}.csv", format: csv, header: true, types: { n: INTEGER } }
  - name: sent
    operator: webhook_deliver
    inputs: [{ from: { job: due } }]
    execution_strategy: PerPartition
    update_strategy: append
    unique_key: key
    heartbeat_timeout_seconds: 5
    config: { url: "%s/hook", key: [n] }
publish:
  orders_sent: { from: { job: sent } }
`

// TestKilledServerRepeatsOnlyWhatWasInFlight kills the server twice in the middle of a thousand deliveries to a slow
// receiver: each kill repeats at most the requests that were on their way, under the same Idempotency-Key.
func TestKilledServerRepeatsOnlyWhatWasInFlight(t *testing.T) {
	t.Parallel()
	const rows, inFlight = 1000, 4
	var mu sync.Mutex
	keys := map[string]map[string]int{} // body → Idempotency-Key → requests
	requests := 0
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		requests++
		if keys[string(body)] == nil {
			keys[string(body)] = map[string]int{}
		}
		keys[string(body)][r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		select { // a slow receiver
		case <-time.After(5 * time.Millisecond):
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(receiver.Close)
	sent := func() int {
		mu.Lock()
		defer mu.Unlock()
		return requests
	}

	b := newBuilt(t, "operators: { allowed_addresses: [127.0.0.0/8] }\n")
	require.NoError(t, os.Mkdir(filepath.Join(b.roots, "landing"), 0o700))
	env := b.env(t, admin)

	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, deliveringDAG, receiver.URL), 0o600))
	must(t, env, "deploy", file)
	text := "n\n"
	for n := range rows {
		text += fmt.Sprintf("%d\n", n)
	}
	require.NoError(t, os.WriteFile(filepath.Join(b.roots, "landing", "a.csv"), []byte(text), 0o600))
	for _, at := range []int{rows / 4, rows / 2} {
		eventually(t, "some deliveries", func() (bool, error) { return sent() >= at, nil })
		b.process.kill(t)
		require.Less(t, sent(), rows, "it is killed in the middle")
		b.start(t)
	}
	eventually(t, "everything done", func() (bool, error) {
		status := decode[views.DAGDetail](t, env, "status", "orders")
		return sent() >= rows && status.Active != nil && status.Tasks.Open() == 0, nil
	})

	mu.Lock()
	defer mu.Unlock()
	require.Len(t, keys, rows, "every row arrived")
	for body, of := range keys {
		require.Len(t, of, 1, "%s has one Idempotency-Key", body)
	}
	require.LessOrEqual(t, requests, rows+2*inFlight, "only what was in flight is repeated")
	partitions := decode[[]registry.Revision](t, env, "datasets", "partitions", "orders_sent")
	require.Len(t, partitions, 1)
	require.EqualValues(t, rows, partitions[0].Rows)
	b.process.kill(t)
}
