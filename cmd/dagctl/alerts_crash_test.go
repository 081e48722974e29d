package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

const pagingDAG = `name: paging
defaults: { heartbeat_timeout_seconds: 5, retry: { initial_seconds: 1, max_seconds: 2, multiplier: 1 } }
jobs:
  - name: disks
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: disks, pattern: "{date}.csv", format: csv, header: true, types: { host: VARCHAR, used: INTEGER } }
  - name: found
    operator: alert_evaluate
    inputs: [{ from: { job: disks } }]
    scaling: { max_concurrency: 1 }
    config: { rules: [{ name: full, condition: used > 90, key: [host], labels: { host: "{host}" } }] }
  - name: told
    operator: alert_route
    inputs: [{ from: { job: found } }]
    outputs: 0
    scaling: { max_concurrency: 1 }
    config:
      receivers: { ops: { url: "%s/page" } }
      routes: [{ to: [ops], group_by: [host], repeat_every: never }]
publish:
  paging_found: { from: { job: found } }
`

// TestKilledServerPagesNobodyTwice kills the server while requests are on their way to a receiver: between the note of
// a request and its answer. The requests come again under the same Idempotency-Key, and nobody is told twice.
func TestKilledServerPagesNobodyTwice(t *testing.T) {
	t.Parallel()
	const hosts = 40
	type page struct{ host, status string }
	var mu sync.Mutex
	keys := map[page]map[string]int{} // Idempotency-Key → requests
	requests, hold := 0, 10           // the request that is not answered until the server is gone
	held := make(chan struct{}, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct {
			Data struct {
				Alerts []struct{ Key, Status string } `json:"alerts"`
			} `json:"data"`
		}
		if err := json.Unmarshal(body, &m); err != nil || len(m.Data.Alerts) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		of := page{m.Data.Alerts[0].Key, m.Data.Alerts[0].Status}
		mu.Lock()
		if keys[of] == nil {
			keys[of] = map[string]int{}
		}
		keys[of][r.Header.Get("Idempotency-Key")]++
		requests++
		hangs := requests == hold
		mu.Unlock()
		if hangs {
			held <- struct{}{}
			<-r.Context().Done()
		}
	}))
	t.Cleanup(receiver.Close)

	b := newBuilt(t, "operators: { allowed_addresses: [127.0.0.0/8] }\n")
	disks := filepath.Join(b.roots, "disks")
	require.NoError(t, os.Mkdir(disks, 0o700))
	env := b.env(t, admin)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, pagingDAG, receiver.URL), 0o600))
	must(t, env, "deploy", file)

	day := func(n, used int) {
		t.Helper()
		text := "host,used\n"
		for host := range hosts {
			text += fmt.Sprintf("h%d,%d\n", host, used)
		}
		require.NoError(t, os.WriteFile(filepath.Join(disks, fmt.Sprintf("2026-01-0%d.csv", n)), []byte(text), 0o600))
	}
	heard := func(status string) (n int) {
		mu.Lock()
		defer mu.Unlock()
		for of := range keys {
			if of.status == status {
				n++
			}
		}
		return n
	}
	for n, status := range []string{"firing", "resolved"} {
		day(n+1, 95-90*n)
		<-held
		b.process.kill(t)
		require.Less(t, heard(status), hosts, "it is killed in the middle")
		mu.Lock()
		hold = requests + hosts + 30
		mu.Unlock()
		b.start(t)
		eventually(t, "everybody hears of it", func() (bool, error) {
			open := decode[views.DAGDetail](t, env, "status", "paging").Tasks.Open()
			return heard(status) == hosts && open == 0, nil
		})
		mu.Lock()
		hold = requests + 10
		mu.Unlock()
	}

	mu.Lock()
	defer mu.Unlock()
	for of, ids := range keys {
		require.Len(t, ids, 1, "%v has one Idempotency-Key", of)
	}
	require.LessOrEqual(t, requests, 2*hosts+2*4, "only what was in flight comes again")
	b.process.kill(t)
}
