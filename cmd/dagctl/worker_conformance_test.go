package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/worker/conformance"
	"github.com/dagctl/dagctl/worker/conformance/conformancetest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// conformanceDAG has a job for each function of the suite. Jobs with an input have no payload: they run for each day
// whose file arrives in the folder with the job's name.
func conformanceDAG() string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: conformance\ndefaults: { runtime: conformance, max_attempts: 3, heartbeat_timeout_seconds: "+
		"%d, retry: { initial_seconds: 1, max_seconds: 1 } }\njobs:\n", conformance.LeaseSeconds)
	for _, handler := range conformance.Handlers() {
		job, more := jobOf(handler), ""
		switch handler {
		case conformance.Copy, conformance.Query:
			fmt.Fprintf(&b, "  - { name: %[1]s_rows, runtime: dispatcher, operator: file_source, source: { kind: "+
				"poll, every: 1s }, partition_by: { time: day }, config: { path: %[1]s, pattern: \"{date}.csv\", "+
				"format: csv } }\n", job)
			outputs := 0
			if handler == conformance.Copy {
				outputs = 1
			}
			fmt.Fprintf(&b, "  - { name: %[1]s, operator: handler, inputs: [{ from: { job: %[1]s_rows }, as: rows }], "+
				"outputs: %[2]d, config: { handler: %[3]q } }\n", job, outputs, handler)
			continue
		case conformance.Commit:
			more = ", enqueues: [" + jobOf(conformance.Echo) + "]"
		}
		outputs, config := 0, fmt.Sprintf("handler: %q", handler)
		if handler == conformance.NoRows {
			outputs = 1
		}
		if handler == conformance.Secrets {
			config += ", key: { secret: " + conformance.SecretName + " }"
		}
		fmt.Fprintf(&b, "  - { name: %s, operator: handler, source: { kind: manual }, outputs: %d%s, "+
			"config: { %s } }\n", job, outputs, more, config)
	}
	fmt.Fprintf(&b, "publish:\n  copied: { from: { job: %s } }\n", jobOf(conformance.Copy))
	return b.String()
}

func jobOf(handler string) string { return strings.TrimPrefix(handler, "conformance:") }

// realBackend lets the suite use a server and its database.
type realBackend struct {
	http.Handler
	t    *testing.T
	w    *world
	days *atomic.Int64 // that have a file
}

func newRealBackend(t *testing.T) realBackend {
	t.Helper()
	w := newWorld(t, func(cfg *server.Config) {
		cfg.Runtimes = maps.Clone(cfg.Runtimes)
		cfg.Runtimes[conformance.Runtime] = []backends.Backend{{Kind: backends.Poll}}
	})
	for _, job := range []string{jobOf(conformance.Copy), jobOf(conformance.Query)} {
		require.NoError(t, os.Mkdir(filepath.Join(w.roots, job), 0o700))
	}
	set := dagctlWithInput(t, w.env(t, admin), conformance.SecretValue, "secrets", "set", conformance.SecretName)
	require.Zero(t, set.code, set.err)
	file := filepath.Join(t.TempDir(), dagfile.FileName)
	require.NoError(t, os.WriteFile(file, []byte(conformanceDAG()), 0o600))
	refused := dagctl(t, w.env(t, admin), "plan", file)
	must(t, w.env(t, admin), "secrets", "bind", conformance.SecretName, "--program", programOf(t, refused.err))
	must(t, w.env(t, admin), "deploy", file, "--yes", "--wait")
	server, err := url.Parse(w.url)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request,
		_ error) {
		rw.WriteHeader(http.StatusBadGateway)
	}
	return realBackend{proxy, t, w, new(atomic.Int64)}
}

func (b realBackend) Create(ctx context.Context, handler string, payload any) (uuid.UUID, error) {
	if handler == conformance.Copy || handler == conformance.Query {
		return b.land(ctx, jobOf(handler))
	}
	body := map[string]any{"payload": payload}
	if payload == nil {
		delete(body, "payload")
	}
	var made struct {
		Items []dispatcher.Enqueued `json:"items"`
	}
	err := b.w.as(admin).Post(ctx, "/v1/jobs/conformance/"+jobOf(handler)+"/tasks", body, &made)
	if err != nil || len(made.Items) != 1 {
		return uuid.Nil, fmt.Errorf("%d tasks were made: %w", len(made.Items), err)
	}
	return made.Items[0].ID, nil
}

// land writes the rows of another day into a job's input folder, and waits for the resulting task.
func (b realBackend) land(ctx context.Context, job string) (task uuid.UUID, err error) {
	var text bytes.Buffer
	lines := csv.NewWriter(&text)
	lines.Write([]string{"n", "s"}) //nolint:errcheck // Flush and Error tell
	for _, row := range conformance.Rows() {
		lines.Write([]string{fmt.Sprint(row["n"]), fmt.Sprint(row["s"])}) //nolint:errcheck // as above
	}
	lines.Flush()
	day := time.Date(2026, 1, int(b.days.Add(1)), 0, 0, 0, 0, time.UTC).Format(time.DateOnly)
	file := filepath.Join(b.w.roots, job, day+".csv")
	if err := errors.Join(lines.Error(), os.WriteFile(file+".new", text.Bytes(), 0o600),
		os.Rename(file+".new", file)); err != nil {
		return uuid.Nil, err
	}
	eventually(b.t, "the task of "+day, func() (bool, error) {
		err := b.w.pool.QueryRow(ctx,
			`SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1 AND $2 = ANY(t.partitions)`, job,
			day).Scan(&task)
		if errors.Is(err, pgx.ErrNoRows) {
			return false, nil
		}
		return err == nil, err
	})
	return task, nil
}

func (b realBackend) Cancel(ctx context.Context, task uuid.UUID) error {
	return b.w.as(admin).Post(ctx, "/v1/tasks/"+task.String()+":cancel", nil, nil)
}

// Expire ends the lease, as if no heartbeat had come for a long time. It does so until the server has taken the task
// back, because a heartbeat in between extends the lease again.
func (b realBackend) Expire(ctx context.Context, task uuid.UUID) error {
	given, err := b.Task(ctx, task)
	if err != nil {
		return err
	}
	if given.Status != "Running" {
		return fmt.Errorf("task %s has no lease: it is %s", task, given.Status)
	}
	eventually(b.t, "the lease is lost", func() (bool, error) {
		if _, err := b.w.pool.Exec(ctx, `UPDATE leases SET expires_at = now() WHERE task_id = $1 AND attempt = $2`,
			task, given.Attempt); err != nil {
			return false, err
		}
		now, err := b.Task(ctx, task)
		return now.Attempt > given.Attempt || now.Status != "Running", err
	})
	return nil
}

func (b realBackend) Task(ctx context.Context, task uuid.UUID) (state protocol.TaskState, err error) {
	err = b.w.pool.QueryRow(ctx, `SELECT status, attempt FROM tasks WHERE id = $1`,
		task).Scan(&state.Status, &state.Attempt)
	return state, err
}

func (b realBackend) Output(ctx context.Context, task uuid.UUID) ([]map[string]any, error) {
	var day string
	if err := b.w.pool.QueryRow(ctx, `SELECT partitions[1] FROM tasks WHERE id = $1`, task).Scan(&day); err != nil {
		return nil, err
	}
	var answer query.Rows
	if err := b.w.as(admin).Get(ctx, cli.DatasetPath("copied")+"/rows",
		url.Values{"partition": {day}}, &answer); err != nil {
		return nil, err
	}
	var rows []map[string]any
	for _, values := range answer.Rows {
		row := map[string]any{}
		for i, column := range answer.Columns {
			row[column.Name] = values[i]
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b map[string]any) int {
		return strings.Compare(fmt.Sprint(a["n"]),
			fmt.Sprint(b["n"]))
	})
	return rows, nil
}

func (b realBackend) Lines(ctx context.Context, task uuid.UUID, attempt int) ([]protocol.LogLine, error) {
	rows, err := b.w.pool.Query(ctx, `SELECT seq, text FROM task_logs WHERE task_id = $1 AND attempt = $2 ORDER BY seq`,
		task, attempt)
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

// TestARealServerPlaysTheSuiteAsTheScriptedOneDoes: the scripted server of the suite answers as a real one does, so
// every scenario passes against both. The suite itself simulates trouble (503, 429, 422 and broken connections) in
// front of either.
func TestARealServerPlaysTheSuiteAsTheScriptedOneDoes(t *testing.T) {
	t.Parallel()
	program := goWorker(t)
	conformancetest.Run(t, func() conformance.Options {
		b := newRealBackend(t)
		return conformance.Options{Command: []string{program}, Backend: b, Token: b.w.tokens[anyWorker]}
	})
}

func TestWorkerConformanceCommand(t *testing.T) {
	t.Parallel()
	program := goWorker(t)
	env := map[string]string{"HOME": t.TempDir()}
	var report conformance.Report
	require.NoError(t, json.Unmarshal([]byte(must(t, env, "worker", "conformance", "--only", "normal run", "--output",
		"json", "--", program)), &report))
	require.Zero(t, report.Failed)
	require.NotZero(t, report.Passed)
	require.Contains(t, must(t, env, "worker", "conformance", "--only", "query", "--", program), "2 passed, 0 failed")

	failed := dagctl(t, env, "worker", "conformance", "--only", "normal run", "--output", "json", "--", "false")
	require.Equal(t, cli.ExitFailed, failed.code)
	require.NoError(t, json.Unmarshal([]byte(failed.out), &report))
	require.Equal(t, 1, report.Failed)
	require.Contains(t, report.Checks[0].Reason, "the program has ended")
}
