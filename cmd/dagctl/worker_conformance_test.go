package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/protocol"
)

// conformanceDAG has a job for each function of the suite.
func conformanceDAG() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: conformance\ndefaults: { runtime: conformance, max_attempts: 3, heartbeat_timeout_seconds: %d, retry: { initial_seconds: 1, max_seconds: 1 } }\njobs:\n", conformance.LeaseSeconds)
	for _, handler := range conformance.Handlers() {
		switch handler {
		case conformance.Copy, conformance.Query, conformance.Secrets:
			continue
		}
		fmt.Fprintf(&b, "  - { name: %s, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: %q } }\n",
			strings.TrimPrefix(handler, "conformance:"), handler)
	}
	return b.String()
}

// realBackend is a server with its database as the suite sees it.
type realBackend struct {
	http.Handler
	t *testing.T
	w *world
}

func newRealBackend(t *testing.T) realBackend {
	t.Helper()
	w := newWorld(t, func(cfg *serverConfig) {
		cfg.Runtimes = maps.Clone(cfg.Runtimes)
		cfg.Runtimes[conformance.Runtime] = []dispatcher.Backend{{Kind: dispatcher.Poll}}
	})
	file := filepath.Join(t.TempDir(), dagFileName)
	require.NoError(t, os.WriteFile(file, []byte(conformanceDAG()), 0o600))
	must(t, w.env(t, admin), "deploy", file, "--yes", "--wait")
	server, err := url.Parse(w.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request, _ error) { rw.WriteHeader(http.StatusBadGateway) }
	return realBackend{proxy, t, w}
}

func (b realBackend) Create(ctx context.Context, handler string, payload any) (uuid.UUID, error) {
	body := map[string]any{"payload": payload}
	if payload == nil {
		delete(body, "payload")
	}
	var made struct {
		Items []dispatcher.Enqueued `json:"items"`
	}
	err := b.w.as(admin).post(ctx, "/v1/jobs/conformance/"+strings.TrimPrefix(handler, "conformance:")+"/tasks", body, &made)
	if err != nil || len(made.Items) != 1 {
		return uuid.Nil, fmt.Errorf("%d tasks were made: %w", len(made.Items), err)
	}
	return made.Items[0].ID, nil
}

func (b realBackend) Cancel(ctx context.Context, task uuid.UUID) error {
	return b.w.as(admin).post(ctx, "/v1/tasks/"+task.String()+":cancel", nil, nil)
}

// Expire puts the end of the lease into the past, as if no heartbeat had come for long.
func (b realBackend) Expire(ctx context.Context, task uuid.UUID) error {
	tag, err := b.w.app.pool.Exec(ctx, `UPDATE leases SET expires_at = now() WHERE task_id = $1`, task)
	if err == nil && tag.RowsAffected() == 0 {
		return fmt.Errorf("task %s has no lease", task)
	}
	return err
}

func (b realBackend) Task(ctx context.Context, task uuid.UUID) (state protocol.TaskState, err error) {
	err = b.w.app.pool.QueryRow(ctx, `SELECT status, attempt FROM tasks WHERE id = $1`, task).Scan(&state.Status, &state.Attempt)
	return state, err
}

func (b realBackend) Output(ctx context.Context, _ uuid.UUID) (rows []map[string]any, err error) {
	var answer struct {
		Rows []map[string]any `json:"rows"`
	}
	err = b.w.as(admin).get(ctx, "/v1/datasets/conformance.copy/rows", nil, &answer)
	return answer.Rows, err
}

func (b realBackend) Lines(ctx context.Context, task uuid.UUID, attempt int) ([]protocol.LogLine, error) {
	rows, err := b.w.app.pool.Query(ctx, `SELECT seq, text FROM task_logs WHERE task_id = $1 AND attempt = $2 ORDER BY seq`, task, attempt)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var lines []protocol.LogLine
	for rows.Next() {
		var line protocol.LogLine
		if err := rows.Scan(&line.Seq, &line.Text); err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}

// goWorker builds the suite's program with the Go SDK.
func goWorker(t *testing.T) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "goworker")
	build := exec.Command("go", "build", "-o", binary, "../../worker/conformance/goworker")
	build.Stderr = os.Stderr
	require.NoError(t, build.Run())
	return binary
}

// What the scripted server of the suite says is what a real one says: the same scenarios pass against both.
func TestARealServerPlaysTheSuiteAsTheScriptedOneDoes(t *testing.T) {
	t.Parallel()
	b := newRealBackend(t)
	began := time.Now()
	report, err := conformance.Run(t.Context(), conformance.Options{Command: []string{goWorker(t)}, Backend: b, Token: b.w.tokens[anyWorker], Stderr: t.Output(), Only: playedByServers})
	require.NoError(t, err)
	for _, c := range report.Checks {
		assert.True(t, c.Passed, "%s: %s: %s", c.Scenario, c.Check, c.Reason)
	}
	require.Zero(t, report.Failed)
	t.Logf("%d checks in %s", report.Passed, time.Since(began).Round(time.Second))
}

// playedByServers are the scenarios of the endpoints that servers have so far: those of an attempt's end join with
// POST /v1/task/complete.
var playedByServers = []string{"registration"}

func TestWorkerConformanceCommand(t *testing.T) {
	t.Parallel()
	program := goWorker(t)
	env := map[string]string{"HOME": t.TempDir()}
	var report conformance.Report
	require.NoError(t, json.Unmarshal([]byte(must(t, env, "worker", "conformance", "--only", "normal run", "--output", "json", "--", program)), &report))
	require.Zero(t, report.Failed)
	require.NotZero(t, report.Passed)
	require.Contains(t, must(t, env, "worker", "conformance", "--only", "query", "--", program), "2 passed, 0 failed")

	failed := dagctl(t, env, "worker", "conformance", "--only", "normal run", "--output", "json", "--", "false")
	require.Equal(t, exitFailed, failed.code)
	require.NoError(t, json.Unmarshal([]byte(failed.out), &report))
	require.Equal(t, 1, report.Failed)
	require.Contains(t, report.Checks[0].Reason, "the program has ended")
}
