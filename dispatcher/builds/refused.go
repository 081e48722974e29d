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
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// A version may serve a generation that another one filled, or checked in another way: the one that it replaces, or one
// that failed. Then it judges by its own checks what the others refused: the swap itself shows what passes, and has the
// rest checked again.

// refusedBy is a refused revision and the output of the version that judges it.
type refusedBy struct {
	registry.Refused
	job    *registry.Job
	output int
}

// revisionOf names a revision of a partition.
type revisionOf struct {
	registry.Ref
	revision int64
}

func (r refusedBy) of() revisionOf { return revisionOf{r.Ref, r.Revision} }

// fate is what becomes of the revision in the swap.
func (r refusedBy) fate() registry.Fate { return r.Under(r.job.Def.ErrorChecks(r.output)) }

// refusedBefore returns what checks refused in the generations that did not serve before, or that have other checks
// now. Its cost follows these.
func refusedBefore(ctx context.Context, tx pgx.Tx, before, jobs []*registry.Job) ([]refusedBy, error) {
	had, judged := map[uuid.UUID][]dag.Check{}, map[uuid.UUID]refusedBy{}
	for _, job := range before {
		for i, o := range job.Outputs {
			had[o.Generation.Version] = job.Def.ErrorChecks(i)
		}
	}
	sameHash := func(a, b dag.Check) bool { return a.Hash() == b.Hash() }
	for _, job := range jobs {
		for i, o := range job.Outputs {
			was, served := had[o.Generation.Version]
			if !served || !slices.EqualFunc(was, job.Def.ErrorChecks(i), sameHash) {
				judged[o.Generation.Version] = refusedBy{job: job, output: i}
			}
		}
	}

	refused, err := registry.RefusedIn(ctx, tx, slices.Collect(maps.Keys(judged)))
	all := make([]refusedBy, len(refused))
	for i, r := range refused {
		all[i] = judged[r.Version]
		all[i].Refused = r
	}
	return all, err
}

// shownAtOnce is how many refused revisions a swap shows by itself, under the DAG's lock. Any more have to pass their
// checks once more, each in a task.
const shownAtOnce = 16

// findRows looks, before a swap and without its lock, whether the rows are there of the revisions that the swap will
// show by itself. It asks for no more than the swap shows. What the storage cannot say is left to a check.
func (bs *Builds) findRows(ctx context.Context, b registry.Build) (map[revisionOf]bool, error) {
	var shown []registry.Revision
	err := pg.InOrgSnapshot(ctx, bs.pool, b.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		withheld, err := registry.WithheldOf(ctx, tx, b.OrgID, []uuid.UUID{b.ID})
		if err != nil || len(withheld) == 0 {
			return err // there is nothing to judge, as a rule
		}
		before, err := bs.registry.ServingJobs(ctx, tx, b.OrgID, b.DAG)
		if err != nil {
			return err
		}
		jobs, err := bs.registry.VersionJobs(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		refused, err := refusedBefore(ctx, tx, before, jobs)
		if err != nil {
			return err
		}
		refused = slices.DeleteFunc(refused, func(r refusedBy) bool { return r.fate() != registry.IsShown })

		for _, r := range refused[:min(len(refused), shownAtOnce)] {
			revision, err := registry.LoadRevision(ctx, tx, r.Ref, r.Revision)
			if err != nil {
				return err
			}
			shown = append(shown, revision)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("what checks refused of %s: %w", b.DAG, err)
	}

	found := map[revisionOf]bool{}
	for _, r := range shown {
		err := bs.storage.Verify(ctx, r.Manifest)
		if err == nil || fault.Is(err, fault.NotFound) {
			found[revisionOf{registry.Ref{Version: r.Version, Key: r.Key}, r.Revision}] = err == nil
		}
	}
	return found, ctx.Err()
}

// judgeRefused applies the checks of a version that has just begun to serve to what those of other versions refused.
// rows says of which revisions the rows were there before the lock: nothing is asked of the storage under it.
func (bs *Builds) judgeRefused(
	ctx context.Context, tx pgx.Tx, before, jobs []*registry.Job, rows map[revisionOf]bool, now time.Time,
) error {
	refused, err := refusedBefore(ctx, tx, before, jobs)
	if err != nil {
		return err
	}

	var again []refusedBy
	for _, r := range refused {
		there, known := rows[r.of()]
		switch fate := r.fate(); {
		case fate == registry.StaysRefused, fate == registry.IsShown && known && !there:
		case fate == registry.IsChecked, !known:
			again = append(again, r)
		default:
			if err := bs.show(ctx, tx, r, now); err != nil {
				return err
			}
		}
	}
	return bs.checkAgain(ctx, tx, again, now)
}

// show publishes a refused revision, unless it is a segment in whose place another one was read.
func (bs *Builds) show(ctx context.Context, tx pgx.Tx, r refusedBy, now time.Time) (err error) {
	w := registry.Withholding{Ref: r.Ref, Job: r.job, Output: r.output}
	if w.Revision, err = registry.LoadRevision(ctx, tx, r.Ref, r.Refused.Revision); err != nil {
		return err
	}
	if err := stale.MayContinue(ctx, tx, w); fault.Is(err, fault.Conflict) {
		return nil
	} else if err != nil {
		return err
	}

	var b pg.Batch
	if err := bs.dispatcher.PublishWithheld(ctx, tx, &b, w, now); err != nil {
		return err
	}
	return b.Send(ctx, tx)
}

// checkAgain holds revisions once more and makes tasks that check them by the checks of the version that serves.
func (bs *Builds) checkAgain(ctx context.Context, tx pgx.Tx, refused []refusedBy, now time.Time) error {
	if len(refused) == 0 {
		return nil
	}
	refs, revisions := make([]registry.Ref, len(refused)), make([]int64, len(refused))
	wanted := make([]tasks.Request, len(refused))
	origins := map[uuid.UUID]bool{}
	for i, r := range refused {
		check, err := dispatcher.CheckTask(r.job, r.output, r.Key, r.Revision, tasks.ClassLive)
		if err != nil {
			return err
		}
		check.Dedupe += ":" + now.UTC().Format(time.RFC3339Nano)
		refs[i], revisions[i], wanted[i] = r.Ref, r.Revision, check
		origins[r.job.Origin] = true
	}

	if err := deploy.HoldAllAgain(ctx, tx, refs, revisions); err != nil {
		return err
	}
	if err := tasks.LockOrigins(ctx, tx, tasks.SortedIDs(slices.Collect(maps.Keys(origins)))); err != nil {
		return err
	}
	_, err := bs.tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted}, now)
	return err
}
