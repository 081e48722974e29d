package authz

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

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
