// Package rest connects net/http, huma and the errors of package fault. It does not know callers: package authz gives
// every route a rule and registers it here.
//
// Vocabulary: an API is a set of routes on one mux with one OpenAPI document. An operation is a route in that document,
// which reads and writes JSON. A plain route (pages, metrics, streams) is not in it. A Problem is the form of every
// error, RFC 9457's problem+json. It owns no tables.
package rest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/prometheus/client_golang/prometheus"
)

// Limits of a request, unless the Config or the operation sets others.
const (
	DefaultTimeout  = 30 * time.Second
	DefaultMaxBody  = 1 << 20 // bytes
	bodyReadTimeout = 30 * time.Second
	// grace is how long after its timeout a request may still occupy its connection.
	grace = 30 * time.Second
)

// Config has the settings of an API. The zero value is usable.
type Config struct {
	Version string                // of dagctl, shown in the OpenAPI document
	Timeout time.Duration         // of one request; DefaultTimeout when zero
	Logger  *slog.Logger          // slog.Default() when nil
	Metrics prometheus.Registerer // none when nil
	// PageError writes what is wrong with an address as a page, for people who follow a link to a page that there is
	// not. Nil: they get a problem, as programs do.
	PageError func(w http.ResponseWriter, r *http.Request, p *Problem)
	// Explain returns what is wrong with the server that makes it fail by an error; nil: it does not know. It is asked
	// about errors that are not the caller's. Nil: nothing is explained.
	Explain func(ctx context.Context, err error) error
}

// API is a set of routes.
type API struct {
	huma    huma.API
	mux     *http.ServeMux
	metrics *metrics
	log     *slog.Logger
	timeout time.Duration
	grace   time.Duration

	pageError func(w http.ResponseWriter, r *http.Request, p *Problem)
	explain   func(ctx context.Context, err error) error

	delay refusalDelay

	document func() (openAPI, error) // encoded at the first request, when every route is registered
}

// New returns an API without routes.
func New(cfg Config) (*API, error) {
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("new API: timeout %s is negative", cfg.Timeout)
	}
	useProblems()
	a := &API{
		mux:     http.NewServeMux(),
		log:     cmp.Or(cfg.Logger, slog.Default()),
		timeout: cmp.Or(cfg.Timeout, DefaultTimeout),
		grace:   grace,

		pageError: cfg.PageError,
		explain:   cfg.Explain,
	}

	hc := huma.DefaultConfig("dagctl", cmp.Or(cfg.Version, "dev"))
	hc.DocsPath = ""    // huma's page loads its scripts from another host
	hc.OpenAPIPath = "" // ServeOpenAPI serves it, on a route with a rule
	hc.SchemasPath = ""
	hc.CreateHooks = nil // no $schema links in answers: their URL would come from the Host header
	hc.Components.Schemas = huma.NewMapRegistry("#/components/schemas/", schemaName)
	hc.Formats = map[string]huma.Format{"application/json": jsonFormat, "json": jsonFormat}
	a.huma = humago.New(&actionMux{a.mux, map[string]map[string]http.HandlerFunc{}}, hc)
	a.document = sync.OnceValues(a.encodeDocument)

	var err error
	if a.metrics, err = newMetrics(cfg.Metrics); err != nil {
		return nil, fmt.Errorf("new API: %w", err)
	}
	return a, nil
}

// Handler returns a handler of every route, including those registered later.
func (a *API) Handler() http.Handler {
	return a.HandlerOf(func(string) bool { return true })
}

// HandlerOf returns a handler of the routes whose net/http pattern is chosen. It answers requests to others as if they
// were not registered.
func (a *API) HandlerOf(chosen func(pattern string) bool) http.Handler {
	route := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { a.route(w, r, chosen) })
	return a.withRequestID(a.observe(a.metrics, a.recoverPanics(securityHeaders(a.refuseMalformed(route)))))
}

// Register adds an operation. The body is limited to DefaultMaxBody and the handler to the API's timeout, unless the
// operation sets other limits (MaxBodyBytes, WithTimeout). Its errors become Problems. A query may have the parameters
// of the input and no others, unless the operation allows it (WithAnyQuery).
func Register[I, O any](a *API, op huma.Operation, fn func(context.Context, *I) (*O, error)) {
	timeout := a.timeout
	if d, ok := op.Metadata[timeoutKey].(time.Duration); ok {
		timeout = d
	}
	if op.BodyReadTimeout == 0 {
		op.BodyReadTimeout = bodyReadTimeout
	}
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = DefaultMaxBody
	}
	if op.MaxBodyBytes > 0 {
		op.MaxBodyBytes++ // huma refuses a body of as many bytes
	}

	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}

	op.Middlewares = append(huma.Middlewares{func(hc huma.Context, next func(huma.Context)) {
		_, w := humago.Unwrap(hc)
		ctx, cancel := a.limitTime(hc.Context(), w, timeout)
		defer cancel()
		next(huma.WithContext(hc, ctx))
	}}, append(op.Middlewares, refuseUnknown)...)
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		err := checkTimes(in)
		var out *O
		if err == nil {
			out, err = fn(ctx, in)
		}
		answerLate(ctx)
		if err != nil {
			p := a.problem(ctx, err)
			if overtime(ctx, err) && p.Detail == tookTooLong {
				p.Detail = fmt.Sprintf("%s %s took longer than the %s that it may take", op.Method, op.Path, timeout)
			}
			return nil, p
		}
		return out, nil
	})
	describeRepeated[O](op)
}

// RegisterRaw adds an operation whose body or answer is a stream. fn reads at most maxBody bytes of r.Body and writes
// the answer and errors itself. The operation describes its own parameters, body and responses.
func RegisterRaw(a *API, op huma.Operation, maxBody int64, fn http.HandlerFunc) {
	timeout := a.timeout
	if d, ok := op.Metadata[timeoutKey].(time.Duration); ok {
		timeout = d
	}
	responses := map[string]*huma.Response{"200": {Description: http.StatusText(http.StatusOK)}}
	maps.Copy(responses, op.Responses)
	problem := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "")
	responses["default"] = &huma.Response{Description: "Error",
		Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problem}}}
	op.Responses = responses
	a.huma.OpenAPI().AddOperation(&op)
	a.handle(op.Method+" "+op.Path, timeout, maxBody, fn)
}

const timeoutKey = "dagctl.timeout"

// WithTimeout gives an operation a time limit of its own; zero is none, for streams. A raw one may have Transfer.
func WithTimeout(op huma.Operation, d time.Duration) huma.Operation {
	metadata := map[string]any{timeoutKey: d}
	for k, v := range op.Metadata {
		if k != timeoutKey {
			metadata[k] = v
		}
	}
	op.Metadata = metadata
	return op
}

// HandlePlain adds a route outside the OpenAPI document. The pattern is net/http's ("GET /dags/{dag}"); fn renders its
// own errors. timeout as in WithTimeout.
func (a *API) HandlePlain(pattern string, timeout time.Duration, fn http.HandlerFunc) {
	a.handle(pattern, timeout, DefaultMaxBody, fn)
}

func (a *API) handle(pattern string, timeout time.Duration, maxBody int64, fn http.HandlerFunc) {
	a.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		var cancel context.CancelFunc
		if timeout == Transfer {
			w, r, cancel = moving(w, r, a.timeout)
		} else {
			var ctx context.Context
			ctx, cancel = a.limitTime(r.Context(), w, timeout)
			r = r.WithContext(ctx)
		}
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		fn(w, r)
	})
}

// Timeout is the time limit of a request that has none of its own.
func (a *API) Timeout() time.Duration { return a.timeout }

// limitTime bounds a handler, the reading of what it reads, and the writing of its answer to a client that may never
// take it. A writer that has no deadlines, as in tests, is not bounded.
func (a *API) limitTime(
	ctx context.Context, w http.ResponseWriter, d time.Duration,
) (context.Context, context.CancelFunc) {
	conn, deadline := http.NewResponseController(w), time.Time{}
	if d > 0 {
		deadline = time.Now().Add(d + a.grace)
	}
	_ = conn.SetReadDeadline(deadline)
	_ = conn.SetWriteDeadline(deadline)
	if d <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(context.WithValue(ctx, connKey{}, lateAnswer{conn, a.grace}), d)
}

// lateAnswer gives an answer time that comes later than its request may take: what computes without an end in sight may
// heed its limit late, and the connection has no time left by then.
type lateAnswer struct {
	conn  *http.ResponseController
	grace time.Duration
}

type connKey struct{}

// answerLate gives the answer to a request whose time is over as much time as that of any other.
func answerLate(ctx context.Context) {
	if l, ok := ctx.Value(connKey{}).(lateAnswer); ok && ctx.Err() != nil {
		_ = l.conn.SetWriteDeadline(time.Now().Add(l.grace))
	}
}

// overtime reports whether a request failed because its time is over.
func overtime(ctx context.Context, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && errors.Is(ctx.Err(), context.DeadlineExceeded)
}

// route hands a request to the mux, and says in the API's own shape what the mux would say in plain text.
func (a *API) route(w http.ResponseWriter, r *http.Request, chosen func(pattern string) bool) {
	_, pattern := a.mux.Handler(r)
	if pattern != "" && chosen(pattern) {
		a.mux.ServeHTTP(w, r)
		return
	}
	refusal := refusal{header: http.Header{}}
	if pattern == "" && a.takesAnother(r, chosen) {
		a.mux.ServeHTTP(&refusal, r) // another method: the answer lists those allowed
	}

	if allow := refusal.header.Get("Allow"); allow != "" {
		w.Header().Set("Allow", allow)
	}
	p := &Problem{Status: cmp.Or(refusal.status, http.StatusNotFound),
		Detail: fmt.Sprintf("%s %s: there is no such route", r.Method, r.URL.Path)}
	if p.Status == http.StatusMethodNotAllowed {
		p.Detail = fmt.Sprintf("%s does not take %s", r.URL.Path, r.Method)
	}

	if a.pageError != nil && WantsPage(r) {
		w.Header().Set("Content-Security-Policy", PagePolicy)
		a.pageError(w, r, p.in(r.Context()))
		return
	}
	WriteProblem(w, r, p)
}

// WantsPage reports whether a request is a browser's for a page, and not a program's.
func WantsPage(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && !strings.HasPrefix(r.URL.Path, "/v1/") &&
		strings.Contains(r.Header.Get("Accept"), "text/html")
}

// takesAnother reports whether a chosen route has r's path with another method.
func (a *API) takesAnother(r *http.Request, chosen func(pattern string) bool) bool {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete} {
		other := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := a.mux.Handler(other); pattern != "" && chosen(pattern) {
			return true
		}
	}
	return false
}

// refusal catches the mux's own answer: its status and headers, not its text.
type refusal struct {
	header http.Header
	status int
}

func (f *refusal) Header() http.Header         { return f.header }
func (f *refusal) Write(b []byte) (int, error) { return len(b), nil }
func (f *refusal) WriteHeader(status int)      { f.status = status }

// NewServer wraps a handler in a server that a slow or hostile client cannot hold open. Routes bound the rest.
func NewServer(addr string, h http.Handler) *http.Server {
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
	}
}

// clientGone reports whether a request failed only because nobody waits for it any more.
func clientGone(ctx context.Context, err error) bool {
	return errors.Is(err, context.Canceled) && errors.Is(ctx.Err(), context.Canceled)
}
