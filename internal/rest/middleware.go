package rest

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/late"
)

// RequestIDHeader carries the id of a request in both directions.
const RequestIDHeader = "X-Request-Id"

// TokenExpires is the header of answers that says when the caller's token ends.
const TokenExpires = "Dagctl-Token-Expires"

type requestIDKey struct{}

// RequestID returns the id of the request that ctx belongs to.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// goodRequestID matches ids that a client may choose: they cannot forge a line of a log or a header.
var goodRequestID = late.Pattern(`^[A-Za-z0-9._-]{1,64}$`)

func (a *API) withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(RequestIDHeader)
		if !goodRequestID.MatchString(id) {
			id = uuid.Must(uuid.NewV7()).String()
		}
		w.Header().Set(RequestIDHeader, id)
		// The date is the database's, by which everything is dated that answers tell of.
		w.Header().Set("Date", clock.Now().UTC().Format(http.TimeFormat))
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id)))
	})
}

// observe counts and times requests and logs them at debug level. The mux stores the matched pattern in r, so nothing
// between observe and the mux may replace r. Queries are not logged, because they may hold a sign-in token.
func (a *API) observe(m *metrics, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		answer := &answer{ResponseWriter: w}
		answer.late = func() time.Duration { return a.delay.wait(r.Context()) }
		m.inFlight.Inc()
		defer func() {
			took := time.Since(start) - answer.waited
			m.inFlight.Dec()
			m.done(r, answer.status, took)
			a.log.LogAttrs(r.Context(), slog.LevelDebug, "request",
				slog.String("request_id", RequestID(r.Context())),
				slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.String("route", r.Pattern),
				slog.Int("status", answer.status), slog.Int64("bytes", answer.bytes), slog.Duration("took", took))
		}()
		next.ServeHTTP(answer, r)
	})
}

// answer records the status and size of an answer, and has refusals wait. Unwrap gives http.ResponseController access
// to the connection.
type answer struct {
	http.ResponseWriter
	status int
	bytes  int64
	late   func() time.Duration // waits before an answer 429
	waited time.Duration
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
	if status == http.StatusTooManyRequests {
		a.waited += a.late()
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

func (a *API) recoverPanics(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			v := recover()
			if v == nil {
				return
			}
			if v == http.ErrAbortHandler {
				panic(v)
			}

			a.log.LogAttrs(r.Context(), slog.LevelError, "request panicked",
				slog.String("request_id", RequestID(r.Context())), slog.String("route", r.Pattern),
				slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			if answered, ok := w.(*answer); ok && answered.status != 0 {
				panic(http.ErrAbortHandler) // half an answer must not look complete
			}
			p := &Problem{Status: http.StatusInternalServerError}
			p.Detail, p.Hint = unclassified()
			WriteProblem(w, r, p)
		}()
		next.ServeHTTP(w, r)
	})
}

// securityHeaders sets the strictest policy. Pages relax it with PagePolicy.
func securityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin") // under no-referrer a browser posts our own forms with Origin: null
		h.Set("X-Frame-Options", "DENY")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		if r.TLS != nil {
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		next.ServeHTTP(w, r)
	})
}

// PagePolicy is the Content-Security-Policy of HTML pages: their own files, no inline script, no other host.
const PagePolicy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action " +
	"'self'; frame-ancestors 'none'"

// refuseMalformed refuses requests whose path, query or headers have text that PostgreSQL cannot store; jsonFormat does
// so for bodies. Otherwise such text would surface as a failed statement much later.
func (a *API) refuseMalformed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		where := ""
		if !storable(r.URL.Path) {
			where = "path"
		} else if query, err := url.QueryUnescape(r.URL.RawQuery); err != nil || !storable(query) {
			where = "query"
		} else {
			for _, values := range r.Header {
				if !storable(strings.Join(values, "")) {
					where = "headers"
				}
			}
		}

		if where != "" {
			WriteProblem(w, r, &Problem{Status: http.StatusBadRequest,
				Detail: "the request's " + where + " is not valid UTF-8 text"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// storable reports whether PostgreSQL's text type can store s.
func storable(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
