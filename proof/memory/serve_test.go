package memory_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/registry"
)

// TestMemoryOfServe keeps a server busy with all that callers and workers do.
func TestMemoryOfServe(t *testing.T) {
	t.Parallel()
	serve(t, short)
}

// loadDAG has jobs in the server and on a worker elsewhere, which sends its outputs. Each deploy has another number.
const loadDAG = `name: load
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: ., pattern: "{date}.csv", format: csv }
  - name: daily
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, max(celsius) AS highest, %d AS deployed FROM landing GROUP BY station" }
    checks: [{ not_null: [station] }]
  - name: uploaded
    operator: sql
    runtime: elsewhere
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT *, %d AS deployed FROM landing" }
  - { name: note, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [/bin/true] } }
publish:
  highest: { from: { job: daily } }
  uploads: { from: { job: uploaded } }
`

// settings of the server under load: engines end soon.
const settings = `
limits: { requests_per_second: 100000, burst: 100000 }
operators: { allow_command: [acme] }
engines: { idle_seconds: 1 }
runtimes: { dispatcher: in-process, elsewhere: poll }
tasks: { key_files: [%q] }
base_url: http://dagctl.example.com
`

// load is a server with what its callers need.
type load struct {
	url, token, landing string
	client              http.Client
	refused             sync.Map // the last refusal of each kind of call
	done                sync.Map // *atomic.Int64: how often each kind of call succeeded
}

func serve(t *testing.T, r run) {
	t.Helper()
	l, pid := newLoad(t)
	ctx, stop := context.WithCancel(t.Context())
	var calls sync.WaitGroup
	defer calls.Wait()
	defer stop()

	for name, c := range map[string]struct {
		every time.Duration
		call  func(context.Context, int) error
	}{
		"deploy": {2 * time.Second, l.deploy}, "plan": {500 * time.Millisecond, l.plan},
		"query": {300 * time.Millisecond, l.query}, "abort": {5 * time.Second, l.abort},
		"task": {200 * time.Millisecond, l.enqueue}, "land": {5 * time.Second, l.land},
		"push": {3 * time.Second, l.push}, "look": {200 * time.Millisecond, l.look},
	} {
		count := new(atomic.Int64)
		l.done.Store(name, count)
		calls.Go(func() { l.repeat(ctx, name, c.every, count, c.call) })
	}

	watch(t, pid, r)
	l.done.Range(func(name, count any) bool {
		last, _ := l.refused.Load(name)
		t.Logf("%s: %d times; last refusal: %v", name, count.(*atomic.Int64).Load(), last)
		require.Positive(t, count.(*atomic.Int64).Load(), "%s: %v", name, last)
		return true
	})
}

func newLoad(t *testing.T) (l *load, pid int) {
	t.Helper()
	url, landing, files := testdb.URL(t), t.TempDir(), t.TempDir()
	pool, err := pg.Open(t.Context(), url, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(pool.Close)

	token, org, err := authz.Bootstrap(t.Context(), pool, authz.FirstToken{OrgSlug: "acme", TokenName: "admin"})
	require.NoError(t, err)
	caller := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "token:admin", Role: authz.RoleAdmin}
	worker, _, err := authz.CreateToken(t.Context(), pool, caller,
		authz.NewToken{Name: "worker", Kind: authz.KindWorker, Runtimes: []string{"elsewhere"}})
	require.NoError(t, err)
	key, config := filepath.Join(files, "task.pem"), filepath.Join(files, "config.yaml")
	_, err = authz.EnsureTaskKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, settings, key), 0o600))

	l = &load{token: token, landing: landing, client: http.Client{Timeout: time.Minute}}
	l.url, pid = processtest.Serve(t, url, "--config", config, "--storage-root", filepath.Join(files, "storage"),
		"--file-root", "acme="+landing)
	processtest.Start(t, []string{"DAGCTL_TOKEN=" + worker}, "worker", "--url", l.url, "--runtime", "elsewhere")
	require.NoError(t, l.land(t.Context(), 0))
	require.NoError(t, l.deploy(t.Context(), 0))
	processtest.Eventually(t, "the first version serves", func() bool { return l.query(t.Context(), 0) == nil })
	return l, pid
}

// repeat calls again and again. Under load a call may be refused, and a deploy finds another one at work.
func (l *load) repeat(ctx context.Context, name string, every time.Duration, count *atomic.Int64,
	call func(context.Context, int) error,
) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 1; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := call(ctx, i); err == nil {
			count.Add(1)
		} else if ctx.Err() == nil {
			l.refused.Store(name, err)
		}
	}
}

func (l *load) deploy(ctx context.Context, i int) error {
	return l.post(ctx, "/v1/dags/load/versions",
		registry.DeployRequest{YAML: fmt.Sprintf(loadDAG, i, i), Supersede: i%4 == 0})
}

func (l *load) plan(ctx context.Context, i int) error {
	return l.post(ctx, "/v1/dags/load/plan", registry.DeployRequest{YAML: fmt.Sprintf(loadDAG, -i, i)})
}

func (l *load) query(ctx context.Context, i int) error {
	return l.post(ctx, "/v1/query",
		map[string]any{"sql": fmt.Sprintf("SELECT *, %d FROM highest JOIN uploads USING (station)", i)})
}

// abort leaves a query that would take long, whose engine is then ended.
func (l *load) abort(ctx context.Context, i int) error {
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := l.post(short, "/v1/query",
		map[string]any{"sql": fmt.Sprintf("SELECT count(*) FROM range(10000000000) WHERE hash(range) %% 7 = %d", i%7)})
	if short.Err() != nil {
		return nil
	}
	return err
}

func (l *load) enqueue(ctx context.Context, i int) error {
	return l.post(ctx, "/v1/jobs/load/note/tasks", map[string]any{"idempotency_key": fmt.Sprint("note ", i),
		"payload": map[string]any{"text": fmt.Sprint(i)}})
}

// land changes one of twenty files.
func (l *load) land(_ context.Context, i int) error {
	text := fmt.Sprintf("station,celsius\nharbour,%d.5\nsummit,-8\n", i)
	path := filepath.Join(l.landing, fmt.Sprintf("2026-01-%02d.csv", 1+i%20))
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// push uploads code of a megabyte.
func (l *load) push(ctx context.Context, i int) error {
	var body bytes.Buffer
	archive := zip.NewWriter(&body)
	files := map[string][]byte{"main.py": fmt.Appendf(nil, "print(%d)\n", i), "data": make([]byte, 1<<20)}
	for name, text := range files {
		member, err := archive.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err != nil {
			return err
		}
		if _, err := member.Write(text); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return l.send(ctx, http.MethodPost, "/v1/udf-bundles", "application/zip", &body)
}

// look reads the pages and lists, in turn.
func (l *load) look(ctx context.Context, i int) error {
	paths := []string{"/v1/tasks?limit=100", "/v1/datasets", "/v1/dags/load", "/v1/dags/load/versions", "/metrics",
		"/v1/datasets/highest/rows", "/v1/jobs/load/daily/why", "/v1/audit", "/v1/workers", "/dags",
		"/datasets/highest"}
	return l.send(ctx, http.MethodGet, paths[i%len(paths)], "", nil)
}

func (l *load) post(ctx context.Context, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return l.send(ctx, http.MethodPost, path, "application/json", bytes.NewReader(text))
}

func (l *load) send(ctx context.Context, method, path, contentType string, body io.Reader) error {
	request, err := http.NewRequestWithContext(ctx, method, l.url+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+l.token)
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	answer, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()

	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s: %.300s", method, path, answer.Status, text)
	}
	return nil
}
