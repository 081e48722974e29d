package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/worker/protocol"
)

// gathered is what a task has asked to commit, with its end or earlier.
type gathered struct {
	mu            sync.Mutex
	outputs       []protocol.CommittedOutput
	events        []protocol.Event
	tasks         []protocol.EnqueuedTask
	state         json.RawMessage
	unchanged     bool
	sourceVersion string
	reading       json.RawMessage
	cursor        *int64
	columns       []protocol.ColumnOrigin
}

func (g *gathered) complete(c *protocol.Completion) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c.Outputs, c.Events, c.Tasks, c.OperatorState = g.outputs, g.events, g.tasks, g.state
	c.Unchanged, c.SourceVersion, c.Cursor, c.ColumnLineage = g.unchanged, g.sourceVersion, g.cursor, g.columns
	c.Reading = g.reading
	if c.Unchanged {
		c.Outputs = nil
	}
}

// unsound returns an error if the result, or what waits to be committed, is not JSON: no call could say it.
func (t *Task) unsound(result json.RawMessage) error {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	return cmp.Or(notJSON("the result", result), notJSON("the reading", t.gathered.reading),
		notJSONTasks(t.gathered.tasks))
}

func notJSONTasks(tasks []protocol.EnqueuedTask) error {
	for i, task := range tasks {
		err := cmp.Or(notJSON(fmt.Sprintf("tasks[%d].payload", i), task.Payload),
			notJSON(fmt.Sprintf("tasks[%d].metadata", i), task.Metadata))
		if err != nil {
			return err
		}
	}
	return nil
}

func notJSON(what string, text json.RawMessage) error {
	if len(text) == 0 || json.Valid(text) {
		return nil
	}
	return NotRetryable(fmt.Errorf("%s is not JSON: %w", what, json.Unmarshal(text, new(any))))
}

// uploaded adds a file to those of its output. It replaces a file of the same name.
func (g *gathered) uploaded(output int, partition string, file protocol.UploadedFile) {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.outputs, func(o protocol.CommittedOutput) bool {
		return o.Index == output && o.Partition == partition
	})
	if i < 0 {
		i = len(g.outputs)
		g.outputs = append(g.outputs, protocol.CommittedOutput{Index: output, Partition: partition})
	}
	files := &g.outputs[i].Files
	*files = slices.DeleteFunc(*files, func(f protocol.UploadedFile) bool { return f.Name == file.Name })
	*files = append(*files, file)
}

// Emit reports that a partition or position of one of the task's own outputs is new. It is committed with the task's
// end, or by Commit.
func (t *Task) Emit(events ...protocol.Event) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.events = append(t.gathered.events, events...)
}

// Enqueue asks for tasks of jobs that this task's job lists in `enqueues`. They are committed with the task's end, or
// by Commit.
func (t *Task) Enqueue(tasks ...protocol.EnqueuedTask) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.tasks = append(t.gathered.tasks, tasks...)
}

// SetState sets the operator state for the job's next task. It is committed with the task's end, or by Commit.
func (t *Task) SetState(state any) error {
	text, err := json.Marshal(state)
	if err != nil {
		return NotRetryable(fmt.Errorf("operator state: %w", err))
	}
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.state = text
	return nil
}

// Unchanged declares that nothing is new: the task publishes nothing, whatever it wrote, and every output stays as it
// is. Without it, an output to which no row was written has no rows from then on.
func (t *Task) Unchanged() {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.unchanged = true
}

// SourceVersion records which version of its source the task has read.
func (t *Task) SourceVersion(version string) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.sourceVersion = version
}

// SettleReading records how the files of the task's source are read from now on. It is for the platform's own sources.
func (t *Task) SettleReading(reading json.RawMessage) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.reading = reading
}

// CursorTo sets the position up to which outputs by cursor are complete. The default is the highest position written.
func (t *Task) CursorTo(position int64) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.cursor = &position
}

// Lineage records which output columns were computed from which input columns.
func (t *Task) Lineage(origins ...protocol.ColumnOrigin) {
	t.gathered.mu.Lock()
	defer t.gathered.mu.Unlock()
	t.gathered.columns = append(t.gathered.columns, origins...)
}

// Commit commits at once, in one transaction, what was written, emitted, enqueued and set as state so far, instead of
// with the task's end. The answer lists the outcomes of the events and the ids of the tasks, each in their order.
func (t *Task) Commit(ctx context.Context) (protocol.EventsAnswer, error) {
	g := &t.gathered
	if err := t.unsound(nil); err != nil {
		return protocol.EventsAnswer{}, err
	}
	g.mu.Lock()
	events := protocol.Events{Fence: t.fence, Events: g.events, Outputs: g.outputs, Tasks: g.tasks,
		OperatorState: g.state}
	g.events, g.outputs, g.tasks, g.state = nil, nil, nil, nil
	g.mu.Unlock()
	var answer protocol.EventsAnswer
	if len(events.Events)+len(events.Outputs)+len(events.Tasks)+len(events.OperatorState) == 0 {
		return protocol.EventsAnswer{Accepted: true, Events: []protocol.EventOutcome{}, Tasks: []uuid.UUID{}}, nil
	}

	err := Repeat(ctx, func(ctx context.Context) (err error) {
		answer, err = t.client.Events(ctx, t.capability(), events)
		return err
	})
	if errors.Is(err, ErrConflict) {
		t.stop(ErrFenced)
	}
	return answer, err
}
