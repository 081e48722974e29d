// Package protocol defines the messages of the worker protocol, version 1: the JSON between a server and its workers
// and their tasks. Servers and clients share these types, so that neither can send what the other cannot read.
// docs/workers.md describes the conversation; docs/openapi.json has the same schemas for other languages.
//
// Vocabulary: a worker is a process with a worker token that claims tasks; a claimed task speaks for itself, with the
// capability token of its attempt; a fence is (task, attempt, lease token). It owns no tables.
package protocol

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
)

// Version is the value of X-Dagctl-Protocol. A server also accepts the version before its own.
const Version = 1

// Headers of the protocol.
const (
	VersionHeader    = "X-Dagctl-Protocol"
	CapabilityHeader = "X-Dagctl-Task-Capability" // the attempt's token, an ES256 JWT
	AttemptHeader    = "X-Dagctl-Attempt"         // with the next two, the fence of a call whose body is data
	LeaseTokenHeader = "X-Dagctl-Lease-Token"
	TaskHeader       = "X-Dagctl-Task"
)

// Fence identifies the attempt that makes a call, with a token that only this attempt knows.
type Fence struct {
	TaskID     uuid.UUID `json:"task_id"`
	Attempt    int       `json:"attempt" minimum:"1" maximum:"2147483647"`
	LeaseToken uuid.UUID `json:"lease_token"`
}

// The outcomes of a claim.
const (
	Claimed    = "Claimed"
	NotClaimed = "NotClaimed"
)

// Reasons of NotClaimed.
const (
	AlreadyRunning = "AlreadyRunning"
	Completed      = "Completed"
	Canceled       = "Canceled"
	Failed         = "Failed"
	NotFound       = "NotFound"  // there is no such task, or this worker's token may not claim it
	Throttled      = "Throttled" // it waits for a limit, a pause, a back-off or a sibling
)

// PollRequest asks for tasks; POST /internal/task-poll.
type PollRequest struct {
	WorkerID    string     `json:"worker_id" minLength:"1" maxLength:"200"`
	Incarnation string     `json:"incarnation,omitempty" maxLength:"100" doc:"Random text of each process, the same in all its calls"`
	Runtime     string     `json:"runtime" minLength:"1" maxLength:"63"`
	Operators   []Operator `json:"operators,omitempty" maxItems:"200" doc:"The token may allow fewer"`
	Handlers    []string   `json:"handlers,omitempty" maxItems:"1000" doc:"Functions for jobs with operator handler"`
	Max         int        `json:"max" minimum:"1" maximum:"1000"`
	WaitSeconds int        `json:"wait_seconds,omitempty" minimum:"0" maximum:"60" doc:"Wait for the first task"`
}

// Operator names an operator at a version.
type Operator struct {
	Name    string `json:"name" maxLength:"100"`
	Version string `json:"version,omitempty" maxLength:"100"`
}

// PollResponse has the claimed tasks.
type PollResponse struct {
	Tasks []Claim `json:"tasks" nullable:"false"`
	// Idle is set when every job of this runtime has been idle for its idle_timeout, so that the worker may exit and be
	// scaled to zero.
	Idle bool `json:"idle,omitempty" doc:"Every job of this runtime is idle: the worker may exit"`
	// Drain is set when somebody drains this worker.
	Drain bool `json:"drain,omitempty" doc:"Finish running tasks, claim no more, exit"`
}

// ClaimRequest asks for one task by id; POST /internal/task-claim.
type ClaimRequest struct {
	TaskID      uuid.UUID  `json:"task_id"`
	WorkerID    string     `json:"worker_id" minLength:"1" maxLength:"200"`
	Incarnation string     `json:"incarnation,omitempty" maxLength:"100" doc:"Random text of each process, the same in all its calls"`
	Runtime     string     `json:"runtime,omitempty" maxLength:"63" doc:"Default: any that the worker's token allows"`
	Operators   []Operator `json:"operators,omitempty" maxItems:"200"`
	Handlers    []string   `json:"handlers,omitempty" maxItems:"1000"`
}

// Claim is a claimed task with all that its run needs, or the reason why it was not claimed.
type Claim struct {
	Status string `json:"status" enum:"Claimed,NotClaimed"`
	// Reason is that of NotClaimed.
	Reason string `json:"reason,omitempty" enum:"AlreadyRunning,Completed,Canceled,Failed,NotFound,Throttled"`

	Attempt        int        `json:"attempt,omitempty"`
	LeaseToken     *uuid.UUID `json:"lease_token,omitempty"`
	LeaseExpiresAt *time.Time `json:"lease_expires_at,omitempty"`

	CapabilityToken string `json:"capability_token,omitempty" doc:"For the header X-Dagctl-Task-Capability"`
	BaseURL         string `json:"base_url,omitempty" doc:"Address for the task's calls, from the server's config"`
	Task            *Task  `json:"task,omitempty"`

	// ByReference is set in an event of a Lambda function that would be too large.
	ByReference bool `json:"by_reference,omitempty" doc:"task has only ids: POST /v1/task/assignment has the rest"`
}

// Fence returns the fence of a claimed task.
func (c Claim) Fence() Fence {
	return Fence{TaskID: c.Task.TaskID, Attempt: c.Attempt, LeaseToken: *c.LeaseToken}
}

// Task is a claimed task.
type Task struct {
	TaskID          uuid.UUID       `json:"task_id"`
	Attempt         int             `json:"attempt"`
	Org             string          `json:"org" doc:"Slug"`
	Job             Job             `json:"job"`
	Kind            string          `json:"kind"`
	Operator        string          `json:"operator"`
	OperatorVersion string          `json:"operator_version,omitempty"`
	Config          Config          `json:"config,omitempty"`
	Payload         json.RawMessage `json:"payload,omitempty"`
	Metadata        json.RawMessage `json:"metadata,omitempty" doc:"A JSON object. A task of a timer has timer: its id, key, due_at, due_local and timezone"`
	Partition       *Partition      `json:"partition,omitempty"`
	PartitionBy     json.RawMessage `json:"partition_by,omitempty" doc:"As in the DAG file"`
	Cursor          *Cursor         `json:"cursor,omitempty"`
	Inputs          []Input         `json:"inputs" nullable:"false"`
	Outputs         []Output        `json:"outputs" nullable:"false"`
	OperatorState   json.RawMessage `json:"operator_state,omitempty"`
	Reading         json.RawMessage `json:"reading,omitempty" doc:"The platform's sources of files: how they are read since the first one"`
	Secrets         []string        `json:"secrets,omitempty" doc:"Names; their values by POST /v1/task/secrets"`
	UDF             *UDF            `json:"udf,omitempty" doc:"Code to run, of operator udf"`
	TimeoutAt       time.Time       `json:"timeout_at" doc:"By the server's clock"`
	TimeoutSeconds  float64         `json:"timeout_seconds,omitempty" doc:"How long it was to timeout_at when the server answered; a worker whose clock differs counts on from there"`
	LeaseSeconds    int             `json:"lease_seconds" doc:"How long a heartbeat extends the lease"`
	Traceparent     string          `json:"traceparent,omitempty" doc:"W3C trace context"`
}

// Config is the configuration of a job, as JSON types. Its numbers are json.Numbers, which keep all their digits.
type Config map[string]any

// UnmarshalJSON reads a config with exact numbers.
func (c *Config) UnmarshalJSON(text []byte) error {
	var object map[string]any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&object); err != nil {
		return err
	}
	*c = object
	return nil
}

// Job names a job.
type Job struct {
	DAGName string `json:"dag_name"`
	Name    string `json:"name"`
}

// Partition is the output partition that a task makes. Start and End, a half-open range, are set for partitions of
// time.
type Partition struct {
	Key   string     `json:"key"`
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"`
}

// Cursor is the range of positions a task works on: those above From. To is nil if the task itself finds out how far
// there is data, as sources do.
type Cursor struct {
	Epoch int64  `json:"epoch" doc:"Number of times that the cursor was rewound"`
	From  int64  `json:"from" doc:"Exclusive; -1: there is nothing yet"`
	To    *int64 `json:"to,omitempty" doc:"Inclusive"`
}

// Input is one input with the revisions that were pinned at the claim.
type Input struct {
	Index          int              `json:"index"`
	As             string           `json:"as"`
	DatasetUUID    uuid.UUID        `json:"dataset_uuid"`
	DatasetVersion uuid.UUID        `json:"dataset_version"`
	Partitions     []InputPartition `json:"partitions" nullable:"false"`
	Schema         []Column         `json:"schema,omitempty"`
}

// InputPartition is a pinned revision.
type InputPartition struct {
	Key      string `json:"key"`
	Revision int64  `json:"revision"`
	Rows     int64  `json:"rows"`
	Bytes    int64  `json:"bytes"`
}

// Column is a column with its DuckDB type name.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Output is one output that the task may write.
type Output struct {
	Index          int       `json:"index"`
	Name           string    `json:"name"`
	DatasetUUID    uuid.UUID `json:"dataset_uuid"`
	DatasetVersion uuid.UUID `json:"dataset_version"`
	UpdateStrategy string    `json:"update_strategy" enum:"replace,append"`
	Storage        string    `json:"storage"`
	// Schema is set for programs, whose rows may have any columns, once other partitions have rows.
	Schema []Column `json:"schema,omitempty" doc:"The columns that other partitions have, and that new rows have to fit"`

	Purged bool `json:"purged,omitempty" doc:"Sources with an operator state: the partition was purged, and nothing was published since"`

	// Prefix is set on S3 storage.
	Prefix string `json:"prefix,omitempty" doc:"Upload prefix for workers with S3 credentials of their own"`
}

// UDF is the code of a job; GET /v1/task/udf returns its archive.
type UDF struct {
	Hash       string `json:"hash" doc:"SHA-256 over its paths and contents"`
	Entrypoint string `json:"entrypoint"`
}

// WorkerHeartbeat reports that a worker is alive; POST /internal/worker-heartbeat.
type WorkerHeartbeat struct {
	WorkerID     string     `json:"worker_id" minLength:"1" maxLength:"200"`
	Incarnation  string     `json:"incarnation,omitempty" maxLength:"100" doc:"Random text of each process, the same in all its calls"`
	Hostname     string     `json:"hostname,omitempty" maxLength:"255"`
	Version      string     `json:"version,omitempty" maxLength:"100"`
	PoolSize     int        `json:"pool_size" minimum:"0" maximum:"10000" doc:"Tasks that it runs at once"`
	CurrentTasks int        `json:"current_tasks" minimum:"0" maximum:"2147483647"`
	Runtimes     []string   `json:"runtimes" maxItems:"50"`
	Operators    []Operator `json:"operators,omitempty" maxItems:"200"`
	Handlers     []string   `json:"handlers,omitempty" maxItems:"1000"`
	Stopping     bool       `json:"stopping,omitempty" doc:"It exits now: its running tasks go to others at once"`
}

// WorkerOrders answer a worker's heartbeat.
type WorkerOrders struct {
	Drain    bool        `json:"drain" doc:"Finish running tasks, claim no more, exit"`
	Canceled []uuid.UUID `json:"canceled,omitempty" doc:"Tasks that it runs and that are to stop"`
	Drained  []uuid.UUID `json:"drained,omitempty" doc:"Tasks that it runs and that are to end at a point of their choice"`
}

// Heartbeat extends a lease; POST /v1/task/heartbeat.
type Heartbeat struct {
	Fence
	Progress int    `json:"progress,omitempty" minimum:"0" maximum:"100"`
	State    string `json:"state,omitempty" maxLength:"1000" doc:"For people"`
}

// HeartbeatAnswer is the answer to a task's heartbeat.
type HeartbeatAnswer struct {
	LeaseExpiresAt  time.Time `json:"lease_expires_at"`
	CancelRequested bool      `json:"cancel_requested"`
	DrainRequested  bool      `json:"drain_requested"`
	CapabilityToken string    `json:"capability_token,omitempty" doc:"New token to use from now on"`
}

// Event reports that a partition or a cursor position of one of the task's own outputs is new.
type Event struct {
	Output int        `json:"output" minimum:"0" doc:"Index of the output"`
	Key    string     `json:"partition_key,omitempty" maxLength:"512"`
	Start  *time.Time `json:"start,omitempty"`
	End    *time.Time `json:"end,omitempty"`
	Cursor *int64     `json:"cursor,omitempty"`
	// An invalidation.
	Scope  string `json:"scope,omitempty" enum:"partition,range"`
	From   *int64 `json:"from,omitempty"`
	To     *int64 `json:"to,omitempty"`
	Reason string `json:"reason,omitempty" enum:"reorg,correction,manual,schema"`
}

// CommittedOutput names the uploads of one output that are to be published.
type CommittedOutput struct {
	Index     int    `json:"index" minimum:"0"`
	Partition string `json:"partition_key,omitempty" maxLength:"512" doc:"Default: the task's own"`

	Files []UploadedFile `json:"files,omitempty" maxItems:"10000" doc:"Default: all that the attempt uploaded"`
}

// UploadedFile is a file under the attempt's prefix.
type UploadedFile struct {
	Name string `json:"name" minLength:"1" maxLength:"255"`
	ETag string `json:"etag,omitempty" maxLength:"200"`
}

// EnqueuedTask asks for a task of a manual job that the task's own job lists in `enqueues`.
type EnqueuedTask struct {
	Job            string          `json:"job" minLength:"1" maxLength:"200" doc:"JOB of the same DAG, or DAG/JOB"`
	IdempotencyKey string          `json:"idempotency_key,omitempty" maxLength:"512"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	Priority       *int            `json:"priority,omitempty" minimum:"-1000" maximum:"1000"`
	RunAt          *time.Time      `json:"run_at,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty" minimum:"0" maximum:"100"`
	Metadata       json.RawMessage `json:"metadata,omitempty"`
	PartitionKey   string          `json:"partition_key,omitempty" maxLength:"512"`
	ConcurrencyKey string          `json:"concurrency_key,omitempty" maxLength:"200"`
	Timer          *Timer          `json:"timer,omitempty" doc:"Asks for a timer of a timer job, and not for a task now"`
}

// Timer says at which moments a timer job gets a task.
type Timer struct {
	Local     string `json:"target_timestamp_local,omitempty" maxLength:"30" doc:"Local time in the zone"`
	Timezone  string `json:"target_timezone" minLength:"1" maxLength:"100" example:"Europe/Berlin"`
	Repeat    string `json:"repeat,omitempty" enum:"none,yearly,cron"`
	Schedule  string `json:"schedule,omitempty" maxLength:"100" doc:"For repeat cron: five fields or @daily, ..."`
	Group     string `json:"group,omitempty" maxLength:"200" doc:"Timers that are moved and deleted together"`
	EventType string `json:"event_type,omitempty" maxLength:"50" doc:"For people. Default: timer"`
}

// Events commits outputs, events, tasks and state while a task goes on; POST /v1/task/events.
type Events struct {
	Fence
	Events        []Event           `json:"events,omitempty" maxItems:"1000"`
	Outputs       []CommittedOutput `json:"outputs,omitempty" maxItems:"100"`
	Tasks         []EnqueuedTask    `json:"tasks,omitempty" maxItems:"1000"`
	OperatorState json.RawMessage   `json:"operator_state,omitempty"`
}

// EventsAnswer has the outcome of each event, in their order.
type EventsAnswer struct {
	Accepted bool           `json:"accepted"`
	Events   []EventOutcome `json:"events" nullable:"false"`
	// Tasks are the ids of the enqueued tasks, in their order.
	Tasks  []uuid.UUID `json:"tasks" nullable:"false" doc:"A known idempotency key gives the id of the existing task"`
	Cursor *Cursor     `json:"cursor,omitempty" doc:"Outputs by cursor: start of the next rows"`
}

// EventOutcome is the outcome of one event.
type EventOutcome struct {
	Outcome string     `json:"outcome" enum:"accepted,duplicate,rejected"`
	EventID *uuid.UUID `json:"event_id,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// Completion ends an attempt; POST /v1/task/complete.
type Completion struct {
	Fence
	Status        string            `json:"status" enum:"Completed,Failed,Canceled"`
	Outputs       []CommittedOutput `json:"outputs,omitempty" maxItems:"100"`
	Unchanged     bool              `json:"unchanged,omitempty" doc:"Nothing is new: every output stays as it is. Without it, an output of the task's partition that has no files has no rows from then on"`
	Events        []Event           `json:"events,omitempty" maxItems:"1000"`
	Tasks         []EnqueuedTask    `json:"tasks,omitempty" maxItems:"1000"`
	Result        json.RawMessage   `json:"result,omitempty" doc:"Light JSON for people, 64 KiB at most"`
	Error         *Error            `json:"error,omitempty" doc:"Of Failed"`
	OperatorState json.RawMessage   `json:"operator_state,omitempty"`
	SourceVersion string            `json:"source_version,omitempty"`
	Reading       json.RawMessage   `json:"reading,omitempty" doc:"The platform's sources of files: how they are read from now on, if the run settled something of it"`
	Cursor        *int64            `json:"cursor,omitempty" doc:"Outputs by cursor: end; default: the highest written"`
	ColumnLineage []ColumnOrigin    `json:"column_lineage,omitempty" maxItems:"100000"`
}

// Error is the reason why an attempt failed.
type Error struct {
	Message   string `json:"message" minLength:"1" maxLength:"10000"`
	Retryable *bool  `json:"retryable,omitempty" doc:"Default: true"`
	// ColumnsUnknown is set by sources of files without content while nothing shows the columns.
	ColumnsUnknown bool `json:"columns_unknown,omitempty" doc:"The platform's sources of files: the files say nothing of their columns, and nothing else does yet. The task waits for a file that shows them, and no failure is counted"`
}

// ColumnOrigin records that an output column was computed from an input column.
type ColumnOrigin struct {
	Output       int    `json:"output"`
	OutputColumn string `json:"output_column"`
	Input        int    `json:"input"`
	InputColumn  string `json:"input_column"`
	Transform    string `json:"transform" enum:"identity,expression,aggregate"`
}

// TaskState is the present state of a task: the answer to a completion and to GET /internal/task-fetch.
type TaskState struct {
	TaskID          uuid.UUID       `json:"task_id"`
	Org             string          `json:"org,omitempty"`
	Job             Job             `json:"job"`
	Status          string          `json:"status" enum:"Queued,Running,Completed,Failed,Canceled"`
	Reason          string          `json:"reason,omitempty"`
	State           string          `json:"state,omitempty"`
	Attempt         int             `json:"attempt"`
	Runtime         string          `json:"runtime"`
	Operator        string          `json:"operator"`
	Payload         json.RawMessage `json:"payload,omitempty"`
	Progress        int             `json:"progress,omitempty"`
	CancelRequested bool            `json:"cancel_requested,omitempty"`
	NextRetryAt     *time.Time      `json:"next_retry_at,omitempty"`
	LeaseExpiresAt  *time.Time      `json:"lease_expires_at,omitempty"`
}

// SecretsRequest asks for the secrets that the task's job names; POST /v1/task/secrets.
type SecretsRequest struct {
	Fence
}

// Secrets are values of secrets by name.
type Secrets struct {
	Secrets map[string]string `json:"secrets"`
	// Hosts lists where an admin allows each secret to be sent. Built-in operators keep to it: they send a secret
	// without hosts nowhere.
	Hosts map[string][]string `json:"hosts,omitempty" doc:"By secret: host[:port], http://host[:port] or * for any"`
	// Granted names the secrets that a program may have, which can send them anywhere.
	Granted []string `json:"granted,omitempty" doc:"Secrets that an admin lets the job's program have"`
}

// Logs are lines of a task; POST /v1/task/logs.
type Logs struct {
	Fence
	Lines []LogLine `json:"lines" maxItems:"1000"`
}

// LogLine is one line. Seq numbers an attempt's lines from 1 without gaps. The server skips lines that it has stored
// already, so that a batch may be sent again.
type LogLine struct {
	Seq   int64     `json:"seq" minimum:"1"`
	At    time.Time `json:"at"`
	Level string    `json:"level,omitempty" enum:"debug,info,warn,error"`
	Text  string    `json:"text" maxLength:"16384"`
}

// LogsAnswer has the number of the line up to which all are stored.
type LogsAnswer struct {
	Accepted int64 `json:"accepted" doc:"All lines up to this one are stored, or dropped over the size limit"`
	Dropped  int64 `json:"dropped,omitempty" doc:"Number of lines dropped over the size limit"`
}

// CredentialsRequest asks for storage credentials; POST /v1/task/credentials.
type CredentialsRequest struct {
	Fence
}

// Credentials are short-lived S3 credentials: to read what was pinned, and to put new objects under the attempt's
// prefixes.
type Credentials struct {
	AccessKeyID     string    `json:"access_key_id"`
	SecretAccessKey string    `json:"secret_access_key"`
	SessionToken    string    `json:"session_token,omitempty"`
	ExpiresAt       time.Time `json:"expires_at"`
	Endpoint        string    `json:"endpoint,omitempty"`
	Region          string    `json:"region"`
	Bucket          string    `json:"bucket"`
	ReadPrefixes    []string  `json:"read_prefixes" nullable:"false"`
	WritePrefixes   []string  `json:"write_prefixes" nullable:"false"`
}

// QueryRequest asks for rows over the pinned inputs, each of which is a relation named as the input; POST
// /v1/task/query.
type QueryRequest struct {
	Fence
	SQL     string `json:"sql" minLength:"1" maxLength:"1000000"`
	MaxRows int    `json:"max_rows,omitempty" minimum:"0"`
}

// QueryAnswer has the rows of a query.
type QueryAnswer struct {
	Columns   []Column            `json:"columns" nullable:"false"`
	Rows      [][]json.RawMessage `json:"rows" nullable:"false"`
	Truncated bool                `json:"truncated,omitempty"`
}

// Message is the body of a queue's message. It only names a task, or a block of them.
type Message struct {
	TaskID  uuid.UUID   `json:"task_id,omitzero"`
	TaskIDs []uuid.UUID `json:"task_ids,omitempty"`
}

// Named returns the tasks that the message names. There are none if it is not from a server.
func (m Message) Named() []uuid.UUID {
	named := m.TaskIDs
	if m.TaskID != uuid.Nil {
		named = append([]uuid.UUID{m.TaskID}, named...)
	}
	if slices.Contains(named, uuid.Nil) {
		return nil
	}
	return named
}
