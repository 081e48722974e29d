// Package operators has what a job can run: the Operator interface, the set of built-ins, and the Runner, which takes
// one claimed task from pinned inputs to sealed outputs.
//
// Vocabulary: an operator declares a Spec and runs Tasks. It reads local Parquet files and writes local Parquet files.
// The Runner fetches the inputs from storage and seals the outputs, so no operator knows where bytes live. A replayable
// source operator also enumerates Units, the things that it can read. It owns no tables.
package operators

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Operator is one kind of work. Implementations are stateless and safe for concurrent use.
type Operator interface {
	Spec() dag.OperatorSpec
	// Run does the task's work and returns what it wrote. It stops soon after ctx ends. It marks errors that a retry
	// cannot mend with Permanent.
	Run(ctx context.Context, t *Task) (Result, error)
}

// Enumerator is a source operator that can list what there is to read.
type Enumerator interface {
	Operator
	// Enumerate lists the present units. The dispatcher creates a task for each unit whose Version differs from the one
	// that its partition was last made from.
	Enumerate(ctx context.Context, e Enumeration) ([]Unit, error)
}

// Enumeration is a source job that is to be enumerated.
type Enumeration struct {
	Config      map[string]any
	PartitionBy dag.Partitioning
	Roots       []string                // folders that the org's sources may read
	Known       map[string]string       // partition key → version of the unit it was last made from
	Purged      map[string]bool         // those of them whose rows are gone
	Secrets     map[string]secret.Value // those that Config names
	Position    json.RawMessage         // where the last listing ended: see Resumer
	Now         time.Time
}

// SecretTo is that of Task.
func (e Enumeration) SecretTo(u *url.URL, field any, at string) (string, error) {
	return (&Task{Assignment: Assignment{Secrets: e.Secrets}}).SecretTo(u, field, at)
}

// Resumer is an Enumerator that can go on where its last listing ended.
type Resumer interface {
	Enumerator
	// Resume lists the present units, or those behind the enumeration's Position, as it decides. The units before a
	// position must all be Known in the version that they have been listed with.
	Resume(ctx context.Context, e Enumeration) (Listing, error)
}

// Listing is what a Resumer found.
type Listing struct {
	Units    []Unit
	Before   int             // number of units that were not listed, because they lie before the position
	Partial  bool            // the units before the position were not listed
	Position json.RawMessage // for the next listing
	LeftOut  LeftOut         // what there is and cannot be read: the rest is
}

// Unit is one thing to read: a file, a page, an object.
type Unit struct {
	Partition string          // output partition key
	Version   string          // changes exactly when the content does (content hash, ETag); empty: always read it
	Payload   json.RawMessage // payload of the task that reads it
	Again     bool            // listed each time, so it is not read anew while its task waits for a retry
}

// Assignment is one claimed task with all that its run needs. The worker protocol has the same fields.
type Assignment struct {
	TaskID  uuid.UUID `json:"task_id"`
	Attempt int       `json:"attempt"`
	OrgID   uuid.UUID `json:"org_id"`
	OrgSlug string    `json:"org"`
	DAG     string    `json:"dag_name"`
	Job     string    `json:"job_name"`

	Operator        string           `json:"operator"`
	OperatorVersion string           `json:"operator_version"`
	Config          dag.Config       `json:"config"`
	Payload         json.RawMessage  `json:"payload,omitempty"`
	Metadata        json.RawMessage  `json:"metadata,omitempty"` // of the task, an object; empty: it has none
	PartitionBy     dag.Partitioning `json:"partition_by"`
	SplitBy         string           `json:"split_by,omitempty"` // column by which its rows are split into partitions
	Asked           bool             `json:"-"`                  // a partition is published only if its rows are others
	Partition       *PartitionRange  `json:"partition,omitempty"`
	Inputs          []AssignedInput  `json:"inputs"`
	Outputs         []AssignedOutput `json:"outputs"`
	Cursor          *CursorPosition  `json:"cursor,omitempty"`         // outputs by cursor: where they end so far
	State           json.RawMessage  `json:"operator_state,omitempty"` // operator state of the job, slot "default"
	// Sources of files: how they are read since the first one (a textfile.Reading); nil: nothing stands yet
	Reading json.RawMessage `json:"reading,omitempty"`
	UDF     *dag.UDF        `json:"udf,omitempty"` // the user's code, for operator udf
	Roots   []string        `json:"-"`
	// Drain is closed when a long-running task, of an always_on source, should end soon, wherever it likes.
	Drain <-chan struct{} `json:"-"`
	// Committer commits before the end of a run; nil: the run may not. Operators call Task.Commit.
	Committer Committer `json:"-"`
	// Deliveries is what the job has delivered to others; nil: the run is not in a process of the server.
	Deliveries Deliveries `json:"-"`
	// NoRows decides about outputs without rows; nil: those without files stay as they are.
	NoRows NoRows `json:"-"`
	// Splits knows the partitions that rows are split into; required with SplitBy where outputs are sealed.
	Splits Splits `json:"-"`
	// Checks are the checks of the outputs, which the run makes over what it wrote; nil: others make them. A worker,
	// which does not see what the server seals, gets none.
	Checks []dag.Check `json:"-"`
	// Secrets are the values of the secrets that Config names. They exist only in the server's own process and are
	// never encoded.
	Secrets map[string]secret.Value `json:"-"`
	// Redactor removes these from what the task says; nil: one is made of Secrets.
	Redactor  *secret.Redactor `json:"-"`
	TimeoutAt time.Time        `json:"timeout_at"`
	// Part numbers the commits of an attempt that makes several: see storage.Attempt.
	Part int `json:"-"`
}

// PartitionRange is the output partition that a task makes. Start and End, a half-open range, are set for partitions
// of time.
type PartitionRange struct {
	Key   string     `json:"key"`
	Start *time.Time `json:"start,omitempty"`
	End   *time.Time `json:"end,omitempty"`
}

// CursorPosition is the position of a cursor. A task that makes a segment writes rows whose cursor is greater than
// Value; they become the segment (Value, highest].
type CursorPosition struct {
	Epoch int64 `json:"epoch"` // number of times that the cursor was rewound
	Value int64 `json:"value"` // -1: there is nothing yet
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
	// That of the generation, so that an empty input is still a relation
	Schema []storage.Column `json:"schema,omitempty"`
	// Some of the partitions were taken over from another definition, and have other columns than Schema.
	Kept bool `json:"kept,omitempty"`
	// Some of the partitions have other types than Schema, or not all of its columns.
	Mixed bool `json:"mixed,omitempty"`
}

// AssignedOutput is one output that the task may write, with its generation.
type AssignedOutput struct {
	Index          int                `json:"index"`
	Name           string             `json:"name"`
	Generation     storage.Generation `json:"generation"`
	UpdateStrategy dag.UpdateStrategy `json:"update_strategy"`
	Base           *storage.Partition `json:"base,omitempty"` // append: the revision to add to
	// Of a program: the columns that other partitions have; none if no other has rows
	Standing []storage.Column `json:"standing,omitempty"`
	// Of a source with a state: the partition was purged, and nothing was published since
	Purged bool `json:"purged,omitempty"`
}

// Task is an Assignment as an operator sees it: with local files instead of storage.
type Task struct {
	Assignment
	// Local Parquet files by input, where-conditions NOT yet applied; see Assignment.Inputs for their keys
	InputFiles [][]string
	OutputDirs []string // one empty folder per output; every *.parquet file in it is the output's content
	Scratch    string   // an empty folder, removed after the run
	// Progress reports how far the task is, from 0 to 100, with a short text for people. It may be called often.
	Progress func(percent int, state string)
	Log      *slog.Logger

	keyed     bool       // the job's SQL may ask for the partitions of rows
	inputKeys [][]string // with keyed: of each of InputFiles its partition

	// For operator udf: puts the code into dir; nil: there is none
	fetchCode func(ctx context.Context, dir string) error
	commits   int // number of commits so far
	work      *work
}

// Purged reports whether what earlier runs published was purged. A source that publishes nothing where it reads what it
// has read before publishes it then.
func (t *Task) Purged() bool {
	return slices.ContainsFunc(t.Outputs, func(o AssignedOutput) bool { return o.Purged })
}

// Result is what a run produced.
type Result struct {
	Result json.RawMessage `json:"result,omitempty"`         // light JSON for people, 64 KiB at most
	State  json.RawMessage `json:"operator_state,omitempty"` // new operator state; nil: unchanged
	// Sources: the version of the unit that was actually read
	SourceVersion string `json:"source_version,omitempty"`
	Unchanged     bool   `json:"unchanged,omitempty"` // nothing new: publish nothing
	// Sources of files: how they are read from now on, if this run settled something of it
	Reading json.RawMessage `json:"reading,omitempty"`
	// What the rows were read from, for errors about them
	From string `json:"-"`
	// Outputs by cursor: up to where they are complete; by default the highest position written
	Cursor  *int64         `json:"cursor,omitempty"`
	Columns []ColumnOrigin `json:"column_lineage,omitempty"`
	// Tasks to create, for jobs that the task's own job lists in `enqueues`
	Tasks []EnqueuedTask `json:"tasks,omitempty"`
}

// EnqueuedTask asks for a task of a manual or timer job, which is created with the commit of the asking task.
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
	Timer          *protocol.Timer `json:"timer,omitempty"` // asks for a timer instead
}

// CheckNumbers refuses a number beyond the bounds that jobs have for it, and names its field.
func (t EnqueuedTask) CheckNumbers() (field string, err error) {
	if p := t.Priority; p != nil && (*p < -dag.MaxPriority || *p > dag.MaxPriority) {
		return "priority", fmt.Errorf("%d is not between %d and %d", *p, -dag.MaxPriority, dag.MaxPriority)
	}
	if t.MaxAttempts < 0 || t.MaxAttempts > dag.MaxAttempts {
		return "max_attempts", fmt.Errorf("%d is not between 1 and %d, or 0 for what the job says", t.MaxAttempts,
			dag.MaxAttempts)
	}
	return "", nil
}

// ColumnOrigin records that an output column was computed from an input column.
type ColumnOrigin struct {
	Output       int    `json:"output"`
	OutputColumn string `json:"output_column"`
	Input        int    `json:"input"`
	InputColumn  string `json:"input_column"`
	Transform    string `json:"transform"` // identity, expression or aggregate
}

// Written is one output partition that a run sealed.
type Written struct {
	Output    int              `json:"output"`
	Partition string           `json:"partition"`
	Manifest  storage.Manifest `json:"manifest"`
	// Append: the revision that it was deduplicated against
	BaseRevision int64 `json:"base_revision,omitempty"`
	// Of a program: the columns that stood when it was sealed; none: no other partition had rows
	Standing []storage.Column `json:"-"`
	// Outcomes of all checks of the output; nil: the run has made none
	Checks []CheckOutcome `json:"checks,omitempty"`
	// Of rows that were split, or made because somebody asked for them: the hash of those of the partition, its source
	// version
	RowsHash string `json:"rows_hash,omitempty"`
}

// Outcome is what the Runner returns for one assignment: either Err or the other fields.
type Outcome struct {
	Result
	Written   []Written
	Split     *Split // of a run whose rows were split
	Err       error
	Retryable bool
}
