package authz

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// HandleWorker adds an operation for workers, with the rule ByWorker. The worker is authenticated before the body is
// read.
func HandleWorker[I, O any](api *API, op huma.Operation, fn func(ctx context.Context, w Worker, in *I) (*O, error)) {
	handleRemote(api, ByWorker, op, api.admitWorker, fn)
}

// HandleTask adds an operation for running attempts, with the rule ByTask. The handler must check the fence in the body
// with Capability.Covers.
func HandleTask[I, O any](api *API, op huma.Operation, fn func(ctx context.Context, c Capability, in *I) (*O, error)) {
	handleRemote(api, ByTask, op, api.admitTask, fn)
}

// HandleWorkerRaw is like HandleWorker, for a body or an answer that is a stream. fn can read at most maxBody bytes. If
// it returns an error, the answer is a problem, so fn must not have written anything. The operation describes its own
// parameters, body and responses.
func HandleWorkerRaw(api *API, op huma.Operation, maxBody int64,
	fn func(w http.ResponseWriter, r *http.Request, worker Worker) error) {
	handleRemoteRaw(api, ByWorker, op, maxBody, api.admitWorker, fn)
}

// HandleTaskRaw is to HandleTask what HandleWorkerRaw is to HandleWorker. The fence is in headers: FenceOf reads it.
func HandleTaskRaw(api *API, op huma.Operation, maxBody int64,
	fn func(w http.ResponseWriter, r *http.Request, c Capability) error) {
	handleRemoteRaw(api, ByTask, op, maxBody, api.admitTask, fn)
}

// Answered is the answer to one of many calls of attempts: that which the call would have had by itself.
type Answered[O any] struct {
	Status  int           `json:"status" doc:"HTTP status of the call"`
	Answer  *O            `json:"answer,omitempty" doc:"Of a call that succeeded"`
	Problem *rest.Problem `json:"problem,omitempty" doc:"Of a call that was refused"`
}

type manyAnswers[O any] struct {
	Answers []Answered[O] `json:"answers" nullable:"false" doc:"One for each call, in their order"`
}

// HandleTasks adds an operation by which a worker makes calls of many attempts at once, with the rule ByWorker. Each
// call has the capability token of its attempt, which alone decides what it may do: it is admitted and read as by
// itself, and no other suffers if it is refused. fn makes one call, with many at the same time; the calls of one task
// are made one after the other, in their order.
func HandleTasks[I, O any](
	api *API, op huma.Operation, fn func(ctx context.Context, c Capability, in I) (O, error),
) {
	type input struct{ Body json.RawMessage }
	type output struct{ Body manyAnswers[O] }

	calls, call := rest.NewPart[protocol.Many[json.RawMessage]](), rest.NewPart[I]()
	op.SkipValidateBody = true // Read checks the parts
	op.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
		"application/json": {Schema: api.Schema(reflect.TypeFor[protocol.Many[I]]())}}}

	HandleWorker(api, op, func(ctx context.Context, _ Worker, in *input) (*output, error) {
		many, err := calls.Read(ctx, in.Body)
		if err != nil {
			return nil, err
		}

		out := make([]Answered[O], len(many.Calls))
		answer := func(i int, made *O, err error) {
			if out[i] = (Answered[O]{Status: http.StatusOK, Answer: made}); err != nil {
				problem := api.rest.ProblemIn(ctx, err)
				out[i] = Answered[O]{Status: problem.Status, Problem: problem}
			}
		}

		ofTask, admitted := map[uuid.UUID][]int{}, make([]Capability, len(many.Calls))
		for i, one := range many.Calls {
			if admitted[i], err = api.admitAttempt(one.CapabilityToken); err != nil {
				answer(i, nil, err)
				continue
			}
			task := admitted[i].TaskID
			ofTask[task] = append(ofTask[task], i)
		}

		var tasks sync.WaitGroup
		for _, calls := range ofTask {
			tasks.Go(func() {
				for _, i := range calls {
					made, err := callOf(ctx, admitted[i], call, many.Calls[i].Body, fn)
					answer(i, made, err)
				}
			})
		}
		tasks.Wait()
		return &output{manyAnswers[O]{out}}, nil
	})
}

// callOf makes one of many calls. A panic is its error: there is nobody else to catch it.
func callOf[I, O any](
	ctx context.Context, c Capability, part *rest.Part[I], body json.RawMessage,
	fn func(context.Context, Capability, I) (O, error),
) (_ *O, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()

	in, err := part.Read(ctx, body)
	if err != nil {
		return nil, err
	}
	made, err := fn(ctx, c, in)
	return &made, err
}

// admitAttempt returns the capability of a token in the body of a worker's call. The worker's own token is good, so
// nothing is counted for its address if this one is not.
func (api *API) admitAttempt(token string) (Capability, error) {
	now := clock.Now()
	c, err := api.signer.Verify(token, now)
	if err != nil {
		return Capability{}, err
	}
	return c, api.limiter.Take("task "+c.TaskID.String(), now)
}

// The names of the remote principals' credentials in the OpenAPI document.
var remoteSchemes = map[Rule]string{ByWorker: "worker", ByTask: "capability"}

func (api *API) declareRemote(rule Rule, op *huma.Operation) {
	if rule == ByWorker && api.workers == nil || rule == ByTask && api.signer == nil {
		panic(fmt.Sprintf("route %s %s is for a %s, but the API was built without what recognises one",
			op.Method, op.Path, rule))
	}
	api.declare(op.Method, op.Path, rule)
	op.Security = []map[string][]string{{remoteSchemes[rule]: {}}}
	rule.describe(op)
	op.Parameters = append(slices.Clone(op.Parameters), &huma.Param{
		Name: protocol.VersionHeader, In: "header", Required: true, Schema: &huma.Schema{Type: huma.TypeInteger},
		Example:     protocol.Version,
		Description: "Version of the worker protocol",
	})
}

func handleRemote[P, I, O any](api *API, rule Rule, op huma.Operation, admit func(*http.Request) (P, error),
	fn func(context.Context, P, *I) (*O, error)) {
	api.declareRemote(rule, &op)
	handle(api, op, admit, func(ctx context.Context, _ P) context.Context { return ctx }, fn)
}

func handleRemoteRaw[P any](api *API, rule Rule, op huma.Operation, maxBody int64, admit func(*http.Request) (P, error),
	fn func(http.ResponseWriter, *http.Request, P) error) {
	api.declareRemote(rule, &op)
	rest.RegisterRaw(api.rest, op, maxBody, func(w http.ResponseWriter, r *http.Request) {
		principal, err := admit(r)
		if err == nil {
			err = fn(w, r, principal)
		}
		if err != nil {
			api.refuse(w, r, err)
		}
	})
}

// admitWorker returns the worker that sent r.
func (api *API) admitWorker(r *http.Request) (Worker, error) {
	w, err := api.authenticateWorker(r)
	if err != nil {
		return Worker{}, err
	}
	if err := api.remoteLimiter.Take(w.OrgID.String()+" "+w.Actor(), time.Now()); err != nil {
		return Worker{}, err
	}
	return w, checkProtocol(r)
}

func (api *API) authenticateWorker(r *http.Request) (w Worker, err error) {
	if api.dev != nil {
		if w, ok := api.dev.worker(r); ok {
			return w, nil
		}
	}
	err = api.failures.guard(r, r.Header.Get("Authorization"), time.Now(), func() error {
		w, err = api.workers.AuthenticateWorker(r)
		return err
	})
	return w, err
}

// admitTask returns the capability of the attempt that sent r. The signature alone says whether it is good, and every
// claim and heartbeat gives out another: so it is checked whatever others of the address send.
func (api *API) admitTask(r *http.Request) (Capability, error) {
	now := clock.Now()
	c, err := api.signer.authenticateTask(r, now)
	if err != nil {
		return Capability{}, api.failures.refused(r, r.Header.Get(protocol.CapabilityHeader), err, now)
	}
	if err := api.limiter.Take("task "+c.TaskID.String(), now); err != nil {
		return Capability{}, err
	}
	return c, checkProtocol(r)
}

// checkProtocol refuses a version of the protocol that this server does not speak. The server also speaks the version
// before its own, so that servers and workers can be upgraded one by one.
func checkProtocol(r *http.Request) error {
	stated := r.Header.Get(protocol.VersionHeader)
	if v, err := strconv.Atoi(stated); err == nil && v >= 1 && (v == protocol.Version || v == protocol.Version-1) {
		return nil
	}
	problem := fault.New(fault.Invalid, "the header %s is %q, but this server speaks version %d of the worker protocol",
		protocol.VersionHeader, stated, protocol.Version)
	if stated == "" {
		problem = fault.New(fault.Invalid, "the header %s is missing", protocol.VersionHeader)
	}
	return problem.WithHint("send %s: %d", protocol.VersionHeader, protocol.Version)
}

// FenceOf returns the fence in the headers of a call whose body is data, and checks that the capability covers it.
func FenceOf(r *http.Request, c Capability) (f protocol.Fence, err error) {
	var problems []fault.Problem
	wrong := func(header, want string) {
		problems = append(problems, fault.Problem{Location: "header." + header,
			Message: fmt.Sprintf("%q is not %s", r.Header.Get(header), want)})
	}
	if err := f.TaskID.UnmarshalText([]byte(r.Header.Get(protocol.TaskHeader))); err != nil {
		wrong(protocol.TaskHeader, "the id of a task")
	}

	if f.Attempt, err = strconv.Atoi(r.Header.Get(protocol.AttemptHeader)); err != nil || f.Attempt < 1 {
		wrong(protocol.AttemptHeader, "the number of an attempt")
	}
	if err := f.LeaseToken.UnmarshalText([]byte(r.Header.Get(protocol.LeaseTokenHeader))); err != nil {
		wrong(protocol.LeaseTokenHeader, "a lease token")
	}
	if len(problems) > 0 {
		return protocol.Fence{}, &fault.Error{Kind: fault.Invalid, Message: "the headers hold no valid fence",
			Problems: problems}
	}
	return f, c.Covers(f)
}

// addJWKS publishes the public keys of capability tokens.
func (api *API) addJWKS() {
	type output struct {
		CacheControl string `header:"Cache-Control"`
		Body         KeySet
	}
	Handle(api, Public, huma.Operation{
		OperationID: "task-jwks", Method: http.MethodGet, Path: "/internal/jwks/task", Tags: []string{"task protocol"},
		Summary:     "List the public keys of capability tokens",
		Description: "Includes former keys, as long as the server still accepts tokens that they signed.",
	}, func(context.Context, Caller, *struct{}) (*output, error) {
		return &output{CacheControl: "public, max-age=300", Body: api.signer.JWKS()}, nil
	})
}
