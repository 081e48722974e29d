package builds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// removals returns what readers would lose of all that a build lacks, if it served as it is. A partition that a person
// has skipped is given up, and so is everything that was made by a job with reset outputs, or from its outputs. What
// the build does not fill serves already, and loses only what readers of a name have that it gets. It is asked under
// the lock of a cutover only: without it, tasks end between the statements, and what they just made would count as
// lost.
func (bs *Builds) removals(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, all []registry.Removal,
) ([]registry.Removal, error) {
	if b.Allows(registry.AllowRemovals) || len(all) == 0 {
		return nil, nil
	}

	origin, reset, anew := map[uuid.UUID]uuid.UUID{}, beginAnew(jobs), map[uuid.UUID]bool{}
	var origins []uuid.UUID
	for _, job := range jobs {
		for _, o := range job.Outputs {
			origin[o.Generation.Version] = job.Origin
			anew[o.Generation.Version] = reset[o.Generation.Dataset]
		}
		origins = append(origins, job.Origin)
	}
	givenUp, err := skippedKeys(ctx, tx, origins)
	if err != nil {
		return nil, err
	}
	maps.Copy(givenUp, reachedFrom(givenUp, jobs)) // nor can those be made that are made from them

	lost := registry.KeepRemovals(all, func(generation uuid.UUID, key string) bool {
		return !anew[generation] && !givenUp[tasks.Slot{Origin: origin[generation], Key: key}]
	})
	if len(lost) == 0 {
		return nil, nil
	}
	shown, err := bs.shownBy(ctx, tx, b, lost)
	return registry.KeepRemovals(lost, func(generation uuid.UUID, key string) bool {
		return !shown[registry.Ref{Version: generation, Key: key}]
	}), err
}

// shownBy returns which partitions the swap to a version shows although checks of others refused them.
func (bs *Builds) shownBy(
	ctx context.Context, tx pgx.Tx, b registry.Build, lost []registry.Removal,
) (map[registry.Ref]bool, error) {
	jobs, err := bs.registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return nil, err
	}

	loses := func(generation uuid.UUID) bool {
		return slices.ContainsFunc(lost, func(r registry.Removal) bool { return r.Generation == generation })
	}
	checks := map[uuid.UUID][]dag.Check{}
	for _, job := range jobs {
		for i, o := range job.Outputs {
			if loses(o.Generation.Version) {
				checks[o.Generation.Version] = job.Def.ErrorChecks(i)
			}
		}
	}
	return registry.ShownAgain(ctx, tx, checks)
}

// resets reports whether a job's outputs begin anew with the version.
func resets(job *registry.Job) bool {
	return job.Def.Bootstrap != nil && job.Def.Bootstrap.ResetOutputs
}

// beginAnew returns the datasets of jobs with reset outputs, and all that are made from them.
func beginAnew(jobs []*registry.Job) map[uuid.UUID]bool {
	anew := map[uuid.UUID]bool{}
	for before := -1; len(anew) > before; {
		before = len(anew)
		for _, job := range jobs {
			reads := func(in registry.JobInput) bool { return anew[in.Dataset] }
			if resets(job) || slices.ContainsFunc(job.Inputs, reads) {
				for _, o := range job.Outputs {
					anew[o.Generation.Dataset] = true
				}
			}
		}
	}
	return anew
}

// skippedKeys returns the partitions whose tasks were skipped. It relies on idx_tasks_skipped.
func skippedKeys(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[tasks.Slot]bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT job_id, partitions[1] FROM tasks
		WHERE job_id = ANY($1) AND reason = 'skipped' AND partitions[1] IS NOT NULL`, origins)
	if err != nil {
		return nil, fmt.Errorf("find skipped partitions: %w", err)
	}

	skipped := map[tasks.Slot]bool{}
	var s tasks.Slot
	_, err = pgx.ForEachRow(rows, []any{&s.Origin, &s.Key}, func() error { skipped[s] = true; return nil })
	return skipped, err
}

// withoutTargets removes the partitions that unfinished targets are going to publish.
func withoutTargets(lost []registry.Removal, unfinished []stale.Finding) []registry.Removal {
	coming, split := map[registry.Ref]bool{}, map[uuid.UUID]bool{}
	for _, f := range unfinished {
		for _, o := range f.Job.Outputs {
			coming[registry.Ref{Version: o.Generation.Version, Key: f.Key}] = true
			split[o.Generation.Version] = f.Job.Def.Splits()
		}
	}
	return registry.KeepRemovals(lost, func(generation uuid.UUID, key string) bool {
		return !coming[registry.Ref{Version: generation, Key: key}] && !split[generation]
	})
}

// readAgain reads the sources of a build that is otherwise ready once more where they lack partitions that are live: a
// changed source must not swap in emptiness. The build fails where a source does not find them again.
func (bs *Builds) readAgain(
	ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time,
) (again bool, failed string, err error) {
	for _, job := range jobs {
		op, ok := bs.sources.Enumerator(job)
		if job.Def.Source == nil || !ok || resets(job) {
			continue
		}
		missing, older, err := bs.lacking(ctx, b, job)
		if err != nil {
			return false, "", err
		}
		if len(missing) == 0 && len(older) == 0 {
			continue
		}
		if leaves, err := bs.dispatcher.LeavesToOthers(ctx, job, now); err != nil {
			return false, "", err
		} else if leaves {
			again = true // the build waits for one of them
			continue
		}

		if _, err := bs.enumerate(ctx, job, sources.Again(op, older), now); err != nil {
			if operators.IsPermanent(err) || now.Sub(b.Started) > EnumerateFor {
				return false, fmt.Sprintf("source %s: %v", job.Name, err), nil
			}
			return false, "", unreadable(job, err)
		}

		var open bool
		err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
			open, err = AnyOpen(ctx, tx, []uuid.UUID{job.Origin})
			return err
		})
		switch {
		case err != nil:
			return false, "", err
		case open:
			again = true
		case len(missing) > 0 && !b.Allows(registry.AllowRemovals):
			return false, wouldBeLost(job, missing), nil
		}
	}
	return again, "", nil
}

func wouldBeLost(job *registry.Job, missing []string) string {
	return fmt.Sprintf("source %s does not find %d partitions that are served now, such as %s: they would be lost. "+
		"Restore them, keep them as they are with `dagctl deploy --forward-only`, or let them go with --allow-removals",
		job.Name, len(missing), missing[0])
}

// lacking returns the live partitions that a build's source lacks, and those of its own that are older than the live
// ones.
func (bs *Builds) lacking(
	ctx context.Context, b registry.Build, job *registry.Job,
) (missing, older []string, err error) {
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		pairs, err := registry.Counterparts(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		for _, c := range pairs {
			if c.Candidate == job.Outputs[0].Generation.Version && c.Comparable {
				missing, older, err = registry.Lacking(ctx, tx, c)
			}
		}
		return err
	})
	return missing, older, err
}
