package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
	"github.com/aws/smithy-go"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// A task of a runtime that is a Lambda function is claimed here and the function invoked with the claim, asynchronously: what
// comes of it the function tells by itself, as any worker does. What it cannot tell, because it died or never began, the
// lease tells. Lambda's own retries have to be off: an attempt is one invocation.

const (
	invokeAtOnce  = 32               // calls of a function at the same time
	invokeTime    = 10 * time.Second // of one call; it only hands the event over
	invokePayload = 256 << 10        // bytes that an asynchronous invocation may carry
	throttledFor  = time.Second      // a function that throttles is left alone so long, doubling up to
	throttledMost = time.Minute
)

// function is a Lambda function that this process invokes, and how it took the last calls.
type function struct {
	runtime string
	index   int // of the backend in the runtime's list
	backend Backend
	wake    chan struct{}
	slots   chan struct{} // one for each call that is under way
	calls   sync.WaitGroup
	crowded atomic.Bool // the last round found fewer free slots than it had use for

	mu       sync.Mutex
	quiet    time.Duration // how long it was left alone the last time; 0: it takes what it is given
	quietEnd time.Time
}

// functionsOf are those of a runtime map, one for each entry.
func functionsOf(runtimes RuntimeMap) (all []*function) {
	for _, runtime := range runtimes.Of(Lambda) {
		for i, b := range runtimes[runtime] {
			b.Concurrency = cmp.Or(b.Concurrency, defaultConcurrency)
			all = append(all, &function{runtime: runtime, index: i, backend: b, wake: make(chan struct{}, 1), slots: make(chan struct{}, invokeAtOnce)})
		}
	}
	return all
}

// holder is the name under which attempts in the function hold their leases, on all servers.
func (f *function) holder() string {
	name := "lambda:" + f.backend.Function
	if f.backend.Qualifier != "" {
		name += ":" + f.backend.Qualifier
	}
	return name
}

// throttled has the function left alone, and tells until when.
func (f *function) throttled(now time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Before(f.quietEnd) {
		return f.quietEnd // a call of the same round was throttled already
	}
	f.quiet = min(max(2*f.quiet, throttledFor), throttledMost)
	f.quietEnd = now.Add(time.Duration(float64(f.quiet) * (0.5 + rand.Float64())))
	return f.quietEnd
}

func (f *function) took() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quiet = 0
}

func (f *function) rests(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Before(f.quietEnd)
}

// invokeTasks claims tasks for a function, as far as it has room, and invokes it with each. It does not wait for the calls:
// one that is not answered holds up no other. They count in calls, and one that ends calls for the next round where slots
// were too few.
func (d *Dispatcher) invokeTasks(ctx context.Context, f *function, now time.Time) (more bool, err error) {
	if f.rests(now) || d.drained.Load() {
		return false, nil
	}
	if err := d.mayIssue(); err != nil {
		return false, err
	}
	f.crowded.Store(true) // before the slots are counted: one that comes free later is heard
	free, err := f.free(ctx)
	if err != nil || free == 0 {
		return false, err
	}
	tasks, err := d.claimTaken(ctx, holder{f.holder(), true}, now, func(ctx context.Context, tx pgx.Tx) ([]claimable, error) {
		return d.takeForFunction(ctx, tx, f, free)
	})
	if err != nil {
		return false, fmt.Errorf("claim tasks for %s: %w", f.holder(), err)
	}
	f.crowded.Store(len(tasks) == free)
	// What was claimed is handed over even when the process is about to stop.
	outer := context.WithoutCancel(ctx)
	for _, t := range tasks {
		f.slots <- struct{}{}
		f.calls.Go(func() {
			defer func() {
				<-f.slots
				if f.crowded.Load() {
					poke(f.wake)
				}
			}()
			if err := d.invoke(outer, f, t); err != nil {
				d.Log.Error("could not note what came of an invocation: its lease will run out", "task", t.TaskID, "attempt", t.Attempt, "error", err)
			}
		})
	}
	return false, nil
}

// free is how many calls may begin; only one loop takes slots. Where most are taken it waits a little for more to come free,
// as a claim of many costs little more than of one.
func (f *function) free(ctx context.Context) (int, error) {
	if free := cap(f.slots) - len(f.slots); free == 0 || free >= cap(f.slots)/4 {
		return free, nil
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(company):
		return cap(f.slots) - len(f.slots), nil
	}
}

// takeForFunction takes tasks that the function gets, up to its concurrency over all servers: the leases that it holds are
// counted under a lock of its own, so that two servers never claim the same room. An attempt whose lease was lost may still
// run, uncounted, until its next heartbeat tells it.
func (d *Dispatcher) takeForFunction(ctx context.Context, tx pgx.Tx, f *function, most int) ([]claimable, error) {
	queues, _, err := queuesReady(ctx, tx, []string{f.runtime})
	if err != nil || len(queues) == 0 {
		return nil, err
	}
	var (
		b    pg.Batch
		held int
	)
	b.Exec("lock "+f.holder(), `SELECT pg_advisory_xact_lock(hashtextextended('invoke ' || $1, 0))`, f.holder())
	b.Query("count what runs in "+f.holder(), []any{&held}, func() error { return nil },
		`SELECT count(*) FROM leases WHERE worker_id = $1 AND starts_with(worker_id, 'lambda:')`, f.holder())
	if err := b.Send(ctx, tx); err != nil {
		return nil, err
	}
	where, args := d.Backends.condition(f.runtime, f.index, 5)
	return d.takeInTurn(ctx, tx, queues, min(f.backend.Concurrency-held, most), where, args...)
}

// roomInFunctions has the next tasks claimed for functions whose attempts have ended: one that runs as many as it may gets
// another at once.
func (d *Dispatcher) roomInFunctions(tasks []ended) {
	for i, f := range d.functions {
		if slices.ContainsFunc(tasks, func(t ended) bool { return t.taskRow.status == "Running" && t.worker == f.holder() }) {
			poke(d.wake.invoke[i])
		}
	}
}

// condition is that a row q of the ready set goes to the backend i of its runtime: it takes the operator and the org, and
// none before it does. Arguments begin at $first.
func (m RuntimeMap) condition(runtime string, i, first int) (where string, args []any) {
	takes := func(b Backend) string {
		text := "true"
		if len(b.Operators) > 0 {
			text += fmt.Sprintf(" AND "+operatorColumn+" = ANY($%d)", first+len(args))
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

// invoke hands one attempt to the function. A throttle is nobody's failure: the task waits until the function is tried again.
// Any other error ends the attempt, and the job's own rules say what follows.
func (d *Dispatcher) invoke(ctx context.Context, f *function, t claimed) error {
	err := d.invokeFunction(ctx, f, t)
	now := time.Now()
	outcome := "accepted"
	switch {
	case err == nil:
		f.took()
	case isThrottle(err):
		outcome = "throttled"
		err = d.handBack(ctx, t, f.holder()+" takes no more for now", f.throttled(now), now)
	default:
		outcome = "failed"
		err = d.fail(ctx, t, reasonError, fmt.Errorf("invoke %s: %w", f.holder(), err), mayInvokeAgain(err), now)
	}
	d.metrics.invoked.WithLabelValues(f.runtime, outcome).Inc()
	if fault.Is(err, fault.Conflict) { // the call took longer than the lease, or somebody canceled the task
		return nil
	}
	return err
}

func (d *Dispatcher) invokeFunction(ctx context.Context, f *function, t claimed) error {
	claim, err := d.wireClaim(t, time.Now())
	if err != nil {
		return err
	}
	payload, err := invocation(claim, invokePayload)
	if err != nil {
		return err
	}
	in := &lambda.InvokeInput{FunctionName: &f.backend.Function, InvocationType: types.InvocationTypeEvent, Payload: payload}
	if f.backend.Qualifier != "" {
		in.Qualifier = aws.String(f.backend.Qualifier)
	}
	ctx, cancel := context.WithTimeout(ctx, invokeTime)
	defer cancel()
	_, err = d.clients.functions[f.backend.site()].Invoke(ctx, in)
	return err
}

// invocation is the event for a claim. One that is too large goes by reference: of the task there is only what names it,
// and the function asks for the rest.
func invocation(c protocol.Claim, limit int) ([]byte, error) {
	payload, err := json.Marshal(c)
	if err != nil || len(payload) <= limit {
		return payload, err
	}
	t := c.Task
	c.ByReference = true
	c.Task = &protocol.Task{TaskID: t.TaskID, Attempt: t.Attempt, Org: t.Org, Job: t.Job, Kind: t.Kind, Operator: t.Operator,
		OperatorVersion: t.OperatorVersion, Inputs: []protocol.Input{}, Outputs: []protocol.Output{},
		TimeoutAt: t.TimeoutAt, LeaseSeconds: t.LeaseSeconds, Traceparent: t.Traceparent}
	return json.Marshal(c)
}

// isThrottle tells a service that takes nothing now from one that refused.
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

// mayInvokeAgain reports whether another attempt could be taken: not where it is the event itself that is refused.
func mayInvokeAgain(err error) bool {
	var answer interface{ HTTPStatusCode() int }
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusRequestEntityTooLarge {
		return false
	}
	var named smithy.APIError
	return !errors.As(err, &named) || named.ErrorCode() != "InvalidRequestContentException" && named.ErrorCode() != "RequestTooLargeException"
}
