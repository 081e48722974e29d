package dispatcher

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker/protocol"
)

// What only tests of other packages in this folder use.
type (
	Claiming         = claiming
	InProcessCommits = inProcessCommits
)

func (d *Dispatcher) NoteUnanswered(worker string, at time.Time) { d.unanswered.note(worker, at) }

func (d *Dispatcher) ClaimAll(claims []*Claiming)        { d.claimAll(claims) }
func (d *Dispatcher) NewNextClaim(early bool) *nextClaim { return d.newNextClaim(early) }

// Of returns the attempt as it would look to code that believes it belongs to another org.
func (attempt RemoteAttempt) Of(org uuid.UUID) RemoteAttempt {
	job := *attempt.Job
	job.OrgID = org
	attempt.OrgID, attempt.Job, attempt.Task.Job = org, &job, &job
	return attempt
}

// Reserve, EndRemote and CompleteRemote are the transactions of calls whose attempt was loaded.

func (d *Dispatcher) Reserve(ctx context.Context, attempt RemoteAttempt) error {
	_, err := d.reserve(ctx, &attempt, nil)
	return err
}

func (d *Dispatcher) EndRemote(
	ctx context.Context, attempt RemoteAttempt, body protocol.Completion, now time.Time,
) error {
	return d.endRemote(ctx, &attempt, attempt.failed(body), "hash", now)
}

func (d *Dispatcher) CompleteRemote(ctx context.Context, attempt RemoteAttempt, now time.Time) error {
	out := operators.Outcome{Result: operators.Result{Unchanged: true}}
	return d.CompleteAttempt(ctx, attempt.Task, Completion{Outcome: out, requestHash: "hash"}, now)
}
