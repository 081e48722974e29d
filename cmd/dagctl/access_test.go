package main

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

// placeholders matches the placeholders of route paths, as net/http and OpenAPI write them.
var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// address fills the placeholders of a route's path with names that exist in org acme.
func address(path, task string) string {
	values := map[string]string{
		"{dag}": "readings", "{job}": "note", "{version}": "1", "{name}": "daily_highest", "{name...}": "daily_highest",
		"{org}": "acme", "{path...}": "readings/hook",
		"{index}": "0", "{id}": task, "{key}": "2026-01-01", "{file}": "style.css", "{$}": "",
	}
	if strings.HasPrefix(path, "/v1/tokens/") {
		values["{name}"] = "no-such-token"
	}
	return placeholder.ReplaceAllStringFunc(path, func(p string) string { return values[p] })
}

// lastPart returns the last part of a path, which an answer may repeat because the request named it.
func lastPart(path string) string {
	for _, part := range []string{"daily_highest", "readings"} {
		if strings.Contains(path, part) {
			return part
		}
	}
	return path
}

// TestEveryRouteKeepsItsRule calls every route as every kind of caller.
func TestEveryRouteKeepsItsRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	someTask := w.tasks(t)[0].ID.String()
	roles := map[string]authz.Role{reader: authz.RoleReader, writer: authz.RoleWriter, admin: authz.RoleAdmin,
		foreign: authz.RoleAdmin}
	acme := regexp.MustCompile(`daily_highest|harbour|landing|token:writer`)
	for _, route := range w.app.API.Routes() {
		path := address(route.Path, someTask)
		for _, caller := range []string{nobody, reader, writer, admin, foreign, anyWorker, anyTask} {
			status, body := w.send(t, caller, route.Method, path, "application/json", strings.NewReader("{}"))
			where := route.Method + " " + path + " as " + caller
			require.NotZero(t, status, where)
			require.Less(t, status, 500, "%s: %s", where, body)
			role, known := roles[caller]
			switch {
			case route.Rule == authz.Public:
				require.Equal(t, http.StatusOK, status, where)
				continue
			case route.Rule == authz.Hook:
				require.Equal(t, http.StatusNotFound, status, "%s: a token is no signature: %s", where, body)
				continue
			case route.Rule == authz.ByWorker && caller == anyWorker, route.Rule == authz.ByTask && caller == anyTask:
				require.NotEqual(t, http.StatusUnauthorized, status, "%s: %s", where, body)
				continue
			case route.Rule == authz.ByWorker, route.Rule == authz.ByTask:
				require.Equal(t, http.StatusUnauthorized, status, where)
				continue
			case !known:
				require.Equal(t, http.StatusUnauthorized, status, where)
			case !(authz.Caller{Role: role}).Is(route.Rule.Role()):
				require.Equal(t, http.StatusForbidden, status, where)
			default:
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, status, where)
			}
			if caller != foreign {
				continue
			}
			// The server answers for things of another org exactly as for things that do not exist.
			absent := placeholder.ReplaceAllStringFunc(route.Path, func(p string) string {
				if p == "{id}" {
					return "01a1fd91-0000-7000-8000-000000000000"
				}
				return strings.ReplaceAll(address(p, ""), "readings", "no-such-dag")
			})
			absent = strings.ReplaceAll(absent, "daily_highest", "no_such_dataset")
			if absent != path { // it names nothing: what it is about is the caller's own
				missing, _ := w.send(t, foreign, route.Method, absent, "application/json", strings.NewReader("{}"))
				require.Equal(t, missing, status, "%s: %s", where, body)
			}
			if route.Path != "/v1/operators" {
				require.NotRegexp(t, acme, strings.ReplaceAll(body, lastPart(path), ""), where)
			}
		}
	}
}

func TestNoRouteTakesTheOrgFromTheRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/dags?org=acme&org_id=acme", nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer "+w.tokens[foreign])
	request.Header.Set("X-Org", "acme")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.JSONEq(t, `{"items": []}`, string(text))
}

// endless is a request body that never ends and has no length.
type endless struct{ sent int }

func (e *endless) Read(p []byte) (int, error) {
	if e.sent > 200<<20 {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'a'
	}
	if e.sent == 0 {
		copy(p, `{"yaml": "`)
	}
	e.sent += len(p)
	return len(p), nil
}

// TestHostileInputIsNeverOurFault sends hostile input to every route that a writer may call.
func TestHostileInputIsNeverOurFault(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	deep := strings.Repeat("[", 50_000) + strings.Repeat("]", 50_000)
	bodies := map[string]string{
		"nothing": "", "not JSON": "{", "null": "null", "a list": "[]", "a number": "1e999", "deep": deep,
		"NUL":         `{"yaml": "\u0000"}`,
		"not UTF-8":   "{\"yaml\": \"\xff\xfe\"}",
		"wrong types": `{"yaml": 1, "items": {}, "payload": [], "files": "x", "vars": {"a": 1}}`,
		"empty items": `{"items": []}`, "null items": `{"items": [null]}`,
		"no file":     `{"yaml": "name: readings\njobs: [{name: a, operator: sql, config: {query_file: ../../etc/passwd}}]"}`,
		"YAML bomb":   `{"yaml": "a: &a [x,x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]"}`,
		"bad base64":  `{"yaml": "name: a", "files": {"x": "%%%"}}`,
		"odd paths":   `{"yaml": "name: a", "files": {"../x": "YQ==", "/etc/passwd": "YQ==", "": "YQ=="}}`,
		"big numbers": `{"payload": {"text": "x"}, "priority": 99999999999999999999, "max_attempts": -1}`,
		"odd run_at":  `{"payload": {"text": "x"}, "run_at": "0000-00-00T99:99:99Z"}`,
		"far run_at":  `{"payload": {"text": "x"}, "run_at": "9999-12-31T23:59:59Z", "idempotency_key": "far"}`,
	}
	names := []string{
		"readings", "..", "%2e%2e%2fetc", "%00", "%ff", "a%2fb%2fc", "'; DROP TABLE tasks; --", "${jndi:x}",
		strings.Repeat("x", 5000),
		"00000000-0000-0000-0000-000000000000", "-1", "99999999999999999999", "%E2%80%AE", ":retry", "x:explode",
	}
	queries := []string{
		"", "?limit=-1", "?limit=0", "?limit=99999999999999999999", "?limit=x", "?cursor=x", "?cursor=bnVsbA",
		"?cursor=W10", "?cursor=IlwwIg", "?cursor=" + strings.Repeat("A", 3000),
		"?offset=-5", "?offset=100000", "?partition=%00", "?partition=%27", "?search=%25_%5c", "?status=Nonsense",
		"?dead=perhaps", "?before=x", "?after=%ff", "?tag=%FF", "?a=%zz",
	}
	for _, route := range w.app.API.Routes() {
		if route.Rule == authz.Public || route.Rule == authz.Admin {
			continue
		}
		mutates := route.Method == http.MethodPost
		for _, name := range names {
			path := placeholder.ReplaceAllLiteralString(route.Path, strings.ReplaceAll(name, " ", "%20"))
			requireNotOurs(t, w, route.Method, path, strings.NewReader("{}"))
			if path == route.Path {
				break
			}
		}
		path := address(route.Path, w.tasks(t)[0].ID.String())
		for _, q := range queries {
			requireNotOurs(t, w, route.Method, path+q, strings.NewReader("{}"))
		}
		if mutates {
			for _, body := range bodies {
				requireNotOurs(t, w, route.Method, path, strings.NewReader(body))
			}
		}
	}
	requireNotOurs(t, w, http.MethodPost, "/v1/dags/readings/versions", &endless{})
	requireNotOurs(t, w, http.MethodPost, "/v1/jobs/readings/note/tasks", &endless{})
}

func requireNotOurs(t *testing.T, w *world, method, path string, body io.Reader) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, w.url, body)
	require.NoError(t, err)
	before, query, _ := strings.Cut(path, "?")
	request.URL.Opaque, request.URL.RawQuery = strings.TrimPrefix(w.url, "http:")+before, query
	request.Header.Set("Authorization", "Bearer "+w.tokens[writer])
	request.Header.Set("Content-Type", "application/json")
	noRedirects := http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := noRedirects.Do(request)
	if _, large := body.(*endless); large && err != nil {
		return // the server may close the connection on a body it will not read
	}
	require.NoError(t, err, "%s %.200s", method, path)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Less(t, response.StatusCode, 500, "%s %.200s\n%s", method, path, text)
	if response.StatusCode >= 400 && strings.HasPrefix(before, "/v1/") {
		var problem struct{ Detail string }
		require.NoError(t, json.Unmarshal(text, &problem), "%s %.200s\n%s", method, path, text)
		require.NotEmpty(t, problem.Detail)
	}
}
