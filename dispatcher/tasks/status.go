package tasks

// Status is how far a task is.
type Status string

// The statuses of a task. One that is queued or failed may go on; completed and canceled tasks have ended, although a
// canceled one is taken up again where its reason allows it.
const (
	Queued    Status = "Queued"
	Running   Status = "Running"
	Completed Status = "Completed"
	Failed    Status = "Failed"
	Canceled  Status = "Canceled"
)

// Kind is what a task was made for.
type Kind string

// The kinds of tasks.
const (
	KindReactive     Kind = "reactive"     // inputs changed
	KindSource       Kind = "source"       // a source is due, or was called
	KindManual       Kind = "manual"       // somebody asked for it
	KindTimer        Kind = "timer"        // a time that a task asked for has come
	KindBuild        Kind = "build"        // a deployed version fills its datasets
	KindBackfill     Kind = "backfill"     // somebody wants partitions computed again
	KindInvalidation Kind = "invalidation" // data was declared invalid
	KindCheck        Kind = "check"        // checks a revision, or data ahead of a version's cutover
)

// Reason is why a task failed or was canceled.
type Reason string

// The reasons of failed and canceled tasks.
const (
	ReasonLeaseExpired Reason = "lease_expired"
	ReasonTimeout      Reason = "timeout"
	ReasonError        Reason = "error"
	ReasonCanceled     Reason = "canceled"    // somebody canceled it
	ReasonSuperseded   Reason = "superseded"  // a cutover, or another task, left it nothing to do
	ReasonAbandoned    Reason = "abandoned"   // the build that wanted it was given up
	ReasonSkipped      Reason = "skipped"     // somebody decided that it is not to be done
	ReasonHandedBack   Reason = "handed_back" // the attempt gave up its lease, and no failure is counted
	ReasonMerged       Reason = "merged"      // a queued task of the same slot does its work
)

// Revivable reports whether Create takes up again a task that was canceled for the reason.
func (r Reason) Revivable() bool {
	return r == ReasonSuperseded || r == ReasonAbandoned || r == ReasonMerged
}

// Wait is why an open task is in the waiting set.
type Wait string

// The reasons of waiting tasks.
const (
	WaitSibling Wait = "sibling" // another task of its slot runs
	WaitLimit   Wait = "limit"   // a limit is reached
	WaitBackoff Wait = "backoff" // it failed, and its retry is not due yet
	WaitRunAt   Wait = "run_at"  // its time has not come
	WaitPaused  Wait = "paused"  // its job, DAG or org is paused
	WaitDead    Wait = "dead"    // it failed, and no attempt is left
)
