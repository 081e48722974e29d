package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
)

// log collects what an API logs.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newTestAPI(t *testing.T, cfg Config) (*API, *log) {
	t.Helper()
	lines := &log{}
	cfg.Logger = slog.New(slog.NewTextHandler(lines, nil))
	api, err := New(cfg)
	require.NoError(t, err)
	return api, lines
}

type item struct {
	Name  string `json:"name" minLength:"2"`
	Count int    `json:"count" minimum:"1"`
}

type itemInput struct{ Body item }
type itemOutput struct{ Body item }

// failing registers POST /item, which answers with err, or repeats the item.
func failing(api *API, err error) {
	Register(api, huma.Operation{OperationID: "item", Method: "POST", Path: "/item"},
		func(_ context.Context, in *itemInput) (*itemOutput, error) { return &itemOutput{in.Body}, err })
}

func send(api *API, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header[http.CanonicalHeaderKey(header[i])] = []string{header[i+1]}
	}
	w := httptest.NewRecorder()
	api.Handler().ServeHTTP(w, r)
	return w
}

func problemIn(t *testing.T, w *httptest.ResponseRecorder) Problem {
	t.Helper()
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), w.Body.String())
	var p Problem
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	require.NoError(t, dec.Decode(&p))
	require.Equal(t, w.Code, p.Status)
	require.Equal(t, http.StatusText(w.Code), p.Title)
	require.NotEmpty(t, p.Detail)
	require.Equal(t, w.Header().Get(RequestIDHeader), p.RequestID)
	return p
}

func TestErrorsBecomeProblems(t *testing.T) {
	t.Parallel()
	problems := []fault.Problem{{Location: "dag.yaml:3:7", Message: "no such job", Suggestion: "rank"}}
	for _, tc := range []struct {
		name string
		err  error
		want Problem
	}{
		{"invalid", &fault.Error{Kind: fault.Invalid, Message: "2 faults", Problems: problems},
			Problem{Status: 422, Kind: "invalid", Detail: "2 faults", Errors: problems}},
		{"unauthenticated", fault.New(fault.Unauthenticated, "who?"),
			Problem{Status: 401, Kind: "unauthenticated", Detail: "who?"}},
		{"forbidden", fault.New(fault.Forbidden, "no"), Problem{Status: 403, Kind: "forbidden", Detail: "no"}},
		{"not found", fault.New(fault.NotFound, "no DAG %q", "x").WithHint("dagctl status"),
			Problem{Status: 404, Kind: "not_found", Detail: `no DAG "x"`, Hint: "dagctl status"}},
		{"conflict, wrapped", fmt.Errorf("deploy x: %w", fault.New(fault.Conflict, "moved on")),
			Problem{Status: 409, Kind: "conflict", Detail: "moved on"}},
		{"stale If-Match", CheckIfMatch(`"1"`, `"2"`), Problem{Status: 412, Kind: "conflict",
			Detail: `the state named in If-Match is not the current one, which is "2"`,
			Hint:   "read it again, then repeat the change with the new ETag"}},
		{"too large", fault.New(fault.TooLarge, "big"), Problem{Status: 413, Kind: "too_large", Detail: "big"}},
		{"too many", fault.New(fault.TooMany, "slow"), Problem{Status: 429, Kind: "too_many", Detail: "slow"}},
		{"unavailable", fault.New(fault.Unavailable, "later"),
			Problem{Status: 503, Kind: "unavailable", Detail: "later"}},
		{"timeout", fmt.Errorf("query: %w", context.DeadlineExceeded),
			Problem{Status: 503, Kind: "unavailable", Detail: "the request took too long",
				Hint: "try again, or ask for less at once; /readyz says whether the database answers"}},
		{"the database went away", fmt.Errorf("look up token of hunter2: %w", io.ErrUnexpectedEOF),
			Problem{Status: 503, Kind: "unavailable", Detail: "a service that the server needs does not respond",
				Hint: "try again in a moment; a request with an idempotency key takes effect only once"}},
		{"the database's disk is full", fmt.Errorf("store hunter2: %w", &pgconn.PgError{Code: "53100"}),
			Problem{Status: 503, Kind: "unavailable", Detail: "the disk of the database is full",
				Hint: "nothing of the request was stored; whoever runs the server has to mend it"}},
		{"unclassified", errors.New(`password "hunter2" rejected by db-7`),
			Problem{Status: 500, Kind: "internal", Detail: "something went wrong on the server",
				Hint: "the server's log has details under this request id"}},
		{"internal by name", fault.New(fault.Internal, "hunter2"),
			Problem{Status: 500, Kind: "internal", Detail: "something went wrong on the server",
				Hint: "the server's log has details under this request id"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			api, lines := newTestAPI(t, Config{})
			failing(api, tc.err)
			got := problemIn(t, send(api, "POST", "/item", `{"name":"ab","count":1}`, RequestIDHeader, "r-1"))
			tc.want.Title, tc.want.RequestID = http.StatusText(tc.want.Status), "r-1"
			require.Equal(t, tc.want, got)
			require.Equal(t, tc.want.Status == 500, strings.Contains(lines.String(), "request failed"),
				"only the server's own faults are logged: %s", lines)

			if tc.want.Status == 500 {
				require.Equal(t, 1, strings.Count(lines.String(), "hunter2"), "logged once, in full")
				require.Contains(t, lines.String(), "request_id=r-1")
			}

			if tc.want.Status != 412 { // HTTP has two statuses for the kind Conflict
				require.Equal(t, fault.KindOf(ProblemOf(tc.err).Fault()), got.Fault().Kind)
			}
		})
	}
}

func TestHostileBodies(t *testing.T) {
	t.Parallel()
	api, lines := newTestAPI(t, Config{})
	failing(api, nil)
	for _, tc := range []struct {
		name, body string
		status     int
		errors     []fault.Problem
	}{
		{"good", `{"name":"ab","count":1}`, 200, nil},
		{"none", ``, 400, nil},
		{"no JSON", `{"name":`, 400, []fault.Problem{{Location: "body", Message: "unexpected end of JSON input"}}},
		{"two documents", `{"name":"ab","count":1}{}`,
			400, []fault.Problem{{Location: "body", Message: "invalid character '{' after top-level value"}}},
		{"every fault at once", `{"name":"a","count":0,"more":true}`, 422, []fault.Problem{
			{Location: "body.name", Message: "must have 2 or more characters"},
			{Location: "body.count", Message: "must be at least 1"},
			{Location: "body.more", Message: "is no field of this request"}}},
		{"wrong type", `{"name":["secret"],"count":1}`, 422, nil},
		{"not UTF-8", "{\"name\":\"a\xff\",\"count\":1}",
			400, []fault.Problem{{Location: "body", Message: "the body is not valid UTF-8"}}},
		{"NUL", `{"name":"a\u0000b","count":1}`, 400,
			[]fault.Problem{{Location: "body", Message: "the body holds the character U+0000, which no text may"}}},
		{"half of a character", `{"name":"a\ud800b","count":1}`, 400, []fault.Problem{{Location: "body",
			Message: `the body holds \ud800, half of a surrogate pair without the other one, which is no character`}}},
		{"a number that nobody can compute with", `{"name":"a",` + "\n" + `"count":1e40000000}`, 400,
			[]fault.Problem{{Location: "body", Message: "the body: line 2, column 9: the number 1e40000000 is " +
				"refused: its exponent is not between -1000 and 1000"}}},
		{"a number beyond a DOUBLE", `{"name":"a",` + "\n" + `"count":1e999}`, 400,
			[]fault.Problem{{Location: "body", Message: "the body: line 2, column 9: the number 1e999 is refused: it " +
				"is larger than a DOUBLE holds"}}},
		{"a field in another spelling", `{"name":"ab","count":1,"COUNT":0}`, 422,
			[]fault.Problem{{Location: "body.COUNT", Message: "is no field of this request"}}},
		{"a field twice", `{"name":"ab",` + "\n" + ` "count":0, "count" : 1}`, 400,
			[]fault.Problem{{Location: "body", Message: `the body: line 2, column 13: the field "count" appears twice`}}},
		{"a backslash and u0000", `{"name":"a\\u0000b","count":1}`, 200, nil},
		{"too deep", strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000), 400, nil},
		{"as large as may be", `{"name":"ab","count":1}` + strings.Repeat(" ", DefaultMaxBody-23), 200, nil},
		{"a byte too large", `{"name":"ab","count":1}` + strings.Repeat(" ", DefaultMaxBody-22), 413, nil},
		{"too large", `{"name":"` + strings.Repeat("x", DefaultMaxBody) + `","count":1}`, 413, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := send(api, "POST", "/item", tc.body, "Content-Type", "application/json")
			require.Equal(t, tc.status, w.Code, w.Body.String())

			if tc.status == 200 {
				return
			}
			require.NotContains(t, w.Body.String(), "secret", "values are not echoed")

			p := problemIn(t, w)
			if tc.status == 413 {
				require.Equal(t, "the request's body is larger than 1048576 bytes", p.Detail)
			}
			if tc.errors != nil {
				require.ElementsMatch(t, tc.errors, p.Errors)
			}
		})
	}
	require.Empty(t, lines.String(), "nothing of a client's making is an error of the server")
}

// However many places of a request are wrong, its answer stays short.
func TestAnAnswerListsSomeFaults(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	failing(api, nil)
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprintf(`"f%d":1`, i)
	}
	p := problemIn(t, send(api, "POST", "/item", `{"name":"ab","count":1,`+strings.Join(many, ",")+`}`, "Content-Type",
		"application/json"))
	require.Len(t, p.Errors, 100)
	require.Contains(t, p.Detail, "5000 places are wrong")
}

// A parameter that is misspelt is no filter, so that its request would answer with everything.
func TestUnknownQueryParameters(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	type input struct {
		PageInput
		Status string `query:"status"`
	}
	list := func(_ context.Context, in *input) (*struct{ Body string }, error) {
		return &struct{ Body string }{in.Status}, nil
	}
	Register(api, huma.Operation{OperationID: "things", Method: "GET", Path: "/things"}, list)
	Register(api, WithAnyQuery(huma.Operation{OperationID: "hook", Method: "GET", Path: "/hook"}), list)
	failing(api, nil)

	for query, want := range map[string]struct {
		status     int
		says, hint string
	}{
		"status=a&limit=3&cursor=": {200, "", ""},
		"":                         {200, "", ""},
		"statsu=a":                 {422, "statsu is no parameter of this request", `did you mean "status"?`},
		"Status=a":                 {422, "Status is no parameter of this request", `did you mean "status"?`},
		"x=1":                      {422, "x is no parameter", "its parameters are cursor, limit, status"},
		"x=1&limits=2":             {422, "2 places are wrong", `did you mean "limit"?`},
	} {
		w := send(api, "GET", "/things?"+query, "")
		require.Equal(t, want.status, w.Code, query)
		if want.status == 200 {
			continue
		}
		p := problemIn(t, w)
		require.Contains(t, p.Detail, want.says, query)
		require.Equal(t, want.hint, p.Hint, query)
		require.NotEmpty(t, p.RequestID)
		require.True(t, strings.HasPrefix(p.Errors[0].Location, "query."), query)
	}
	require.Equal(t, 200, send(api, "GET", "/hook?statsu=a", "").Code)
	w := send(api, "POST", "/item?force=1", `{"name": "ab", "count": 1}`, "Content-Type", "application/json")
	require.Equal(t, 422, w.Code)
	require.Equal(t, "leave it out: the request has no query", problemIn(t, w).Hint)
}

func TestMaxBodyOfAnOperation(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	Register(api, huma.Operation{OperationID: "deploy", Method: "POST", Path: "/deploy", MaxBodyBytes: 32 << 20},
		func(_ context.Context, in *itemInput) (*struct{}, error) { return nil, nil })
	api.HandlePlain("POST /page", time.Second, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			api.WriteError(w, r, fmt.Errorf("read form: %w", err))
		}
	})
	big := strings.Repeat("x", 2<<20)
	require.Equal(t, 204, send(api, "POST", "/deploy", `{"name":"`+big+`","count":1}`).Code)
	w := send(api, "POST", "/page", "a="+big, "Content-Type", "application/x-www-form-urlencoded")
	require.Equal(t, "too_large", problemIn(t, w).Kind)
}

func TestHostileRequestLines(t *testing.T) {
	t.Parallel()
	api, lines := newTestAPI(t, Config{})
	type input struct {
		Name  string `path:"name"`
		Limit int    `query:"limit" minimum:"1"`
		Match string `header:"If-Match"`
	}

	Register(api, huma.Operation{OperationID: "get", Method: "GET", Path: "/things/{name}"},
		func(context.Context, *input) (*struct{}, error) { return nil, nil })
	for _, tc := range []struct {
		name, method, path string
		header             []string
		status             int
	}{
		{"good", "GET", "/things/%C3%A9?limit=3", nil, 204},
		{"path with NUL", "GET", "/things/a%00b", nil, 400},
		{"path not UTF-8", "GET", "/things/%ff", nil, 400},
		{"query with NUL", "GET", "/things/a?q=%00", nil, 400},
		{"query not UTF-8", "GET", "/things/a?q=%ff", nil, 400},
		{"query not an encoding", "GET", "/things/a?q=%zz", nil, 400},
		{"header not UTF-8", "GET", "/things/a", []string{"If-Match", "\xff"}, 400},
		{"bad parameter", "GET", "/things/a?limit=0", nil, 422},
		{"no number", "GET", "/things/a?limit=ten", nil, 422},
		{"no route", "GET", "/nothing", nil, 404},
		{"other method", "DELETE", "/things/a", nil, 405},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := send(api, tc.method, tc.path, "", tc.header...)
			require.Equal(t, tc.status, w.Code, w.Body.String())

			if tc.status != 204 {
				problemIn(t, w)
			}
			if tc.status == 405 {
				require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
			}
		})
	}
	require.Empty(t, lines.String())
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	for _, good := range []string{"a", "01J-x_y.z", strings.Repeat("a", 64)} {
		require.Equal(t, good, send(api, "GET", "/", "", RequestIDHeader, good).Header().Get(RequestIDHeader))
	}
	seen := map[string]bool{}
	for _, bad := range []string{"", "a b", "a\r\nSet-Cookie: x=1", "a\nb", "é", `"`, "<script>",
		strings.Repeat("a", 65)} {
		w := send(api, "GET", "/", "", RequestIDHeader, bad)
		id := w.Header().Get(RequestIDHeader)
		require.Regexp(t, `^[0-9a-f-]{36}$`, id)
		require.Empty(t, w.Header().Get("Set-Cookie"))
		require.False(t, seen[id])
		seen[id] = true
	}
}

func TestPanics(t *testing.T) {
	t.Parallel()
	api, lines := newTestAPI(t, Config{})
	Register(api, huma.Operation{OperationID: "panic", Method: "GET", Path: "/panic"},
		func(context.Context, *struct{}) (*struct{}, error) { panic("hunter2") })
	api.HandlePlain("GET /half", time.Second, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("half"))
		panic("late")
	})
	w := send(api, "GET", "/panic", "")
	require.NotContains(t, w.Body.String(), "hunter2")
	require.Equal(t, 500, problemIn(t, w).Status)
	require.Equal(t, 1, strings.Count(lines.String(), "panic=hunter2"))
	require.PanicsWithValue(t, http.ErrAbortHandler, func() {
		send(api, "GET", "/half", "")
	}, "half an answer breaks the connection")
}

func TestTimeouts(t *testing.T) {
	t.Parallel()
	api, lines := newTestAPI(t, Config{Timeout: time.Millisecond})
	wait := func(ctx context.Context, _ *struct{}) (*struct{}, error) {
		if _, limited := ctx.Deadline(); !limited {
			return nil, nil
		}
		<-ctx.Done()
		return nil, fmt.Errorf("wait: %w", ctx.Err())
	}
	Register(api, huma.Operation{OperationID: "slow", Method: "GET", Path: "/slow"}, wait)
	Register(api, WithTimeout(huma.Operation{OperationID: "endless", Method: "GET", Path: "/endless"}, 0), wait)
	require.Equal(t, 503, problemIn(t, send(api, "GET", "/slow", "")).Status)
	require.Equal(t, 204, send(api, "GET", "/endless", "").Code)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	api.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/slow", nil).WithContext(gone))
	require.Empty(t, lines.String(), "a client that left is nobody's error")
}

func TestOpenAPIDocument(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{Version: "1.2.3"})
	failing(api, nil)
	api.HandlePlain("GET /openapi.json", time.Second, func(w http.ResponseWriter, r *http.Request) {
		require.NoError(t, api.ServeOpenAPI(w, r))
	})
	w := send(api, "GET", "/openapi.json", "")
	require.Equal(t, "application/openapi+json", w.Header().Get("Content-Type"))

	var doc struct {
		OpenAPI string
		Info    struct{ Title, Version string }
		Paths   map[string]map[string]struct {
			Responses map[string]struct{ Content map[string]any }
		}
		Components struct {
			Schemas map[string]struct{ Properties map[string]any }
		}
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &doc))
	require.Equal(t, "3.1.0", doc.OpenAPI)
	require.Equal(t, "dagctl", doc.Info.Title)
	require.Equal(t, "1.2.3", doc.Info.Version)
	require.Contains(t, doc.Paths["/item"]["post"].Responses["default"].Content, "application/problem+json")
	require.Contains(t, doc.Components.Schemas["Problem"].Properties, "hint")
	require.NotContains(t, doc.Components.Schemas, "ErrorModel")
	require.NotContains(t, w.Body.String(), "://example.com")
	require.Equal(t, 304, send(api, "GET", "/openapi.json", "", "If-None-Match", w.Header().Get("ETag")).Code)
	for _, path := range []string{"/docs", "/openapi.yaml", "/schemas/item.json"} {
		require.Equal(t, 404, send(api, "GET", path, "").Code, path)
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	type input struct {
		ID string `path:"id"`
	}
	type output struct{ Body string }
	for _, action := range []string{"retry", "cancel"} {
		Register(api, huma.Operation{OperationID: action, Method: "POST", Path: "/tasks/{id}:" + action},
			func(_ context.Context, in *input) (*output, error) { return &output{action + " " + in.ID}, nil })
	}
	require.JSONEq(t, `"retry a:b"`, send(api, "POST", "/tasks/a:b:retry", "").Body.String())
	require.JSONEq(t, `"cancel 7"`, send(api, "POST", "/tasks/7:cancel", "").Body.String())
	for _, path := range []string{"/tasks/7", "/tasks/7:", "/tasks/7:skip", "/tasks/:skip"} {
		require.Equal(t, 404, problemIn(t, send(api, "POST", path, "")).Status, path)
	}
}

func TestMetricsAreByRoute(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	api, _ := newTestAPI(t, Config{Metrics: registry})
	failing(api, nil)
	for range 3 {
		send(api, "POST", "/item", `{}`)
	}
	send(api, "GET", "/random-1", "")
	send(api, "GET", "/random-2", "")
	families, err := registry.Gather()
	require.NoError(t, err)

	counts := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "dagctl_http_requests_total" {
			for _, m := range f.GetMetric() {
				counts[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"POST /item 422": 3, "none 404": 2}, counts)
}

func TestSecurityHeaders(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	h := send(api, "GET", "/", "").Header()
	require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"))
	require.Equal(t, "DENY", h.Get("X-Frame-Options"))
	require.Equal(t, "no-store", h.Get("Cache-Control"))
	require.Equal(t, "default-src 'none'; frame-ancestors 'none'", h.Get("Content-Security-Policy"))
}

// The date of an answer is that of the clock by which its content is dated.
func TestAnswersAreDated(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	date, err := http.ParseTime(send(api, "GET", "/nowhere", "").Header().Get("Date"))
	require.NoError(t, err)
	require.WithinDuration(t, clock.Now(), date, time.Minute)
}
