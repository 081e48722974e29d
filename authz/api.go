package authz

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config has the settings of an API.
type Config struct {
	REST           rest.Config
	Authenticators []Authenticator // tried in order; the first that recognises the credential decides
	Limiter        *rest.Limiter   // for each caller and each running task; nil: no limit
	Quotas         *Quotas         // of orgs; nil: none
	Turns          *pg.Turns       // of orgs at the requests' connections; nil: who asks first is first
	Refusals       *Refusals       // of callers, for the audit log; nil: they are not recorded
	Failures       *rest.Limiter   // for refused credentials from each address; nil: no limit
	Workers        *Tokens         // recognises workers and provisioners; nil: the API has no routes for them
	WorkerLimiter  *rest.Limiter   // for each worker token, which a whole fleet may share; nil: no limit
	Signer         *Signer         // recognises running tasks; nil: the API has no routes for them

	// Origins are the addresses at which browsers reach this server, such as "https://dagctl.example.com". A mutation
	// that relies on a cookie must come from one of them. If there are none, cookies allow no mutation.
	Origins []string
	// Hosts are the names, with ports, by which the server is reached. A browser that calls it by another name, which
	// somebody made lead here, is not answered. None: every name is its own.
	Hosts []string
	// SignInPath is the page to which a browser without a credential is redirected, with ?next=. If it is empty, the
	// browser gets a 401 in plain text.
	SignInPath string
	// Dev, if not nil, is one more Authenticator. Its Origins replace Origins, and only requests to its hosts are
	// answered.
	Dev *Dev
	// RenderError writes the error of a page. Nil: plain text.
	RenderError func(w http.ResponseWriter, r *http.Request, p *rest.Problem)
}

// API is a rest.API whose routes have rules.
type API struct {
	rest           *rest.API
	authenticators []Authenticator
	limiter        *rest.Limiter
	quotas         *Quotas
	turns          *pg.Turns
	refusals       *Refusals
	failures       failures
	workers        *Tokens
	remoteLimiter  *rest.Limiter
	signer         *Signer
	origins        origins
	hosts          []string
	signInPath     string
	dev            *Dev
	renderError    func(w http.ResponseWriter, r *http.Request, p *rest.Problem)
	routes         []Route
	finders        map[Target]Finder
	beforeUsers    func(ctx context.Context, caller Caller)
	remote, public map[string]bool // patterns of routes by workers and tasks, and by anyone
}

// NewAPI returns an API with one route: the OpenAPI document.
func NewAPI(cfg Config) (*API, error) {
	if len(cfg.Authenticators) == 0 && cfg.Dev == nil {
		return nil, errors.New("new API: without an Authenticator nobody could use it")
	}
	if cfg.Dev != nil {
		cfg.Authenticators = append(slices.Clone(cfg.Authenticators), cfg.Dev)
		cfg.Origins, cfg.SignInPath = cfg.Dev.Origins(), "" // the printed address signs in
	}
	origins, err := newOrigins(cfg.Origins)
	if err != nil {
		return nil, fmt.Errorf("new API: %w", err)
	}

	cfg.REST.PageError = cfg.RenderError
	r, err := rest.New(cfg.REST)
	if err != nil {
		return nil, err
	}
	r.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		bearerScheme:            {Type: "http", Scheme: "bearer", Description: "A service token (dagctl_user_...)."},
		remoteSchemes[ByWorker]: {Type: "http", Scheme: "bearer", Description: "A worker token (dagctl_worker_...)."},
		remoteSchemes[ByTask]: {Type: "apiKey", In: "header", Name: protocol.CapabilityHeader,
			Description: "The capability token of a running attempt: an ES256 JWT that comes with its claim."},
	}

	api := &API{
		rest: r, authenticators: cfg.Authenticators, limiter: cfg.Limiter, quotas: cfg.Quotas, turns: cfg.Turns,
		origins: origins, refusals: cfg.Refusals,
		workers: cfg.Workers, remoteLimiter: cfg.WorkerLimiter, signer: cfg.Signer,
		finders: map[Target]Finder{}, beforeUsers: func(context.Context, Caller) {},
		remote: map[string]bool{}, public: map[string]bool{},
		hosts: cfg.Hosts, signInPath: cfg.SignInPath, dev: cfg.Dev,
		renderError: cfg.RenderError, failures: failures{limiter: cfg.Failures},
	}
	if api.renderError == nil {
		api.renderError = plainError
	}
	if api.signer != nil {
		api.addJWKS()
	}
	api.HandlePage(Public, "GET /openapi.json", func(w http.ResponseWriter, r *http.Request, _ Caller) error {
		return api.rest.ServeOpenAPI(w, r)
	})
	return api, nil
}

const bearerScheme = "token"

// Schema returns the schema of a type of the OpenAPI document, for operations that describe their answers themselves.
func (api *API) Schema(t reflect.Type) *huma.Schema {
	return api.rest.OpenAPI().Components.Schemas.Schema(t, true, "")
}

// Handler serves the routes.
func (api *API) Handler() http.Handler {
	api.requireFinders()
	return api.onlyKnownHosts(api.inTurns(api.rest.Handler()))
}

// PeopleHandler serves the routes that are not for workers and tasks, for servers on which those have another address.
func (api *API) PeopleHandler() http.Handler {
	api.requireFinders()
	return api.onlyKnownHosts(api.inTurns(
		api.rest.HandlerOf(func(pattern string) bool { return !api.remote[pattern] })))
}

// RemoteHandler serves the routes for workers and tasks, and the public ones.
func (api *API) RemoteHandler() http.Handler {
	return api.inTurns(
		api.rest.HandlerOf(func(pattern string) bool { return api.remote[pattern] || api.public[pattern] }))
}

// inTurns has the orgs take turns at the connections that requests need.
func (api *API) inTurns(h http.Handler) http.Handler {
	if api.turns == nil {
		return h
	}
	return api.turns.Handler(h)
}

// Routes returns every route with its rule, in order of registration.
func (api *API) Routes() []Route { return slices.Clone(api.routes) }

// declareCaller declares a route whose handler gets a Caller. Workers and tasks are not Callers.
func (api *API) declareCaller(method, path string, rule Rule) {
	if _, remote := remoteSchemes[rule]; remote || rule == ByProvisioner {
		panic(fmt.Sprintf("route %s %s is by a %s: HandleWorker, HandleTask and HandleProvisioner add those", method,
			path, rule))
	}
	api.declare(method, path, rule)
}

// declare adds a route to the table. It panics if the route has no rule, so that such a route fails at start-up.
func (api *API) declare(method, path string, rule Rule) {
	api.check(method, path, rule)
	api.routes = append(api.routes, Route{Method: method, Path: path, Rule: rule})
	pattern := strings.TrimSpace(method + " " + path)
	if thing, _, found := strings.Cut(pattern, "}:"); found {
		pattern = thing + "}" // the actions on a resource share its pattern
	}
	switch rule.Principal() {
	case AWorker, ATask:
		api.remote[pattern] = true
	case Anyone:
		api.public[pattern] = true
	}
}

// Handle adds an operation with a rule. The caller is authenticated before the body is read. On a Public or a Hook
// route fn gets the zero Caller.
func Handle[I, O any](api *API, rule Rule, op huma.Operation,
	fn func(ctx context.Context, caller Caller, in *I) (*O, error)) {
	api.declareCaller(op.Method, op.Path, rule)
	op.Security = []map[string][]string{} // in the document: no credential needed
	rule.describe(&op)
	if rule.Principal() == User {
		op.Security = []map[string][]string{{bearerScheme: {}}}
		op.Middlewares = append(op.Middlewares, api.endWhenRevoked)
	}
	if rule == Hook {
		op = rest.WithAnyQuery(op) // the sender is not ours
	}

	route := Route{Method: op.Method, Path: op.Path, Rule: rule}
	admit := func(r *http.Request) (Caller, error) { return api.admit(route, r) }
	handle(api, op, admit, rule.reading, func(ctx context.Context, caller Caller, in *I) (*O, error) {
		out, err := fn(ctx, caller, in)
		api.refusals.note(caller, route, err, time.Now())
		return out, orRevoked(ctx, err)
	})
}

// handle adds an operation. admit determines the principal before the body is read, and as returns the context in which
// the operation runs for it.
func handle[P, I, O any](api *API, op huma.Operation, admit func(*http.Request) (P, error),
	as func(context.Context, P) context.Context, fn func(context.Context, P, *I) (*O, error)) {
	type key struct{} // of the principal in the request's context
	op.Middlewares = append(huma.Middlewares{func(hc huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(hc)
		principal, err := admit(r.WithContext(hc.Context()))
		if err != nil {
			api.refuse(w, r, err)
			return
		}
		if caller, ok := any(principal).(Caller); ok && !caller.ExpiresAt.IsZero() {
			hc.SetHeader(rest.TokenExpires, caller.ExpiresAt.UTC().Format(time.RFC3339))
		}
		ctx := context.WithValue(as(hc.Context(), principal), key{}, principal)
		next(huma.WithContext(hc, context.WithValue(ctx, admittedKey{}, principal)))
	}}, op.Middlewares...)

	rest.Register(api.rest, op, func(ctx context.Context, in *I) (*O, error) {
		principal, _ := ctx.Value(key{}).(P)
		return fn(ctx, principal, in)
	})
}

// HandlePage adds a route for people with a rule: HTML, files, metrics. The pattern is net/http's, such as
// "GET /dags/{dag}". If h returns an error, the API renders it for people, so h must not have written anything.
func (api *API) HandlePage(rule Rule, pattern string,
	h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, api.rest.Timeout(), h)
}

// HandlePageWithin is like HandlePage, with a time limit of its own.
func (api *API) HandlePageWithin(rule Rule, timeout time.Duration, pattern string,
	h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, timeout, h)
}

// HandleStream is like HandlePage without a time limit, for server-sent events. Below /v1/ its errors are problems,
// like those of operations.
func (api *API) HandleStream(rule Rule, pattern string,
	h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, 0, h)
}

// splitPattern returns the method, which may be empty, and the path of a pattern of net/http.
func splitPattern(pattern string) (method, path string) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		return "", pattern
	}
	return method, strings.TrimSpace(path)
}

func (api *API) handlePlain(rule Rule, pattern string, timeout time.Duration,
	h func(http.ResponseWriter, *http.Request, Caller) error) {
	method, path := splitPattern(pattern)
	api.declareCaller(method, path, rule)
	route := Route{Method: method, Path: path, Rule: rule}

	// Programs call streams of the API: they get no sign-in page, and errors like those of operations.
	forPrograms := strings.HasPrefix(path, "/v1/")
	api.rest.HandlePlain(pattern, timeout, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", rest.PagePolicy)
		if api.dev != nil && api.dev.signIn(w, r) {
			return
		}
		caller, err := api.admit(route, r)
		if fault.Is(err, fault.Unauthenticated) && api.signInPath != "" && rest.WantsPage(r) {
			http.Redirect(w, r, api.signInPath+"?next="+escapeNext(r), http.StatusSeeOther)
			return
		}
		if err == nil && rule.Principal() == User {
			ctx, end := api.whileGood(r, caller)
			defer end()
			ctx = rule.shownBy(r.Method).reading(ctx, caller)
			err = orRevoked(ctx, h(w, r.WithContext(ctx), caller))
			api.refusals.note(caller, route, err, time.Now())
		} else if err == nil {
			err = h(w, r, caller)
		}
		if err != nil && forPrograms {
			api.refuse(w, r, err)
		} else if err != nil {
			p := api.rest.Problem(r, err)
			if p.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", challenge)
			}
			api.renderError(w, r, p)
		}
	})
}

// admit returns the caller that sent r, or an error if the route's rule does not admit it.
func (api *API) admit(route Route, r *http.Request) (Caller, error) {
	if route.Rule.Principal() != User {
		return Caller{}, nil
	}
	caller, err := api.authenticate(r)
	if err != nil {
		return Caller{}, err
	}
	if err := api.limiter.Take(caller.OrgID.String()+" "+caller.Actor, time.Now()); err != nil {
		return Caller{}, err
	}
	if err := api.quotas.TakeRequest(r.Context(), caller.OrgID, time.Now()); err != nil {
		return Caller{}, err
	}

	err = api.origins.checkMutation(r, caller)
	if err == nil {
		err = api.authorize(r, route.Rule, caller)
	}
	if err != nil {
		api.refusals.note(caller, route, err, time.Now())
		return Caller{}, err
	}
	api.beforeUsers(r.Context(), caller)
	return caller, nil
}

// BeforeUsers calls a function before each request of an admitted caller is handled.
func (api *API) BeforeUsers(prepare func(ctx context.Context, caller Caller)) {
	api.beforeUsers = prepare
}

func (api *API) authenticate(r *http.Request) (caller Caller, err error) {
	header, cookie := r.Header.Get("Authorization"), sessionCookie(r)
	if header != "" && cookie != "" {
		return Caller{}, fault.New(fault.Unauthenticated,
			"the request has a cookie and a token, which may be of two callers").
			WithHint("send one of them")
	}
	err = api.failures.guard(r, cmp.Or(header, cookie), time.Now(), func() error {
		caller, err = api.recognise(r)
		return err
	})
	return caller, err
}

// recognise returns the caller whose credential r has.
func (api *API) recognise(r *http.Request) (Caller, error) {
	for _, a := range api.authenticators {
		caller, ok, err := a.Authenticate(r)
		if err != nil {
			return Caller{}, err
		}
		if ok {
			caller.RequestID = rest.RequestID(r.Context())
			return caller, nil
		}
	}
	if r.Header.Get("Authorization") != "" {
		return Caller{}, badToken()
	}
	return Caller{}, noCredential()
}

const challenge = `Bearer realm="dagctl"`

// refuse answers a request that was not admitted.
func (api *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if fault.Is(err, fault.Unauthenticated) {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	api.rest.WriteError(w, r, err)
}

// plainError writes the error of a page as plain text.
func plainError(w http.ResponseWriter, _ *http.Request, p *rest.Problem) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(p.Status)
	fmt.Fprintf(w, "%d %s\n\n%s\n", p.Status, p.Title, p.Detail)
	if p.Hint != "" {
		fmt.Fprintf(w, "%s\n", p.Hint)
	}
	fmt.Fprintf(w, "\nrequest %s\n", p.RequestID)
}
