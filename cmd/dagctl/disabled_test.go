package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/internal/testoidc"
)

// Whatever somebody has running ends once they are disabled, however they came: by a browser, by the command line, or,
// as a pipeline whose rule is removed, by a token of its issuer.
func TestWhateverADisabledUserHasRunningEnds(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, withProvider(t, p))
	w.deployReadings(t, "2026-01-01")
	long := strings.NewReplacer("cat > /dev/null", "sleep 600", "kind: timer", "kind: manual").Replace(timedDAG)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "long", long))
	must(t, w.env(t, writer), "run", "readings-timed/note")
	var logs string
	for _, task := range w.tasks(t) {
		if task.Job == "note" {
			logs = "/v1/tasks/" + task.ID.String() + "/logs/stream"
		}
	}
	require.NotEmpty(t, logs)

	admins := w.env(t, admin)
	must(t, admins, "users", "invite", ada.Email, "--role", "writer")
	browser := w.browse(t, p, "ada")
	_, page := browser.open(w.url + "/account")
	csrf := regexp.MustCompile(`name="csrf_token" value="([^"]+)"`).FindStringSubmatch(page)
	require.NotNil(t, csrf, page)
	trust := decode[identity.Rule](t, admins, "trust", "add", "main", "--issuer", p.Issuer, "--role", "writer",
		"--claim", "sub=pipeline")
	session := w.session(t, "bo@example.com", "writer")
	signed := p.Sign(map[string]any{"iss": p.Issuer, "aud": trust.Audience, "sub": "pipeline",
		"exp": time.Now().Add(time.Hour).Unix()}, testoidc.Signing{})

	bearer := func(token string) func(*http.Request) (*http.Response, error) {
		return func(r *http.Request) (*http.Response, error) {
			r.Header.Set("Authorization", "Bearer "+token)
			return http.DefaultClient.Do(r)
		}
	}
	for _, c := range []struct {
		by   string
		send func(*http.Request) (*http.Response, error)
		out  []string // the command that puts them out
	}{
		{"a browser", func(r *http.Request) (*http.Response, error) {
			r.Header.Set("Origin", w.url)
			r.Header.Set("X-CSRF-Token", csrf[1])
			return browser.client.Do(r)
		}, []string{"users", "disable", ada.Email}},
		{"the command line", bearer(session), []string{"users", "disable", "bo@example.com"}},
		{"a token of an issuer", bearer(signed), []string{"trust", "remove", "main", "--yes"}},
	} {
		request := func(method, path, body string) *http.Request {
			r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/json")
			return r
		}
		type ended struct {
			what   string
			status int
			err    error
		}
		ends, open := make(chan ended, 4), make(chan bool, 4)
		start := func(what string, r *http.Request) {
			go func() {
				response, err := c.send(r)
				if err != nil {
					ends <- ended{what: what, err: err}
					return
				}
				defer response.Body.Close()
				open <- true
				_, err = io.Copy(io.Discard, response.Body)
				ends <- ended{what, response.StatusCode, err}
			}()
		}
		streams := func(r *http.Request) *http.Request {
			r.Header.Set("Accept", "text/event-stream")
			return r
		}
		start("events", streams(request(http.MethodGet, "/v1/stream?dag=readings", "")))
		start("logs", streams(request(http.MethodGet, logs, "")))
		<-open
		<-open
		start("query", request(http.MethodPost, "/v1/query", `{"sql": "`+slow+`"}`))
		start("export", request(http.MethodPost, "/v1/query/export", `{"format": "csv", "sql": "`+slow+`"}`))
		eventually(t, "query and export of "+c.by+" run", func() (bool, error) {
			var held int
			err := w.pool.QueryRow(t.Context(), "SELECT count(*) FROM reader_leases").Scan(&held)
			return held == 2, err
		})
		if len(ends) > 0 {
			require.Fail(t, "by "+c.by+" one has ended by itself", "%+v", <-ends)
		}

		must(t, admins, c.out...)
		out := time.Now()
		for range 4 {
			e := <-ends
			t.Logf("by %s: %s ended after %s: %d", c.by, e.what, time.Since(out).Round(time.Millisecond), e.status)
			require.NoError(t, e.err, e.what)
			want := http.StatusOK // a stream began with it
			if e.what == "query" || e.what == "export" {
				want = http.StatusUnauthorized
			}
			require.Equal(t, want, e.status, "%s by %s", e.what, c.by)
		}
		response, err := c.send(request(http.MethodGet, "/v1/whoami", ""))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusUnauthorized, response.StatusCode)
	}
}
