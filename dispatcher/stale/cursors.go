package stale

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// A job that follows a cursor (PerUpdate, with a triggering input by cursor) has a row in dataset_cursors for each such
// input: how far it has read, and in which epoch. Each invalidation raises the epoch and rewinds the cursor in one
// transaction, so that a position is not confused with the same position after a re-organisation. A claim locks the row
// before it looks for segments, and a completion before it commits: nothing that was pinned in an older epoch than the
// row's is published.

// Follows reports whether the job follows the input as a cursor.
func Follows(job *registry.Job, in registry.JobInput) bool {
	return in.PartitionBy.Kind == dag.ByCursor && in.Def.Triggers() && job.Def.ExecutionStrategy == dag.PerUpdate
}

// Cursor names the position of an origin in a generation that it follows.
type Cursor struct {
	generation, origin uuid.UUID
}

// CursorRow is a row of dataset_cursors.
type CursorRow struct {
	Epoch     int64
	Value     int64  // the last position read; -1: none
	ClaimedTo *int64 // end of the range that a claim fixed, until its work is committed
	Again     bool   // it was claimed more than once
}

// epochOf is the SQL expression for the epoch of a generation: how often its cursor was rewound.
const epochOf = `coalesce((SELECT max(i.epoch) FROM data_invalidations i WHERE i.dataset_version = %s), 0)`

// GenerationEpoch returns the epoch of a generation: how often its cursor was rewound.
func GenerationEpoch(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (epoch int64, err error) {
	if err = tx.QueryRow(ctx, `SELECT `+fmt.Sprintf(epochOf, "$1"), generation).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("epoch of %s: %w", generation, err)
	}
	return epoch, nil
}

// cursorsOf lists the cursors that the jobs of targets follow.
func cursorsOf(targets []Target, wants [][]InputFacts) (found []Cursor) {
	seen := map[Cursor]bool{}
	for i, t := range targets {
		for n, in := range t.Job.Inputs {
			c := Cursor{wants[i][n].Generation, t.Job.Origin}
			if c.generation != uuid.Nil && Follows(t.Job, in) && !seen[c] {
				seen[c] = true
				found = append(found, c)
			}
		}
	}
	return found
}

// SplitCursors returns the generations and origins of cursors, in order.
func SplitCursors(cursors []Cursor) (generations, origins []uuid.UUID) {
	for _, c := range cursors {
		generations, origins = append(generations, c.generation), append(origins, c.origin)
	}
	return generations, origins
}

// ReadCursors reads the rows of cursors; suffix, such as FOR UPDATE, may lock them. A cursor that was never claimed has
// no row.
func ReadCursors(ctx context.Context, tx pgx.Tx, cursors []Cursor, suffix string) (map[Cursor]CursorRow, error) {
	found := map[Cursor]CursorRow{}
	if len(cursors) == 0 {
		return found, nil
	}

	generations, origins := SplitCursors(cursors)
	rows, err := tx.Query(ctx, `
		SELECT c.dataset_version, c.job_id, c.epoch, c.cursor_value, c.claimed_to, c.claimed_again
		FROM dataset_cursors c
		JOIN unnest($1::uuid[], $2::uuid[]) AS w(version, job) ON c.dataset_version = w.version AND c.job_id = w.job
		ORDER BY c.dataset_version, c.job_id `+suffix, generations, origins)
	if err != nil {
		return nil, fmt.Errorf("read %d cursors: %w", len(cursors), err)
	}

	var (
		c Cursor
		r CursorRow
	)
	into := []any{&c.generation, &c.origin, &r.Epoch, &r.Value, &r.ClaimedTo, &r.Again}
	_, err = pgx.ForEachRow(rows, into, func() error {
		found[c] = r
		return nil
	})
	return found, err
}

// LockCursors locks the cursors that the jobs of targets follow, before the caller looks for segments to read. It
// creates missing rows, so that a later invalidation finds them and waits.
func (e *Examiner) LockCursors(ctx context.Context, tx pgx.Tx, targets []Target) error {
	followsAny := func(t Target) bool {
		return slices.ContainsFunc(t.Job.Inputs, func(in registry.JobInput) bool { return Follows(t.Job, in) })
	}
	if !slices.ContainsFunc(targets, followsAny) {
		return nil
	}

	wants, err := e.Wants(ctx, tx, targets)
	if err != nil {
		return err
	}

	orgs := map[uuid.UUID]uuid.UUID{}
	for _, t := range targets {
		orgs[t.Job.Origin] = t.Job.OrgID
	}
	cursors := cursorsOf(targets, wants)
	generations, origins := SplitCursors(cursors)
	of := make([]uuid.UUID, len(cursors))
	for i, c := range cursors {
		of[i] = orgs[c.origin]
	}

	// DO UPDATE, and not DO NOTHING, because it locks rows that exist.
	_, err = tx.Exec(ctx, `
		INSERT INTO dataset_cursors (org_id, dataset_version, job_id, epoch, cursor_value)
		SELECT w.org, w.version, w.job, `+fmt.Sprintf(epochOf, "w.version")+`, -1
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS w(org, version, job) ORDER BY w.version, w.job
		ON CONFLICT (dataset_version, job_id) DO UPDATE SET updated_at = dataset_cursors.updated_at`,
		of, generations, origins)
	if err != nil {
		return fmt.Errorf("lock %d cursors: %w", len(cursors), err)
	}
	return nil
}

// OnlyFollows reports whether all that makes the one output of a job stale are cursors that it follows. Then it reads
// nothing again that its cursors have passed, so neither those segments nor what was made from them count.
func OnlyFollows(job *registry.Job) bool {
	return ReadsNew(job) && job.Def.PartitionBy.Kind == dag.Unpartitioned &&
		!slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool {
			return (in.Def.Triggers() || in.Def.Refresh) && !Follows(job, in)
		})
}

// addCursors adds how far cursors have come, and the segments that a task may read: where the output has been made,
// those beyond the position. If a claim fixed the range of an input, nothing beyond that counts: a retry reads what the
// first try read, and segments that came meanwhile are for the next task. made is what the targets were last made from;
// addCursors limits it to those segments.
func (e *Examiner) addCursors(
	ctx context.Context, tx pgx.Tx, targets []Target, wants [][]InputFacts, made []*registry.Made,
) error {
	cursors := cursorsOf(targets, wants)
	if len(cursors) == 0 {
		return nil
	}
	rows, err := ReadCursors(ctx, tx, cursors, "")
	if err != nil {
		return err
	}

	var asked []registry.Beyond
	beyond := func(i int, f *InputFacts) registry.Beyond {
		b := registry.Beyond{Generation: f.Generation, After: -1, Before: math.MaxInt64}
		if f.cursor.ClaimedTo != nil {
			b.Before = *f.cursor.ClaimedTo + 1
		}
		if made[i] != nil && OnlyFollows(targets[i].Job) {
			b.After = f.cursor.Value
		}
		return b
	}
	for i, t := range targets {
		for n, in := range t.Job.Inputs {
			f := &wants[i][n]
			if !Follows(t.Job, in) {
				continue
			}
			row, ok := rows[Cursor{f.Generation, t.Job.Origin}]
			if !ok {
				row.Value = -1
				if row.Epoch, err = GenerationEpoch(ctx, tx, f.Generation); err != nil {
					return err
				}
			}
			f.cursor = &row
			asked = append(asked, beyond(i, f))
		}
	}

	segments, err := registry.SegmentsBeyond(ctx, tx, asked)
	if err != nil {
		return err
	}
	for i, t := range targets {
		var pins []registry.Pin
		for n := range wants[i] {
			if f := &wants[i][n]; f.cursor != nil {
				f.Published = segments[beyond(i, f)]
				pins = append(pins, f.Pins()...)
			}
		}
		if ref, ok := t.Ref(); ok && made[i] != nil && OnlyFollows(t.Job) {
			if err := registry.LimitRead(ctx, tx, ref, made[i], unread(pins, wants[i])); err != nil {
				return err
			}
		}
	}
	return nil
}

// unread returns the pins without those that a cursor has read past. To have segments read again, a cursor is rewound.
func unread(pins []registry.Pin, inputs []InputFacts) []registry.Pin {
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool {
		c := inputs[p.Input].cursor
		if c == nil {
			return false
		}
		_, upTo, err := dag.SegmentEnd(p.Key)
		return err == nil && upTo <= c.Value
	})
}

// cursorKey names the unit of work of a job that follows cursors: up to which position, from which, and on top of which
// revision. It is empty if the job follows none.
func cursorKey(wanted []registry.Pin, inputs []InputFacts, made *registry.Made) string {
	var key, from string
	for _, in := range inputs {
		if in.cursor == nil {
			continue
		}
		upTo := in.cursor.Value
		for _, p := range wanted {
			if p.Input == in.Index {
				if _, end, err := dag.SegmentEnd(p.Key); err == nil {
					upTo = max(upTo, end)
				}
			}
		}

		key += fmt.Sprintf("cursor:%s:%s:%d:%d", in.Dataset, in.Generation, in.cursor.Epoch, upTo)
		if in.cursor.Value >= 0 {
			from += fmt.Sprintf("#%d", in.cursor.Value)
		}
	}

	if key != "" && made != nil && made.Revision > 0 {
		from += fmt.Sprintf("@%d", made.Revision)
	}
	return key + from
}

// PinnedUpTo returns, for each cursor that pins were taken from, the epoch and the highest position.
func PinnedUpTo(job *registry.Job, pins []registry.Pin) (map[Cursor]CursorRow, error) {
	found := map[Cursor]CursorRow{}
	for _, p := range pins {
		if p.Input >= len(job.Inputs) || !Follows(job, job.Inputs[p.Input]) {
			continue
		}
		_, upTo, err := dag.SegmentEnd(p.Key)
		if err != nil {
			return nil, err
		}

		c := Cursor{p.Version, job.Origin}
		if r, ok := found[c]; !ok || upTo > r.Value {
			found[c] = CursorRow{Epoch: p.Epoch, Value: upTo}
		}
	}
	return found, nil
}

// CursorPosition returns where the next segment of a job's outputs begins, or nil if they are not partitioned by
// cursor.
func CursorPosition(ctx context.Context, tx pgx.Tx, job *registry.Job) (*operators.CursorPosition, error) {
	if job.Def.PartitionBy.Kind != dag.ByCursor || len(job.Outputs) == 0 {
		return nil, nil
	}
	generation := job.Outputs[0].Generation.Version
	head, err := registry.CursorHead(ctx, tx, generation)
	if err != nil {
		return nil, err
	}
	epoch, err := GenerationEpoch(ctx, tx, generation)
	return &operators.CursorPosition{Epoch: epoch, Value: head.Position}, err
}

// MayContinue returns a conflict if a rejected segment may no longer be published, because another was read in its
// place meanwhile.
func MayContinue(ctx context.Context, tx pgx.Tx, w registry.Withholding) error {
	if w.Job.Def.PartitionBy.Kind != dag.ByCursor || w.State != "Rejected" {
		return nil
	}
	after, _, err := dag.SegmentEnd(w.Key)
	if err != nil {
		return err
	}
	head, err := registry.CursorHead(ctx, tx, w.Ref.Version)
	if err == nil && head.Position != after {
		err = fault.New(fault.Conflict, "segment %s does not follow the last published one, which ends at %d",
			w.Key, head.Position).WithHint("the source reads on from there by itself")
	}
	return err
}

// WrittenAt returns the partition under which an attempt wrote the data of a key. An attempt's place in storage is
// recorded when it begins, and then it is not known which segment of a cursor it will make.
func WrittenAt(job *registry.Job, key string) string {
	if job.Def.PartitionBy.Kind == dag.ByCursor {
		return dag.WholeKey
	}
	return key
}
