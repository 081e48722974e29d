package main

import (
	"bytes"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/dagfile"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Each attempt writes a row that no other attempt writes.
const staleDAG = `name: stale
jobs:
` + landingJob + `  - name: drawn
    runtime: elsewhere
    operator: sql
    heartbeat_timeout_seconds: 5
    inputs: [{ from: { job: landing } }]
    config: { query: "SELECT station, uuid()::VARCHAR AS drawn FROM landing WHERE station = 'summit'" }
publish:
  drawn: { from: { job: drawn } }
`

// ending is a completion on its way to the server, which it reaches once it is released.
type ending struct {
	completion protocol.Completion
	release    chan struct{}
	status     chan int // that the server answered
}

// comes waits for a completion.
func comes(t *testing.T, endings <-chan *ending, worker *process) *ending {
	t.Helper()
	select {
	case e := <-endings:
		return e
	case <-time.After(time.Minute):
		require.Fail(t, "no completion came", worker.log)
		return nil
	}
}

// heldBack is a proxy between one worker and the server, which holds completions back.
func heldBack(t *testing.T, server string) (address string, endings chan *ending) {
	t.Helper()
	target, err := url.Parse(server)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(rw http.ResponseWriter, _ *http.Request,
		_ error) {
		rw.WriteHeader(http.StatusBadGateway)
	}
	endings = make(chan *ending, 10)
	way := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/task/complete" {
			proxy.ServeHTTP(rw, r)
			return
		}
		body, err := io.ReadAll(r.Body)
		e := &ending{release: make(chan struct{}), status: make(chan int, 1)}
		if err != nil || json.Unmarshal(body, &e.completion) != nil {
			rw.WriteHeader(http.StatusBadRequest)
			return
		}
		endings <- e
		select {
		case <-e.release:
		case <-t.Context().Done():
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		answer := httptest.NewRecorder()
		proxy.ServeHTTP(answer, r)
		e.status <- answer.Code
		maps.Copy(rw.Header(), answer.Header())
		rw.WriteHeader(answer.Code)
		rw.Write(answer.Body.Bytes()) //nolint:errcheck // the worker may have ended
	}))
	t.Cleanup(way.Close)
	return way.URL, endings
}

// TestAStaleWorkerProcessCommitsNothing freezes a worker after it has uploaded its rows and before it completes. Its
// lease expires, another worker runs the next attempt, and then the first worker continues.
func TestAStaleWorkerProcessCommitsNothing(t *testing.T) {
	t.Parallel()
	for name, ended := range map[string]bool{"while the next attempt runs": false,
		"after the next attempt has ended": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(cfg *server.Config) {
				cfg.Runtimes = maps.Clone(cfg.Runtimes)
				cfg.Runtimes["elsewhere"] = []backends.Backend{{Kind: backends.Poll}}
			})
			env := w.env(t, admin)
			file := filepath.Join(t.TempDir(), dagfile.FileName)
			require.NoError(t, os.WriteFile(file, []byte(staleDAG), 0o600))
			require.NoError(t, os.Mkdir(filepath.Join(w.roots, "landing"), 0o700))
			must(t, env, "deploy", file, "--yes") // it serves, with nothing so far
			w.land(t, "2026-01-01")
			worker := func(address string) *process {
				return startProcess(t, []string{"DAGCTL_TOKEN=" + w.tokens[anyWorker]}, "worker", "--url", address,
					"--runtime", "elsewhere", "--pool-size", "1", "--log-format", "text")
			}

			firstWay, firstEndings := heldBack(t, w.url)
			first := worker(firstWay)
			stale := comes(t, firstEndings, first)
			require.Equal(t, 1, stale.completion.Attempt)
			require.Equal(t, protocol.Completed, stale.completion.Status)
			require.NotEmpty(t, stale.completion.Outputs, "its rows are uploaded")
			first.signal(t, syscall.SIGSTOP)

			secondWay, secondEndings := heldBack(t, w.url)
			next := comes(t, secondEndings, worker(secondWay))
			require.Equal(t, 2, next.completion.Attempt)
			require.Equal(t, stale.completion.TaskID, next.completion.TaskID)
			finish := func() {
				close(next.release)
				require.Equal(t, http.StatusOK, <-next.status)
			}
			if ended {
				finish()
			}

			before := staleState(t, w, next.completion.TaskID)
			first.signal(t, syscall.SIGCONT)
			close(stale.release)
			require.Equal(t, http.StatusConflict, <-stale.status)
			require.Equal(t, before, staleState(t, w, next.completion.TaskID))

			if !ended {
				require.Equal(t, "Running", before.task.Status)
				finish()
			}
			after := staleState(t, w, next.completion.TaskID)
			require.Equal(t, "Completed", after.task.Status)
			require.Equal(t, 2, after.task.Attempt)
			require.Len(t, after.partitions, 1)
			require.EqualValues(t, 1, after.partitions[0].Revision, "one attempt has committed")
			require.Len(t, after.rows, 1)
			first.signal(t, syscall.SIGTERM)
			require.NoError(t, first.cmd.Wait(), "the first goes on as a worker: %s", first.log)
		})
	}
}

// taskAndData returns everything that an attempt could have changed.
type taskAndData struct {
	task       views.TaskDetail
	partitions []registry.Revision
	rows       [][]any
}

func staleState(t *testing.T, w *world, task uuid.UUID) taskAndData {
	t.Helper()
	env := w.env(t, admin)
	s := taskAndData{
		task:       decode[views.TaskDetail](t, env, "tasks", "get", task.String()),
		partitions: decode[[]registry.Revision](t, env, "datasets", "partitions", "drawn"),
		rows:       decode[query.Rows](t, env, "datasets", "preview", "drawn").Rows,
	}

	// What heartbeats of the second worker change meanwhile.
	s.task.Progress, s.task.State, s.task.RanSeconds, s.task.Lease = 0, "", 0, nil
	s.task.Events = slices.DeleteFunc(s.task.Events, func(e views.TaskEvent) bool { return e.From == e.To })
	return s
}
