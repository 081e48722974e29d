package builds

import (
	"context"
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

// A version may share a generation with the one that it replaces and have other checks on it. Then it judges by its own
// checks what the others refused: the swap itself shows what passes, and has the rest checked again.

// fate is what becomes of a refused revision in a swap.
type fate int

const (
	staysRefused fate = iota
	isShown           // it has passed every check that is left
	isChecked         // nobody knows yet whether it passes the checks that there are now
)

// fateOf decides about a revision that checks of an output refused, from the checks before and after the swap.
func fateOf(r registry.Refused, before, after []dag.Check) fate {
	has := func(checks []dag.Check, hash string) bool {
		return slices.ContainsFunc(checks, func(c dag.Check) bool { return c.Hash() == hash })
	}
	known := false
	for _, c := range before {
		if slices.Contains(r.Failed, c.Name) {
			if known = true; has(after, c.Hash()) {
				return staysRefused
			}
		}
	}
	if !known {
		return staysRefused // the checks of yet another version refused it
	}

	for _, c := range after {
		if !slices.Contains(r.Passed, c.Hash()) {
			return isChecked
		}
	}
	return isShown
}

// judgeRefused applies the checks of a version that has just begun to serve to what those of the version before it
// refused. Its cost follows the outputs whose checks changed.
func (bs *Builds) judgeRefused(ctx context.Context, tx pgx.Tx, before, jobs []*registry.Job, now time.Time) error {
	type output struct {
		job   *registry.Job
		index int
	}
	was := map[uuid.UUID]output{}
	for _, job := range before {
		for i, o := range job.Outputs {
			was[o.Generation.Version] = output{job, i}
		}
	}

	for _, job := range jobs {
		for i, o := range job.Outputs {
			old, reused := was[o.Generation.Version]
			if !reused {
				continue
			}
			had, has := errorChecks(old.job, old.index), errorChecks(job, i)
			if len(had) == 0 || slices.EqualFunc(had, has, func(a, b dag.Check) bool { return a.Hash() == b.Hash() }) {
				continue
			}

			refused, err := registry.RefusedIn(ctx, tx, o.Generation.Version)
			if err != nil {
				return err
			}
			for _, r := range refused {
				if err := bs.judgeOne(ctx, tx, job, i, r, fateOf(r, had, has), now); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// judgeOne carries out the fate of a refused revision.
func (bs *Builds) judgeOne(
	ctx context.Context, tx pgx.Tx, job *registry.Job, output int, r registry.Refused, f fate, now time.Time,
) (err error) {
	ref := registry.Ref{Version: job.Outputs[output].Generation.Version, Key: r.Key}
	switch f {
	case isChecked:
		return bs.checkAgain(ctx, tx, job, output, ref, r.Revision, now)
	case staysRefused:
		return nil
	}

	w := registry.Withholding{Ref: ref, Job: job, Output: output}
	if w.Revision, err = registry.LoadRevision(ctx, tx, ref, r.Revision); err != nil {
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
