package builtin_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/builtin"
	"github.com/dagctl/dagctl/worker/protocol"
)

// world is the server's side of one task.
type world struct {
	dir       string
	input     []byte // Parquet
	uploads   []string
	completed protocol.Completion
	secrets   protocol.Secrets
	url       string
	mu        sync.Mutex
	asked     []string // partitions of inputs that were fetched; empty: all
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{dir: t.TempDir()}
	session, err := duck.Open(t.Context(), duck.Config{AllowedDirs: []string{w.dir}})
	require.NoError(t, err)
	defer session.Close()

	input := filepath.Join(w.dir, "input.parquet")
	_, err = session.CopyToParquet(t.Context(), "SELECT i AS id, 'station ' || i AS name FROM range(5) AS r(i)", input)
	require.NoError(t, err)

	w.input, err = os.ReadFile(input)
	require.NoError(t, err)

	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/task/inputs/0", func(rw http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "parquet", r.FormValue("format"))
		assert.NotEmpty(t, r.Header.Get(protocol.LeaseTokenHeader))
		w.mu.Lock()
		w.asked = append(w.asked, r.FormValue("partition"))
		w.mu.Unlock()
		_, err := rw.Write(w.input)
		assert.NoError(t, err)
	})

	mux.HandleFunc("PUT /v1/task/outputs/0/{file}", func(rw http.ResponseWriter, r *http.Request) {
		content, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		path := filepath.Join(w.dir, "uploaded-"+r.PathValue("file"))
		assert.NoError(t, os.WriteFile(path, content, 0o600))
		w.uploads = append(w.uploads, path)
		assert.NoError(t, json.NewEncoder(rw).Encode(protocol.UploadedFile{Name: r.PathValue("file"), ETag: "etag"}))
	})

	mux.HandleFunc("POST /v1/task/secrets", func(rw http.ResponseWriter, _ *http.Request) {
		assert.NoError(t, json.NewEncoder(rw).Encode(w.secrets))
	})
	mux.HandleFunc("POST /v1/task/complete", func(rw http.ResponseWriter, r *http.Request) {
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&w.completed))
		assert.NoError(t, json.NewEncoder(rw).Encode(protocol.TaskState{Status: "Completed"}))
	})

	mux.HandleFunc("POST /v1/task/logs", func(rw http.ResponseWriter, r *http.Request) {
		var lines protocol.Logs
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&lines))
		assert.NoError(t, json.NewEncoder(rw).
			Encode(protocol.LogsAnswer{Accepted: lines.Lines[len(lines.Lines)-1].Seq}))
	})

	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	w.url = server.URL
	return w
}

// run runs a task of an operator on a worker. The claim names the server, as on Lambda.
func (w *world) run(t *testing.T, change func(*protocol.Task)) {
	t.Helper()
	registry, err := standard.New(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)

	work, err := worker.New(worker.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), ScratchDir: t.TempDir()})
	require.NoError(t, err)
	scratch := t.TempDir()
	require.NoError(t, builtin.Register(work, builtin.Options{Registry: registry, ScratchDir: scratch}))

	task := protocol.Task{TaskID: uuid.New(), Attempt: 1, Org: "acme", Job: protocol.Job{DAGName: "d", Name: "j"},
		Kind: "reactive", Operator: "sql",
		Inputs: []protocol.Input{{Index: 0, As: "stations",
			Partitions: []protocol.InputPartition{{Key: "whole", Revision: 1, Rows: 5}},
			Schema:     []protocol.Column{{Name: "id", Type: "BIGINT"}, {Name: "name", Type: "VARCHAR"}}}},
		Outputs:   []protocol.Output{{Index: 0, Name: "j", UpdateStrategy: "replace", Storage: "parquet"}},
		TimeoutAt: time.Now().Add(time.Minute), LeaseSeconds: 30}

	change(&task)
	lease := uuid.New()
	err = work.RunClaim(t.Context(), protocol.Claim{Status: protocol.Claimed, Attempt: 1, LeaseToken: &lease,
		CapabilityToken: "token", BaseURL: w.url, Task: &task})
	require.NoError(t, err)

	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Empty(t, left, "the task's folders are removed")
}

// value runs a query over the uploaded files.
func (w *world) value(t *testing.T, query string) (value string) {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AllowedPaths: w.uploads})
	require.NoError(t, err)
	defer session.Close()
	require.NoError(t, session.Value(t.Context(), &value, query+" FROM "+duck.ReadParquet(w.uploads)))
	return value
}

func TestSQLRunsWithoutStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(t, func(task *protocol.Task) {
		task.Config = map[string]any{"query": "SELECT id * 2 AS twice, name FROM stations WHERE id > 1"}
		task.Partition = &protocol.Partition{Key: "2001-01-31"}
	})
	require.Equal(t, "Completed", w.completed.Status, w.completed.Error)
	require.Len(t, w.completed.Outputs, 1)
	require.Len(t, w.uploads, len(w.completed.Outputs[0].Files))
	require.Equal(t, "etag", w.completed.Outputs[0].Files[0].ETag)
	require.Equal(t, "4:station 2,6:station 3,8:station 4",
		w.value(t, "SELECT string_agg(twice || ':' || name, ',' ORDER BY twice)"))
	require.Contains(t, w.completed.ColumnLineage, protocol.ColumnOrigin{OutputColumn: "name", InputColumn: "name",
		Transform: "identity"})
}

// A query that asks for the partitions of rows has them fetched one by one.
func TestSQLFindsThePartitionsOfRows(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(t, func(task *protocol.Task) {
		task.Config = map[string]any{"query": "SELECT *, _partition AS key FROM stations WHERE id = 1"}
		task.Inputs[0].Partitions = []protocol.InputPartition{{Key: "a&b", Revision: 1, Rows: 5},
			{Key: "c", Revision: 1, Rows: 5}}
	})
	require.Equal(t, "Completed", w.completed.Status, w.completed.Error)
	require.Equal(t, []string{"a&b", "c"}, w.asked)
	require.Equal(t, "a&b c", w.value(t, "SELECT string_agg(key, ' ' ORDER BY key)"))
	require.Equal(t, "1 1", w.value(t, "SELECT string_agg(id, ' ')"))
}

func TestAnInputWithoutRowsIsAnEmptyRelation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.run(t, func(task *protocol.Task) {
		task.Config = map[string]any{"query": "SELECT count(*) AS n, max(name) AS name FROM stations"}
		task.Inputs[0].Partitions = nil
	})
	require.Equal(t, "Completed", w.completed.Status, w.completed.Error)
	require.Equal(t, "0", w.value(t, "SELECT n::VARCHAR"))
}

func TestErrorsSayWhetherARetryCanHelp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change    func(*protocol.Task)
		says      string
		retryable bool
	}{
		"SQL that fails": {func(task *protocol.Task) {
			task.Config = map[string]any{"query": "SELECT nothing FROM stations"}
		}, "nothing", false},
		"a version not here": {func(task *protocol.Task) { task.OperatorVersion = "0.0.1" }, "0.0.1", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.run(t, c.change)
			require.Equal(t, "Failed", w.completed.Status)
			require.Contains(t, w.completed.Error.Message, c.says)
			require.Equal(t, c.retryable, *w.completed.Error.Retryable)
		})
	}
}

// A secret goes where an admin bound it, on a worker as in the server's process.
func TestSecretsKeepTheirHosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		allow  bool
		status string
	}{"bound to it": {true, "Completed"}, "bound elsewhere": {false, "Failed"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				assert.Equal(t, "s3cret", r.Header.Get("Authorization"))
				_, err := io.WriteString(rw, "a,b\n1,2\n")
				assert.NoError(t, err)
			}))
			defer source.Close()

			w := newWorld(t)
			host := "api.example.com"
			if c.allow {
				host = source.URL
			}

			w.secrets = protocol.Secrets{Secrets: map[string]string{"KEY": "s3cret"},
				Hosts: map[string][]string{"KEY": {host}}}
			w.run(t, func(task *protocol.Task) {
				task.Operator, task.Inputs, task.Secrets = "http_source", nil, []string{"KEY"}
				task.Config = map[string]any{"url": source.URL, "format": "csv",
					"headers": map[string]any{"Authorization": map[string]any{"secret": "KEY"}}}
			})
			require.Equal(t, c.status, w.completed.Status, w.completed.Error)
		})
	}
}

// Files without content are no failure where nothing shows their columns yet. Once they stand, the output has them.
func TestAFileWithoutContent(t *testing.T) {
	t.Parallel()
	source := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer source.Close()
	fetch := func(task *protocol.Task) {
		task.Operator, task.Inputs = "http_source", nil
		task.Config = map[string]any{"url": source.URL, "format": "csv"}
	}

	w := newWorld(t)
	w.run(t, fetch)
	require.Equal(t, "Failed", w.completed.Status)
	require.True(t, w.completed.Error.ColumnsUnknown)
	require.Contains(t, w.completed.Error.Message, "say nothing of their columns")

	full := newWorld(t)
	rows := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(rw, "id,v\n1,9\n")
		assert.NoError(t, err)
	}))
	defer rows.Close()
	full.run(t, func(task *protocol.Task) { fetch(task); task.Config["url"] = rows.URL })
	require.Equal(t, "Completed", full.completed.Status)

	w = newWorld(t)
	w.run(t, func(task *protocol.Task) { fetch(task); task.Reading = full.completed.Reading })
	require.Equal(t, "Completed", w.completed.Status, w.completed.Error)
	require.Equal(t, "0", w.value(t, "SELECT count(v + 1)::VARCHAR"))
}
