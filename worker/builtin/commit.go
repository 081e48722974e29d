package builtin

import (
	"context"
	"errors"
	"fmt"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

// committer commits in the middle of a run as any function of a worker does: it uploads files, and Task.Commit names
// them.
type committer struct {
	task    *worker.Task
	outputs []operators.AssignedOutput
	commits int
}

// Rest implements operators.Committer. The server knows what was committed before the end.
func (k *committer) Rest(_ context.Context, a operators.Assignment) (operators.Assignment, error) {
	return a, nil
}

// Commit implements operators.Committer.
func (k *committer) Commit(ctx context.Context, c operators.Commit) (done operators.Committed, err error) {
	t := k.task
	k.commits++
	for i, o := range c.Outputs {
		output, err := t.Output(k.outputs[o.Output].Name)
		if err != nil {
			return done, err
		}
		for n, file := range o.Files {
			// Each name is used once, so that a file left by a failed commit is not taken for another.
			name := fmt.Sprintf("commit%d-%d-%s", k.commits, i, operators.NumberedName(n, file))
			if err := output.Of(o.Partition).Upload(ctx, name, worker.Parquet, file); err != nil {
				return done, err
			}
		}
	}

	for _, e := range c.Events {
		t.Emit(protocol.Event(e))
	}
	for _, asked := range c.Tasks {
		t.Enqueue(protocol.EnqueuedTask(asked))
	}

	if c.State != nil {
		if err := t.SetState(c.State); err != nil {
			return done, err
		}
	}

	answer, err := t.Commit(ctx)
	if errors.Is(err, worker.ErrInvalid) {
		err = operators.Permanent(err)
	}
	if err != nil {
		return done, err
	}

	done.Tasks = answer.Tasks
	for _, e := range answer.Events {
		done.Events = append(done.Events, operators.EventOutcome(e))
	}
	if answer.Cursor != nil {
		done.Cursor = &operators.CursorPosition{Epoch: answer.Cursor.Epoch, Value: answer.Cursor.From}
	}
	return done, nil
}
