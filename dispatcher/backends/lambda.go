package backends

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// For a runtime that is a Lambda function, the server claims the task and invokes the function with the claim,
// asynchronously. The function reports the outcome itself, as any worker does; if it dies or never begins, the lease
// runs out. Lambda's own retries must be off: an attempt is one invocation.

const (
	invokeAtOnce  = 32               // calls of a function at the same time
	invokeTime    = 10 * time.Second // bounds one call, which only hands the event over
	throttledFor  = time.Second      // how long a function that takes no calls is left alone at first; it doubles
	throttledMost = time.Minute      // up to this
	InvokePayload = 256 << 10        // InvokePayload is how many bytes an asynchronous invocation may carry.
)

// Function is a Lambda function that this process invokes, with the state of its last calls.
type Function struct {
	Runtime string
	index   int // of the backend in the runtime's list
	Backend Backend
	wake    chan struct{}
	slots   chan struct{} // one element for each call that is under way
	calls   sync.WaitGroup
	crowded atomic.Bool // the last round found fewer free slots than it had use for

	mu       sync.Mutex
	quiet    time.Duration // how long it was last left alone; 0: it accepted the last call
	quietEnd time.Time
	away     bool // it could not be reached, or answered with an error of its own
}

// functionsOf returns the functions of a runtime map, one for each entry.
func functionsOf(runtimes RuntimeMap) (all []*Function) {
	for _, runtime := range runtimes.Of(Lambda) {
		for i, b := range runtimes[runtime] {
			b.Concurrency = cmp.Or(b.Concurrency, defaultConcurrency)
			all = append(all, &Function{Runtime: runtime, index: i, Backend: b,
				wake: make(chan struct{}, 1), slots: make(chan struct{}, invokeAtOnce)})
		}
	}
	return all
}

// Wait returns when no call is under way.
func (f *Function) Wait() { f.calls.Wait() }

// Holder returns the name under which attempts in the function hold their leases, on all servers.
func (f *Function) Holder() string {
	name := "lambda:" + f.Backend.Function
	if f.Backend.Qualifier != "" {
		name += ":" + f.Backend.Qualifier
	}
	return name
}

// Refused records that the function took no call, and returns until when it is left alone. Away says that it did not
// merely throttle; gone, that it was there before.
func (f *Function) Refused(away bool, now time.Time) (until time.Time, gone bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gone = away && !f.away
	f.away = f.away || away
	if now.Before(f.quietEnd) {
		return f.quietEnd, gone // a call of the same round was refused already
	}
	f.quiet = min(max(2*f.quiet, throttledFor), throttledMost)
	f.quietEnd = now.Add(time.Duration(float64(f.quiet) * (0.5 + rand.Float64())))
	return f.quietEnd, gone
}

// Took records that the function accepted a call, and reports whether it is back.
func (f *Function) Took() (back bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	back, f.away, f.quiet = f.away, false, 0
	return back
}

// Rests reports whether the function is to be left alone.
func (f *Function) Rests(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.quietEnd)
}

// InvokeTasks claims as many tasks as a function has room for, and invokes it with each. It does not wait for the
// calls, so that an unanswered one holds up no other. f.calls counts them, and one that ends wakes the next round if
// slots were too few.
func (be *Backends) InvokeTasks(ctx context.Context, f *Function, now time.Time) (more bool, err error) {
	if f.Rests(now) || be.dispatcher.Drained() {
		return false, nil
	}
	if err := be.dispatcher.MayIssue(); err != nil {
		return false, err
	}

	f.crowded.Store(true) // before the slots are counted, so that one that becomes free later wakes the loop
	free, err := f.free(ctx)
	if err != nil || free == 0 {
		return false, err
	}
	take := func(ctx context.Context, tx pgx.Tx) ([]tasks.Taken, error) {
		return be.TakeForFunction(ctx, tx, f, free)
	}

	claimed, err := be.dispatcher.ClaimTaken(ctx, dispatcher.Holder{Worker: f.Holder(), Remote: true}, now, take)
	if err != nil {
		return false, fmt.Errorf("claim tasks for %s: %w", f.Holder(), err)
	}
	f.crowded.Store(len(claimed) == free)

	// Claimed tasks are handed over even if the process is about to stop.
	outer := context.WithoutCancel(ctx)
	for _, t := range claimed {
		f.slots <- struct{}{}
		f.calls.Go(func() {
			defer func() {
				<-f.slots
				if f.crowded.Load() {
					wakeup.Poke(f.wake)
				}
			}()
			if err := be.invoke(outer, f, t); err != nil {
				be.log.Error("could not record the outcome of an invocation: its lease will run out",
					"task", t.TaskID, "attempt", t.Attempt, "error", err)
			}
		})
	}
	return false, nil
}

// free returns how many calls may begin; only one loop takes slots. If most are taken it waits a little for more to
// become free, because claiming many tasks costs little more than claiming one.
func (f *Function) free(ctx context.Context) (int, error) {
	if free := cap(f.slots) - len(f.slots); free == 0 || free >= cap(f.slots)/4 {
		return free, nil
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(dispatcher.SlotWait):
		return cap(f.slots) - len(f.slots), nil
	}
}

// TakeForFunction takes tasks for the function, up to its concurrency across all servers. It counts the leases that the
// function holds under an advisory lock, so that two servers never claim the same room. An attempt that lost its lease
// may still run, uncounted, until its next heartbeat is refused.
func (be *Backends) TakeForFunction(ctx context.Context, tx pgx.Tx, f *Function, most int) ([]tasks.Taken, error) {
	where, args := be.runtimes.condition(f.Runtime, f.index, tasks.FirstArg)
	scope := tasks.Scope{Runtimes: []string{f.Runtime}, Where: where, Args: args}
	queues, _, err := tasks.QueuesReady(ctx, tx, scope)
	if err != nil || len(queues) == 0 {
		return nil, err
	}

	var (
		b    pg.Batch
		held int
	)
	b.Exec("lock "+f.Holder(), `SELECT pg_advisory_xact_lock(hashtextextended('invoke ' || $1, 0))`, f.Holder())
	b.Query("count what runs in "+f.Holder(), []any{&held}, func() error { return nil },
		`SELECT count(*) FROM leases WHERE worker_id = $1 AND worker_token = '' AND starts_with(worker_id, 'lambda:')`, f.Holder())
	if err := b.Send(ctx, tx); err != nil {
		return nil, err
	}

	return be.tasks.Take(ctx, tx, scope, min(f.Backend.Concurrency-held, most))
}

// roomInFunctions wakes the loops of functions whose attempts have ended, so that a function at its concurrency gets
// the next task at once.
func (be *Backends) roomInFunctions(all []tasks.Ended) {
	for i, f := range be.functions {
		ranIn := func(t tasks.Ended) bool { return t.Row.Status == tasks.Running && t.Worker == f.Holder() }
		if slices.ContainsFunc(all, ranIn) {
			wakeup.Poke(be.wake.Invoke[i])
		}
	}
}

// condition returns the SQL condition that the tasks of a queue q go to backend i of its runtime: that backend takes
// the operator and the org, and none before it does. Arguments begin at $first.
func (m RuntimeMap) condition(runtime string, i, first int) (where string, args []any) {
	takes := func(b Backend) string {
		text := "true"
		if len(b.Operators) > 0 {
			text += fmt.Sprintf(" AND "+tasks.OperatorColumn+" = ANY($%d)", first+len(args))
			args = append(args, b.Operators)
		}
		if len(b.Orgs) > 0 {
			text += fmt.Sprintf(" AND org_slug(q.org_id) = ANY($%d)", first+len(args))
			args = append(args, b.Orgs)
		}
		return text
	}

	where = takes(m[runtime][i])
	for _, before := range m[runtime][:i] {
		where += " AND NOT (" + takes(before) + ")"
	}
	return where, args
}

// invoke hands one attempt to the function. A call that the service did not take is no failure of the task: it waits
// until the function is tried again. After a call whose answer was lost the attempt may run, and its lease decides. Any
// other error ends the attempt, and the job's retry rules decide what follows.
func (be *Backends) invoke(ctx context.Context, f *Function, t dispatcher.Claimed) error {
	err := be.invokeFunction(ctx, f, t)
	now := clock.Now()
	outcome := "accepted"
	switch {
	case err == nil:
		if f.Took() {
			be.log.Info("a function takes calls again", "function", f.Holder(), "runtime", f.Runtime)
		}
	case isThrottle(err):
		outcome = "throttled"
		until, _ := f.Refused(false, now)
		err = be.dispatcher.HandBack(ctx, t, f.Holder()+" takes no more for now", until, now)
	case isAway(err):
		outcome = "away"
		until, gone := f.Refused(true, now)
		if gone {
			be.log.Error("a function takes no calls: its tasks wait, uncounted, and it is asked again",
				"function", f.Holder(), "runtime", f.Runtime, "error", err)
		}
		err = be.dispatcher.HandBack(ctx, t, fmt.Sprintf("%s is away: %v", f.Holder(), err), until, now)
	case isLost(err):
		outcome = "lost"
		be.log.Warn("the answer to an invocation was lost: the attempt may run, until its lease ends",
			"function", f.Holder(), "task", t.TaskID, "attempt", t.Attempt, "error", err)
		err = nil
	default:
		outcome = "failed"
		cause := fmt.Errorf("invoke %s: %w", f.Holder(), err)
		err = be.dispatcher.Fail(ctx, t, tasks.ReasonError, cause, mayInvokeAgain(err), now)
	}

	be.metrics.Invoked.WithLabelValues(f.Runtime, outcome).Inc()
	if fault.Is(err, fault.Conflict) { // the call took longer than the lease, or somebody canceled the task
		return nil
	}
	return err
}

// invokeFunction sends the claim to the function.
func (be *Backends) invokeFunction(ctx context.Context, f *Function, t dispatcher.Claimed) error {
	claim, err := be.dispatcher.WireClaim(t, clock.Now())
	if err != nil {
		return err
	}
	payload, err := invocation(claim, InvokePayload)
	if err != nil {
		return err
	}
	in := &lambda.InvokeInput{
		FunctionName: &f.Backend.Function, InvocationType: types.InvocationTypeEvent, Payload: payload,
	}
	if f.Backend.Qualifier != "" {
		in.Qualifier = aws.String(f.Backend.Qualifier)
	}

	ctx, cancel := context.WithTimeout(ctx, invokeTime)
	defer cancel()
	_, err = be.clients.functions[f.Backend.site()].Invoke(ctx, in)
	return err
}

// invocation returns the event for a claim. A claim that is too large goes by reference: it contains only what
// identifies the task, and the function asks for the rest.
func invocation(c protocol.Claim, limit int) ([]byte, error) {
	payload, err := json.Marshal(c)
	if err != nil || len(payload) <= limit {
		return payload, err
	}
	t := c.Task
	c.ByReference = true
	c.Task = &protocol.Task{TaskID: t.TaskID, Attempt: t.Attempt, Org: t.Org, Job: t.Job, Kind: t.Kind,
		Operator: t.Operator, OperatorVersion: t.OperatorVersion,
		Inputs: []protocol.Input{}, Outputs: []protocol.Output{},
		TimeoutAt: t.TimeoutAt, LeaseSeconds: t.LeaseSeconds, Traceparent: t.Traceparent}
	return json.Marshal(c)
}

// isThrottle reports whether the service takes no calls for now, as opposed to refusing this one.
func isThrottle(err error) bool {
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusTooManyRequests {
		return true
	}
	var named smithy.APIError
	if !errors.As(err, &named) {
		return false
	}
	switch named.ErrorCode() {
	case "TooManyRequestsException", "EC2ThrottledException", "ThrottlingException":
		return true
	}
	return false
}

// isAway reports whether the service has not taken the event and could take it later: it could not be reached, or
// answered with an error of its own.
func isAway(err error) bool {
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return true
	}
	var answer interface{ HTTPStatusCode() int }
	return errors.As(err, &answer) && answer.HTTPStatusCode() >= http.StatusInternalServerError
}

// isLost reports whether the service may have taken the event, but its answer did not arrive.
func isLost(err error) bool {
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() > 0 {
		return false
	}
	var sent *smithyhttp.RequestSendError
	return errors.As(err, &sent) || errors.Is(err, context.DeadlineExceeded)
}

// mayInvokeAgain reports whether another attempt could succeed: not if the service refused the event itself.
func mayInvokeAgain(err error) bool {
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusRequestEntityTooLarge {
		return false
	}
	var named smithy.APIError
	return !errors.As(err, &named) ||
		named.ErrorCode() != "InvalidRequestContentException" && named.ErrorCode() != "RequestTooLargeException"
}
