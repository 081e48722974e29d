package authz

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config says how an API recognises callers.
type Config struct {
	REST           rest.Config
	Authenticators []Authenticator // asked in order; the first that knows the credential decides
	Limiter        *rest.Limiter   // of each caller and each running task; nil is no limit
	Workers        *Tokens         // recognises workers; nil: there are no routes for them
	WorkerLimiter  *rest.Limiter   // of each worker token, which a whole fleet may share; nil is no limit
	Signer         *Signer         // recognises running tasks; nil: there are no routes for them

	// Origins are where browsers reach this server, such as "https://dagctl.example.com". A mutation that a cookie
	// vouches for must come from one of them; without any, cookies change nothing.
	Origins []string
	// SignInPath is where a browser without a credential is sent, with ?next=. Empty: it is told 401 in plain words.
	SignInPath string
	// Dev, when set, is one more Authenticator, whose Origins are the only ones and whose hosts are the only ones answered.
	Dev *Dev
	// RenderError writes the error of a page; nil is plain text.
	RenderError func(w http.ResponseWriter, r *http.Request, p *rest.Problem)
}

// API is a rest.API whose routes have rules.
type API struct {
	rest           *rest.API
	authenticators []Authenticator
	limiter        *rest.Limiter
	workers        *Tokens
	remoteLimiter  *rest.Limiter
	signer         *Signer
	origins        origins
	signInPath     string
	dev            *Dev
	renderError    func(w http.ResponseWriter, r *http.Request, p *rest.Problem)
	routes         []Route
	remote, public map[string]bool // patterns of routes by workers and tasks, and by anyone
}

// NewAPI builds an API with one route: the OpenAPI document.
func NewAPI(cfg Config) (*API, error) {
	if len(cfg.Authenticators) == 0 && cfg.Dev == nil {
		return nil, errors.New("new API: no Authenticator, so nobody could use it")
	}
	if cfg.Dev != nil {
		cfg.Authenticators = append(slices.Clone(cfg.Authenticators), cfg.Dev)
		cfg.Origins = cfg.Dev.Origins()
	}
	origins, err := newOrigins(cfg.Origins)
	if err != nil {
		return nil, fmt.Errorf("new API: %w", err)
	}
	r, err := rest.New(cfg.REST)
	if err != nil {
		return nil, err
	}
	r.OpenAPI().Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		bearerScheme:            {Type: "http", Scheme: "bearer", Description: "A service token (dagctl_user_...)."},
		remoteSchemes[ByWorker]: {Type: "http", Scheme: "bearer", Description: "A worker token (dagctl_worker_...)."},
		remoteSchemes[ByTask]:   {Type: "apiKey", In: "header", Name: protocol.CapabilityHeader, Description: "The capability token of a running attempt: an ES256 JWT that comes with its claim."},
	}
	api := &API{
		rest: r, authenticators: cfg.Authenticators, limiter: cfg.Limiter, origins: origins,
		workers: cfg.Workers, remoteLimiter: cfg.WorkerLimiter, signer: cfg.Signer,
		remote: map[string]bool{}, public: map[string]bool{}, signInPath: cfg.SignInPath, dev: cfg.Dev, renderError: cfg.RenderError,
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

// Handler serves the routes.
func (api *API) Handler() http.Handler {
	if api.dev == nil {
		return api.rest.Handler()
	}
	return api.onlyKnownHosts(api.rest.Handler())
}

// PeopleHandler serves the routes that are not for workers and tasks, where those have an address of their own.
func (api *API) PeopleHandler() http.Handler {
	return api.rest.HandlerOf(func(pattern string) bool { return !api.remote[pattern] })
}

// RemoteHandler serves the routes of workers and tasks, and those that ask nobody who they are.
func (api *API) RemoteHandler() http.Handler {
	return api.rest.HandlerOf(func(pattern string) bool { return api.remote[pattern] || api.public[pattern] })
}

// Routes lists every route with its rule, in order of registration.
func (api *API) Routes() []Route { return slices.Clone(api.routes) }

// declareCaller is declare for routes whose handler gets a Caller, which neither a worker nor a task is.
func (api *API) declareCaller(method, path string, rule Rule) {
	if _, remote := remoteSchemes[rule]; remote {
		panic(fmt.Sprintf("route %s %s is by a %s: HandleWorker and HandleTask add those", method, path, rule))
	}
	api.declare(method, path, rule)
}

// declare enters a route in the table. A route without a rule must not come to life, so it panics, at start-up.
func (api *API) declare(method, path string, rule Rule) {
	if _, ok := rules[rule]; !ok {
		panic(fmt.Sprintf("route %s %s has no rule: %s", method, path, rule))
	}
	api.routes = append(api.routes, Route{Method: method, Path: path, Rule: rule})
	pattern := strings.TrimSpace(method + " " + path)
	if thing, _, found := strings.Cut(pattern, "}:"); found {
		pattern = thing + "}" // the actions on a thing share its pattern
	}
	switch rule.Principal() {
	case AWorker, ATask:
		api.remote[pattern] = true
	case Anyone:
		api.public[pattern] = true
	}
}

// Handle adds an operation behind a rule. Who calls is settled before the body is read. On a Public or a Hook
// route the Caller is the zero one.
func Handle[I, O any](api *API, rule Rule, op huma.Operation, fn func(ctx context.Context, caller Caller, in *I) (*O, error)) {
	api.declareCaller(op.Method, op.Path, rule)
	op.Security = []map[string][]string{} // in the document: asks for nothing
	if rule.Principal() == User {
		op.Security = []map[string][]string{{bearerScheme: {}}}
	}
	handle(api, op, func(r *http.Request) (Caller, error) { return api.admit(rule, r) }, fn)
}

// handle adds an operation whose principal, the result of admit, is settled before the body is read.
func handle[P, I, O any](api *API, op huma.Operation, admit func(*http.Request) (P, error), fn func(context.Context, P, *I) (*O, error)) {
	type key struct{} // of the principal in the request's context
	op.Middlewares = append(huma.Middlewares{func(hc huma.Context, next func(huma.Context)) {
		r, w := humago.Unwrap(hc)
		principal, err := admit(r.WithContext(hc.Context()))
		if err != nil {
			api.refuse(w, r, err)
			return
		}
		next(huma.WithValue(hc, key{}, principal))
	}}, op.Middlewares...)
	rest.Register(api.rest, op, func(ctx context.Context, in *I) (*O, error) {
		principal, _ := ctx.Value(key{}).(P)
		return fn(ctx, principal, in)
	})
}

// HandlePage adds a route for people behind a rule: HTML, files, metrics. The pattern is net/http's, such as
// "GET /dags/{dag}". An error that h returns is rendered for people, so h must not have written anything by then.
func (api *API) HandlePage(rule Rule, pattern string, h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, api.rest.Timeout(), h)
}

// HandlePageWithin is HandlePage with a time limit of its own.
func (api *API) HandlePageWithin(rule Rule, timeout time.Duration, pattern string, h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, timeout, h)
}

// HandleStream is HandlePage without a time limit, for server-sent events. Below /v1/ its errors are problems, as those of
// operations.
func (api *API) HandleStream(rule Rule, pattern string, h func(w http.ResponseWriter, r *http.Request, caller Caller) error) {
	api.handlePlain(rule, pattern, 0, h)
}

func (api *API) handlePlain(rule Rule, pattern string, timeout time.Duration, h func(http.ResponseWriter, *http.Request, Caller) error) {
	method, path, ok := strings.Cut(pattern, " ")
	if !ok {
		method, path = "", pattern
	}
	path = strings.TrimSpace(path)
	api.declareCaller(method, path, rule)
	forPrograms := strings.HasPrefix(path, "/v1/") // a stream of the API's: no sign-in page, and errors as everywhere there
	api.rest.HandlePlain(pattern, timeout, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Security-Policy", rest.PagePolicy)
		if api.dev != nil && api.dev.signIn(w, r) {
			return
		}
		caller, err := api.admit(rule, r)
		if fault.Is(err, fault.Unauthenticated) && api.signInPath != "" && safe(r.Method) && !forPrograms {
			http.Redirect(w, r, api.signInPath+"?next="+escapeNext(r), http.StatusSeeOther)
			return
		}
		if err == nil {
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

// admit settles who sent r and whether the rule lets them in.
func (api *API) admit(rule Rule, r *http.Request) (Caller, error) {
	if rule.Principal() != User {
		return Caller{}, nil
	}
	caller, err := api.authenticate(r)
	if err != nil {
		return Caller{}, err
	}
	if err := api.limiter.Take(caller.OrgID.String()+" "+caller.Actor, time.Now()); err != nil {
		return Caller{}, err
	}
	if err := api.origins.checkMutation(r, caller); err != nil {
		return Caller{}, err
	}
	if !caller.Is(rule.Role()) {
		return Caller{}, fault.New(fault.Forbidden, "this needs the role %s, and %s has %s", rule.Role(), caller.Actor, caller.Role).
			WithHint("ask an admin of the org %s", caller.OrgSlug)
	}
	return caller, nil
}

func (api *API) authenticate(r *http.Request) (Caller, error) {
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

// refuse answers a request that was not let in.
func (api *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if fault.Is(err, fault.Unauthenticated) {
		w.Header().Set("WWW-Authenticate", challenge)
	}
	api.rest.WriteError(w, r, err)
}

// plainError is how a page's error looks when nobody renders it better.
func plainError(w http.ResponseWriter, _ *http.Request, p *rest.Problem) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(p.Status)
	fmt.Fprintf(w, "%d %s\n\n%s\n", p.Status, p.Title, p.Detail)
	if p.Hint != "" {
		fmt.Fprintf(w, "%s\n", p.Hint)
	}
	fmt.Fprintf(w, "\nrequest %s\n", p.RequestID)
}
