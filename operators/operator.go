// Package operators holds what a job can run: the Operator interface, the set of built-ins, and the Runner that
// carries one claimed task from pinned inputs to sealed outputs.
//
// Vocabulary: an operator declares a Spec and runs Tasks. It reads local Parquet files and writes local Parquet
// files; the Runner fetches the former from storage and seals the latter, so no operator knows where bytes live.
// A source operator that is replayable also enumerates Units, the things there are to read. It owns no tables.
package operators

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/storage"
)

// Operator is one kind of work. Implementations are stateless and safe for concurrent use.
type Operator interface {
	Spec() dag.OperatorSpec
	// Run does the task's work and returns what it wrote. It stops soon after ctx ends.
	// Errors that a retry cannot mend are wrapped in Permanent.
	Run(ctx context.Context, t *Task) (Result, error)
}

// Enumerator is a source operator that can say what there is to read.
type Enumerator interface {
	Operator
	// Enumerate lists the units there are now. The dispatcher makes a task for each whose Version differs from
	// the one its partition was last made from.
	Enumerate(ctx context.Context, e Enumeration) ([]Unit, error)
}

// Enumeration is a source job about to be enumerated.
type Enumeration struct {
	Config      map[string]any
	PartitionBy dag.Partitioning
	Roots       []string          // folders that the org's sources may read
	Known       map[string]string // partition key → version of the unit it was last made from
	Now         time.Time
}

// Unit is one thing to read: a file, a page, an object.
type Unit struct {
	Partition string          // output partition key
	Version   string          // changes exactly when the content does (content hash, ETag); empty: always read it
	Payload   json.RawMessage // given to the task that reads it
}

// Assignment is one claimed task with everything its run needs; the worker protocol carries the same fields.
type Assignment struct {
	TaskID  uuid.UUID `json:"task_id"`
	Attempt int       `json:"attempt"`
	OrgID   uuid.UUID `json:"org_id"`
	OrgSlug string    `json:"org"`
	DAG     string    `json:"dag_name"`
	Job     string    `json:"job_name"`

	Operator        string           `json:"operator"`
	OperatorVersion string           `json:"operator_version"`
	Config          map[string]any   `json:"config"`
	Payload         json.RawMessage  `json:"payload,omitempty"`
	PartitionBy     dag.Partitioning `json:"partition_by"`
	Partition       *PartitionRange  `json:"partition,omitempty"`
	Inputs          []AssignedInput  `json:"inputs"`
	Outputs         []AssignedOutput `json:"outputs"`
	Cursor          *CursorPosition  `json:"cursor,omitempty"`         // outputs by cursor: where they end so far
	State           json.RawMessage  `json:"operator_state,omitempty"` // operator state of the job, slot "default"
	UDF             *dag.UDF         `json:"udf,omitempty"`            // the user's own code, of operator udf
	Roots           []string         `json:"-"`
	// Drain is closed when a task that goes on for long, of an always_on source, is to end where it likes, and soon.
	Drain <-chan struct{} `json:"-"`
	// Committer commits what a run has made while it goes on; nil where none may. Task.Commit is what operators call.
	Committer Committer `json:"-"`
	// Secrets are the values of the secrets that Config names. They exist in the server's own process alone and are
	// never encoded.
	Secrets   map[string]secret.Value `json:"-"`
	TimeoutAt time.Time               `json:"timeout_at"`
	// Part is which of the attempt's commits is being made, where it makes several: see storage.Attempt.
	Part int `json:"-"`
}

// PartitionRange is the output partition a task makes. Start and End are set where partitions are of time, half-open.
type PartitionRange struct {
	Key   string     `json:"key"`
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"`
}

// CursorPosition is how far a cursor has come. A task that makes a segment writes rows whose cursor is greater than Value;
// they become the segment (Value, highest].
type CursorPosition struct {
	Epoch int64 `json:"epoch"` // how often the cursor was rewound
	Value int64 `json:"value"` // -1: nothing is there yet
}

// AssignedInput is one input with the revisions that were pinned at claim.
type AssignedInput struct {
	Index       int                 `json:"index"`
	As          string              `json:"as"`
	Map         dag.MapKind         `json:"map"`
	Where       []dag.Condition     `json:"where,omitempty"`
	PartitionBy dag.Partitioning    `json:"partition_by"`
	Generation  storage.Generation  `json:"generation"`
	Partitions  []storage.Partition `json:"partitions"`
	Schema      []storage.Column    `json:"schema,omitempty"` // of the generation, so that an empty input is still a relation
}

// AssignedOutput is one output the task may write, at the generation it was given.
type AssignedOutput struct {
	Index          int                `json:"index"`
	Name           string             `json:"name"`
	Generation     storage.Generation `json:"generation"`
	UpdateStrategy dag.UpdateStrategy `json:"update_strategy"`
	Base           *storage.Partition `json:"base,omitempty"` // append: the revision to add to
}

// Task is what an operator sees of an Assignment: local files instead of storage.
type Task struct {
	Assignment
	InputFiles [][]string // local Parquet files by input, where-conditions NOT yet applied; see Assignment.Inputs for their keys
	OutputDirs []string   // one empty folder per output; every *.parquet file in it is the output's content
	Scratch    string     // an empty folder, removed after the run
	// Progress tells people how far the task is: 0-100 and a short text. It may be called often.
	Progress func(percent int, state string)
	Log      *slog.Logger

	fetchCode func(ctx context.Context, dir string) error // of operator udf, where code can be had; puts it below dir
	commits   int                                         // made on the way
}

// Result is what a run produced.
type Result struct {
	Result        json.RawMessage `json:"result,omitempty"`         // light JSON for people, 64 KiB at most
	State         json.RawMessage `json:"operator_state,omitempty"` // new operator state; nil leaves it as it was
	SourceVersion string          `json:"source_version,omitempty"` // sources: the version of the unit that was really read
	Unchanged     bool            `json:"unchanged,omitempty"`      // nothing new: publish nothing
	Cursor        *int64          `json:"cursor,omitempty"`         // outputs by cursor: how far they go; by default the highest position written
	Columns       []ColumnOrigin  `json:"column_lineage,omitempty"`
	Tasks         []EnqueuedTask  `json:"tasks,omitempty"` // to be made, of jobs that the task's own job names in `enqueues`
}

// EnqueuedTask asks for a task of a manual or timer job, with the commit of the task that asks.
type EnqueuedTask struct {
	Job            string          `json:"job"` // JOB of the same DAG, or DAG/JOB
	IdempotencyKey string          `json:"idempotency_key,omitempty"`
	Payload        json.RawMessage `json:"payload,omitempty"`
	Priority       *int            `json:"priority,omitempty"`
	RunAt          *time.Time      `json:"run_at,omitempty"`
	MaxAttempts    int             `json:"max_attempts,omitempty"`
	Metadata       json.RawMessage `json:"metadata,omitempty"`
	PartitionKey   string          `json:"partition_key,omitempty"`
	ConcurrencyKey string          `json:"concurrency_key,omitempty"`
}

// ColumnOrigin says that an output column was computed from an input column.
type ColumnOrigin struct {
	Output       int    `json:"output"`
	OutputColumn string `json:"output_column"`
	Input        int    `json:"input"`
	InputColumn  string `json:"input_column"`
	Transform    string `json:"transform"` // identity, expression or aggregate
}

// Written is one output partition that a run sealed.
type Written struct {
	Output       int              `json:"output"`
	Partition    string           `json:"partition"`
	Manifest     storage.Manifest `json:"manifest"`
	BaseRevision int64            `json:"base_revision,omitempty"` // append: the revision it was deduplicated against
}

// Outcome is what the Runner reports of one assignment: exactly one of Err or the rest.
type Outcome struct {
	Result
	Written   []Written
	Err       error
	Retryable bool
}
