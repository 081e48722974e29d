package httpapi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// A secret goes to the hosts that it is bound to, in whichever field it stands, and no error shows it.
func TestSecretsGoToTheirHostsOnly(t *testing.T) {
	t.Parallel()
	var sent []string
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.URL.RawQuery+" "+r.Header.Get("Authorization")+" "+r.Header.Get("X-Key"))
		w.WriteHeader(http.StatusForbidden)
	})
	for name, c := range map[string]struct {
		fields config
		sends  string
	}{
		"header":    {config{"headers": config{"X-Key": key}}, "  hunter2"},
		"parameter": {config{"query": config{"key": key}}, "key=hunter2  "},
		"bearer":    {config{"auth": config{"kind": "bearer", "token": key}}, " Bearer hunter2 "},
		"basic": {config{"auth": config{"kind": "basic", "username": "u", "password": key}},
			" Basic dTpodW50ZXIy "},
	} {
		for _, bound := range []string{server.URL, strings.TrimPrefix(server.URL, "http://"), "example.org"} {
			sent = nil
			c.fields["url"] = server.URL
			_, _, err := run(t.Context(), t, operator(t, loopback), c.fields, secrets(bound))
			require.Error(t, err)
			require.NotContains(t, err.Error(), "hunter2")
			require.True(t, operators.IsPermanent(err), name)
			if bound == server.URL {
				require.Equal(t, []string{c.sends}, sent, name)
				continue
			}
			require.True(t, fault.Is(err, fault.Forbidden), "%s, %s: %v", name, bound, err)
			require.Empty(t, sent, name)
		}
	}

	_, _, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL,
		"headers": config{"X-Key": key}}, nil)
	require.ErrorContains(t, err, "config.headers.X-Key: the secret is not available to this task")
}

// A key that is a parameter is added to the addresses of pages that lack it.
func TestKeysGoWithEachPage(t *testing.T) {
	t.Parallel()
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, []string{"hunter2"}, r.URL.Query()["key"])
		next := `"/?at=1"`
		if r.URL.Query().Has("at") {
			require.False(t, r.URL.Query().Has("size"), "the other parameters are the server's to repeat")
			next = "null"
		}
		fmt.Fprintf(w, `{"items": [{"at": %q}], "next": %s}`, r.URL.Query().Get("at"), next)
	})
	_, rows, err := run(t.Context(), t, operator(t, loopback), config{"url": server.URL, "records": "items",
		"query": config{"key": key, "size": 1}, "pagination": config{"by": "next_url", "path": "next"}},
		secrets(server.URL))
	require.NoError(t, err)
	require.Equal(t, `{"at":""}`+"\n"+`{"at":"1"}`+"\n", rows)
}

// issuer is a server that gives tokens by the client credentials grant, and one that accepts them.
type issuer struct {
	mu      sync.Mutex
	tokens  *httptest.Server
	api     *httptest.Server
	issued  int
	forms   []string
	asked   []string        // tokens that came to the API
	revoked map[string]bool // tokens that the API refuses
	expires int             // seconds
	answer  func(w http.ResponseWriter, n int) bool
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{revoked: map[string]bool{}, expires: 3600}
	i.tokens = serve(t, func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		i.issued++
		_ = r.ParseForm()
		id, password, _ := r.BasicAuth()
		i.forms = append(i.forms, r.Method+" "+r.Form.Encode()+" "+id+":"+password)
		if i.answer == nil || !i.answer(w, i.issued) {
			fmt.Fprintf(w, `{"access_token": "t%d", "token_type": "Bearer", "expires_in": %d}`, i.issued, i.expires)
		}
	})
	i.api = serve(t, func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		defer i.mu.Unlock()
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		i.asked = append(i.asked, token)
		if i.revoked[token] {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if number(r, "p") == 2 { // the token ends after the second page
			i.revoked["t1"] = true
		}
		fmt.Fprint(w, page(2*(number(r, "p")-1), 2))
	})
	return i
}

func (i *issuer) config(more config) config {
	auth := config{"kind": "oauth2", "token_url": i.tokens.URL, "client_id": "me", "client_secret": key}
	for name, value := range more {
		auth[name] = value
	}
	return config{"url": i.api.URL, "auth": auth, "pagination": config{"by": "page", "param": "p"}}
}

// One token serves all pages until the API refuses it; then another is asked for, once.
func TestTokensAreKeptAndRenewed(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	_, rows, err := run(t.Context(), t, operator(t, loopback), i.config(config{"scope": "a b",
		"params": config{"audience": "x"}}), secrets(i.tokens.URL, i.api.URL))
	require.NoError(t, err)
	require.Equal(t, 7, strings.Count(rows, "\n"))
	form := "POST audience=x&grant_type=client_credentials&scope=a+b me:hunter2"
	require.Equal(t, []string{form, form}, i.forms)
	require.Equal(t, []string{"t1", "t1", "t1", "t2", "t2", "t2"}, i.asked)
}

func TestATokenThatEndsSoonIsRenewedBefore(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	i.answer = func(w http.ResponseWriter, n int) bool {
		fmt.Fprintf(w, `{"access_token": "t%d", "expires_in": 1e-9}`, n)
		return true
	}
	_, _, err := run(t.Context(), t, operator(t, loopback), i.config(config{"send": "body"}),
		secrets(i.tokens.URL, i.api.URL))
	require.NoError(t, err)
	require.Equal(t, []string{"t1", "t2", "t3", "t4", "t5"}, i.asked, "no page is asked for with a token that ended")
	require.Equal(t, "POST client_id=me&client_secret=hunter2&grant_type=client_credentials :", i.forms[0])
}

func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	says := func(code int, body string) func(http.ResponseWriter, int) bool {
		return func(w http.ResponseWriter, _ int) bool {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
			return true
		}
	}
	for name, c := range map[string]struct {
		answer    func(http.ResponseWriter, int) bool
		revoked   bool
		says      string
		permanent bool
		issued    int
	}{
		"a wrong client": {says(400, `{"error": "invalid_client", "error_description": "hunter2"}`), false,
			"400 Bad Request: invalid_client", true, 1},
		"a refusal without a code": {says(403, `hunter2`), false, "403 Forbidden to a request for a token", true, 1},
		"no token":                 {says(200, `{}`), false, "with no access_token", false, 1},
		"a page of HTML":           {says(200, `<html>`), false, "with no access_token", false, 1},
		"a token of another type": {says(200, `{"access_token": "x", "token_type": "mac"}`), false,
			"of a type other than bearer", true, 1},
		"a redirect": {func(w http.ResponseWriter, _ int) bool {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusTemporaryRedirect)
			return true
		}, false, "307 Temporary Redirect", true, 1},
		"an issuer that is busy": {says(503, ``), false, "503 Service Unavailable, 6 times", false, 6},
		"an API that refuses all": {func(w http.ResponseWriter, n int) bool {
			fmt.Fprint(w, `{"access_token": "never"}`)
			return true
		}, true, "401 Unauthorized", true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := newIssuer(t)
			i.answer, i.revoked["never"] = c.answer, c.revoked
			_, _, err := run(t.Context(), t, operator(t, loopback), i.config(nil), secrets(i.tokens.URL, i.api.URL))
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "hunter2")
			require.Equal(t, c.permanent, operators.IsPermanent(err), "%v", err)
			require.Equal(t, c.issued, i.issued)
		})
	}
}

// The client's secret has to be bound to both hosts: what comes of it goes to the API.
func TestAClientsSecretIsBoundToBothHosts(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	for _, bound := range []string{i.tokens.URL, i.api.URL} {
		_, _, err := run(t.Context(), t, operator(t, loopback), i.config(nil), secrets(bound))
		require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
		require.True(t, operators.IsPermanent(err))
	}
	require.Zero(t, i.issued)

	to := operator(t).Spec().SecretTo
	c := config{"url": "https://api.example.org/{partition}", "query": config{"key": config{"secret": "OTHER"}},
		"auth": config{"kind": "oauth2", "token_url": "https://id.example.org/token", "client_id": "me",
			"client_secret": key}}
	require.Equal(t, []string{"https://api.example.org/", "https://id.example.org/token"}, to(plain(t, c), "KEY"))
	require.Equal(t, []string{"https://api.example.org/"}, to(plain(t, c), "OTHER"))
}
