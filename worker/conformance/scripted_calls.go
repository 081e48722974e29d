package conformance

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

func (s *Scripted) routes() {
	s.mux.HandleFunc(pollCall, asWorker(s, s.poll))
	s.mux.HandleFunc("POST /internal/task-claim", asWorker(s, s.claim))
	s.mux.HandleFunc(workerBeatCall, asWorker(s, func(http.ResponseWriter, *http.Request,
		protocol.WorkerHeartbeat) (any, error) {
		return protocol.WorkerOrders{Canceled: s.canceled()}, nil
	}))

	s.mux.HandleFunc(beatCall, asTask(s, holding, s.heartbeat))
	s.mux.HandleFunc(eventsCall, asTask(s, holding, s.events))
	s.mux.HandleFunc(completeCall, asTask(s, ending, s.complete))
	s.mux.HandleFunc(logsCall, asTask(s, holding, s.logs))
	s.mux.HandleFunc(secretsCall, asTask(s, holding, s.secrets))
	s.mux.HandleFunc(queryCall, asTask(s, holding, s.query))
	s.mux.HandleFunc("PUT /v1/task/outputs/{index}/{file}", s.upload)
	s.mux.HandleFunc("GET /v1/task/inputs/{index}", s.download)
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(w, http.StatusNotFound, "there is no "+r.Method+" "+r.URL.Path)
	})
}

// refusal is an answer other than 200.
type refusal struct {
	status int
	detail string
}

func (r refusal) Error() string { return r.detail }

func refuse(status int, format string, args ...any) error {
	return refusal{status, fmt.Sprintf(format, args...)}
}

func reply(w http.ResponseWriter, body any, err error) {
	var no refusal
	if errors.As(err, &no) {
		problem(w, no.status, no.detail)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(body) //nolint:errcheck // into memory
}

func read[B any](r *http.Request) (body B, err error) {
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return body, refuse(http.StatusUnprocessableEntity, "the body does not fit the protocol: %v", err)
	}
	return body, nil
}

func asWorker[B any](s *Scripted, answer func(http.ResponseWriter, *http.Request, B) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+s.Token {
			problem(w, http.StatusUnauthorized, "the worker token is missing or wrong")
			return
		}
		body, err := read[B](r)
		if err != nil {
			reply(w, nil, err)
			return
		}
		said, err := answer(w, r, body)
		reply(w, said, err)
	}
}

// What an attempt must have in order to make a call.
type need int

const (
	holding need = iota // the lease
	ending              // it is the current attempt, or the one that has ended the task
)

// fenceOf reads the fence from a body or from the headers.
func fenceOf(h http.Header, body []byte) (f protocol.Fence, err error) {
	if h.Get(protocol.TaskHeader) == "" {
		return f, json.Unmarshal(body, &f)
	}
	if f.TaskID, err = uuid.Parse(h.Get(protocol.TaskHeader)); err == nil {
		f.LeaseToken, err = uuid.Parse(h.Get(protocol.LeaseTokenHeader))
	}
	if err == nil {
		f.Attempt, err = strconv.Atoi(h.Get(protocol.AttemptHeader))
	}
	return f, err
}

// check returns the task that may make the call. The caller holds s.mu.
func (s *Scripted) check(h http.Header, body []byte, n need) (*scriptedTask, error) {
	fence, err := fenceOf(h, body)
	if err != nil {
		return nil, refuse(http.StatusUnprocessableEntity, "the call has no fence: %v", err)
	}
	capability := h.Get(protocol.CapabilityHeader)
	var owner *scriptedTask
	for _, t := range s.tasks {
		if _, ok := t.capabilities[capability]; ok {
			owner = t
		}
	}

	switch {
	case owner == nil:
		return nil, refuse(http.StatusUnauthorized, "the capability token is missing or wrong")
	case owner.id != fence.TaskID || owner.capabilities[capability] != fence.Attempt:
		return nil, refuse(http.StatusForbidden, "the capability token belongs to another attempt")
	}

	current := owner.attempt == fence.Attempt && owner.lease == fence.LeaseToken
	if !current || n == holding && (owner.status != "Running" || !time.Now().Before(owner.expires)) {
		return nil, refuse(http.StatusConflict, "the fence is stale: task %s is %s, attempt %d", owner.id, owner.status,
			owner.attempt)
	}
	return owner, nil
}

func asTask[B any](s *Scripted, n need, answer func(*scriptedTask, []byte, B) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		body, err := read[B](r)
		if err != nil {
			reply(w, nil, err)
			return
		}

		s.mu.Lock()
		defer s.mu.Unlock()
		t, err := s.check(r.Header, text, n)
		if err != nil {
			reply(w, nil, err)
			return
		}
		said, err := answer(t, text, body)
		reply(w, said, err)
	}
}

func (s *Scripted) poll(_ http.ResponseWriter, r *http.Request, p protocol.PollRequest) (any, error) {
	if p.WorkerID == "" || p.Runtime == "" || p.Max < 1 {
		return nil, refuse(http.StatusUnprocessableEntity, "worker_id, runtime and max are needed")
	}
	wait := time.NewTimer(time.Duration(p.WaitSeconds) * time.Second)
	defer wait.Stop()

	for {
		s.mu.Lock()
		var claims []protocol.Claim
		if p.Runtime == Runtime && r.Context().Err() == nil {
			claims = s.take(p.Handlers, p.Max)
		}
		arrived := s.arrived
		s.mu.Unlock()
		if len(claims) > 0 {
			return protocol.PollResponse{Tasks: claims}, nil
		}
		select {
		case <-arrived:
		case <-wait.C:
			return protocol.PollResponse{Tasks: []protocol.Claim{}}, nil
		case <-r.Context().Done():
			return protocol.PollResponse{Tasks: []protocol.Claim{}}, nil
		}
	}
}

// claim claims a task by the id that a worker got from a message.
func (s *Scripted) claim(_ http.ResponseWriter, _ *http.Request, c protocol.ClaimRequest) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[c.TaskID]
	switch {
	case !ok || c.Runtime != Runtime || !slices.Contains(c.Handlers, t.handler):
		return protocol.Claim{Status: protocol.NotClaimed, Reason: protocol.NotFound}, nil
	case t.status == "Running":
		return protocol.Claim{Status: protocol.NotClaimed, Reason: protocol.AlreadyRunning}, nil
	case t.status != "Queued":
		return protocol.Claim{Status: protocol.NotClaimed, Reason: t.status}, nil
	}
	s.queue = slices.DeleteFunc(s.queue, func(id uuid.UUID) bool { return id == t.id })
	return s.lease(t), nil
}

func (s *Scripted) heartbeat(t *scriptedTask, _ []byte, b protocol.Heartbeat) (any, error) {
	t.expires = time.Now().Add(LeaseSeconds * time.Second)
	t.progress, t.state = b.Progress, b.State
	return protocol.HeartbeatAnswer{LeaseExpiresAt: t.expires, CancelRequested: t.canceled}, nil
}

func (s *Scripted) events(t *scriptedTask, text []byte, e protocol.Events) (any, error) {
	if t.events != nil && sameJSON(t.events, text) {
		return t.eventsAnswer, nil
	}
	answer := protocol.EventsAnswer{Accepted: true, Events: []protocol.EventOutcome{}, Tasks: []uuid.UUID{}}
	for range e.Events {
		id := uuid.New()
		answer.Events = append(answer.Events, protocol.EventOutcome{Outcome: "accepted", EventID: &id})
	}
	for _, task := range e.Tasks {
		answer.Tasks = append(answer.Tasks, s.create("conformance:"+task.Job, task.Payload))
	}
	t.events, t.eventsAnswer = text, answer
	return answer, nil
}

func (s *Scripted) complete(t *scriptedTask, text []byte, c protocol.Completion) (any, error) {
	switch {
	case t.completion != nil && sameJSON(t.completion, text):
		return t.stands(), nil
	case t.status != "Running" && t.status != "Queued", t.completion != nil:
		return nil, refuse(http.StatusConflict, "task %s is already %s", t.id, t.status)
	}

	switch c.Status {
	case "Completed", "Canceled":
		t.status = c.Status
	case "Failed":
		if c.Error == nil || c.Error.Message == "" {
			return nil, refuse(http.StatusUnprocessableEntity, "error.message: a failure needs one")
		}
		t.status = c.Status
	default:
		return nil, refuse(http.StatusUnprocessableEntity, "status: %q is not Completed, Failed or Canceled", c.Status)
	}

	for _, o := range c.Outputs {
		for _, f := range o.Files {
			if _, ok := t.file(f.Name); !ok {
				t.status = "Running"
				return nil, refuse(http.StatusUnprocessableEntity, "outputs: %s was not uploaded", f.Name)
			}
		}
	}

	if len(c.Outputs) > 0 && c.Status == "Completed" {
		t.published = t.files
	}
	t.completion = text
	return t.stands(), nil
}

func (t *scriptedTask) file(name string) (string, bool) {
	for _, format := range []string{"ndjson", "csv", "parquet"} {
		if _, ok := t.files[name+"?"+format]; ok {
			return format, true
		}
	}
	return "", false
}

func (s *Scripted) logs(t *scriptedTask, _ []byte, l protocol.Logs) (any, error) {
	return protocol.LogsAnswer{Accepted: t.log(l.Attempt, l.Lines)}, nil
}

func (s *Scripted) secrets(t *scriptedTask, _ []byte, _ protocol.SecretsRequest) (any, error) {
	if t.handler != Secrets {
		return protocol.Secrets{Secrets: map[string]string{}}, nil
	}
	return protocol.Secrets{Secrets: map[string]string{SecretName: SecretValue}}, nil
}

// theQuery is the SQL of Query.
const theQuery = "SELECT count(*) AS rows, sum(n)::BIGINT AS total FROM rows"

func (s *Scripted) query(_ *scriptedTask, _ []byte, q protocol.QueryRequest) (any, error) {
	if strings.TrimSpace(q.SQL) != theQuery {
		return nil, refuse(http.StatusUnprocessableEntity, "sql: the scripted server knows one query only: %s",
			theQuery)
	}
	return protocol.QueryAnswer{Columns: []protocol.Column{{Name: "rows", Type: "BIGINT"},
		{Name: "total", Type: "BIGINT"}},
		Rows: [][]json.RawMessage{{json.RawMessage("3"), json.RawMessage("6")}}}, nil
}

func (s *Scripted) upload(w http.ResponseWriter, r *http.Request) {
	content, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	t, err := s.check(r.Header, nil, holding)
	format, name := r.FormValue("format"), r.PathValue("file")
	switch {
	case err != nil:
	case t.handler != Copy || r.PathValue("index") != "0":
		err = refuse(http.StatusUnprocessableEntity, "the task has no output %s", r.PathValue("index"))
	case format != "ndjson" && format != "csv" && format != "parquet":
		err = refuse(http.StatusUnprocessableEntity, "format: %q is not ndjson, csv or parquet", format)
	default:
		if format != "parquet" {
			name += ".parquet" // servers keep text rows as Parquet
		}
		t.files[path.Base(name)+"?"+format] = content
	}
	reply(w, protocol.UploadedFile{Name: name, ETag: fmt.Sprintf("%08x", len(content))}, err)
}

func (s *Scripted) download(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.check(r.Header, nil, holding)
	switch {
	case err != nil:
	case t.handler != Copy && t.handler != Query || r.PathValue("index") != "0":
		err = refuse(http.StatusUnprocessableEntity, "the task has no input %s", r.PathValue("index"))
	}
	if err != nil {
		reply(w, nil, err)
		return
	}

	var b bytes.Buffer
	switch r.FormValue("format") {
	case "ndjson", "":
		w.Header().Set("Content-Type", "application/x-ndjson")
		for _, row := range Rows() {
			json.NewEncoder(&b).Encode(row) //nolint:errcheck // into memory
		}
	case "csv":
		w.Header().Set("Content-Type", "text/csv")
		lines := [][]string{{"n", "s"}}
		for _, row := range Rows() {
			lines = append(lines, []string{fmt.Sprint(row["n"]), fmt.Sprint(row["s"])})
		}
		csv.NewWriter(&b).WriteAll(lines) //nolint:errcheck // into memory
	default:
		problem(w, http.StatusUnprocessableEntity, "format: the scripted server makes ndjson and csv only")
		return
	}
	w.Write(b.Bytes()) //nolint:errcheck // the program may have gone
}

// rowsOf reads the rows of published files.
func rowsOf(files map[string][]byte) ([]map[string]any, error) {
	var rows []map[string]any
	for name, content := range files {
		if strings.HasSuffix(name, "?parquet") {
			return nil, errors.New("the scripted server does not read Parquet")
		}
		if strings.HasSuffix(name, "?csv") {
			lines, err := csv.NewReader(bytes.NewReader(content)).ReadAll()
			if err != nil {
				return nil, err
			}
			for _, line := range lines[min(1, len(lines)):] {
				row := map[string]any{}
				for i, column := range lines[0] {
					row[column] = line[i]
					if n, err := strconv.Atoi(line[i]); err == nil {
						row[column] = n
					}
				}
				rows = append(rows, row)
			}
			continue
		}

		decoder := json.NewDecoder(bytes.NewReader(content))
		for {
			var row map[string]any
			if err := decoder.Decode(&row); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}
