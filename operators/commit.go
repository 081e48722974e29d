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

// Commit is what a run that goes on wants to take effect now, all of it or nothing, as worker/protocol.Events is.
type Commit struct {
	Outputs []CommittedOutput // nil: whatever is in the folders of the outputs
	Events  []Event
	Tasks   []EnqueuedTask
	State   json.RawMessage // new operator state; nil leaves it as it was
}

// CommittedOutput is what is to be published of one output partition.
type CommittedOutput struct {
	Output    int
	Partition string   // key; empty: the task's own, and where partitions are by cursor, which the rows tell
	Files     []string // local Parquet files, by path; nil: all in the output's folder
}

// Event says that something of the task's own outputs is new, or holds no more; see worker/protocol.Event.
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

// Committed is how things stand after a commit.
type Committed struct {
	Events []EventOutcome  `json:"events,omitempty"`
	Tasks  []uuid.UUID     `json:"tasks,omitempty"`  // of the enqueued tasks, in their order
	Cursor *CursorPosition `json:"cursor,omitempty"` // outputs by cursor: where they end now
}

// EventOutcome says what became of one event.
type EventOutcome struct {
	Outcome string     `json:"outcome"` // accepted, duplicate or rejected
	EventID *uuid.UUID `json:"event_id,omitempty"`
	Reason  string     `json:"reason,omitempty"`
}

// Committer commits for a run that goes on.
type Committer interface {
	// Commit commits. An error that IsPermanent says what is wrong with the commit, which changed nothing; after any other
	// the attempt cannot go on.
	Commit(ctx context.Context, c Commit) (Committed, error)
	// Rest is the assignment by which a run ends that has committed before: what it wrote since goes on top of that. It
	// waits for that to pass its checks.
	Rest(ctx context.Context, a Assignment) (Assignment, error)
}

// Commit commits now, in one transaction, what the run has made so far, instead of with its end: published, told to
// consumers, and never made again by a later attempt, which goes on from the cursor and the operator state that are
// committed. Files that are committed are gone from the folders of the outputs; Cursor and State are then what they are
// after the commit. What is refused, by an error that IsPermanent, is as it was. It is for one goroutine at a time.
func (t *Task) Commit(ctx context.Context, c Commit) (Committed, error) {
	if t.Committer == nil {
		return Committed{}, Permanent(fault.New(fault.Invalid, "tasks that run here commit with their end alone"))
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
	done, err := t.Committer.Commit(ctx, c)
	if err != nil {
		return Committed{}, err
	}
	t.commits++
	if done.Cursor != nil { // the run's own: what it does with it changes nothing
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

// toCommit names the files where a commit leaves that open.
func (t *Task) toCommit(asked []CommittedOutput) (found []CommittedOutput, err error) {
	everything := asked == nil
	if everything {
		for i := range t.OutputDirs {
			asked = append(asked, CommittedOutput{Output: i})
		}
	}
	for _, o := range asked {
		if o.Output < 0 || o.Output >= len(t.Outputs) {
			return nil, fault.New(fault.Invalid, "the job has %d outputs, and none with the index %d", len(t.Outputs), o.Output)
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
				return nil, fault.New(fault.Invalid, "output %q: there is no file %s", t.Outputs[o.Output].Name, filepath.Base(file))
			case !info.Mode().IsRegular():
				return nil, fault.New(fault.Invalid, "output %q: %s is not a regular file", t.Outputs[o.Output].Name, filepath.Base(file))
			}
		}
		if !everything || len(o.Files) > 0 {
			found = append(found, o)
		}
	}
	return found, nil
}
