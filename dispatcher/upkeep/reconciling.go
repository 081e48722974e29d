package upkeep

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/registry"
)

const (
	kindReconcile = "reconcile"
	kindLimits    = "limits"

	// reconcileEvery is how often everything that is derived is compared again, in case a hint was lost, if that takes
	// little time.
	reconcileEvery = 30 * time.Second
	// reconcileRest bounds the share of time that comparing takes: one part in reconcileRest and one.
	reconcileRest = 20
)

// reconciling is the work of comparing the outputs of all jobs with their inputs, job by job. The position is the
// origin of the last one.
func (u *Upkeep) reconciling() workitems.Kind {
	return workitems.Kind{
		Name: kindReconcile, Objects: []string{""}, Every: reconcileEvery, Rest: reconcileRest,
		Begin: func(ctx context.Context, _ string, now time.Time) (workitems.Step, error) {
			jobs, err := u.dispatcher.ReactiveJobs(ctx)
			return func(ctx context.Context, position string) (workitems.Progress, error) {
				return u.reconcileNext(ctx, jobs, position, now)
			}, err
		},
	}
}

// fanOut is the work of looking at every output of a job after one of its inputs has changed.
func (u *Upkeep) fanOut() workitems.Kind {
	return workitems.Kind{
		Name: dispatcher.KindFanOut,
		Begin: func(ctx context.Context, object string, now time.Time) (workitems.Step, error) {
			origin, err := idAt(object)
			if err != nil {
				return nil, err
			}
			r, err := u.dispatcher.ReconcilingOf(ctx, origin)
			if err != nil || r == nil {
				return gone, err
			}
			return func(ctx context.Context, position string) (done workitems.Progress, err error) {
				done.Position, done.Gone, err = r.Next(ctx, position, now)
				return done, err
			}, nil
		},
	}
}

// Reconcile reconciles all jobs and reviews all limits now.
func (u *Upkeep) Reconcile(ctx context.Context, now time.Time) error {
	return errors.Join(u.items.Pass(ctx, kindReconcile, "", now), u.items.Pass(ctx, kindLimits, "", now))
}

// reconcileNext reconciles the job that comes after a position. The pass goes on behind a job that fails, which the log
// and the next pass get again.
func (u *Upkeep) reconcileNext(
	ctx context.Context, jobs []registry.Acting, position string, now time.Time,
) (workitems.Progress, error) {
	after, err := idAt(position)
	if err != nil {
		return workitems.Progress{}, err
	}
	i := behind(jobs, after, func(a registry.Acting, id uuid.UUID) int {
		return slices.Compare(a.Job.Origin[:], id[:])
	})
	if i == len(jobs) {
		return workitems.Progress{Over: true}, nil
	}

	job := jobs[i]
	if err := u.dispatcher.ReconcileJob(ctx, job, now); err != nil {
		if ctx.Err() != nil {
			return workitems.Progress{}, err
		}
		u.log.Error("reconciling failed, will try again", "job", job.Job.Address(), "error", err)
	}
	return workitems.Progress{Position: job.Job.Origin.String(), Over: i == len(jobs)-1}, nil
}

// limits is the work of admitting tasks for which there is room, but no release to admit them.
func (u *Upkeep) limits() workitems.Kind {
	return workitems.Kind{
		Name: kindLimits, Objects: []string{""}, Every: reconcileEvery, Rest: reconcileRest,
		Begin: func(ctx context.Context, _ string, now time.Time) (workitems.Step, error) {
			return func(ctx context.Context, _ string) (workitems.Progress, error) {
				return workitems.Progress{Over: true}, u.dispatcher.ReviewLimits(ctx, now)
			}, nil
		},
	}
}
