package rest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Problem is the form of every error over HTTP (application/problem+json, RFC 9457).
type Problem struct {
	Title     string          `json:"title" doc:"What the status means"`
	Status    int             `json:"status" doc:"HTTP status"`
	Kind      string          `json:"kind" doc:"The kind of error" example:"not_found"`
	Detail    string          `json:"detail" doc:"What went wrong, and where"`
	Hint      string          `json:"hint,omitempty" doc:"What to do next"`
	RequestID string          `json:"request_id,omitempty" doc:"Quote it when you ask for help"`
	Errors    []fault.Problem `json:"errors,omitempty" doc:"What is wrong with the input, place by place: the first 100"`

	header http.Header // additional headers of the answer
}

func (p *Problem) Error() string           { return p.Detail }
func (p *Problem) GetStatus() int          { return p.Status }
func (p *Problem) GetHeaders() http.Header { return p.header }

// ContentType returns the media type of an error, for huma.
func (p *Problem) ContentType(string) string { return "application/problem+json" }

// Fault converts a problem that a client received back to an error.
func (p *Problem) Fault() *fault.Error {
	return &fault.Error{Kind: kindOf(p.Status), Message: p.Detail, Hint: p.Hint, Problems: p.Errors}
}

// ErrPreconditionFailed is the error of a write whose If-Match names a former state. Its status is 412; that of other
// conflicts is 409.
var ErrPreconditionFailed = errors.New("the state named in If-Match is not the current one")

// statuses maps the kinds of faults to HTTP statuses. Over the wire, a kind is its name.
var statuses = [...]int{
	fault.Internal:        http.StatusInternalServerError,
	fault.Invalid:         http.StatusUnprocessableEntity,
	fault.Unauthenticated: http.StatusUnauthorized,
	fault.Forbidden:       http.StatusForbidden,
	fault.NotFound:        http.StatusNotFound,
	fault.Conflict:        http.StatusConflict,
	fault.TooLarge:        http.StatusRequestEntityTooLarge,
	fault.TooMany:         http.StatusTooManyRequests,
	fault.Unavailable:     http.StatusServiceUnavailable,
}

// kindOf returns the kind for a status, including those that huma and net/http set themselves.
func kindOf(status int) fault.Kind {
	for kind, s := range statuses {
		if s == status {
			return fault.Kind(kind)
		}
	}

	switch {
	case status == http.StatusMethodNotAllowed:
		return fault.NotFound
	case status == http.StatusPreconditionFailed:
		return fault.Conflict
	case status == http.StatusRequestTimeout, status == http.StatusBadGateway, status == http.StatusGatewayTimeout:
		return fault.Unavailable
	case status < 500:
		return fault.Invalid
	}
	return fault.Internal
}

const tookTooLong = "the request took too long"

// ProblemOf converts an error to HTTP; nothing else does. The answer to an unclassified error reveals nothing about it.
func ProblemOf(err error) *Problem {
	var p *Problem
	if errors.As(err, &p) {
		return p
	}
	p = &Problem{Status: http.StatusInternalServerError}
	var f *fault.Error
	switch tooLarge := (*http.MaxBytesError)(nil); {
	case errors.As(err, &f) && f.Kind != fault.Internal:
		p.Status, p.Detail, p.Hint, p.Errors = statuses[f.Kind], f.Error(), f.Hint, f.Problems
		if errors.Is(err, ErrPreconditionFailed) {
			p.Status = http.StatusPreconditionFailed
		}
	case errors.As(err, &tooLarge):
		p.Status, p.Detail = http.StatusRequestEntityTooLarge,
			largerThan(tooLarge.Limit)
	case errors.Is(err, context.DeadlineExceeded):
		p.Status, p.Detail, p.Hint = http.StatusServiceUnavailable, tookTooLong,
			"try again, or ask for less at once; /readyz says whether the database answers"
	case pg.Away(err):
		p.Status, p.Detail, p.Hint = http.StatusServiceUnavailable, "a service that the server needs does not respond",
			"try again in a moment; a request with an idempotency key takes effect only once"
	case pg.RefusesLogin(err):
		p.Status, p.Detail = http.StatusServiceUnavailable, "the database refuses this server's login"
		p.Hint = "nothing of the request was stored; whoever runs the server has to mend it: /readyz says how"
	case pg.Refusing(err) != "":
		p.Status, p.Detail = http.StatusServiceUnavailable, pg.Refusing(err)
		p.Hint = "nothing of the request was stored; whoever runs the server has to mend it"
	default:
		p.Detail, p.Hint = unclassified()
	}

	var wait *retryError
	if errors.As(err, &wait) {
		seconds := max(1, int64((wait.after+time.Second-1)/time.Second))
		p.header = http.Header{"Retry-After": {strconv.FormatInt(seconds, 10)}}
	}
	return p
}

func largerThan(limit int64) string {
	return fmt.Sprintf("the request's body is larger than %d bytes", limit)
}

// unclassified returns the detail and the hint for errors that are not classified.
func unclassified() (detail, hint string) {
	return "something went wrong on the server", "the server's log has details under this request id"
}

// RetryAfter returns err with a Retry-After header for its answer.
func RetryAfter(err error, d time.Duration) error { return &retryError{err, d} }

type retryError struct {
	error
	after time.Duration
}

func (e *retryError) Unwrap() error { return e.error }

// problem returns the problem of an error, and logs the error if it is the server's fault.
func (a *API) problem(ctx context.Context, err error) *Problem {
	p, explained := ProblemOf(err).in(ctx), false
	if p.Status >= http.StatusInternalServerError && a.explain != nil {
		if why := a.explain(ctx, err); why != nil && p.Status == http.StatusInternalServerError {
			p, explained = ProblemOf(why).in(ctx), true
		}
	}

	switch {
	case clientGone(ctx, err):
		a.log.LogAttrs(ctx, slog.LevelDebug, "client gone", slog.String("request_id", p.RequestID))
	case p.Status == http.StatusInternalServerError:
		a.log.LogAttrs(ctx, slog.LevelError, "request failed", slog.String("request_id", p.RequestID),
			slog.Any("error", err))
	case pg.Away(err), explained:
		a.log.LogAttrs(ctx, slog.LevelWarn, "request could not be served",
			slog.String("request_id", p.RequestID), slog.Any("error", err))
	}
	return p
}

// Problem returns the problem that answers an error, and logs the error if it is the server's fault.
func (a *API) Problem(r *http.Request, err error) *Problem { return a.problem(r.Context(), err) }

// ProblemIn is Problem for a part of a request, whose context it gets.
func (a *API) ProblemIn(ctx context.Context, err error) *Problem { return a.problem(ctx, err) }

// WriteError answers a request to a plain route with an error.
func (a *API) WriteError(w http.ResponseWriter, r *http.Request, err error) {
	WriteProblem(w, r, a.Problem(r, err))
}

// WriteProblem answers a request with a problem.
func WriteProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	answerLate(r.Context())
	p = p.in(r.Context())
	for name, values := range p.header {
		w.Header()[name] = values
	}
	w.Header().Set("Content-Type", p.ContentType(""))
	w.WriteHeader(p.Status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(p) // an error means that the client is gone
}

// mostFaults is how many places that are wrong an answer lists: a small request can be wrong in a million.
const mostFaults = 100

// in returns a copy of p, completed with what follows from its status and the request.
func (p *Problem) in(ctx context.Context) *Problem {
	c := *p
	c.Errors = c.Errors[:min(len(c.Errors), mostFaults)]
	c.Title = http.StatusText(c.Status)
	c.Kind = kindOf(c.Status).String()
	c.RequestID = RequestID(ctx)
	return &c
}

// useProblems makes huma use Problems for its own errors (validation, bodies, content types), in answers and in the
// OpenAPI document. huma has only package variables for that.
var useProblems = sync.OnceFunc(func() {
	useWording()
	// encoding/json takes a field in any spelling, also beside the one that was validated.
	huma.ValidateStrictCasing = true
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return newProblem(context.Background(), status, msg, errs)
	}
	huma.NewErrorWithContext = func(hc huma.Context, status int, msg string, errs ...error) huma.StatusError {
		return newProblem(hc.Context(), status, msg, errs)
	}
})

func newProblem(ctx context.Context, status int, msg string, errs []error) *Problem {
	if status == http.StatusInternalServerError && msg == "cannot read request body" { // huma blames the server
		status, msg = http.StatusBadRequest, "the request's body was cut off or is broken"
	}
	if limit := 0; status == http.StatusRequestEntityTooLarge {
		if _, err := fmt.Sscanf(msg, "request body is too large limit=%d bytes", &limit); err == nil {
			msg = largerThan(int64(limit) - 1) // see Register
		}
	}
	p := &Problem{Status: status, Detail: msg}
	for _, err := range errs {
		var detailed huma.ErrorDetailer
		var tooLarge *http.MaxBytesError
		switch {
		case err == nil:
		case errors.As(err, &tooLarge):
			return ProblemOf(err).in(ctx)
		case errors.As(err, &detailed):
			// The value is not repeated, because it may be a secret.
			d := detailed.ErrorDetail()
			p.Errors = append(p.Errors, worded(fault.Problem{Location: d.Location, Message: d.Message}))
		case status < 500:
			p.Errors = append(p.Errors, fault.Problem{Message: err.Error()})
		}
	}

	if len(p.Errors) > 0 && msg == "validation failed" {
		p.Detail = summary(p.Errors)
	}
	return p.in(ctx)
}
