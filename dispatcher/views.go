package dispatcher

import (
	"encoding/json"
	"time"

	"github.com/google/uuid"
)

// Task is one unit of work, as people see it.
type Task struct {
	ID            uuid.UUID       `json:"id"`
	DAG           string          `json:"dag"`
	Job           string          `json:"job"`
	Kind          string          `json:"kind" enum:"reactive,source,manual,timer,build,backfill,invalidation,check"`
	Status        string          `json:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Reason        string          `json:"reason,omitempty"`
	Waiting       string          `json:"waiting,omitempty" enum:"sibling,limit,backoff,run_at,paused,dead" doc:"Why an open task may not be claimed now"`
	Partition     string          `json:"partition,omitempty"`
	Attempt       int             `json:"attempt"`
	Failures      int             `json:"failures"`
	MaxAttempts   int             `json:"max_attempts"`
	Priority      int             `json:"priority"`
	Runtime       string          `json:"runtime"`
	Progress      int             `json:"progress"`
	State         string          `json:"state,omitempty"`
	Worker        string          `json:"worker_id,omitempty"`
	Error         string          `json:"error,omitempty"`
	DedupeKey     string          `json:"dedupe_key,omitempty"`
	Payload       json.RawMessage `json:"payload,omitempty"`
	InputVersions json.RawMessage `json:"input_versions,omitempty"`
	Outputs       json.RawMessage `json:"outputs,omitempty"`
	Result        json.RawMessage `json:"result,omitempty"`
	Version       int             `json:"version"`
	CreatedAt     time.Time       `json:"created_at"`
	StartedAt     *time.Time      `json:"started_at,omitempty"`
	CompletedAt   *time.Time      `json:"completed_at,omitempty"`
	NextRetryAt   *time.Time      `json:"next_retry_at,omitempty"`
}

// EnqueueItem asks for one task of a manual job.
type EnqueueItem struct {
	IdempotencyKey string          `json:"idempotency_key,omitempty" maxLength:"200"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	Partition      string          `json:"partition,omitempty" maxLength:"200"`
	Priority       *int            `json:"priority,omitempty"`
	RunAt          *time.Time      `json:"run_at,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty" minimum:"1" maximum:"100"`
	Metadata       json.RawMessage `json:"metadata,omitempty"`
	ConcurrencyKey string          `json:"concurrency_key,omitempty" maxLength:"200" doc:"One running task per key in the org; default: what the job's template makes of the payload"`
}

// Enqueued answers one EnqueueItem.
type Enqueued struct {
	ID      uuid.UUID `json:"id"`
	Created bool      `json:"created" doc:"False where the idempotency key was known: the id is the existing task's"`
}

// TaskEvent is one line of a task's audit trail.
type TaskEvent struct {
	ID      uuid.UUID       `json:"id"`
	At      time.Time       `json:"at"`
	Attempt int             `json:"attempt"`
	From    string          `json:"from,omitempty"`
	To      string          `json:"to"`
	Actor   string          `json:"actor"`
	State   string          `json:"state,omitempty"`
	Detail  json.RawMessage `json:"detail,omitempty"`
}

// SourceStatus is how a source job stands.
type SourceStatus struct {
	DAG        string     `json:"dag"`
	Job        string     `json:"job"`
	Kind       string     `json:"kind"`
	State      string     `json:"state"`
	NextFireAt *time.Time `json:"next_fire_at,omitempty"`
	LastFireAt *time.Time `json:"last_fire_at,omitempty"`
	Error      string     `json:"error,omitempty"`
}
