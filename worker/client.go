package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Client makes the calls of the worker protocol, one method per endpoint. A method makes its call once, unless it says
// otherwise. A call that the server refuses returns a StatusError.
type Client struct {
	base  string
	token *token // of the worker
	http  *http.Client
}

// NewClient returns a client for the server at a base URL. client may be nil.
func NewClient(base, secret string, client *http.Client) *Client {
	if client == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		// The tasks of the largest pool may all call at once.
		transport.MaxIdleConns, transport.MaxIdleConnsPerHost = 0, 1000
		transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
		client = &http.Client{
			Transport: transport,
			// A redirect to another host is a misconfiguration, and following it would leak the token.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	}
	return &Client{base: strings.TrimRight(base, "/"), token: &token{text: secret}, http: client}
}

// patience is how long the server may take to answer a call that it need not wait for anything to answer.
const patience = 30 * time.Second

// Calls with the worker's token.

// Poll claims up to request.Max tasks and waits for the first as long as the request says.
func (c *Client) Poll(ctx context.Context, request protocol.PollRequest) (answer protocol.PollResponse, err error) {
	wait := time.Duration(request.WaitSeconds)*time.Second + patience
	err = c.call(ctx, wait, c.asWorker, http.MethodPost, "/internal/task-poll", request, &answer)
	return answer, err
}

// Claim claims one task.
func (c *Client) Claim(ctx context.Context, request protocol.ClaimRequest) (answer protocol.Claim, err error) {
	err = c.call(ctx, patience, c.asWorker, http.MethodPost, "/internal/task-claim", request, &answer)
	return answer, err
}

// Fetch reads a task as it stands.
func (c *Client) Fetch(ctx context.Context, task uuid.UUID) (answer protocol.TaskState, err error) {
	err = c.call(ctx, patience, c.asWorker, http.MethodGet, "/internal/task-fetch?task_id="+task.String(), nil, &answer)
	return answer, err
}

// HeartbeatWorker reports that the worker is alive.
func (c *Client) HeartbeatWorker(
	ctx context.Context, beat protocol.WorkerHeartbeat,
) (answer protocol.WorkerOrders, err error) {
	err = c.call(ctx, patience, c.asWorker, http.MethodPost, "/internal/worker-heartbeat", beat, &answer)
	return answer, err
}

// CompleteMany ends many attempts, at most protocol.MostCalls. Each call is that of Complete, with the capability of
// its attempt; its answer is nil or the StatusError that it would have had by itself. An error of the call as a whole
// says nothing of any.
func (c *Client) CompleteMany(ctx context.Context, calls []protocol.One[json.RawMessage]) (answers []error, err error) {
	_, answers, err = callMany[protocol.TaskState](ctx, c, "complete", calls)
	return answers, err
}

// HeartbeatMany extends many leases, at most protocol.MostCalls. Each call is that of Heartbeat, with the capability of
// its attempt; it has an answer, or the StatusError that it would have had by itself. An error of the call as a whole
// says nothing of any.
func (c *Client) HeartbeatMany(
	ctx context.Context, calls []protocol.One[protocol.Heartbeat],
) (answers []protocol.HeartbeatAnswer, refusals []error, err error) {
	return callMany[protocol.HeartbeatAnswer](ctx, c, "heartbeat", calls)
}

// callMany makes many calls of attempts at once.
func callMany[O, I any](
	ctx context.Context, c *Client, name string, calls []protocol.One[I],
) (answers []O, refusals []error, err error) {
	var answer struct {
		Answers []struct {
			Status  int
			Answer  O
			Problem json.RawMessage
		}
	}
	path := "/v1/tasks/" + name
	err = c.call(ctx, patience, c.asWorker, http.MethodPost, path, protocol.Many[I]{Calls: calls}, &answer)
	if err != nil {
		return nil, nil, err
	}
	if len(answer.Answers) != len(calls) {
		return nil, nil, ours{fmt.Errorf("%s: there are %d answers to %d calls", path, len(answer.Answers), len(calls))}
	}

	answers, refusals = make([]O, len(calls)), make([]error, len(calls))
	for i, a := range answer.Answers {
		answers[i] = a.Answer
		if a.Status != http.StatusOK {
			refusals[i] = refusalOf("POST /v1/task/"+name, a.Status, a.Problem)
		}
	}
	return answers, refusals, nil
}

// Calls with the capability of a task's attempt.

// Heartbeat extends the lease.
func (c *Client) Heartbeat(
	ctx context.Context, capability string, beat protocol.Heartbeat,
) (answer protocol.HeartbeatAnswer, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/heartbeat", beat, &answer)
	return answer, err
}

// Events commits outputs, events, tasks and state while the task goes on.
func (c *Client) Events(
	ctx context.Context, capability string, events protocol.Events,
) (answer protocol.EventsAnswer, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/events", events, &answer)
	return answer, err
}

// Complete ends the attempt. The server seals the uploads before it answers, which may take minutes.
func (c *Client) Complete(
	ctx context.Context, capability string, completion protocol.Completion,
) (answer protocol.TaskState, err error) {
	err = c.call(ctx, 10*time.Minute, asTask(capability), http.MethodPost, "/v1/task/complete", completion, &answer)
	return answer, err
}

// Logs stores lines of the task's log.
func (c *Client) Logs(
	ctx context.Context, capability string, logs protocol.Logs,
) (answer protocol.LogsAnswer, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/logs", logs, &answer)
	return answer, err
}

// Secrets returns the values of the secrets that the task's job names.
func (c *Client) Secrets(
	ctx context.Context, capability string, fence protocol.Fence,
) (answer protocol.Secrets, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/secrets",
		protocol.SecretsRequest{Fence: fence}, &answer)
	return answer, err
}

// Credentials returns short-lived storage credentials.
func (c *Client) Credentials(
	ctx context.Context, capability string, fence protocol.Fence,
) (answer protocol.Credentials, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/credentials",
		protocol.CredentialsRequest{Fence: fence}, &answer)
	return answer, err
}

// Assignment returns the task as it was claimed, for a claim that carries only a reference.
func (c *Client) Assignment(
	ctx context.Context, capability string, fence protocol.Fence,
) (answer protocol.Task, err error) {
	err = c.call(ctx, patience, asTask(capability), http.MethodPost, "/v1/task/assignment", fence, &answer)
	return answer, err
}

// Query runs SQL over the pinned inputs.
func (c *Client) Query(
	ctx context.Context, capability string, query protocol.QueryRequest,
) (answer protocol.QueryAnswer, err error) {
	err = c.call(ctx, 5*time.Minute, asTask(capability), http.MethodPost, "/v1/task/query", query, &answer)
	return answer, err
}

// Upload puts a file of an output. Sending the same content again is fine; other content under the same name is an
// ErrConflict.
func (c *Client) Upload(
	ctx context.Context, capability string, fence protocol.Fence, output int, file string, format Format,
	content io.Reader, size int64,
) (answer protocol.UploadedFile, err error) {
	path := fmt.Sprintf("/v1/task/outputs/%d/%s?format=%s", output, url.PathEscape(file), format)
	if size == 0 {
		content = http.NoBody // otherwise a length of 0 means that it is unknown
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, c.base+path, content)
	if err != nil {
		return answer, err
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", format.mediaType())
	showFence(request.Header, fence)
	asTask(capability)(request.Header)
	err = c.send(request, &answer)
	return answer, err
}

// Download opens an input's content: all that was pinned, filtered by the job's conditions.
func (c *Client) Download(
	ctx context.Context, capability string, fence protocol.Fence, input int, format Format,
) (io.ReadCloser, error) {
	return c.download(ctx, capability, fence, inputPath(input, format))
}

func inputPath(input int, format Format) string {
	return fmt.Sprintf("/v1/task/inputs/%d?format=%s", input, format)
}

// download opens what a path of the input's content answers.
func (c *Client) download(
	ctx context.Context, capability string, fence protocol.Fence, path string,
) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	showFence(request.Header, fence)
	asTask(capability)(request.Header)
	response, err := c.do(request)
	if err != nil {
		return nil, err
	}
	return response.Body, nil
}

// Code returns the zip archive of the job's own code, for operator udf.
func (c *Client) Code(ctx context.Context, capability string, fence protocol.Fence) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/v1/task/udf", nil)
	if err != nil {
		return nil, err
	}
	asTask(capability)(request.Header)
	showFence(request.Header, fence)
	response, err := c.do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

func (c *Client) asWorker(h http.Header) { h.Set("Authorization", "Bearer "+c.token.read()) }

func asTask(capability string) func(http.Header) {
	return func(h http.Header) { h.Set(protocol.CapabilityHeader, capability) }
}

// showFence puts the fence into the headers of a call whose body is data.
func showFence(h http.Header, fence protocol.Fence) {
	h.Set(protocol.TaskHeader, fence.TaskID.String())
	h.Set(protocol.AttemptHeader, strconv.Itoa(fence.Attempt))
	h.Set(protocol.LeaseTokenHeader, fence.LeaseToken.String())
}

func (c *Client) call(
	ctx context.Context, wait time.Duration, as func(http.Header), method, path string, body, answer any,
) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	var content io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return ours{NotRetryable(fmt.Errorf("%w: %s: %w", ErrInvalid, path, err))}
		}
		content = bytes.NewReader(text)
	}

	request, err := http.NewRequestWithContext(ctx, method, c.base+path, content)
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	as(request.Header)
	return c.send(request, answer)
}

// maxAnswer bounds a JSON answer, in bytes.
const maxAnswer = 256 << 20

func (c *Client) send(request *http.Request, answer any) error {
	response, err := c.do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()

	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("%s: the answer was cut short: %w", callOf(request), err)
	}
	if len(text) == 0 {
		return nil
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("%s: the answer is not that of a dagctl server: %w", callOf(request), err)
	}
	return nil
}

func (c *Client) do(request *http.Request) (*http.Response, error) {
	request.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
	request.Header.Set("User-Agent", "dagctl-worker-go")
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= 300 {
		defer response.Body.Close()
		return nil, refusal(request, response)
	}
	return response, nil
}

func callOf(request *http.Request) string { return request.Method + " " + request.URL.Path }

// refusal returns the StatusError for an answer, which is a problem document or whatever a proxy sends instead.
func refusal(request *http.Request, response *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	e := refusalOf(callOf(request), response.StatusCode, text)
	if seconds, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && seconds > 0 {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// refusalOf returns the StatusError of a call for a status and a text, which is a problem document or not.
func refusalOf(call string, status int, text []byte) *StatusError {
	e := &StatusError{Status: status, Call: call, Message: http.StatusText(status)}
	var problem struct {
		Detail string `json:"detail"`
		Hint   string `json:"hint"`
		Errors []struct {
			Location string `json:"location"`
			Message  string `json:"message"`
		} `json:"errors"`
	}
	if json.Unmarshal(text, &problem) != nil || problem.Detail == "" {
		return e
	}

	e.Message, e.Hint = problem.Detail, problem.Hint
	for _, p := range problem.Errors {
		e.Problems = append(e.Problems, strings.TrimPrefix(p.Location+": "+p.Message, ": "))
	}
	return e
}

// at returns a client that makes the same calls to a server at another address.
func (c *Client) at(base string) *Client {
	other := *c
	other.base = strings.TrimRight(base, "/")
	return &other
}
