package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// A job that follows a cursor (PerUpdate, with a triggering input by cursor) has a row in dataset_cursors for each such
// input: up to where it has read, and in which epoch. The epoch grows with each invalidation, which rewinds the cursor in
// the same transaction, so that a position is told apart from the same position after a re-organisation. A claim holds the
// row before it looks at what there is, and a completion before it commits: whatever was pinned in an older epoch than the
// row's is not published.

// follows reports whether the job follows the input as a cursor.
func follows(job *registry.Job, in registry.JobInput) bool {
	return in.PartitionBy.Kind == dag.ByCursor && in.Def.Triggers() && job.Def.ExecutionStrategy == dag.PerUpdate
}

// consumed is a cursor that an origin follows.
type consumed struct {
	generation, origin uuid.UUID
}

// cursorRow is a row of dataset_cursors.
type cursorRow struct {
	Epoch     int64
	Value     int64  // the last position that was read; -1: none
	ClaimedTo *int64 // fixed by a claim, until what it reads is committed
	Again     bool   // it was claimed more than once
}

// epochOf is how often a generation's cursor was rewound.
const epochOf = `coalesce((SELECT max(i.epoch) FROM data_invalidations i WHERE i.dataset_version = %s), 0)`

func generationEpoch(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (epoch int64, err error) {
	if err = tx.QueryRow(ctx, `SELECT `+fmt.Sprintf(epochOf, "$1"), generation).Scan(&epoch); err != nil {
		return 0, fmt.Errorf("epoch of %s: %w", generation, err)
	}
	return epoch, nil
}

// cursorsOf lists the cursors that the jobs of targets follow.
func cursorsOf(targets []target, wants [][]inputFacts) (found []consumed) {
	seen := map[consumed]bool{}
	for i, t := range targets {
		for n, in := range t.job.Inputs {
			c := consumed{wants[i][n].generation, t.job.Origin}
			if c.generation != uuid.Nil && follows(t.job, in) && !seen[c] {
				seen[c] = true
				found = append(found, c)
			}
		}
	}
	return found
}

func splitConsumed(cursors []consumed) (generations, origins []uuid.UUID) {
	for _, c := range cursors {
		generations, origins = append(generations, c.generation), append(origins, c.origin)
	}
	return generations, origins
}

// readCursors loads cursors; suffix may lock them. Those that were never claimed have no row.
func readCursors(ctx context.Context, tx pgx.Tx, cursors []consumed, suffix string) (map[consumed]cursorRow, error) {
	found := map[consumed]cursorRow{}
	if len(cursors) == 0 {
		return found, nil
	}
	generations, origins := splitConsumed(cursors)
	rows, err := tx.Query(ctx, `
		SELECT c.dataset_version, c.job_id, c.epoch, c.cursor_value, c.claimed_to, c.claimed_again FROM dataset_cursors c
		JOIN unnest($1::uuid[], $2::uuid[]) AS w(version, job) ON c.dataset_version = w.version AND c.job_id = w.job
		ORDER BY c.dataset_version, c.job_id `+suffix, generations, origins)
	if err != nil {
		return nil, fmt.Errorf("read %d cursors: %w", len(cursors), err)
	}
	var (
		c consumed
		r cursorRow
	)
	_, err = pgx.ForEachRow(rows, []any{&c.generation, &c.origin, &r.Epoch, &r.Value, &r.ClaimedTo, &r.Again}, func() error {
		found[c] = r
		return nil
	})
	return found, err
}

// lockCursors holds the cursors that the jobs of targets follow, before it is looked what there is to read. An
// invalidation that comes later waits, and finds the rows that were made here.
func (d *Dispatcher) lockCursors(ctx context.Context, tx pgx.Tx, targets []target) error {
	if !slices.ContainsFunc(targets, func(t target) bool {
		return slices.ContainsFunc(t.job.Inputs, func(in registry.JobInput) bool { return follows(t.job, in) })
	}) {
		return nil
	}
	wants, err := d.wants(ctx, tx, targets)
	if err != nil {
		return err
	}
	orgs := map[uuid.UUID]uuid.UUID{}
	for _, t := range targets {
		orgs[t.job.Origin] = t.job.OrgID
	}
	cursors := cursorsOf(targets, wants)
	generations, origins := splitConsumed(cursors)
	of := make([]uuid.UUID, len(cursors))
	for i, c := range cursors {
		of[i] = orgs[c.origin]
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO dataset_cursors (org_id, dataset_version, job_id, epoch, cursor_value)
		SELECT w.org, w.version, w.job, `+fmt.Sprintf(epochOf, "w.version")+`, -1
		FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS w(org, version, job) ORDER BY w.version, w.job
		ON CONFLICT (dataset_version, job_id) DO UPDATE SET updated_at = dataset_cursors.updated_at`, of, generations, origins)
	if err != nil {
		return fmt.Errorf("lock %d cursors: %w", len(cursors), err)
	}
	return nil
}

// followed is what inputFacts tell of an input that is followed as a cursor.
type followed struct {
	cursorRow
	all map[string]int64 // every published segment, those beyond what was claimed too
}

// knowCursors fills in how far cursors have come. Of an input whose range was fixed by a claim nothing beyond it counts:
// a retry reads what the first try read, and what has come meanwhile is for the task after it.
func (d *Dispatcher) knowCursors(ctx context.Context, tx pgx.Tx, targets []target, wants [][]inputFacts) error {
	cursors := cursorsOf(targets, wants)
	if len(cursors) == 0 {
		return nil
	}
	rows, err := readCursors(ctx, tx, cursors, "")
	if err != nil {
		return err
	}
	for i, t := range targets {
		for n, in := range t.job.Inputs {
			f := &wants[i][n]
			if !follows(t.job, in) {
				continue
			}
			row, ok := rows[consumed{f.generation, t.job.Origin}]
			if !ok {
				row.Value = -1
				if row.Epoch, err = generationEpoch(ctx, tx, f.generation); err != nil {
					return err
				}
			}
			f.cursor = &followed{cursorRow: row, all: f.published}
			if row.ClaimedTo == nil {
				continue
			}
			f.published = map[string]int64{}
			for key, revision := range f.cursor.all {
				if _, upTo, err := dag.SegmentEnd(key); err != nil {
					return err
				} else if upTo <= *row.ClaimedTo {
					f.published[key] = revision
				}
			}
		}
	}
	return nil
}

// beyond keeps of a cursor's pins those that lie after what was read. Whatever is read again has been rewound to.
func beyond(pins []registry.Pin, inputs []inputFacts) []registry.Pin {
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool {
		c := inputs[p.Input].cursor
		if c == nil {
			return false
		}
		_, upTo, err := dag.SegmentEnd(p.Key)
		return err == nil && upTo <= c.Value
	})
}

// cursorKey names the unit of work of a job that follows cursors: up to where, from where, and on top of which revision. It
// is empty where the job follows none.
func cursorKey(wanted []registry.Pin, inputs []inputFacts, made *registry.Made) string {
	var key, from string
	for _, in := range inputs {
		if in.cursor == nil {
			continue
		}
		upTo := in.cursor.Value
		for _, p := range wanted {
			if p.Input == in.index {
				if _, end, err := dag.SegmentEnd(p.Key); err == nil {
					upTo = max(upTo, end)
				}
			}
		}
		key += fmt.Sprintf("cursor:%s:%s:%d:%d", in.dataset, in.generation, in.cursor.Epoch, upTo)
		if in.cursor.Value >= 0 {
			from += fmt.Sprintf("#%d", in.cursor.Value)
		}
	}
	if key != "" && made != nil && made.Revision > 0 {
		from += fmt.Sprintf("@%d", made.Revision)
	}
	return key + from
}

// pinnedUpTo tells, of each cursor that pins were taken from, the highest position, and the epoch.
func pinnedUpTo(job *registry.Job, pins []registry.Pin) (map[consumed]cursorRow, error) {
	found := map[consumed]cursorRow{}
	for _, p := range pins {
		if p.Input >= len(job.Inputs) || !follows(job, job.Inputs[p.Input]) {
			continue
		}
		_, upTo, err := dag.SegmentEnd(p.Key)
		if err != nil {
			return nil, err
		}
		c := consumed{p.Version, job.Origin}
		r, ok := found[c]
		if !ok || upTo > r.Value {
			found[c] = cursorRow{Epoch: p.Epoch, Value: upTo}
		}
	}
	return found, nil
}

// fixRanges keeps up to where the tasks about to be leased read their cursors, until a completion is accepted.
func fixRanges(ctx context.Context, tx pgx.Tx, taken []claimable) error {
	var (
		cursors []consumed
		upTo    []int64
	)
	for _, c := range taken {
		pinned, err := pinnedUpTo(c.job, c.pins)
		if err != nil {
			return err
		}
		for k, r := range pinned {
			cursors, upTo = append(cursors, k), append(upTo, r.Value)
		}
	}
	if len(cursors) == 0 {
		return nil
	}
	generations, origins := splitConsumed(cursors)
	_, err := tx.Exec(ctx, `
		UPDATE dataset_cursors c SET claimed_to = w.up_to, claimed_again = c.claimed_to IS NOT NULL
		FROM unnest($1::uuid[], $2::uuid[], $3::bigint[]) AS w(version, job, up_to)
		WHERE c.dataset_version = w.version AND c.job_id = w.job`, generations, origins, upTo)
	if err != nil {
		return fmt.Errorf("fix the ranges of %d cursors: %w", len(cursors), err)
	}
	return nil
}

// compareEpochs holds the cursors of a batch. What was pinned in an older epoch is not published: its input was invalidated
// meanwhile, and the cursor rewound for the task that follows.
func compareEpochs(ctx context.Context, tx pgx.Tx, batch []*completing) error {
	var cursors []consumed
	for _, x := range batch {
		if x.check != nil {
			continue
		}
		var err error
		if x.cursors, err = pinnedUpTo(x.job, x.row.pins); err != nil {
			return err
		}
		for c := range x.cursors {
			cursors = append(cursors, c)
		}
	}
	rows, err := readCursors(ctx, tx, cursors, "FOR UPDATE OF c")
	if err != nil {
		return err
	}
	for _, x := range batch {
		for c, pinned := range x.cursors {
			if row, ok := rows[c]; ok && row.Epoch != pinned.Epoch {
				x.state = fmt.Sprintf("superseded: its input was invalidated meanwhile, it read epoch %d of what is %d now", pinned.Epoch, row.Epoch)
			}
		}
	}
	return nil
}

// advanceCursors moves the cursors of accepted completions on, in their transaction. Where a range was read again after a
// failure, what came meanwhile had to wait for it: it is routed anew.
func advanceCursors(ctx context.Context, tx pgx.Tx, batch []*completing, now time.Time) (routed bool, err error) {
	var (
		cursors       []consumed
		upTo, epochs  []int64
		generationIDs []uuid.UUID
		origins       []uuid.UUID
	)
	for _, x := range batch {
		if x.check != nil || x.state != "" && !x.outcome.Unchanged {
			continue
		}
		for c, r := range x.cursors {
			cursors, upTo, epochs = append(cursors, c), append(upTo, r.Value), append(epochs, r.Epoch)
		}
	}
	if len(cursors) == 0 {
		return false, nil
	}
	generationIDs, origins = splitConsumed(cursors)
	tag, err := tx.Exec(ctx, `
		WITH w AS (SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) AS w(version, job, up_to, epoch)),
		again AS (
			SELECT c.org_id, c.dataset_version FROM dataset_cursors c
			JOIN w ON c.dataset_version = w.version AND c.job_id = w.job AND c.epoch = w.epoch WHERE c.claimed_again),
		moved AS (
			UPDATE dataset_cursors c SET cursor_value = greatest(c.cursor_value, w.up_to), claimed_to = NULL, claimed_again = false, updated_at = $5
			FROM w WHERE c.dataset_version = w.version AND c.job_id = w.job AND c.epoch = w.epoch)
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT org_id, 'route_event', jsonb_build_object('generations', jsonb_agg(DISTINCT dataset_version)), $5, $5 FROM again GROUP BY org_id`,
		generationIDs, origins, upTo, epochs, now)
	if err != nil {
		return false, fmt.Errorf("advance %d cursors: %w", len(cursors), err)
	}
	return tag.RowsAffected() > 0, nil
}

// Segments, as they are made.

// cursorPosition is where the next segment of a job's outputs begins; nil where they are not by cursor.
func cursorPosition(ctx context.Context, tx pgx.Tx, job *registry.Job) (*operators.CursorPosition, error) {
	if job.Def.PartitionBy.Kind != dag.ByCursor || len(job.Outputs) == 0 {
		return nil, nil
	}
	generation := job.Outputs[0].Generation.Version
	head, err := registry.CursorHead(ctx, tx, generation)
	if err != nil {
		return nil, err
	}
	epoch, err := generationEpoch(ctx, tx, generation)
	return &operators.CursorPosition{Epoch: epoch, Value: head.Position}, err
}

// continuesSegments reports whether what a completion wrote follows what is there. It does not where another segment came
// first, where the cursor was rewound, and while the last segment is held: nobody knows yet whether there will be one. Then
// the task is done again.
func continuesSegments(ctx context.Context, tx pgx.Tx, x *completing) (bool, error) {
	began := x.assignment.Cursor
	if began == nil {
		return true, nil
	}
	now, err := cursorPosition(ctx, tx, x.job)
	if err != nil || *now != *began {
		return false, err
	}
	for _, o := range x.job.Outputs {
		head, err := registry.CursorHead(ctx, tx, o.Generation.Version)
		if err != nil || head.Held || head.Position > began.Value {
			return false, err
		}
	}
	return true, nil
}

// mayContinue refuses to publish a rejected segment in whose place another was read meanwhile.
func mayContinue(ctx context.Context, tx pgx.Tx, w registry.Withholding) error {
	if w.Job.Def.PartitionBy.Kind != dag.ByCursor || w.State != "Rejected" {
		return nil
	}
	after, _, err := dag.SegmentEnd(w.Key)
	if err != nil {
		return err
	}
	head, err := registry.CursorHead(ctx, tx, w.Ref.Version)
	if err == nil && head.Position != after {
		err = fault.New(fault.Conflict, "segment %s does not follow what there is, which ends at %d", w.Key, head.Position).
			WithHint("the source reads on from there by itself")
	}
	return err
}

// asSegment makes the event of a revision that is a segment one of the cursor.
func asSegment(ctx context.Context, tx pgx.Tx, by dag.Partitioning, e Event) (Event, error) {
	if by.Kind != dag.ByCursor {
		return e, nil
	}
	_, upTo, err := dag.SegmentEnd(e.Key)
	if err != nil {
		return e, err
	}
	epoch, err := generationEpoch(ctx, tx, e.Version)
	e.Epoch, e.Position = &epoch, &upTo
	return e, err
}

// writtenAt is the partition under which an attempt wrote what became one: which segment of a cursor it makes is not known
// when it begins, and where it writes is recorded then.
func writtenAt(job *registry.Job, key string) string {
	if job.Def.PartitionBy.Kind == dag.ByCursor {
		return dag.WholeKey
	}
	return key
}
