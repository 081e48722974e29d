package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/httpapi"
	"github.com/dagctl/dagctl/operators/operatortest"
)

// config is a config in short.
type config map[string]any

func operator(t *testing.T, allowed ...string) operators.Operator {
	t.Helper()
	op, err := httpapi.New(operators.Options{AllowedAddresses: allowed})
	require.NoError(t, err)
	return op
}

const loopback = "127.0.0.0/8"

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// rows are all rows of an API, and page those from one on, as JSON.
const rows = 7

func page(from, most int) string {
	var list []string
	for n := from; n < min(from+most, rows); n++ {
		list = append(list, fmt.Sprintf(`{"n": %d, "big": 9007199254740993}`, n))
	}
	return "[" + strings.Join(list, ", ") + "]"
}

func allRows() []string {
	list := make([]string, rows)
	for n := range list {
		list[n] = fmt.Sprintf("'n': %d, 'big': 9007199254740993", n)
	}
	return list
}

// number is a parameter of a request.
func number(r *http.Request, name string) int {
	n, _ := strconv.Atoi(r.URL.Query().Get(name))
	return n
}

// api is a server whose pages are found in all ways.
func api(t *testing.T) *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/link", func(w http.ResponseWriter, r *http.Request) {
		at := number(r, "at")
		w.Header().Add("Link", `</link?at=0>; title="a, <b>; rel=next"; rel="first start"`)
		if at+3 < rows {
			w.Header().Add("Link", fmt.Sprintf(`</x>; rel=prev, </link?at=%d>;Rel="nofollow NEXT"`, at+3))
		}
		fmt.Fprint(w, page(at, 3))
	})
	mux.HandleFunc("/url", func(w http.ResponseWriter, r *http.Request) {
		at, next := number(r, "at"), "null"
		if at+3 < rows {
			next = fmt.Sprintf(`"?at=%d"`, at+3)
		}
		fmt.Fprintf(w, "\xef\xbb\xbf"+`{"paging": {"next": %s, "other": [{"next": {}}]}, "data": {"items": %s}}`, next,
			page(at, 3))
	})

	mux.HandleFunc("/page", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, page(3*(number(r, "p")-1), 3))
	})
	mux.HandleFunc("/offset", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"items": %s, "more": %t}`, page(number(r, "o"), 2), number(r, "o")+2 < rows)
	})
	mux.HandleFunc("/cursor", func(w http.ResponseWriter, r *http.Request) {
		at := number(r, "c")
		next := strconv.Itoa(at + 3)
		if at+3 >= rows {
			next = `""`
		}
		fmt.Fprintf(w, `{"items": %s, "next": %s}`, page(at, 3), next)
	})
	mux.HandleFunc("/tail", func(w http.ResponseWriter, r *http.Request) { // the last page names itself for ever
		fmt.Fprintf(w, `{"items": %s, "next": "%d"}`, page(number(r, "c"), 3), min(number(r, "c")+3, rows))
	})

	mux.HandleFunc("/stuck", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"items": [], "next": %q, "more": true}`, r.URL.Query().Get("c"))
	})

	mux.HandleFunc("/asked", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"query": r.URL.RawQuery, "key": r.Header.Get("X-Key"),
			"path": r.URL.Path})
	})
	mux.HandleFunc("/none", func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.HandleFunc("/null", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, `{"items": null}`) })
	mux.HandleFunc("/text", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.Query().Get("text")) })
	mux.HandleFunc("/circle", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", fmt.Sprintf(`</circle?at=%d>; rel=next`, (number(r, "at")+1)%3))
		fmt.Fprint(w, page(number(r, "at"), 1))
	})
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Link", `<http://127.0.0.1:1/>; rel=next`)
		fmt.Fprint(w, page(0, 1))
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	return serve(t, mux.ServeHTTP)
}

func TestConforms(t *testing.T) {
	t.Parallel()
	server := api(t)
	ask := func(path string, more config) config {
		c := config{"url": server.URL + path}
		for key, value := range more {
			c[key] = value
		}
		return c
	}
	by := func(how string, more ...string) config {
		p := config{"by": how}
		for i := 0; i < len(more); i += 2 {
			p[more[i]] = more[i+1]
		}
		return p
	}
	all := func(name string, c config) operatortest.Case {
		return operatortest.Case{Name: name, Config: c, Want: map[string][]string{"out": allRows()}}
	}
	wants := func(name string, c config, rows ...string) operatortest.Case {
		return operatortest.Case{Name: name, Config: c, Want: map[string][]string{"out": append([]string{}, rows...)}}
	}
	fails := func(name string, c config, permanent bool, message string) operatortest.Case {
		return operatortest.Case{Name: name, Config: c, Fails: message, Permanent: permanent}
	}
	refused := func(name string, c config, message string) operatortest.Case {
		return operatortest.Case{Name: name, Config: c, Refused: message}
	}
	start, end := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC), time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)
	day := wants("a partition in the path and the parameters", ask("/asked", config{"headers": config{"X-Key": "k"},
		"query": config{"day": "{partition}", "from": "{start}", "a&b": []any{"x y", 12, true}}}),
		"'key': k, 'path': /asked, 'query': 'a%26b=x+y&a%26b=12&a%26b=true&"+
			"day=2026-03-01&from=2026-03-01T00%3A00%3A00Z'")
	day.Partition = &operators.PartitionRange{Key: "2026-03-01", Start: &start, End: &end}

	operatortest.Run(t, operator(t, loopback),
		all("by the Link header", ask("/link", config{"pagination": by("link")})),
		all("by a URL in the answer", ask("/url", config{"records": "data.items",
			"pagination": by("next_url", "path", "paging.next")})),
		all("by numbers", ask("/page", config{"pagination": by("page", "param", "p")})),
		all("by offsets", ask("/offset", config{"records": "items",
			"pagination": by("offset", "param", "o", "more", "more")})),
		all("by a cursor", ask("/cursor", config{"records": "items",
			"pagination": by("cursor", "param", "c", "path", "next")})),
		all("by a cursor that stays at the end", ask("/tail", config{"records": "items",
			"pagination": by("cursor", "param", "c", "path", "next")})),
		day,
		wants("columns and types", ask("/page?p=1", config{"columns": []string{"n"},
			"types": config{"n": "DECIMAL(9,1)"}}), "'n': 0.0", "'n': 1.0", "'n': 2.0"),
		wants("one object", ask("/text", config{"query": config{"text": `{"a": {"b": [1]}}`}}), "'a': {'b': [1]}"),
		operatortest.Case{Name: "endless", Config: ask("/endless", nil), Endless: true},

		fails("nothing shows the columns", ask("/none", nil), false, "nothing is known of them yet"),
		fails("a null", ask("/null", config{"records": "items"}), false,
			"nothing is known of them yet"),
		fails("no JSON", ask("/text?text=<html>", nil), false, "page 1 of "+strings.TrimPrefix(server.URL, "http://")+
			" is no JSON, at byte 0"),
		fails("half a page", ask("/text?text=[{", nil), false, "is no JSON: it ends too early"),
		fails("no list", ask("/text?text={}", config{"records": "items"}), false, `has no list at "items"`),
		fails("an error in place of a list", ask(`/text?text={"items":"x"}`, config{"records": "items"}), false,
			`has at "items" no list of rows`),
		fails("rows that are none", ask("/text?text=[1]", nil), false, "has a row that is no object, row 1"),
		fails("two values", ask("/text?text=[]{}", nil), false, "has more than one JSON value"),
		fails("an object where pages are counted", ask("/text?text={}", config{"pagination": by("page", "param", "p")}),
			false, "name the list with config.records"),
		fails("not found", ask("/nope", nil), false, "the server answered 404"),
		fails("a circle", ask("/circle", config{"pagination": by("link")}), true,
			"do not end: page 4 leads back to page 1"),
		fails("a parameter without effect", ask("/page?p=1", config{"pagination": by("page", "param", "q")}), true,
			"do not end: page 2 has the same rows as page 1"),
		fails("a cursor without effect", ask("/cursor", config{"records": "items",
			"pagination": by("cursor", "param", "d", "path", "next")}), true, "page 2 leads back to page 1"),
		fails("a page that is promised", ask("/stuck", config{"records": "items",
			"pagination": by("cursor", "param", "c", "path", "next", "more", "more")}), false,
			"page 1 of "+strings.TrimPrefix(server.URL, "http://")+" says that there are more, and leads to none"),
		fails("an offset that stays", ask("/stuck", config{"records": "items",
			"pagination": by("offset", "param", "o", "more", "more")}), false, "leads to none"),
		fails("another host", ask("/away", config{"pagination": by("link")}), true,
			"leads to http://127.0.0.1:1, which is not asked"),
		fails("too many pages", ask("/page", config{"pagination": by("page", "param", "p"), "max_pages": 2}), true,
			"lists more than 2 pages"),
		fails("too many rows", ask("/page", config{"pagination": by("page", "param", "p"), "max_rows": 5}), true,
			"lists more than 5 rows"),
		fails("too many bytes", ask("/page", config{"pagination": by("page", "param", "p"), "max_bytes": 200}), true,
			"have more than 200 bytes"),

		refused("no http", config{"url": "file:///etc/passwd"}, "does not match pattern"),
		refused("a password in the URL", config{"url": "http://a:b@example.org/"}, "without a password"),
		refused("an unknown field of auth", ask("", config{"auth": config{"kind": "basic", "user": "x"}}), "user"),
		refused("half of auth", ask("", config{"auth": config{"kind": "basic", "username": "x"}}),
			"basic needs password"),
		refused("auth of another kind", ask("", config{"auth": config{"kind": "bearer", "token": "x",
			"scope": "y"}}), "scope is for oauth2, not bearer"),
		refused("auth twice", ask("", config{"auth": config{"kind": "bearer", "token": "x"},
			"headers": config{"authorization": "y"}}), "and so does `headers`"),
		refused("a cursor without a path", ask("", config{"records": "r", "pagination": by("cursor", "param", "x")}),
			"cursor needs path"),
		refused("a cursor without records", ask("", config{"pagination": by("cursor", "param", "x", "path", "y")}),
			"cursor needs `records`"),
		refused("a path in the rows", ask("", config{"records": "r",
			"pagination": by("next_url", "path", "r.next")}), `"r.next" lies within "r"`),
		refused("a parameter twice", ask("", config{"query": config{"p": 1}, "pagination": by("page", "param", "p")}),
			"`query` sets it, too"),
		refused("an unknown placeholder", ask("/{day}", nil), "there is no {day}"),
		refused("one in a parameter", ask("", config{"query": config{"since": "{from}"}}), "since: there is no {from}"),
		refused("a header of two lines", ask("", config{"headers": config{"x-a": "a\nb"}}), "the value of x-a"),
		refused("a path with a hole", ask("", config{"records": "a..b"}), "has an empty part"),
		refused("a token that is written out", ask("", config{"auth": config{"kind": "bearer", "token": "x"}}),
			"give {secret: NAME}"),
		refused("a type that is none", ask("", config{"types": config{"a": "x); DROP"}}),
			"not a type that text can have"),
	)
}

// A range is of a partition of time only.
func TestRangesNeedPartitionsOfTime(t *testing.T) {
	t.Parallel()
	spec := operator(t).Spec()
	job := &dag.Job{Operator: "http_api", Outputs: []string{"out"}, Config: dag.Config{"url": "http://example.org/",
		"query": map[string]any{"since": []any{"{start}"}}}}
	require.Contains(t, spec.CheckJob(job).Message, "{start} and {end} are of partitions of time")
	job.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	require.Nil(t, spec.CheckJob(job))
	job.Config["on_bad_rows"] = "quarantine"
	require.Contains(t, spec.CheckJob(job).Message, "outputs: [rows, quarantine]")
}

// run runs the operator once.
func run(
	ctx context.Context, t *testing.T, op operators.Operator, c config, change func(*operators.Task),
) (result operators.Result, rows string, err error) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	base := t.TempDir()
	task := &operators.Task{Scratch: filepath.Join(base, "scratch"), OutputDirs: []string{filepath.Join(base, "out")},
		Progress: func(int, string) {}}
	for _, dir := range append(task.OutputDirs, task.Scratch) {
		require.NoError(t, os.Mkdir(dir, 0o700))
	}
	require.NoError(t, json.Unmarshal(text, &task.Config))
	task.Outputs = []operators.AssignedOutput{{Name: "out"}}
	if change != nil {
		change(task)
	}
	defer task.Use(enginetest.Engines())()

	result, err = op.Run(ctx, task)
	content, readErr := os.ReadFile(filepath.Join(task.Scratch, "rows.ndjson"))
	if readErr == nil {
		rows = string(content)
	}
	return result, rows, err
}

// flaky answers some requests badly, each in its own way, before it answers one well.
type flaky struct {
	ways  []func(http.ResponseWriter)
	asked atomic.Int64
	at    []time.Time
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := f.asked.Add(1)
	f.at = append(f.at, time.Now())
	if int(n) <= len(f.ways) {
		f.ways[n-1](w)
		return
	}
	fmt.Fprint(w, `[{"a": 1}]`)
}

func answers(code int, header ...string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// A page is asked for again where the server is busy, hangs up or breaks off, and as late as it asks for.
func TestBusyServersAreAskedAgain(t *testing.T) {
	t.Parallel()
	theirs := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) // a clock that is years off
	hangUp := func(w http.ResponseWriter) {
		conn, _, err := w.(http.Hijacker).Hijack()
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
	breakOff := func(w http.ResponseWriter) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, `[{"a": 7}`)
	}
	f := &flaky{ways: []func(http.ResponseWriter){hangUp, breakOff, answers(502),
		answers(429, "Retry-After", "1"),
		answers(503, "Date", theirs.Format(http.TimeFormat), "Retry-After",
			theirs.Add(2*time.Second).Format(http.TimeFormat)),
	}}
	server := serve(t, f.ServeHTTP)

	var told []string
	_, rows, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL}, func(task *operators.Task) {
		task.Progress = func(_ int, state string) { told = append(told, state) }
	})
	require.NoError(t, err)
	require.Equal(t, `{"a":1}`+"\n", rows, "what a broken answer had is not kept")
	require.GreaterOrEqual(t, f.at[4].Sub(f.at[3]), time.Second)
	require.GreaterOrEqual(t, f.at[5].Sub(f.at[4]), 2*time.Second)
	require.Contains(t, strings.Join(told, "\n"), "429 Too Many Requests, waiting for 1s")
}

// What would take too long is left to another attempt.
func TestLongWaitsAreHandedOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		way    func(http.ResponseWriter)
		within time.Duration // 0: the attempt has no end
		says   string
		asked  int64
	}{
		"longer than the attempt": {answers(429, "Retry-After", "60"), 30 * time.Second, "asked again in 1m0s", 1},
		"longer than any":         {answers(503, "Retry-After", "86400"), 0, "asked again in 24h0m0s", 1},
		"longer than any number":  {answers(503, "Retry-After", "99999999999999999999"), 0, "too long for this", 1},
		"busy for ever":           {answers(503, "Retry-After", "0"), 0, "503 Service Unavailable, 6 times", 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{}
			for range 10 {
				f.ways = append(f.ways, c.way)
			}
			server := serve(t, f.ServeHTTP)
			ctx := t.Context()
			if c.within > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.within)
				defer cancel()
			}
			_, _, err := run(ctx, t, operator(t, loopback), config{"url": server.URL + "/?key=s3cret"}, nil)
			require.ErrorContains(t, err, c.says)
			require.False(t, operators.IsPermanent(err))
			require.NotContains(t, err.Error(), "s3cret")
			require.Equal(t, c.asked, f.asked.Load())
		})
	}
}

// A cancel ends a wait at once.
func TestAWaitIsCanceled(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) { answers(429, "Retry-After", "300")(w) })
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	_, _, err := run(ctx, t, operator(t, loopback), config{"url": server.URL}, func(task *operators.Task) {
		task.Progress = func(_ int, state string) {
			if strings.Contains(state, "waiting for 5m0s") {
				cancel()
			}
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(begun), time.Minute)
}

func TestRequestsKeepTheirRate(t *testing.T) {
	t.Parallel()
	var at []time.Time
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		at = append(at, time.Now())
		fmt.Fprint(w, page(2*number(r, "p"), 2))
	})
	_, rows, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL, "requests_per_second": 10,
		"pagination": config{"by": "page", "param": "p", "first": 0}}, nil)
	require.NoError(t, err)
	require.Equal(t, 7, strings.Count(rows, "\n"))
	require.Len(t, at, 5)
	require.GreaterOrEqual(t, at[4].Sub(at[0]), 300*time.Millisecond, "the first one also waited for its connection")
}

// The same rows publish nothing, however the answer is written.
func TestUnchangedRowsPublishNothing(t *testing.T) {
	t.Parallel()
	var body atomic.Value
	body.Store(`{"at": 1, "items": [{"a": 1}]}`)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, body.Load()) })
	op := operator(t, loopback)
	var last json.RawMessage
	partition := &operators.PartitionRange{Key: "a"}
	c := config{"url": server.URL, "records": "items"}
	next := func() operators.Result {
		result, _, err := run(t.Context(), t, op, c, func(task *operators.Task) {
			task.State, task.Partition = last, partition
		})
		require.NoError(t, err)
		last = result.State
		return result
	}

	first := next()
	require.False(t, first.Unchanged)
	require.JSONEq(t, `{"rows": 1, "pages": 1}`, string(first.Result))
	body.Store("{\"at\": 2,\n \"items\":\t[ {\"a\" : 1} ]}")
	again := next()
	require.True(t, again.Unchanged)
	require.Equal(t, first.SourceVersion, again.SourceVersion)
	partition = &operators.PartitionRange{Key: "b"}
	require.False(t, next().Unchanged, "another partition")
	require.True(t, next().Unchanged)
	partition = &operators.PartitionRange{Key: "a"}
	require.True(t, next().Unchanged, "it is remembered by partition")
	c["columns"] = []string{"a"}
	require.False(t, next().Unchanged, "another config")
	body.Store(`{"items": [{"a": 2}]}`)
	require.False(t, next().Unchanged)
}

func TestOnlyPublicAddressesAreReached(t *testing.T) {
	t.Parallel()
	server := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was reached") })
	_, _, err := run(t.Context(), t, operator(t), config{"url": server.URL + "/?key=s3cret"}, nil)
	require.ErrorContains(t, err, "it is not public")
	require.NotContains(t, err.Error(), "s3cret")
	require.True(t, operators.IsPermanent(err))

	_, _, err = run(t.Context(), t, operator(t), config{"url": "https://example.org/", "auth": config{"kind": "oauth2",
		"token_url": server.URL + "/?key=s3cret", "client_id": "c", "client_secret": "s3cret"}}, nil)
	require.ErrorContains(t, err, "it is not public")
	require.NotContains(t, err.Error(), "s3cret")
	require.True(t, operators.IsPermanent(err))
}

// Numbers in the config and in the rows keep their digits.
func TestNumbersKeepTheirDigits(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"since": %s}`, r.URL.Query().Get("since"))
	})
	_, rows, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL,
		"query": config{"since": json.Number("9007199254740993")}}, nil)
	require.NoError(t, err)
	require.Equal(t, `{"since":9007199254740993}`+"\n", rows)
}

// secrets are the values of a task's secrets.
func secrets(hosts ...string) func(*operators.Task) {
	return func(task *operators.Task) {
		task.Secrets = map[string]secret.Value{"KEY": secret.New("KEY", "hunter2", hosts)}
	}
}

var key = config{"secret": "KEY"}

// Redirects and pages elsewhere get no request, so no secret goes there.
func TestRedirectsStayOnTheHost(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("it was reached") })
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/out":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case "/in":
			http.Redirect(w, r, "/rows", http.StatusFound)
		default:
			require.Equal(t, "Bearer hunter2", r.Header.Get("Authorization"))
			fmt.Fprint(w, page(0, 1))
		}
	})
	auth := config{"kind": "bearer", "token": key}
	_, _, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL + "/out", "auth": auth},
		secrets(server.URL))
	require.ErrorContains(t, err, "redirects to another host")
	require.True(t, operators.IsPermanent(err))
	_, rows, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL + "/in", "auth": auth},
		secrets(server.URL))
	require.NoError(t, err)
	require.NotEmpty(t, rows)
}

// plain returns a config as it comes from the database.
func plain(t *testing.T, c config) (out map[string]any) {
	t.Helper()
	text, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}
