package dispatcher

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// A finding is package stale's verdict on one output partition. Its verdict alone does not decide whether a task is
// made: a running backfill may hold it back, and its slot may have a task already.

// Surroundings is the state that decides, besides the findings themselves, which tasks are made for them.
type Surroundings struct {
	filled *pg.Later[[]uuid.UUID]     // see generationsFilled
	slots  *pg.Later[tasks.Occupancy] // the tasks in the findings' slots
	live   map[uuid.UUID]bool         // by origin; a task of any other builds
	Next   *tasks.Collector           // collects the tasks that become claimable; nil: the claim loop is woken
}

// NewSurroundings returns the surroundings of findings.
func NewSurroundings(findings []stale.Finding, live map[uuid.UUID]bool) Surroundings {
	var (
		b     pg.Batch
		slots []tasks.Slot
		read  []uuid.UUID
	)

	for _, f := range findings {
		if f.Verdict == stale.Stale {
			slots = append(slots, tasks.Slot{Origin: f.Job.Origin, Key: f.Key})
			for _, p := range f.Pins {
				read = append(read, p.Version)
			}
		}
	}

	filled := generationsFilled(&b, tasks.SortedIDs(read))
	return Surroundings{filled: filled, slots: tasks.Occupied(&b, slots), live: live}
}

// EndDone ends the dead tasks whose partitions are up to date by the findings, and returns how many it ended. The tasks
// of sources have no inputs to be compared with: enumerations end those.
func (d *Dispatcher) EndDone(ctx context.Context, tx pgx.Tx, findings []stale.Finding, now time.Time) (int64, error) {
	var done []tasks.Slot
	for _, f := range findings {
		if f.Verdict == stale.Current && len(f.Job.Inputs) > 0 {
			done = append(done, tasks.Slot{Origin: f.Job.Origin, Key: f.Key})
		}
	}
	return d.Tasks.EndDead(ctx, tx, done, now)
}

// CreateFound makes the tasks that findings call for, and notes what others wait for.
func (d *Dispatcher) CreateFound(
	ctx context.Context, tx pgx.Tx, findings []stale.Finding, around Surroundings, now time.Time,
) (tasks.Created, error) {
	filled, err := around.filled.Get(ctx, tx)
	if err != nil {
		return tasks.Created{}, err
	}
	holdBack(findings, filled)
	var notes pg.Batch
	stale.NoteAwaited(&notes, findings)
	if err := notes.SendLast(ctx, tx); err != nil {
		return tasks.Created{}, err
	}

	var wanted []tasks.Request
	for _, f := range findings {
		if f.Verdict != stale.Stale {
			continue
		}
		t := tasks.Request{Job: f.Job, Kind: tasks.KindReactive, Slot: f.Key, Partition: f.Key, Dedupe: f.Dedupe,
			Class: tasks.ClassLive, Trace: f.Trace, Pins: f.Pins}
		if !around.live[f.Job.Origin] {
			t.Kind, t.Class = tasks.KindBuild, tasks.ClassBuild
		}
		wanted = append(wanted, t)
	}
	return d.Tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted, Slots: around.slots, Next: around.Next}, now)
}

// While a backfill runs whose results consumers follow at its end, or not at all, its outputs are not a reason to make
// tasks.

// generationsFilled returns the generations that such backfills fill, as far as they fill any of the generations read.
func generationsFilled(b *pg.Batch, read []uuid.UUID) *pg.Later[[]uuid.UUID] {
	if len(read) == 0 {
		return pg.Known[[]uuid.UUID](nil)
	}

	var (
		filled     []uuid.UUID
		generation uuid.UUID
	)

	b.Query("find backfills", []any{&generation}, func() error {
		filled = append(filled, generation)
		return nil
	}, `
		SELECT unnest(dataset_versions) FROM backfills
		WHERE status = 'Running' AND propagate <> 'each' AND dataset_versions && $1`, read)
	return pg.Answer(b, &filled)
}

// holdBack marks findings as incomplete that read a generation which such a backfill fills. They are found again when
// the backfill has ended.
func holdBack(findings []stale.Finding, filled []uuid.UUID) {
	for i := range findings {
		f := &findings[i]
		isFilled := func(p registry.Pin) bool { return slices.Contains(filled, p.Version) }
		if f.Verdict == stale.Stale && slices.ContainsFunc(f.Pins, isFilled) {
			f.Verdict, f.Missing = stale.Incomplete, "a backfill of an input is followed at its end"
		}
	}
}
