package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// ErrBaseMoved is the error of a task that appended to a revision which was replaced meanwhile.
var ErrBaseMoved = errors.New("the revision it was to be appended to was replaced meanwhile")

// ErrOvertaken is the error of a run whose partition a later run has published meanwhile, though both have payloads of
// their own: what it read may be older than what is there, and nobody else does its work.
var ErrOvertaken error = moved("a later task has published the partition meanwhile")

// moved is an error that is treated as ErrBaseMoved, with a text of its own.
type moved string

func (m moved) Error() string      { return string(m) }
func (moved) Is(target error) bool { return target == ErrBaseMoved }

// publishes reports whether the completion publishes output revisions.
func (x *Completing) publishes() bool {
	return x.Check == nil && !x.Outcome.Unchanged && x.state.kind == publishable
}

// output returns the output partition that was written.
func (x *Completing) output(w operators.Written) registry.Ref {
	return registry.Ref{Version: x.Job.Outputs[w.Output].Generation.Version, Key: w.Partition}
}

// lastMade returns the newest revisions of the partitions that a batch writes, with the inputs they were made from.
func lastMade(b *pg.Batch, batch []*Completing) *pg.Later[map[registry.Ref]registry.Made] {
	var replaced, appended []registry.Ref
	for _, x := range batch {
		if x.Check != nil || x.Outcome.Unchanged {
			continue
		}
		if x.Outcome.Split != nil { // its marker stands for all partitions
			replaced = append(replaced, x.marker())
			continue
		}

		for _, w := range x.Outcome.Written {
			// The epoch and the position of a cursor say whether another attempt was faster.
			if stale.ReadsNew(x.Job) && !stale.OnlyFollows(x.Job) {
				appended = append(appended, x.output(w))
			} else {
				replaced = append(replaced, x.output(w))
			}
		}
	}
	return registry.LastMade(b, replaced, appended)
}

// compareBases sets aside completions that cannot be published as they are. An attempt that read older inputs than the
// newest revision publishes nothing. An append to a revision that was replaced meanwhile must be done again.
// compareBases returns the completions that go on, and stores the newest revisions of their outputs in them.
func (d *Dispatcher) compareBases(
	ctx context.Context, tx pgx.Tx, batch []*Completing, last map[registry.Ref]registry.Made,
) (open []*Completing, err error) {
	for _, x := range batch {
		if x.Check == nil && x.Outcome.Unchanged {
			x.state = unpublished{kind: unchanged}
		}
	}

	if err := compareEpochs(ctx, tx, batch); err != nil {
		return nil, err
	}

	if err := lockFirstSchemas(ctx, tx, batch); err != nil {
		return nil, err
	}
	for _, x := range batch {
		if x.publishes() {
			if err := d.compareBase(ctx, tx, x, last); err != nil {
				return nil, err
			}
		}
		if x.err == nil && x.publishes() {
			if err := compareSchemas(ctx, tx, x, open); err != nil {
				return nil, err
			}
		}
		if x.err == nil && x.publishes() {
			if err := d.settleReading(ctx, tx, x); err != nil {
				return nil, err
			}
		}
		if x.err == nil {
			open = append(open, x)
		}
	}
	return compareStates(ctx, tx, open)
}

// compareBase compares one completion with the newest revisions of its outputs, and sets its state or error where it
// cannot be published on top of them.
func (d *Dispatcher) compareBase(
	ctx context.Context, tx pgx.Tx, x *Completing, last map[registry.Ref]registry.Made,
) error {
	if follows, err := continuesSegments(ctx, tx, x); err != nil || !follows {
		x.err = ErrBaseMoved
		return err
	}

	if x.Outcome.Split != nil {
		return x.compareSplit(ctx, tx, last[x.marker()])
	}

	x.last = make([]int64, len(x.Outcome.Written))
	for i, w := range x.Outcome.Written {
		ref := x.output(w)
		made := last[ref]
		x.last[i] = made.Revision

		if late, err := x.endsLate(ctx, tx, ref, made); err != nil || late {
			return err
		}

		if x.Job.Def.UpdateStrategy != dag.Append {
			continue
		}
		published, err := registry.PublishedAt(new(pg.Batch), []registry.Ref{ref}).Get(ctx, tx)
		if err != nil {
			return err
		}
		// A revision that waits for its checks may become the base; one that they rejected never will.
		if w.BaseRevision != published[ref] || made.State == "Held" {
			x.err = ErrBaseMoved
			return nil
		}
	}
	return nil
}

// endsLate ends an attempt that comes late to an output, and reports whether it did.
func (x *Completing) endsLate(ctx context.Context, tx pgx.Tx, ref registry.Ref, made registry.Made) (bool, error) {
	late, err := x.comesLate(ctx, tx, ref, made)
	switch {
	case err != nil || !late:
		return false, err
	case tasks.IsOwn(x.kind, x.Job):
		x.err = ErrOvertaken
	default:
		x.state = supersededBy("newer inputs were published already")
	}
	return true, nil
}

// comesLate reports whether the newest revision of an output was made from something newer than the attempt has read.
func (x *Completing) comesLate(
	ctx context.Context, tx pgx.Tx, ref registry.Ref, made registry.Made,
) (bool, error) {
	switch {
	case len(x.Job.Inputs) > 0:
		return stale.Overtaken(x.row.Pins, slices.Concat(made.Pins, made.Refused)), nil
	case x.Job.Def.UpdateStrategy == dag.Append && tasks.IsOwn(x.kind, x.Job):
		return false, nil // it goes on top of the later run's rows
	}
	return readLater(ctx, tx, x.Claimed, ref, made)
}

// ErrSchemaMoved is the error of a program's run whose rows have other columns than the dataset got while it ran.
var ErrSchemaMoved error = moved("the columns of the dataset were settled by another partition meanwhile")

// lockFirstSchemas locks the schemas that programs of a batch write: the first partition with rows settles the columns
// of all, and of two that come at once one is the first.
func lockFirstSchemas(ctx context.Context, tx pgx.Tx, batch []*Completing) error {
	var generations []uuid.UUID
	for _, x := range batch {
		if x.publishes() && operators.AnyColumns(x.Job.Def.Operator) {
			for _, w := range x.Outcome.Written {
				generations = append(generations, x.output(w).Version)
			}
		}
	}
	if len(generations) == 0 {
		return nil
	}
	return registry.LockSchemas(ctx, tx, generations)
}

// compareSchemas compares what a program wrote with the columns that other partitions have got since it was sealed, be
// it by an earlier completion of the same batch. An attempt that lost is done again, and then fits or is refused, also
// one without rows, which knew no types. One that meets other columns which wait for their checks is tried again until
// these have decided.
func compareSchemas(ctx context.Context, tx pgx.Tx, x *Completing, before []*Completing) error {
	if !operators.AnyColumns(x.Job.Def.Operator) {
		return nil
	}
	for _, w := range x.Outcome.Written {
		moved, err := schemaMoved(ctx, tx, x, w, before)
		if err != nil {
			return err
		}
		if moved {
			x.err = ErrSchemaMoved
		}
	}
	return nil
}

func schemaMoved(
	ctx context.Context, tx pgx.Tx, x *Completing, w operators.Written, before []*Completing,
) (bool, error) {
	ref := x.output(w)
	standing, err := registry.StandingColumns(ctx, tx, x.Job.Outputs[w.Output].Generation, w.Partition)
	switch {
	case err != nil:
		return false, err
	case len(standing) > 0:
		return !slices.Equal(standing, w.Standing) && !slices.Equal(standing, w.Manifest.Schema), nil
	}

	for _, y := range before {
		for _, other := range y.Outcome.Written {
			if o := y.output(other); y.publishes() && o.Version == ref.Version && o.Key != ref.Key &&
				other.Manifest.Rows > 0 && other.Manifest.SchemaHash != w.Manifest.SchemaHash {
				return true, nil
			}
		}
	}
	return registry.HeldOtherwise(ctx, tx, ref, w.Manifest.SchemaHash)
}

// publishedPartition loads the revision that an appending task adds to. It returns nil if there is none yet.
func publishedPartition(ctx context.Context, tx pgx.Tx, ref registry.Ref) (*storage.Partition, error) {
	revisions, err := registry.PublishedAt(new(pg.Batch), []registry.Ref{ref}).Get(ctx, tx)
	if err != nil || len(revisions) == 0 {
		return nil, err
	}

	pin := registry.Pin{Version: ref.Version, Key: ref.Key, Revision: revisions[ref]}
	contents, err := registry.Contents(new(pg.Batch), []registry.Pin{pin}).Get(ctx, tx)
	if err != nil {
		return nil, err
	}
	partition := contents[pin].Partition
	return &partition, nil
}

// commitOutputs adds statements to b that record the revisions of a batch, and returns the events of those that readers
// see at once, and the check tasks that are needed. Where a revision is stored in PostgreSQL it sends b, because rows
// are published after their revisions are recorded.
func (d *Dispatcher) commitOutputs(
	ctx context.Context, tx pgx.Tx, b *pg.Batch, batch []*Completing, now time.Time,
) (events []Event, follow []tasks.Request, err error) {
	var revisions []registry.NewRevision
	for _, x := range batch {
		if !x.publishes() {
			continue
		}
		for i, w := range x.Outcome.Written {
			out := x.Job.Outputs[w.Output]
			_, held := ChecksOf(x.decides(), w.Output)
			revisions = append(revisions, registry.NewRevision{OrgID: x.Job.OrgID, Dataset: out.Generation.Dataset,
				Version: out.Generation.Version, Key: w.Partition, Revision: x.last[i] + 1, Manifest: w.Manifest,
				SourceVersion: cmp.Or(w.RowsHash, x.Outcome.SourceVersion), TaskID: x.TaskID, Attempt: x.Attempt,
				Held: held, PartitionBy: out.PartitionBy, Pins: x.row.Pins, Now: now})
		}
		if x.Outcome.Split != nil {
			revisions = append(revisions, x.markerRevision(now))
		}
	}

	if err := registry.Commit(b, revisions); err != nil {
		return nil, nil, err
	}
	if slices.ContainsFunc(batch, (*Completing).writesTables) {
		if err := b.Send(ctx, tx); err != nil {
			return nil, nil, err
		}
	}

	for _, x := range batch {
		if !x.publishes() {
			continue
		}
		for i, w := range x.Outcome.Written {
			r := x.revision(i)
			note := tasks.OutputNote{Output: w.Output, Partition: w.Partition, Revision: r.Revision,
				Rows: w.Manifest.Rows, Bytes: w.Manifest.Bytes, State: "Held"}
			if !r.held {
				note.State = "Published"
				event, err := d.publish(ctx, tx, x.Claimed, r)
				if err != nil {
					return nil, nil, err
				}
				events = append(events, event)
			}
			x.notes = append(x.notes, note)
			if len(r.checks) > 0 && !x.checked(w) {
				check, err := CheckTask(x.Job, w.Output, w.Partition, r.Revision, x.row.Class)
				if err != nil {
					return nil, nil, err
				}
				check.Trace = x.trace
				follow = append(follow, check)
			}
		}
	}
	return events, follow, nil
}

// revision returns the revision that a completion makes of its i-th written output.
func (x *Completing) revision(i int) revisionCheck {
	w := x.Outcome.Written[i]
	attempt := storage.Attempt{Generation: x.Job.Outputs[w.Output].Generation,
		Partition: stale.WrittenAt(x.Job, w.Partition), Task: x.TaskID, Number: x.Attempt, Output: w.Output}
	checks, held := ChecksOf(x.decides(), w.Output)
	return revisionCheck{
		CheckPayload: CheckPayload{Output: w.Output, Partition: w.Partition, Revision: x.last[i] + 1},
		ref:          x.output(w), checks: checks, held: held, attempt: attempt, manifest: w.Manifest}
}

// readLater reports whether the newest revision of a source's partition was read by an attempt that began after this
// one: a task that lost its lease and ends last must not put old content over new.
func readLater(
	ctx context.Context, tx pgx.Tx, t Claimed, ref registry.Ref, made registry.Made,
) (later bool, err error) {
	if made.Revision == 0 {
		return false, nil
	}

	newest, err := registry.LoadRevision(ctx, tx, ref, made.Revision)
	if err != nil {
		return false, err
	}

	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM tasks o, tasks t
			WHERE o.id = $1 AND t.id = $2 AND o.id <> t.id AND o.started_at > t.started_at)`,
		newest.TaskID, t.TaskID).Scan(&later)
	if err != nil {
		return false, fmt.Errorf("compare with revision %d of %s: %w", made.Revision, ref.Key, err)
	}
	return later, nil
}

// noRows decides about the outputs to which a run wrote no rows. It implements operators.NoRows.
type noRows struct {
	d     *Dispatcher
	t     *Claimed
	stays func(ctx context.Context, output int) (bool, error)
}

// noRowsOf returns the decisions for a run that makes the partition of its assignment.
func (d *Dispatcher) noRowsOf(t *Claimed) noRows {
	return noRows{d, t, func(ctx context.Context, output int) (bool, error) {
		return d.staysWithoutRows(ctx, *t, partitionOf(t.Assignment), output)
	}}
}

// Columns implements operators.NoRows.
func (o noRows) Columns(ctx context.Context, output int) (columns []storage.Column, err error) {
	err = pg.InOrgTx(ctx, o.d.Requests, o.t.Job.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		columns, err = registry.KnownColumns(ctx, tx, o.t.Job.Outputs[output].Generation)
		return err
	})
	return columns, err
}

// Standing implements operators.NoRows.
func (o noRows) Standing(ctx context.Context, output int, key string) (columns []storage.Column, err error) {
	err = pg.InOrgTx(ctx, o.d.Requests, o.t.Job.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		columns, err = registry.StandingColumns(ctx, tx, o.t.Job.Outputs[output].Generation, key)
		return err
	})
	return columns, err
}

// RowsHash implements operators.NoRows.
func (o noRows) RowsHash(ctx context.Context, output int, key string) (hash string, err error) {
	err = pg.InOrgTx(ctx, o.d.Requests, o.t.Job.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		hash, err = registry.RowsHash(ctx, tx, o.t.Job.Outputs[output].Generation.Version, key)
		return err
	})
	return hash, err
}

// Stays implements operators.NoRows.
func (o noRows) Stays(ctx context.Context, output int) (bool, error) { return o.stays(ctx, output) }

// staysWithoutRows reports whether an output partition stays as it is when a run ends that wrote nothing to it. A run
// that makes a partition and has no rows for it empties it. But an always_on source that ends has nothing new to say, a
// source that appends has nothing to add, and what the same task committed before its end stays.
func (d *Dispatcher) staysWithoutRows(ctx context.Context, t Claimed, key string, output int) (stays bool, err error) {
	def := t.Job.Def
	switch {
	case t.Slot == AlwaysOnSlot, def.UpdateStrategy == dag.Append && len(t.Job.Inputs) == 0:
		return true, nil
	case def.PartitionBy.Kind == dag.ByCursor, def.Splits(): // the run reached a position without rows, or has none
		return false, nil
	case def.PartitionBy.Valid(key) != nil: // a source that names no partition
		return true, nil
	}

	err = pg.InOrgTx(ctx, d.Requests, t.Job.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		by, err := registry.MadeBy(ctx, tx, registry.Ref{Version: t.Job.Outputs[output].Generation.Version, Key: key})
		stays = by == t.TaskID
		return err
	})
	return stays, err
}
