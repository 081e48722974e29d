package main

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

const elsewhereDAG = `name: away
jobs:
` + landingJob + `  - name: score
    operator: handler
    runtime: elsewhere
    inputs:
      - { from: { job: landing }, where: { station: summit } }
    config: { handler: "score:day" }
publish:
  scores: { from: { job: score } }
`

// claimAway deploys a job that calls a worker's function, and claims its task.
func claimAway(t *testing.T, w *world) (*worker.Client, protocol.Claim) {
	t.Helper()
	w.land(t, "2026-01-01")
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(elsewhereDAG), 0o600))
	must(t, w.env(t, writer), "deploy", "--wait=false", file)
	api := worker.NewClient(w.url, w.tokens[anyWorker], nil)
	var claim protocol.Claim
	eventually(t, "the task can be claimed", func() (bool, error) {
		answer, err := api.Poll(t.Context(), protocol.PollRequest{WorkerID: "w", Runtime: "elsewhere",
			Handlers: []string{"score:day"}, Max: 1, WaitSeconds: 5})
		if err == nil && len(answer.Tasks) == 1 {
			claim = answer.Tasks[0]
		}
		return claim.Task != nil, err
	})
	return api, claim
}

// TestTasksElsewhereReadAndWriteByTheServer: a task reads the revisions that were pinned for it, and only the rows that
// its job asks for. Nobody else sees what it uploads.
func TestTasksElsewhereReadAndWriteByTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, claim := claimAway(t, w)
	read := func(format worker.Format) string {
		body, err := api.Download(t.Context(), claim.CapabilityToken, claim.Fence(), 0, format)
		require.NoError(t, err)
		defer body.Close()
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		return string(text)
	}
	rows := read(worker.NDJSON)
	require.Contains(t, rows, `"station":"summit"`)
	require.NotContains(t, rows, `"harbour"`)
	require.True(t, strings.HasPrefix(read(worker.CSV), "station,"))
	require.True(t, strings.HasPrefix(read(worker.Parquet), "PAR1"))

	answer, err := api.Query(t.Context(), claim.CapabilityToken,
		protocol.QueryRequest{Fence: claim.Fence(), SQL: "SELECT count(*) AS n FROM landing"})
	require.NoError(t, err)
	require.Equal(t, "n", answer.Columns[0].Name)
	require.Len(t, answer.Rows, 1)
	_, err = api.Query(t.Context(), claim.CapabilityToken,
		protocol.QueryRequest{Fence: claim.Fence(), SQL: "SELECT * FROM scores"})
	require.ErrorContains(t, err, "no input")

	// Only the attempt itself can ask for its claim again.
	task, err := api.Assignment(t.Context(), claim.CapabilityToken, claim.Fence())
	require.NoError(t, err)
	require.WithinDuration(t, claim.Task.TimeoutAt, task.TimeoutAt, time.Microsecond, "as the database keeps it")
	task.TimeoutAt = claim.Task.TimeoutAt
	require.Greater(t, task.TimeoutSeconds, 0.0)
	require.Less(t, task.TimeoutSeconds, claim.Task.TimeoutSeconds, "what is left now")
	task.TimeoutSeconds = claim.Task.TimeoutSeconds
	require.Equal(t, *claim.Task, task)
	_, err = api.Assignment(t.Context(), w.tokens[anyTask], claim.Fence())
	require.ErrorIs(t, err, worker.ErrForbidden, "another task's capability")
	stale := claim.Fence()
	stale.LeaseToken = uuid.New()
	_, err = api.Assignment(t.Context(), claim.CapabilityToken, stale)
	require.ErrorIs(t, err, worker.ErrConflict, "a lease that is over")

	upload := func(content string, format worker.Format) (protocol.UploadedFile, error) {
		return api.Upload(t.Context(), claim.CapabilityToken, claim.Fence(), 0, "part", format,
			strings.NewReader(content), int64(len(content)))
	}
	first, err := upload("{\"day\":\"2026-01-01\",\"score\":1}\n", worker.NDJSON)
	require.NoError(t, err)
	require.Equal(t, "part.parquet", first.Name)
	again, err := upload("{\"day\":\"2026-01-01\",\"score\":1}\n", worker.NDJSON)
	require.NoError(t, err)
	require.Equal(t, first, again, "a repeated call is the same upload")
	_, err = upload("{\"day\":\"2026-01-01\",\"score\":2}\n", worker.NDJSON)
	require.ErrorContains(t, err, "already been uploaded")
	_, err = upload("no json at all", worker.NDJSON)
	require.ErrorContains(t, err, `no row can be read: rows.ndjson line 1: "no json at all" is no JSON`)
	_, err = cli.Fetch[registry.Revision](t.Context(), w.as(writer), cli.DatasetPath("scores")+"/partitions",
		nil, cli.Page{Limit: 10})
	require.ErrorContains(t, err, "no dataset", "its first version is not whole yet")

	lines := []protocol.LogLine{{Seq: 1, Text: "one"}, {Seq: 2, Text: "two"}}
	for range 2 {
		kept, err := api.Logs(t.Context(), claim.CapabilityToken, protocol.Logs{Fence: claim.Fence(), Lines: lines})
		require.NoError(t, err)
		require.EqualValues(t, 2, kept.Accepted)
	}
	require.Equal(t, 2, strings.Count(must(t, w.env(t, writer), "tasks", "logs", claim.Task.TaskID.String()), "\n"))
	_, err = api.Credentials(t.Context(), claim.CapabilityToken, claim.Fence())
	require.ErrorContains(t, err, "issues no credentials")
	_, err = api.Code(t.Context(), claim.CapabilityToken, claim.Fence())
	require.ErrorContains(t, err, "no code of its own")

	state, err := api.Complete(t.Context(), claim.CapabilityToken,
		protocol.Completion{Fence: claim.Fence(), Status: "Completed",
			Outputs: []protocol.CommittedOutput{{Index: 0, Files: []protocol.UploadedFile{first}}}})
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
	eventually(t, "the version serves", func() (bool, error) {
		_, err := cli.Fetch[registry.Revision](t.Context(), w.as(writer), cli.DatasetPath("scores")+"/partitions",
			nil, cli.Page{Limit: 10})
		return err == nil, err
	})
	require.Equal(t, []string{"2026-01-01"}, w.partitions(t, "scores"))
	_, err = api.Download(t.Context(), claim.CapabilityToken, claim.Fence(), 0, worker.CSV)
	require.ErrorContains(t, err, "Completed", "its fence holds no more")
	_, err = api.Assignment(t.Context(), claim.CapabilityToken, claim.Fence())
	require.ErrorIs(t, err, worker.ErrConflict)
}

// TestHostileTasksGetPlainAnswers: whatever a task sends, the server answers and does not fail.
func TestHostileTasksGetPlainAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *server.Config) { c.Storage.MaxUploadMB = 1 })
	_, claim := claimAway(t, w)
	tooMuch := strings.Repeat("1\n", 1<<19) + "1"
	call := func(method, path, body string, change func(http.Header)) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
		require.NoError(t, err)
		request.Header.Set(protocol.VersionHeader, "1")
		request.Header.Set(protocol.CapabilityHeader, claim.CapabilityToken)
		request.Header.Set(protocol.TaskHeader, claim.Task.TaskID.String())
		request.Header.Set(protocol.AttemptHeader, "1")
		request.Header.Set(protocol.LeaseTokenHeader, claim.LeaseToken.String())
		if change != nil {
			change(request.Header)
		}
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}
	set := func(name, value string) func(http.Header) { return func(h http.Header) { h.Set(name, value) } }
	for name, c := range map[string]struct {
		method, path, body string
		change             func(http.Header)
		want               int
	}{
		"no such input":       {"GET", "/v1/task/inputs/1", "", nil, 404},
		"a negative input":    {"GET", "/v1/task/inputs/-1", "", nil, 404},
		"a worded input":      {"GET", "/v1/task/inputs/first", "", nil, 404},
		"a format of its own": {"GET", "/v1/task/inputs/0?format=xml", "", nil, 422},
		"another partition":   {"GET", "/v1/task/inputs/0?partition=2020-01-01", "", nil, 404},
		"no token":            {"GET", "/v1/task/inputs/0", "", set(protocol.CapabilityHeader, ""), 401},
		"another attempt":     {"GET", "/v1/task/inputs/0", "", set(protocol.AttemptHeader, "2"), 403},
		"a made-up lease": {"GET", "/v1/task/inputs/0", "",
			set(protocol.LeaseTokenHeader, "0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69"), 409},
		"no fence":         {"GET", "/v1/task/inputs/0", "", set(protocol.LeaseTokenHeader, ""), 422},
		"no such output":   {"PUT", "/v1/task/outputs/7/a.csv", "a\n1\n", nil, 404},
		"a way out":        {"PUT", "/v1/task/outputs/0/..%2F..%2Fa.csv", "a\n1\n", nil, 422},
		"a hidden name":    {"PUT", "/v1/task/outputs/0/.a.csv", "a\n1\n", nil, 422},
		"too large a text": {"PUT", "/v1/task/outputs/0/a.csv", "a\n" + tooMuch, nil, 413},
		"too large a file": {"PUT", "/v1/task/outputs/0/a.parquet", tooMuch, nil, 413},
		"no rows":          {"PUT", "/v1/task/outputs/0/a.ndjson", "[1,", nil, 422},
		"an old protocol":  {"GET", "/v1/task/inputs/0", "", set(protocol.VersionHeader, "99"), 422},
	} {
		status, text := call(c.method, c.path, c.body, c.change)
		require.Equal(t, c.want, status, "%s: %s", name, text)
	}
}
