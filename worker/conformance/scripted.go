package conformance

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Scripted is a backend without a database: it keeps tasks in memory and answers as a server does, as far as the suite
// can see. A test runs the scenarios against a real server too, so that the two agree.
type Scripted struct {
	Token string // worker token
	mux   *http.ServeMux

	mu      sync.Mutex
	tasks   map[uuid.UUID]*scriptedTask
	queue   []uuid.UUID
	arrived chan struct{} // closed when a task is queued
}

// scriptedTask is a task and its history.
type scriptedTask struct {
	id       uuid.UUID
	handler  string
	payload  json.RawMessage
	status   string
	attempt  int
	lease    uuid.UUID
	expires  time.Time
	canceled bool // asked to stop
	// capabilities are the tokens by attempt; each is valid for its own attempt only.
	capabilities map[string]int
	completion   []byte // body of the accepted one
	progress     int
	state        string
	lines        map[int][]protocol.LogLine
	files        map[string][]byte // uploaded by the attempt, by "name?format"
	published    map[string][]byte
	events       []byte // body of the last accepted one
	eventsAnswer protocol.EventsAnswer
}

// NewScripted returns a backend with a token of its own.
func NewScripted() *Scripted {
	s := &Scripted{Token: "dagctl_worker_" + rand.Text(), mux: http.NewServeMux(), tasks: map[uuid.UUID]*scriptedTask{},
		arrived: make(chan struct{})}
	s.routes()
	return s
}

func (s *Scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if v := r.Header.Get(protocol.VersionHeader); v != "1" && v != "" {
		problem(w, http.StatusBadRequest, fmt.Sprintf("%s %q is not supported", protocol.VersionHeader, v))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Create queues a task.
func (s *Scripted) Create(_ context.Context, handler string, payload any) (uuid.UUID, error) {
	text, err := json.Marshal(payload)
	if err != nil {
		return uuid.Nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.create(handler, text), nil
}

func (s *Scripted) create(handler string, payload json.RawMessage) uuid.UUID {
	t := &scriptedTask{id: uuid.New(), handler: handler, payload: payload, status: "Queued",
		capabilities: map[string]int{}, lines: map[int][]protocol.LogLine{}}
	if string(payload) == "null" {
		t.payload = nil
	}
	s.tasks[t.id] = t
	s.enqueue(t)
	return t.id
}

func (s *Scripted) enqueue(t *scriptedTask) {
	t.status = "Queued"
	s.queue = append(s.queue, t.id)
	close(s.arrived)
	s.arrived = make(chan struct{})
}

// Cancel asks a running task to stop.
func (s *Scripted) Cancel(_ context.Context, task uuid.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[task]
	if !ok || t.status != "Running" && t.status != "Queued" {
		return fmt.Errorf("task %s is not running", task)
	}
	if t.status == "Queued" {
		t.status = "Canceled"
		s.queue = slices.DeleteFunc(s.queue, func(id uuid.UUID) bool { return id == task })
		return nil
	}
	t.canceled = true
	return nil
}

// canceled lists the running tasks that were asked to stop.
func (s *Scripted) canceled() (list []uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, t := range s.tasks {
		if t.canceled && t.status == "Running" {
			list = append(list, id)
		}
	}
	return list
}

// Expire ends the lease.
func (s *Scripted) Expire(_ context.Context, task uuid.UUID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[task]
	if !ok || t.status != "Running" {
		return fmt.Errorf("task %s is not running", task)
	}
	t.expires = time.Now()
	s.enqueue(t)
	return nil
}

// Task returns the present state of a task.
func (s *Scripted) Task(_ context.Context, task uuid.UUID) (protocol.TaskState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[task]
	if !ok {
		return protocol.TaskState{}, fmt.Errorf("there is no task %s", task)
	}
	return t.stands(), nil
}

func (t *scriptedTask) stands() protocol.TaskState {
	return protocol.TaskState{TaskID: t.id, Org: "conformance", Job: t.job(), Status: t.status, Attempt: t.attempt,
		Runtime:  Runtime,
		Operator: "handler", Payload: t.payload, Progress: t.progress, State: t.state, CancelRequested: t.canceled}
}

func (t *scriptedTask) job() protocol.Job {
	return protocol.Job{DAGName: "conformance", Name: strings.TrimPrefix(t.handler, "conformance:")}
}

// Output returns the published rows.
func (s *Scripted) Output(_ context.Context, task uuid.UUID) ([]map[string]any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[task]
	if !ok {
		return nil, fmt.Errorf("there is no task %s", task)
	}
	return rowsOf(t.published)
}

// Lines returns the stored lines.
func (s *Scripted) Lines(_ context.Context, task uuid.UUID, attempt int) ([]protocol.LogLine, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[task]
	if !ok {
		return nil, fmt.Errorf("there is no task %s", task)
	}
	return slices.Clone(t.lines[attempt]), nil
}

// lease claims a task for a worker.
func (s *Scripted) lease(t *scriptedTask) protocol.Claim {
	now := time.Now()
	t.attempt++
	t.status, t.lease, t.expires, t.files = "Running", uuid.New(), now.Add(LeaseSeconds*time.Second),
		map[string][]byte{}
	capability := rand.Text() + "." + rand.Text()
	t.capabilities[capability] = t.attempt
	lease, expires := t.lease, t.expires
	claim := protocol.Claim{Status: protocol.Claimed, Attempt: t.attempt, LeaseToken: &lease, LeaseExpiresAt: &expires,
		CapabilityToken: capability}
	claim.Task = &protocol.Task{TaskID: t.id, Attempt: t.attempt, Org: "conformance", Job: t.job(), Kind: "manual",
		Operator: "handler",
		Config:   map[string]any{"handler": t.handler}, Payload: t.payload, Inputs: []protocol.Input{},
		Outputs:   []protocol.Output{},
		TimeoutAt: now.Add(10 * time.Minute), LeaseSeconds: LeaseSeconds,
		Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}

	dataset := uuid.NewSHA1(uuid.NameSpaceURL, []byte("rows"))
	switch t.handler {
	case Secrets:
		claim.Task.Secrets = []string{SecretName}
	case Copy, Query:
		claim.Task.Inputs = []protocol.Input{{Index: 0, As: "rows", DatasetUUID: dataset, DatasetVersion: dataset,
			Partitions: []protocol.InputPartition{{Key: "whole", Revision: 1, Rows: 3, Bytes: 100}},
			Schema:     []protocol.Column{{Name: "n", Type: "BIGINT"}, {Name: "s", Type: "VARCHAR"}}}}
	}

	if t.handler == Copy {
		own := uuid.NewSHA1(uuid.NameSpaceURL, []byte("copy"))
		claim.Task.Outputs = []protocol.Output{{Index: 0, Name: "copy", DatasetUUID: own, DatasetVersion: own,
			UpdateStrategy: "replace", Storage: "parquet"}}
	}
	return claim
}

// take claims queued tasks that the worker can run.
func (s *Scripted) take(handlers []string, max int) []protocol.Claim {
	var claims []protocol.Claim
	s.queue = slices.DeleteFunc(s.queue, func(id uuid.UUID) bool {
		t := s.tasks[id]
		if t.status != "Queued" {
			return true // an earlier attempt has ended the task after all
		}
		if len(claims) == max || !slices.Contains(handlers, t.handler) {
			return false
		}
		claims = append(claims, s.lease(t))
		return true
	})
	return claims
}

// log stores new lines and returns the number of the line up to which all are stored.
func (t *scriptedTask) log(attempt int, lines []protocol.LogLine) int64 {
	stored := t.lines[attempt]
	for _, line := range lines {
		if line.Seq == int64(len(stored))+1 {
			stored = append(stored, line)
		}
	}
	t.lines[attempt] = stored
	return int64(len(stored))
}
