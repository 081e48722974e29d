package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// outputNote is what tasks.outputs tells of one committed output.
type outputNote struct {
	Output    int    `json:"output"`
	Partition string `json:"partition"`
	Revision  int64  `json:"revision"`
	Rows      int64  `json:"rows"`
	Bytes     int64  `json:"bytes"`
	State     string `json:"state"`
}

// errBaseMoved says that an appending task deduplicated against a revision that was replaced meanwhile.
var errBaseMoved = errors.New("the revision it was to be appended to was replaced meanwhile")

// publishes reports whether the completion brings output revisions.
func (x *completing) publishes() bool {
	return x.check == nil && !x.outcome.Unchanged && x.state == ""
}

// output tells which output partition one of the written is.
func (x *completing) output(w operators.Written) registry.Ref {
	return registry.Ref{Version: x.job.Outputs[w.Output].Generation.Version, Key: w.Partition}
}

// queueLastMade asks what there is of the outputs of a batch.
func queueLastMade(b *pg.Batch, batch []*completing) map[registry.Ref]registry.Made {
	var replaced, appended []registry.Ref
	for _, x := range batch {
		if x.check != nil || x.outcome.Unchanged {
			continue
		}
		for _, w := range x.outcome.Written {
			if readsNew(x.job) {
				appended = append(appended, x.output(w))
			} else {
				replaced = append(replaced, x.output(w))
			}
		}
	}
	return queueLastMadeOf(b, replaced, appended)
}

// compareBases sets aside what cannot be published as it is: an attempt that read older inputs than what is there
// already was made from publishes nothing, and an append to a revision that was replaced meanwhile is to be done again.
// It returns those that go on, told what revisions there are of their outputs.
func (d *Dispatcher) compareBases(ctx context.Context, tx pgx.Tx, batch []*completing, last map[registry.Ref]registry.Made) (open []*completing, err error) {
	for _, x := range batch {
		if x.check == nil && x.outcome.Unchanged {
			x.state = "unchanged"
		}
	}
	if err := compareEpochs(ctx, tx, batch); err != nil {
		return nil, err
	}
	for _, x := range batch {
		if x.publishes() {
			if err := d.compareBase(ctx, tx, x, last); err != nil {
				return nil, err
			}
		}
		if x.err == nil {
			open = append(open, x)
		}
	}
	return open, nil
}

func (d *Dispatcher) compareBase(ctx context.Context, tx pgx.Tx, x *completing, last map[registry.Ref]registry.Made) error {
	if follows, err := continuesSegments(ctx, tx, x); err != nil || !follows {
		x.err = errBaseMoved
		return err
	}
	x.last = make([]int64, len(x.outcome.Written))
	for i, w := range x.outcome.Written {
		ref := x.output(w)
		made := last[ref]
		x.last[i] = made.Revision
		late := overtaken(x.row.pins, made.Pins)
		if len(x.job.Inputs) == 0 && !late {
			var err error
			if late, err = readLater(ctx, tx, x.claimed, ref, made); err != nil {
				return err
			}
		}
		if late {
			x.state = "superseded: newer inputs were published already"
			return nil
		}
		if x.job.Def.UpdateStrategy != dag.Append {
			continue
		}
		published, err := registry.PublishedAt(ctx, tx, []registry.Ref{ref})
		if err != nil {
			return err
		}
		// One that waits for its checks may be the next base; one that they rejected never was.
		if w.BaseRevision != published[ref] || made.State == "Held" {
			x.err = errBaseMoved
			return nil
		}
	}
	return nil
}

// commitOutputs records the revisions that a batch made: what of it is a statement is added to b, unless storage is
// PostgreSQL, where rows are published after their revisions are recorded.
func (d *Dispatcher) commitOutputs(ctx context.Context, tx pgx.Tx, b *pg.Batch, batch []*completing, now time.Time) (events []Event, follow []newTask, err error) {
	var revisions []registry.NewRevision
	for _, x := range batch {
		if !x.publishes() {
			continue
		}
		for i, w := range x.outcome.Written {
			out := x.job.Outputs[w.Output]
			_, held := checksOf(x.job, w.Output)
			revisions = append(revisions, registry.NewRevision{OrgID: x.job.OrgID, Dataset: out.Generation.Dataset,
				Version: out.Generation.Version, Key: w.Partition, Revision: x.last[i] + 1, Manifest: w.Manifest,
				SourceVersion: x.outcome.SourceVersion, TaskID: x.TaskID, Attempt: x.Attempt, Held: held,
				Segment: out.PartitionBy.Kind == dag.ByCursor, Pins: x.row.pins, Now: now})
		}
	}
	if err := registry.Commit(b, revisions); err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(batch, (*completing).writesTables) {
		if err := b.Send(ctx, tx); err != nil {
			return nil, nil, err
		}
	}
	for _, x := range batch {
		if !x.publishes() {
			continue
		}
		for i, w := range x.outcome.Written {
			revision := x.last[i] + 1
			note := outputNote{w.Output, w.Partition, revision, w.Manifest.Rows, w.Manifest.Bytes, "Published"}
			checks, held := checksOf(x.job, w.Output)
			if held {
				note.State = "Held"
			} else {
				event, err := d.publish(ctx, tx, x.claimed, w, revision)
				if err != nil {
					return nil, nil, err
				}
				events = append(events, event)
			}
			x.notes = append(x.notes, note)
			if len(checks) > 0 {
				check, err := checkTask(x.job, w.Output, w.Partition, revision, classLive)
				if err != nil {
					return nil, nil, err
				}
				check.trace = x.trace
				follow = append(follow, check)
			}
		}
	}
	return events, follow, nil
}

// publish shows a revision to readers and says what is to be told of it.
func (d *Dispatcher) publish(ctx context.Context, tx pgx.Tx, t claimed, w operators.Written, revision int64) (Event, error) {
	generation := t.job.Outputs[w.Output].Generation
	attempt := storage.Attempt{Generation: generation, Partition: writtenAt(t.job, w.Partition), Task: t.TaskID, Number: t.Attempt, Output: w.Output}
	if err := d.Storage.Publish(ctx, tx, attempt, revision, w.Manifest); err != nil {
		return Event{}, err
	}
	return asSegment(ctx, tx, t.job.Def.PartitionBy, Event{ID: uuid.Must(uuid.NewV7()), OrgID: t.job.OrgID, Dataset: generation.Dataset,
		Version: generation.Version, Key: w.Partition, Revision: revision, Producer: t.TaskID,
		trace: d.tracing.published(ctx, t, w.Partition, revision)})
}

// readLater reports whether what is there of a source's partition was read by an attempt that began after this one: a task
// that lost its lease and ends last must not put old content over new.
func readLater(ctx context.Context, tx pgx.Tx, t claimed, ref registry.Ref, made registry.Made) (later bool, err error) {
	if made.Revision == 0 {
		return false, nil
	}
	newest, err := registry.LoadRevision(ctx, tx, ref, made.Revision)
	if err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM tasks o, tasks t WHERE o.id = $1 AND t.id = $2 AND o.id <> t.id AND o.started_at > t.started_at)`,
		newest.TaskID, t.TaskID).Scan(&later)
	if err != nil {
		return false, fmt.Errorf("compare with revision %d of %s: %w", made.Revision, ref.Key, err)
	}
	return later, nil
}
