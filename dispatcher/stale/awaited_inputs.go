package stale

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// A `map: latest` input without refresh triggers nothing and makes nothing stale. A revision of it matters only to
// outputs that lack all of it, so whoever finds such an output notes that the job awaits that generation. The note is
// one row however many outputs wait, and the next revision takes it away. Likewise where any input is enough, for one
// that nobody knows the columns of: its first revision may be of another partition than the outputs that wait.

// Awaiting says which origin waits for the first revision of which generation.
type Awaiting struct{ Origin, Generation uuid.UUID }

// NoteAwaited notes what incomplete outputs wait for. The caller holds the locks of their origins, as whoever takes the
// notes does: either a finding has seen the revision, or the revision's event sees the note.
func NoteAwaited(b *pg.Batch, findings []Finding) {
	noted := map[Awaiting]bool{}
	var orgs, origins, generations []uuid.UUID
	for _, f := range findings {
		a := Awaiting{f.Job.Origin, f.Awaits}
		if f.Awaits == uuid.Nil || noted[a] {
			continue
		}
		noted[a] = true
		orgs, origins, generations = append(orgs, f.Job.OrgID), append(origins, a.Origin), append(generations, f.Awaits)
	}
	if len(origins) == 0 {
		return
	}

	b.Exec("note awaited inputs", `
		INSERT INTO awaited_inputs (org_id, job_id, dataset_version)
		SELECT org, origin, generation FROM unnest($1::uuid[], $2::uuid[], $3::uuid[]) AS w(org, origin, generation)
		ORDER BY origin, generation ON CONFLICT DO NOTHING`, orgs, origins, generations)
}

// TakeAwaited takes away those of some notes that there are, and returns them. The caller looks at the jobs' outputs.
func TakeAwaited(ctx context.Context, tx pgx.Tx, asked []Awaiting) (map[Awaiting]bool, error) {
	found := map[Awaiting]bool{}
	if len(asked) == 0 {
		return found, nil
	}
	origins, generations := make([]uuid.UUID, len(asked)), make([]uuid.UUID, len(asked))
	for i, a := range asked {
		origins[i], generations[i] = a.Origin, a.Generation
	}

	rows, err := tx.Query(ctx, `
		DELETE FROM awaited_inputs a USING unnest($1::uuid[], $2::uuid[]) AS w(origin, generation)
		WHERE a.job_id = w.origin AND a.dataset_version = w.generation
		RETURNING a.job_id, a.dataset_version`, origins, generations)
	if err != nil {
		return nil, fmt.Errorf("take awaited inputs: %w", err)
	}
	var a Awaiting
	_, err = pgx.ForEachRow(rows, []any{&a.Origin, &a.Generation}, func() error {
		found[a] = true
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take awaited inputs: %w", err)
	}
	return found, nil
}

// MayAwait reports whether outputs of a job may wait for the first revision of an input, whichever partition it is of.
func MayAwait(job *registry.Job, input int) bool {
	in := job.Inputs[input].Def
	return awaitsFirst(in) || needsColumns(job) && in.Triggers()
}

// awaitsFirst reports whether a revision of an input matters only to outputs that wait for its first.
func awaitsFirst(in dag.Input) bool { return in.Map.Kind == dag.MapLatest && !in.Refresh }

// needsColumns reports whether tasks of a job read inputs without rows, and need their columns.
func needsColumns(job *registry.Job) bool {
	return job.Def.Trigger != dag.TriggerAll && operators.NeedsColumns(job.Def.Operator)
}

// addUnknown notes which inputs have no columns yet, where a statement would read them without rows: such a task could
// only fail.
func addUnknown(ctx context.Context, tx pgx.Tx, targets []Target, wants [][]InputFacts) error {
	var lacking []*InputFacts
	for i, t := range targets {
		if !needsColumns(t.Job) {
			continue
		}
		for n := range wants[i] {
			if in := &wants[i][n]; in.Def.Triggers() && in.Unmapped == "" && len(in.Pins()) == 0 {
				lacking = append(lacking, in)
			}
		}
	}
	if len(lacking) == 0 {
		return nil
	}

	generations := make([]uuid.UUID, len(lacking))
	for i, in := range lacking {
		generations[i] = in.Generation
	}
	known, err := registry.ColumnsOf(ctx, tx, tasks.SortedIDs(generations))
	for _, in := range lacking {
		in.Unknown = len(known[in.Generation]) == 0
	}
	return err
}

// Few reports whether a job has at most some output partitions, as far as its inputs say without counting them all.
func (e *Examiner) Few(ctx context.Context, tx pgx.Tx, job *registry.Job, most int) (few bool, err error) {
	if job.Def.TasksBy().Kind == dag.Unpartitioned {
		return true, nil
	}
	generations, err := e.triggering(ctx, tx, job)
	if err != nil {
		return false, err
	}
	return registry.AtMostPublished(ctx, tx, generations, most)
}

// none reports whether the triggering inputs of a job have no published partition.
func (e *Examiner) none(ctx context.Context, tx pgx.Tx, job *registry.Job) (bool, error) {
	generations, err := e.triggering(ctx, tx, job)
	if err != nil {
		return false, err
	}
	return registry.AtMostPublished(ctx, tx, generations, 0)
}

// triggering returns the generations that the triggering inputs of jobs read.
func (e *Examiner) triggering(ctx context.Context, tx pgx.Tx, jobs ...*registry.Job) ([]uuid.UUID, error) {
	inputs, err := e.registry.InputGenerations(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}
	var ids []uuid.UUID
	for _, job := range jobs {
		for i, in := range job.Inputs {
			if in.Def.Triggers() {
				ids = append(ids, inputs[job.ID][i].Version)
			}
		}
	}
	return tasks.SortedIDs(slices.DeleteFunc(ids, func(id uuid.UUID) bool { return id == uuid.Nil })), nil
}
