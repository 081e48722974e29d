package operators

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
)

// Commit is what a run commits before its end, all or nothing, like worker/protocol.Events.
type Commit struct {
	Outputs []CommittedOutput // nil: all files in the folders of the outputs
	Events  []Event
	Tasks   []EnqueuedTask
	State   json.RawMessage // new operator state; nil: unchanged
}

// CommittedOutput is what to publish of one output partition.
type CommittedOutput struct {
	Output    int
	Partition string   // key; empty: the task's own, or, by cursor, the one that follows from the rows
	Files     []string // paths of local Parquet files; nil: all in the output's folder
}

// Event reports that a part of the task's own outputs is new or no longer valid; see worker/protocol.Event.
type Event struct {
	Output int
	Key    string
	Start  *time.Time
	End    *time.Time
	Cursor *int64
	Scope  string // of an invalidation: partition or range
	From   *int64
	To     *int64
	Reason string
}

// Committed is the state after a commit.
type Committed struct {
	Events []EventOutcome  `json:"events,omitempty"`
	Tasks  []uuid.UUID     `json:"tasks,omitempty"`  // of the enqueued tasks, in their order
	Cursor *CursorPosition `json:"cursor,omitempty"` // outputs by cursor: where they end now
}

// EventOutcome is the outcome of one event.
type EventOutcome struct {
	Outcome string     `json:"outcome"` // accepted, duplicate or rejected
	EventID *uuid.UUID `json:"event_id,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// Committer commits for a run before its end.
type Committer interface {
	// Commit commits. An error that IsPermanent describes what is wrong with the commit, which changed nothing. After
	// any other error the attempt cannot go on.
	Commit(ctx context.Context, c Commit) (Committed, error)
	// Rest returns the assignment for the end of a run that has committed before: its remaining output goes on top of
	// the commits. Rest waits for them to pass their checks.
	Rest(ctx context.Context, a Assignment) (Assignment, error)
}

// Commit commits at once, in one transaction, what the run has made so far, instead of with its end. It is published,
// consumers hear of it, and no later attempt makes it again: that continues from the committed cursor and operator
// state. Committed files disappear from the folders of the outputs, and Cursor and State get their new values. A
// commit that is refused, with an error that IsPermanent, changes nothing. Commit is not safe for concurrent use.
func (t *Task) Commit(ctx context.Context, c Commit) (Committed, error) {
	if t.Committer == nil {
		return Committed{}, Permanent(fault.New(fault.Invalid, "tasks that run here commit only with their end"))
	}

	if t.SplitBy != "" {
		return Committed{}, Permanent(fault.New(fault.Invalid, "a job that splits its rows commits only with its end"))
	}

	outputs, err := t.toCommit(c.Outputs)
	if err != nil {
		return Committed{}, err
	}
	c.Outputs = outputs

	files := slices.ContainsFunc(outputs, func(o CommittedOutput) bool { return len(o.Files) > 0 })
	if !files && len(c.Events)+len(c.Tasks)+len(c.State) == 0 {
		return Committed{Cursor: t.Cursor}, nil
	}

	t.work.release() // sealing takes an engine, and a run never waits for two
	done, err := t.Committer.Commit(ctx, c)
	if err != nil {
		return Committed{}, err
	}
	t.commits++
	if done.Cursor != nil { // a copy for the run, which may change it
		at := *done.Cursor
		t.Cursor = &at
	}

	if c.State != nil {
		t.State = c.State
	}
	for _, o := range c.Outputs {
		for _, file := range o.Files {
			if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
				return done, err
			}
		}
	}
	return done, nil
}

// toCommit fills in the files of a commit that does not name them.
func (t *Task) toCommit(asked []CommittedOutput) (found []CommittedOutput, err error) {
	everything := asked == nil
	if everything {
		for i := range t.OutputDirs {
			asked = append(asked, CommittedOutput{Output: i})
		}
	}

	for _, o := range asked {
		if o.Output < 0 || o.Output >= len(t.Outputs) {
			return nil, fault.New(fault.Invalid, "the job has %d outputs, and none with the index %d", len(t.Outputs),
				o.Output)
		}
		if o.Files == nil && o.Output < len(t.OutputDirs) {
			if o.Files, err = filepath.Glob(filepath.Join(t.OutputDirs[o.Output], "*.parquet")); err != nil {
				return nil, err
			}
			slices.Sort(o.Files)
		}

		for _, file := range o.Files {
			info, err := os.Lstat(file)
			switch {
			case err != nil:
				return nil, fault.New(fault.Invalid, "output %q: there is no file %s", t.Outputs[o.Output].Name,
					filepath.Base(file))
			case !info.Mode().IsRegular():
				return nil, fault.New(fault.Invalid, "output %q: %s is not a regular file", t.Outputs[o.Output].Name,
					filepath.Base(file))
			}
		}

		if !everything || len(o.Files) > 0 {
			found = append(found, o)
		}
	}
	return found, nil
}
