package workerapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/authztest"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

// TestMain is also an engine.
func TestMain(m *testing.M) {
	inside.Main()
	os.Exit(m.Run())
}

const document = `
name: work
defaults: { runtime: poll }
jobs:
  - name: mail
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: mail, key: { secret: SMTP } }
  - { name: other, operator: handler, source: { kind: manual }, outputs: 0, config: { handler: mail } }
  - { name: made, operator: handler, source: { kind: manual }, partition_by: key, config: { handler: make } }
  - name: read
    operator: handler
    inputs: [{ from: { job: made }, where: { n: [1, 2, 3] } }]
    outputs: 0
    config: { handler: read }
`

func newServer(t *testing.T) *workerapitest.Server {
	t.Helper()
	s := workerapitest.New(t)
	admin := authz.Caller{OrgID: s.Org.ID, OrgSlug: s.Org.Slug, Actor: "user:admin", Role: authz.RoleAdmin}
	_, err := s.Vault.SetSecret(t.Context(), admin, "SMTP", "hunter22")
	require.NoError(t, err)
	mail := dag.Job{Operator: dag.Handler, Runtime: "poll", Config: dag.Config{"handler": "mail",
		"key": map[string]any{"secret": "SMTP"}}}
	_, err = s.Vault.BindSecret(t.Context(), admin, "SMTP",
		authz.Binding{AddPrograms: []string{"work/mail@" + mail.Program()}})
	require.NoError(t, err)
	s.Deploy(t, "work", document)
	return s
}

// claimed makes a task and claims it.
func claimed(t *testing.T, s *workerapitest.Server, job, partition string) protocol.Claim {
	t.Helper()
	claim := s.Claim(t, s.Enqueue(t, "work", job, dispatcher.EnqueueItem{Partition: partition}))
	require.Equal(t, protocol.Claimed, claim.Status, claim.Reason)
	return claim
}

// problem is what a refusal says.
type problem struct {
	Kind   string `json:"kind"`
	Detail string `json:"detail"`
	Hint   string `json:"hint"`
	Errors []struct {
		Location string `json:"location"`
		Message  string `json:"message"`
	} `json:"errors"`
}

// refused makes a call that has to be refused, with a problem document that says why.
func refused(
	t *testing.T, s *workerapitest.Server, status int, method, path string, body any, header http.Header,
) (p problem) {
	t.Helper()
	got, text := s.Send(t, method, path, body, header)
	require.Equal(t, status, got, "%s %s: %s", method, path, text)
	require.NoError(t, json.Unmarshal(text, &p), "%s", text)
	require.NotEmpty(t, p.Detail, "%s %s: a refusal says why", method, path)
	return p
}

// taskCalls are the routes of an attempt with a body that is right but for the fence.
var taskCalls = []struct{ method, path, body string }{
	{"POST", "/v1/task/heartbeat", `{%s}`},
	{"POST", "/v1/task/events", `{%s}`},
	{"POST", "/v1/task/complete", `{%s, "status": "Canceled"}`},
	{"POST", "/v1/task/logs", `{%s, "lines": []}`},
	{"POST", "/v1/task/secrets", `{%s}`},
	{"POST", "/v1/task/credentials", `{%s}`},
	{"POST", "/v1/task/assignment", `{%s}`},
	{"POST", "/v1/task/query", `{%s, "sql": "SELECT 1"}`},
	{"GET", "/v1/task/inputs/0", ""},
	{"PUT", "/v1/task/outputs/0/rows.ndjson", ""},
	{"GET", "/v1/task/udf", ""},
}

// fenced fills in the fence of a call, in the body or in the headers.
func fenced(body string, fence protocol.Fence, header http.Header) (any, http.Header) {
	header = maps.Clone(header)
	if body == "" {
		header[protocol.TaskHeader] = []string{fence.TaskID.String()}
		header[protocol.AttemptHeader] = []string{fmt.Sprint(fence.Attempt)}
		header[protocol.LeaseTokenHeader] = []string{fence.LeaseToken.String()}
		return nil, header
	}
	return fmt.Sprintf(body, fmt.Sprintf(`"task_id": %q, "attempt": %d, "lease_token": %q`,
		fence.TaskID, fence.Attempt, fence.LeaseToken)), header
}

// Every route is walked as nobody, with junk, as each role, from another org, and as the wrong kind of principal.
func TestRoutesHoldToTheirRules(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "mail", "")
	var routes []authz.Route
	for _, route := range s.API.Routes() {
		if p := route.Rule.Principal(); p == authz.AWorker || p == authz.ATask {
			routes = append(routes, route)
		}
	}
	require.Len(t, routes, len(taskCalls)+6, "a route has no test")

	authztest.Matrix{
		Handler: s.API.Handler(), Routes: routes, Tokens: authztest.NewTokens(t, s.Pool, s.Org),
		Capability: claim.CapabilityToken, Marks: []string{"hunter22"},
		Param: func(_ authz.Route, name string) string {
			return map[string]string{"index": "0", "file": "rows.ndjson"}[name]
		},
	}.Check(t)
}

func TestATaskSpeaksForItselfAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	mine, others := claimed(t, s, "mail", ""), claimed(t, s, "other", "")
	stale := mine.Fence()
	stale.LeaseToken = uuid.New()
	later := mine.Fence()
	later.Attempt = 2

	for _, call := range taskCalls {
		body, header := fenced(call.body, others.Fence(), workerapitest.AsTask(mine))
		refused(t, s, http.StatusForbidden, call.method, call.path, body, header)
		body, header = fenced(call.body, stale, workerapitest.AsTask(mine))
		refused(t, s, http.StatusConflict, call.method, call.path, body, header)
		body, header = fenced(call.body, later, workerapitest.AsTask(mine))
		refused(t, s, http.StatusForbidden, call.method, call.path, body, header)
	}
	require.Equal(t, "Running", string(s.Task(t, mine.Task.TaskID).Status))
	require.Equal(t, "Running", string(s.Task(t, others.Task.TaskID).Status))
}

func TestAnAttemptThatIsOverIsRefused(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "mail", "")
	s.Expire(t, claim.Task.TaskID)
	s.Eventually(t, "a newer attempt", func() bool { return s.Claim(t, claim.Task.TaskID).Status == protocol.Claimed })
	for _, call := range taskCalls {
		body, header := fenced(call.body, claim.Fence(), workerapitest.AsTask(claim))
		refused(t, s, http.StatusConflict, call.method, call.path, body, header)
	}
	require.Equal(t, 2, s.Task(t, claim.Task.TaskID).Attempt)
}

func TestAWorkerGetsWhatItsTokenAllows(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	foreign, err := authz.CreateOrg(t.Context(), s.Pool, "foreign", "Foreign")
	require.NoError(t, err)

	kind := authz.NewToken{Name: "w", Kind: authz.KindWorker, Runtimes: []string{workerapitest.Runtime}}
	stranger := s.NewToken(t, foreign, kind)
	kind.Operators = []string{"sql"}
	narrow := s.NewToken(t, s.Org, kind)
	id := s.Enqueue(t, "work", "other", dispatcher.EnqueueItem{})

	for _, token := range []string{stranger, narrow} {
		status, text := s.Send(t, "POST", "/internal/task-claim",
			protocol.ClaimRequest{TaskID: id, WorkerID: "w"}, workerapitest.AsWorker(token))
		require.Equal(t, http.StatusOK, status)
		require.JSONEq(t, `{"status": "NotClaimed", "reason": "NotFound"}`, string(text))
		status, text = s.Send(t, "POST", "/internal/task-poll",
			protocol.PollRequest{WorkerID: "w", Runtime: workerapitest.Runtime, Max: 10}, workerapitest.AsWorker(token))
		require.Equal(t, http.StatusOK, status)
		require.NotContains(t, string(text), id.String())
	}

	refused(t, s, http.StatusNotFound, "GET", "/internal/task-fetch?task_id="+id.String(), nil,
		workerapitest.AsWorker(stranger))

	status, text := s.Send(t, "GET", "/internal/task-fetch?task_id="+id.String(), nil, workerapitest.AsWorker(s.Token))
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.Equal(t, protocol.Claimed, s.Claim(t, id).Status)
	again := s.Claim(t, id)
	require.Equal(t, []string{protocol.NotClaimed, protocol.AlreadyRunning}, []string{again.Status, again.Reason})
}

func TestAPollWaitsForATask(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	polled := make(chan protocol.PollResponse, 1)
	go func() {
		var answer protocol.PollResponse
		_, text := s.Send(t, "POST", "/internal/task-poll", protocol.PollRequest{WorkerID: "w",
			Runtime: workerapitest.Runtime, Max: 1, WaitSeconds: 60}, workerapitest.AsWorker(s.Token))
		_ = json.Unmarshal(text, &answer) // an answer that is none has no tasks
		polled <- answer
	}()

	s.Eventually(t, "the poll", func() bool { return s.Calls("/internal/task-poll") == 1 })
	id := s.Enqueue(t, "work", "other", dispatcher.EnqueueItem{})
	answer := <-polled
	require.Len(t, answer.Tasks, 1)
	require.Equal(t, id, answer.Tasks[0].Task.TaskID)
	require.Equal(t, s.URL, answer.Tasks[0].BaseURL)
}

func TestMalformedCallsAreRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "made", "p")
	worker, task := workerapitest.AsWorker(s.Token), workerapitest.AsTask(claim)
	fence := fmt.Sprintf(`"task_id": %q, "attempt": 1, "lease_token": %q`, claim.Task.TaskID, claim.LeaseToken)
	without := func(header http.Header, name string) http.Header {
		header = maps.Clone(header)
		delete(header, name)
		return header
	}

	with := func(header http.Header, name, value string) http.Header {
		header = maps.Clone(header)
		header[name] = []string{value}
		return header
	}

	for name, test := range map[string]struct {
		status       int
		method, path string
		body         any
		header       http.Header
		says         string // in the detail or in one of the errors
	}{
		"no JSON": {400, "POST", "/internal/task-poll", `{"max": `, worker, ""},
		"an unknown field": {422, "POST", "/internal/task-poll",
			`{"worker_id": "w", "runtime": "poll", "max": 1, "mx": 2}`, worker, "body.mx"},
		"a missing field": {422, "POST", "/internal/task-poll", `{"worker_id": "w", "max": 1}`, worker, "runtime"},
		"nothing to claim": {422, "POST", "/internal/task-poll", `{"worker_id": "w", "runtime": "poll", "max": 0}`,
			worker, "body.max"},
		"a wait too long": {422, "POST", "/internal/task-poll",
			`{"worker_id": "w", "runtime": "poll", "max": 1, "wait_seconds": 61}`, worker, "body.wait_seconds"},
		"a task that is none": {422, "POST", "/internal/task-claim", `{"worker_id": "w", "task_id": "seven"}`, worker,
			"must be a UUID"},
		"no task to fetch": {422, "GET", "/internal/task-fetch", nil, worker, "query.task_id"},
		"a negative pool": {422, "POST", "/internal/worker-heartbeat",
			`{"worker_id": "w", "pool_size": -1, "current_tasks": 0, "runtimes": []}`, worker, "body.pool_size"},
		"no protocol": {422, "POST", "/internal/task-poll", `{"worker_id": "w", "runtime": "poll", "max": 1}`,
			without(worker, protocol.VersionHeader), protocol.VersionHeader},
		"an old protocol": {422, "POST", "/internal/task-poll", `{"worker_id": "w", "runtime": "poll", "max": 1}`,
			with(worker, protocol.VersionHeader, "-1"), protocol.VersionHeader},
		"no fence": {422, "POST", "/v1/task/heartbeat", `{}`, task, "task_id"},
		"too much progress": {422, "POST", "/v1/task/heartbeat", `{` + fence + `, "progress": 101}`, task,
			"body.progress"},
		"an unknown status": {422, "POST", "/v1/task/complete", `{` + fence + `, "status": "Done"}`, task,
			"body.status"},
		"a failure unnamed": {422, "POST", "/v1/task/complete", `{` + fence +
			`, "status": "Failed", "error": {"message": ""}}`, task, "body.error.message"},
		"an unknown output": {422, "POST", "/v1/task/events", `{` + fence + `, "outputs": [{"index": 7}]}`, task, ""},
		"no SQL":            {422, "POST", "/v1/task/query", `{` + fence + `, "sql": ""}`, task, "body.sql"},
		"two statements": {422, "POST", "/v1/task/query", `{` + fence + `, "sql": "SELECT 1; SELECT 2"}`, task,
			""},
		"a line unnumbered": {422, "POST", "/v1/task/logs", `{` + fence +
			`, "lines": [{"seq": 0, "at": "2024-01-31T00:00:00Z", "text": "x"}]}`, task, "body.lines[0].seq"},
		"no fence in headers": {422, "GET", "/v1/task/inputs/0", nil, without(task, protocol.LeaseTokenHeader),
			"header." + protocol.LeaseTokenHeader},
		"an input too many":  {404, "GET", "/v1/task/inputs/0", nil, task, `no input "0"; it has 0`},
		"an output too many": {404, "PUT", "/v1/task/outputs/1/rows.csv", "a\n1\n", task, `no output "1"; it has 1`},
		"no index":           {404, "PUT", "/v1/task/outputs/one/rows.csv", "a\n1\n", task, `no output "one"`},
		"an unknown format":  {422, "PUT", "/v1/task/outputs/0/rows.xml", "<a/>", task, `format "xml"`},
		"a format in query":  {422, "PUT", "/v1/task/outputs/0/rows.csv?format=xml", "a\n1\n", task, `format "xml"`},
		"a hidden file":      {422, "PUT", "/v1/task/outputs/0/.rows.csv", "a\n1\n", task, ".rows.csv"},
		"a way out":          {422, "PUT", "/v1/task/outputs/0/..%2Frows.csv", "a\n1\n", task, "../rows.csv"},
		"rows that are none": {422, "PUT", "/v1/task/outputs/0/rows.ndjson", "{\n", task, ""},
		"no Parquet":         {422, "PUT", "/v1/task/outputs/0/rows.parquet?format=ndjson", "PAR1", task, ""},
		"no columns": {422, "PUT", "/v1/task/outputs/0/rows.csv?columns=id", "a\n1\n", task,
			"columns is a JSON list of objects with `name` and `type`"},
		"a column without a type": {422, "PUT", "/v1/task/outputs/0/rows.csv?columns=" +
			url.QueryEscape(`[{"name": "a", "type": "NUMBER"}]`), "a\n1\n", task, `columns: "a": "NUMBER"`},
		"a column without a name": {422, "PUT", "/v1/task/outputs/0/rows.csv?columns=" +
			url.QueryEscape(`[{"name": "", "type": "DATE"}]`), "a\n1\n", task, "a column of type DATE has no name"},
		"a column twice": {422, "PUT", "/v1/task/outputs/0/rows.csv?columns=" +
			url.QueryEscape(`[{"name": "a", "type": "DATE"}, {"name": "A", "type": "DATE"}]`), "a\n1\n", task,
			`columns: "A" comes twice`},
		"columns of Parquet": {422, "PUT", "/v1/task/outputs/0/rows.parquet?columns=[]", "PAR1", task,
			"columns are for ndjson and csv"},
		"no code":        {404, "GET", "/v1/task/udf", nil, task, ""},
		"no credentials": {404, "POST", "/v1/task/credentials", `{` + fence + `}`, task, ""},
	} {
		p := refused(t, s, test.status, test.method, test.path, test.body, test.header)
		said := p.Detail
		for _, e := range p.Errors {
			said += "\n" + e.Location + ": " + e.Message
		}
		require.Contains(t, said, test.says, name)
	}
	require.Equal(t, "Running", string(s.Task(t, claim.Task.TaskID).Status), "no malformed call changed the task")
}

func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "other", "")
	body, header := fenced(`{%s, "status": "Completed", "result": "`+strings.Repeat("x", 17<<20)+`"}`, claim.Fence(),
		workerapitest.AsTask(claim))
	refused(t, s, http.StatusRequestEntityTooLarge, "POST", "/v1/task/complete", body, header)
	require.Equal(t, "Running", string(s.Task(t, claim.Task.TaskID).Status))
}

func TestSecretsAndTheAssignmentAreTheAttempts(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "mail", "")
	body, header := fenced(`{%s}`, claim.Fence(), workerapitest.AsTask(claim))
	status, text := s.Send(t, "POST", "/v1/task/secrets", body, header)
	require.Equal(t, http.StatusOK, status, "%s", text)

	var secrets protocol.Secrets
	require.NoError(t, json.Unmarshal(text, &secrets))
	require.Equal(t, map[string]string{"SMTP": "hunter22"}, secrets.Secrets)

	status, text = s.Send(t, "POST", "/v1/task/assignment", body, header)
	require.Equal(t, http.StatusOK, status, "%s", text)
	var task protocol.Task
	require.NoError(t, json.Unmarshal(text, &task))
	require.Equal(t, claim.Task.Job, task.Job)
	require.Equal(t, []string{"SMTP"}, task.Secrets)
}

// A function that got a secret may print it. It is removed from logs and errors, also when the secret was set again or
// its binding removed meanwhile.
func TestSecretsAreRemovedFromWhatFunctionsSay(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	admin := authz.Caller{OrgID: s.Org.ID, OrgSlug: s.Org.Slug, Actor: "user:admin", Role: authz.RoleAdmin}
	claim := claimed(t, s, "mail", "")
	say := func(path, body string) {
		body1, header := fenced(body, claim.Fence(), workerapitest.AsTask(claim))
		status, text := s.Send(t, "POST", path, body1, header)
		require.Equal(t, http.StatusOK, status, "%s", text)
	}
	logged := func(seq int, text string) {
		say("/v1/task/logs", `{%s, "lines": [`+fmt.Sprintf(`{"seq": %d, "at": "2026-01-02T03:04:05Z", "text": %q}`,
			seq, text)+`]}`)
	}

	logged(1, "signed in with hunter22")
	_, err := s.Vault.SetSecret(t.Context(), admin, "SMTP", "hunter33")
	require.NoError(t, err)
	logged(2, "signed in with aHVudGVyMjI= and hunter33")
	_, err = s.Vault.BindSecret(t.Context(), admin, "SMTP", authz.Binding{RemoveJobs: []string{"work/mail"}})
	require.NoError(t, err)
	logged(3, "signed out of %%68unter22")
	say("/v1/task/complete", `{%s, "status": "Failed", "error": {"message": "no hunter22 here"}}`)

	var lines, failure string
	require.NoError(t, s.Pool.QueryRow(t.Context(),
		`SELECT string_agg(text, '; ' ORDER BY seq) FROM task_logs`).Scan(&lines))
	require.Equal(t, "signed in with [secret]; signed in with [secret] and [secret]; signed out of [secret]", lines)
	require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT error_message FROM tasks WHERE id = $1`, claim.Task.TaskID).
		Scan(&failure))
	require.Equal(t, "no [secret] here", failure)
}

func TestRowsAreUploadedCommittedAndRead(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	made := claimed(t, s, "made", "p")
	put := func(file, rows string) (int, string) {
		status, text := s.Send(t, "PUT", "/v1/task/outputs/0/"+file, rows, workerapitest.AsTask(made))
		return status, string(text)
	}

	const rows = "{\"n\": 1, \"s\": \"a,b\"}\n{\"n\": 2, \"s\": null}\n{\"n\": 9, \"s\": \"x\"}\n"
	status, first := put("rows.ndjson", rows)
	require.Equal(t, http.StatusOK, status, first)

	status, again := put("rows.ndjson", rows)
	require.Equal(t, http.StatusOK, status, again)
	require.Equal(t, first, again, "the same rows under the same name are the same file")
	require.Contains(t, first, `"columns":[{"name":"n","type":"BIGINT"},{"name":"s","type":"VARCHAR"}]`)

	status, other := put("rows.ndjson", "{\"n\": 3}\n")
	require.Equal(t, http.StatusConflict, status, other)

	var file protocol.UploadedFile
	require.NoError(t, json.Unmarshal([]byte(first), &file))
	require.Equal(t, "rows.ndjson.parquet", file.Name)

	completion := protocol.Completion{Fence: made.Fence(), Status: protocol.Completed,
		Outputs: []protocol.CommittedOutput{{Files: []protocol.UploadedFile{file}}}}
	for range 2 { // the same again changes nothing
		status, text := s.Send(t, "POST", "/v1/task/complete", completion, workerapitest.AsTask(made))
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.Contains(t, string(text), `"Completed"`)
	}

	completion.Unchanged = true
	refused(t, s, http.StatusConflict, "POST", "/v1/task/complete", completion, workerapitest.AsTask(made))

	read := next(t, s)
	require.Equal(t, "read", read.Task.Job.Name)
	for format, want := range map[string]string{
		"ndjson": "{\"n\":1,\"s\":\"a,b\"}\n{\"n\":2,\"s\":null}\n",
		"csv":    "n,s\n1,\"a,b\"\n2,\n",
	} {
		status, text := s.Send(t, "GET", "/v1/task/inputs/0?format="+format, nil, workerapitest.AsTask(read))
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.Equal(t, want, string(text), "what the job's `where` leaves, as %s", format)
	}

	status, text := s.Send(t, "GET", "/v1/task/inputs/0?format=parquet&partition=p", nil, workerapitest.AsTask(read))
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.True(t, strings.HasPrefix(string(text), "PAR1"))

	status, text = s.Send(t, "GET", "/v1/task/inputs/0?format=arrow", nil, workerapitest.AsTask(read))
	require.Equal(t, http.StatusOK, status, "%s", text)
	stream, err := ipc.NewReader(bytes.NewReader(text))
	require.NoError(t, err)
	require.True(t, stream.Next())
	require.EqualValues(t, 2, stream.RecordBatch().NumRows())
	require.Equal(t, "a,b", stream.RecordBatch().Column(1).ValueStr(0))

	refused(t, s, http.StatusNotFound, "GET", "/v1/task/inputs/0?partition=q", nil, workerapitest.AsTask(read))

	body, header := fenced(`{%s, "sql": "SELECT sum(n) AS total FROM made"}`, read.Fence(), workerapitest.AsTask(read))
	status, text = s.Send(t, "POST", "/v1/task/query", body, header)
	require.Equal(t, http.StatusOK, status, "%s", text)

	var answer protocol.QueryAnswer
	require.NoError(t, json.Unmarshal(text, &answer))
	require.Equal(t, "total", answer.Columns[0].Name)
	require.Equal(t, "3", strings.Trim(string(answer.Rows[0][0]), `"`))

	body, header = fenced(`{%s, "sql": "SELECT *, _partition AS p FROM made WHERE _partition > '' ORDER BY ALL"}`,
		read.Fence(), workerapitest.AsTask(read))
	status, text = s.Send(t, "POST", "/v1/task/query", body, header)
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.NoError(t, json.Unmarshal(text, &answer))
	require.Len(t, answer.Columns, 3, "no star shows it")
	require.Equal(t, `"p"`, string(answer.Rows[0][2]))

	body, header = fenced(`{%s, "sql": "SELECT * FROM elsewhere"}`, read.Fence(), workerapitest.AsTask(read))
	p := refused(t, s, http.StatusNotFound, "POST", "/v1/task/query", body, header)
	require.Contains(t, p.Detail, `no input "elsewhere"`)
}

// Types that a task declares are those of the Parquet file, whatever the values look like and also without rows.
func TestUploadsMayDeclareTheirColumns(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	made := claimed(t, s, "made", "p")
	columns := "?columns=" + url.QueryEscape(`[{"name": "n", "type": "SMALLINT"}, {"name": "s", "type": "VARCHAR"},
		{"name": "at", "type": "TIMESTAMPTZ"}, {"name": "d", "type": "DECIMAL(10,2)"}, {"name": "l", "type": "BIGINT[]"}]`)
	var file protocol.UploadedFile
	for _, upload := range [][2]string{{"none.ndjson", ""}, {"nulls.ndjson", `{"n": null, "s": null, "at": null}`},
		{"rows.ndjson", `{"n": 1, "s": "2026-01-01", "at": "2026-01-01T09:00:00+01:00", "d": "1.5", "l": []}`}} {
		status, text := s.Send(t, "PUT", "/v1/task/outputs/0/"+upload[0]+columns, upload[1], workerapitest.AsTask(made))
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.NoError(t, json.Unmarshal(text, &file))
	}

	completion := protocol.Completion{Fence: made.Fence(), Status: protocol.Completed,
		Outputs: []protocol.CommittedOutput{{Files: []protocol.UploadedFile{file}}}}
	status, text := s.Send(t, "POST", "/v1/task/complete", completion, workerapitest.AsTask(made))
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.Equal(t, []protocol.Column{{Name: "n", Type: "SMALLINT"}, {Name: "s", Type: "VARCHAR"},
		{Name: "at", Type: "TIMESTAMP WITH TIME ZONE"}, {Name: "d", Type: "DECIMAL(10,2)"},
		{Name: "l", Type: "BIGINT[]"}}, next(t, s).Task.Inputs[0].Schema)
}

// next polls until there is a task.
func next(t *testing.T, s *workerapitest.Server) protocol.Claim {
	t.Helper()
	var answer protocol.PollResponse
	s.Eventually(t, "a task", func() bool {
		status, text := s.Send(t, "POST", "/internal/task-poll", protocol.PollRequest{WorkerID: "w",
			Runtime: workerapitest.Runtime, Max: 1, WaitSeconds: 5}, workerapitest.AsWorker(s.Token))
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.NoError(t, json.Unmarshal(text, &answer))
		return len(answer.Tasks) > 0
	})
	return answer.Tasks[0]
}

func TestHeartbeatsExtendTheLeaseAndBringOrders(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "other", "")
	beat := func() (answer protocol.HeartbeatAnswer) {
		body, header := fenced(`{%s, "progress": 40, "state": "on it"}`, claim.Fence(), workerapitest.AsTask(claim))
		status, text := s.Send(t, "POST", "/v1/task/heartbeat", body, header)
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.NoError(t, json.Unmarshal(text, &answer))
		return answer
	}

	var answer protocol.HeartbeatAnswer
	s.Eventually(t, "a longer lease", func() bool {
		answer = beat()
		return answer.LeaseExpiresAt.After(*claim.LeaseExpiresAt)
	})
	require.False(t, answer.CancelRequested)
	require.Equal(t, 40, s.Task(t, claim.Task.TaskID).Progress)

	s.Do(t, "POST", "/v1/tasks/"+claim.Task.TaskID.String()+":cancel", nil, nil)
	require.True(t, beat().CancelRequested)
}

func TestAConfigNeedsAllItsParts(t *testing.T) {
	t.Parallel()
	_, err := workerapi.New(workerapi.Config{})
	require.ErrorContains(t, err, "a dispatcher, a registry, storage, a runner and queries")
}

// Text without rows names columns at most; their types are those that the output had.
func TestTextWithoutRowsKeepsTheColumns(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	publish := func(file, rows string) string {
		made := claimed(t, s, "made", "p")
		status, text := s.Send(t, "PUT", "/v1/task/outputs/0/"+file, rows, workerapitest.AsTask(made))
		require.Equal(t, http.StatusOK, status, "%s", text)
		var up protocol.UploadedFile
		require.NoError(t, json.Unmarshal(text, &up))
		status, text = s.Send(t, "POST", "/v1/task/complete", protocol.Completion{Fence: made.Fence(),
			Status: protocol.Completed, Outputs: []protocol.CommittedOutput{{Files: []protocol.UploadedFile{up}}}},
			workerapitest.AsTask(made))
		require.Equal(t, http.StatusOK, status, "%s", text)
		var is string
		require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT concat(row_count, ' ', (
			SELECT string_agg(concat_ws(' ', c->>'name', c->>'type'), ', ') FROM jsonb_array_elements(schema) AS c))
			FROM partition_versions WHERE state = 'Published'`).Scan(&is))
		return is
	}

	require.Equal(t, "1 n BIGINT, s VARCHAR", publish("a.ndjson", `{"n": 1, "s": "x"}`))
	require.Equal(t, "0 n BIGINT, s VARCHAR", publish("b.ndjson", ""))
	require.Equal(t, "0 s VARCHAR, n BIGINT", publish("c.csv", "s,n\n"))
	require.Equal(t, "0 n BIGINT, t VARCHAR", publish("d.csv", "n,t\n"))
}

// What an attempt says while it runs is shown to people, and what it enqueues to those who see that task.
func TestSecretsAreRemovedFromProgressAndRefusedInTasks(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	claim := claimed(t, s, "mail", "")
	call := func(path, body string) (int, []byte) {
		body1, header := fenced(body, claim.Fence(), workerapitest.AsTask(claim))
		return s.Send(t, "POST", path, body1, header)
	}

	var state string
	for said, want := range map[string]string{"signing in with hunter22": "signing in with [secret]",
		strings.Repeat("y", 994) + "hunter": strings.Repeat("y", 994) + "[secret]"} {
		status, text := call("/v1/task/heartbeat", `{%s, "progress": 5, "state": "`+said+`"}`)
		require.Equal(t, http.StatusOK, status, "%s", text)
		require.NoError(t, s.Pool.QueryRow(t.Context(), `SELECT state FROM leases`).Scan(&state))
		require.Equal(t, want, state)
	}
	require.Zero(t, count(t, s, `SELECT count(*) FROM task_events WHERE state LIKE '%%hunter%%'`))

	for _, field := range []string{"payload", "metadata", "idempotency_key"} {
		value := `{"a": "hunter22"}`
		if field == "idempotency_key" {
			value = `"k-hunter22"`
		}
		tasks := `"tasks": [{"job": "other", "` + field + `": ` + value + `}]`
		for path, more := range map[string]string{"/v1/task/events": "", "/v1/task/complete": `"status": "Completed", `} {
			status, text := call(path, `{%s, `+more+tasks+`}`)
			require.Equal(t, http.StatusUnprocessableEntity, status, "%s", text)
			require.Contains(t, string(text), "tasks[0]."+field+" holds a value of a secret")
			require.NotContains(t, string(text), "hunter22")
		}
	}
	require.Equal(t, "Running", string(s.Task(t, claim.Task.TaskID).Status))

	// A worker may split a long line, and send control characters, which the log leaves out.
	lines := []map[string]any{}
	for i, said := range []string{strings.Repeat("y", 16_384-4) + "hunt", "er22", "hun\u0007ter22", "hun\rter22"} {
		lines = append(lines, map[string]any{"seq": i + 1, "at": "2026-01-02T03:04:05Z", "text": said})
	}
	encoded, err := json.Marshal(lines)
	require.NoError(t, err)
	status, text := call("/v1/task/logs", `{%s, "lines": `+strings.ReplaceAll(string(encoded), "%", "%%")+`}`)
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.Zero(t, count(t, s, `SELECT count(*) FROM task_logs WHERE text LIKE '%%hunt%%' OR text LIKE '%%er22%%'`))
	require.Equal(t, 4, count(t, s, `SELECT count(*) FROM task_logs`))
}

func count(t *testing.T, s *workerapitest.Server, query string) (n int) {
	t.Helper()
	require.NoError(t, s.Pool.QueryRow(t.Context(), query).Scan(&n))
	return n
}
