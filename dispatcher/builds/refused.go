package builds

import (
	"context"
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

// judgeRefused applies the checks of a version that has just begun to serve to what those of other versions refused.
// Its cost follows what is refused in the generations that did not serve before, or that have other checks now.
func (bs *Builds) judgeRefused(ctx context.Context, tx pgx.Tx, before, jobs []*registry.Job, now time.Time) error {
	type output struct {
		job   *registry.Job
		index int
	}
	had, judged := map[uuid.UUID][]dag.Check{}, map[uuid.UUID]output{}
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
				judged[o.Generation.Version] = output{job, i}
			}
		}
	}

	refused, err := registry.RefusedIn(ctx, tx, slices.Collect(maps.Keys(judged)))
	if err != nil {
		return err
	}
	for _, r := range refused {
		o := judged[r.Version]
		if err := bs.judgeOne(ctx, tx, o.job, o.index, r, now); err != nil {
			return err
		}
	}
	return nil
}

// judgeOne carries out what becomes of a refused revision.
func (bs *Builds) judgeOne(
	ctx context.Context, tx pgx.Tx, job *registry.Job, output int, r registry.Refused, now time.Time,
) (err error) {
	switch r.Under(job.Def.ErrorChecks(output)) {
	case registry.IsChecked:
		return bs.checkAgain(ctx, tx, job, output, r.Ref, r.Revision, now)
	case registry.StaysRefused:
		return nil
	}

	w := registry.Withholding{Ref: r.Ref, Job: job, Output: output}
	if w.Revision, err = registry.LoadRevision(ctx, tx, r.Ref, r.Revision); err != nil {
		return err
	}
	if err := stale.MayContinue(ctx, tx, w); fault.Is(err, fault.Conflict) {
		return nil // another segment was read in its place
	} else if err != nil {
		return err
	}
	if err := bs.storage.Verify(ctx, w.Manifest); fault.Is(err, fault.NotFound) {
		return nil // its rows are gone
	} else if err != nil {
		return err
	}

	var b pg.Batch
	if err := bs.dispatcher.PublishWithheld(ctx, tx, &b, w, now); err != nil {
		return err
	}
	return b.Send(ctx, tx)
}

// checkAgain holds a revision once more and makes a task that checks it by the checks of the version that serves.
func (bs *Builds) checkAgain(
	ctx context.Context, tx pgx.Tx, job *registry.Job, output int, ref registry.Ref, revision int64, now time.Time,
) error {
	if err := deploy.HoldAgain(ctx, tx, ref, revision); err != nil {
		return err
	}
	check, err := dispatcher.CheckTask(job, output, ref.Key, revision, tasks.ClassLive)
	if err != nil {
		return err
	}
	check.Dedupe += ":" + now.UTC().Format(time.RFC3339Nano)
	if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{job.Origin}); err != nil {
		return err
	}
	_, err = bs.tasks.Create(ctx, tx, tasks.Creation{Wanted: []tasks.Request{check}}, now)
	return err
}
