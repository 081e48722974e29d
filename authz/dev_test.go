package authz_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
)

const local = "127.0.0.1:7070"

// newDev is a dev server without a database: a page, a form and an operation.
func newDev(t *testing.T) (*authz.API, *authz.Dev) {
	t.Helper()
	dev, err := authz.NewDev(authz.DevConfig{
		Org: authz.Org{ID: uuid.New(), Slug: "dev"}, Addr: local, TokenFile: filepath.Join(t.TempDir(), "token"),
	})
	require.NoError(t, err)
	api, err := authz.NewAPI(authz.Config{Dev: dev})
	require.NoError(t, err)
	authz.Register(api, nil, nil)
	show := func(w http.ResponseWriter, _ *http.Request, caller authz.Caller) error {
		_, err := io.WriteString(w, caller.CSRFToken())
		return err
	}
	api.HandlePage(authz.Reader, "GET /{$}", show)
	api.HandlePage(authz.To(authz.Operate, authz.TheOrg), "POST /form", show)
	return api, dev
}

// signIn opens a sign-in address as a browser would and returns its cookie and the page's CSRF token.
func signIn(t *testing.T, api *authz.API, dev *authz.Dev) (cookie, csrf string) {
	t.Helper()
	path := strings.TrimPrefix(dev.SignInURL(), "http://"+local)
	answer := call(api, "GET", path, "", "Host", local)
	require.Equal(t, 303, answer.Code, answer.Body.String())
	require.Equal(t, "/", answer.Header().Get("Location"), "the secret leaves the address bar")
	require.Len(t, answer.Result().Cookies(), 1)

	c := answer.Result().Cookies()[0]
	require.True(t, c.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, c.SameSite)
	require.Equal(t, "/", c.Path)
	require.Equal(t, "dagctl_dev_7070", c.Name)
	cookie = c.Name + "=" + c.Value
	page := call(api, "GET", "/", "", "Host", local, "Cookie", cookie)
	require.Equal(t, 200, page.Code)
	require.NotEmpty(t, page.Body.String())
	require.NotContains(t, cookie, page.Body.String())
	return cookie, page.Body.String()
}

func TestDevSignsBrowsersIn(t *testing.T) {
	t.Parallel()
	api, dev := newDev(t)
	require.Equal(t, 401, call(api, "GET", "/", "", "Host", local).Code)
	path := strings.TrimPrefix(dev.SignInURL(), "http://"+local)
	require.NotEmpty(t, call(api, "GET", path, "", "Host", local).Header().Get("Set-Cookie"))
	again := call(api, "GET", path, "", "Host", local)
	require.NotEmpty(t, again.Header().Get("Set-Cookie"), "the address works for another browser")
	require.Empty(t, call(api, "GET", path+"x", "", "Host", local).Header().Get("Set-Cookie"))
	require.Empty(t, call(api, "GET", "/?token="+dev.Token(), "", "Host", local).Header().Get("Set-Cookie"),
		"the command line's token is not a sign-in")
	require.Equal(t, 401, call(api, "GET", "/", "", "Host", local, "Cookie", "dagctl_dev_7070=guess").Code)
	answer := call(api, "GET", "/?token=x&page=2", "", "Host", local)
	require.Equal(t, "/?page=2", answer.Header().Get("Location"))
	signIn(t, api, dev)
}

func TestDevToken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("old"), 0o644))
	cfg := authz.DevConfig{Org: authz.Org{ID: uuid.New(), Slug: "dev"}, Addr: local, TokenFile: file}
	require.NoError(t, os.Chmod(file, 0o644))
	dev, err := authz.NewDev(cfg)
	require.NoError(t, err)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, dev.Token()+"\n", string(content))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "even over a file that others could read")

	next, err := authz.NewDev(cfg)
	require.NoError(t, err)
	require.NotEqual(t, dev.Token(), next.Token(), "a token per start")
	api, err := authz.NewAPI(authz.Config{Dev: next})
	require.NoError(t, err)
	authz.Register(api, nil, nil)
	who := call(api, "GET", "/v1/whoami", "", append(as(next.Token()), "Host", local)...)
	require.Equal(t, authz.Identity{Org: "dev", Actor: "dev", Role: authz.RoleAdmin}, decode[authz.Identity](t, who))
	require.Equal(t, 401, call(api, "GET", "/v1/whoami", "", append(as(dev.Token()), "Host", local)...).Code)

	for _, addr := range []string{"0.0.0.0:7070", ":7070", "192.168.1.5:7070", "example.com:7070", "127.0.0.1",
		"127.0.0.1:0", "127.0.0.1:http"} {
		cfg.Addr = addr
		_, err := authz.NewDev(cfg)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", addr, err)
	}
}

func TestDevAnswersOnlyItsOwnHosts(t *testing.T) {
	t.Parallel()
	api, dev := newDev(t)
	cookie, _ := signIn(t, api, dev)
	for _, tc := range []struct {
		host, origin string
		ok           bool
	}{
		{local, "", true},
		{"localhost:7070", "", true},
		{"[::1]:7070", "", true},
		{"LOCALHOST:7070", "http://localhost:7070", true},
		{"evil.example:7070", "", false}, // a name rebound to this address
		{"127.0.0.1.evil.example:7070", "", false},
		{"127.0.0.1", "", false},
		{"127.0.0.1:7071", "", false},
		{"", "", false},
		{local, "http://evil.example", false},
		{local, "http://127.0.0.1:7071", false}, // another server on this machine
		{local, "https://127.0.0.1:7070", false},
		{local, "null", false},
	} {
		for _, header := range [][]string{{"Cookie", cookie}, as(dev.Token())} {
			header = append(header, "Host", tc.host)
			if tc.origin != "" {
				header = append(header, "Origin", tc.origin)
			}

			answer := call(api, "GET", "/", "", header...)
			require.Equal(t, tc.ok, answer.Code == 200, "%q %q: %d", tc.host, tc.origin, answer.Code)
			if !tc.ok {
				require.Equal(t, 403, answer.Code)
			}
		}
	}
}

func TestACookieAloneChangesNothing(t *testing.T) {
	t.Parallel()
	api, dev := newDev(t)
	cookie, csrf := signIn(t, api, dev)
	_, otherCSRF := signIn(t, api, dev)
	const form = "application/x-www-form-urlencoded"
	origin := "http://" + local

	for _, tc := range []struct {
		name   string
		body   string
		header []string
		want   int
	}{
		{"form with token", "csrf_token=" + csrf, []string{"Content-Type", form, "Origin", origin}, 200},
		{"header token", "", []string{"X-CSRF-Token", csrf, "Origin", origin}, 200},
		{"no token", "", []string{"Origin", origin}, 403},
		{"another session's", "csrf_token=" + otherCSRF, []string{"Content-Type", form, "Origin", origin}, 403},
		{"token in the query", "", []string{"Content-Type", form, "Origin", origin}, 403},
		{"no origin", "csrf_token=" + csrf, []string{"Content-Type", form}, 403},
		{"foreign origin", "csrf_token=" + csrf, []string{"Content-Type", form, "Origin", "http://evil.example"}, 403},
		{"too large", "csrf_token=" + csrf + "&text=" + strings.Repeat("x", 3<<20),
			[]string{"Content-Type", form, "Origin", origin}, 413},
		{"too large, a header's token", "text=" + strings.Repeat("x", 3<<20),
			[]string{"Content-Type", form, "Origin", origin, "X-CSRF-Token", csrf}, 413},
	} {
		path := "/form"
		if tc.name == "token in the query" {
			path += "?csrf_token=" + csrf
		}
		answer := call(api, "POST", path, tc.body, append(tc.header, "Host", local, "Cookie", cookie)...)
		require.Equal(t, tc.want, answer.Code, "%s: %s", tc.name, answer.Body)
	}

	// The same checks apply to operations; a token of the command line needs neither.
	answer := call(api, "POST", "/v1/tokens", `{"name":"x"}`, "Host", local, "Cookie", cookie, "Origin", origin)
	require.Equal(t, 403, answer.Code)
	require.Equal(t, 200, call(api, "POST", "/form", "", append(as(dev.Token()), "Host", local)...).Code)
}

// The token of a dev server's workers gives nobody the rights of an admin.
func TestDevWorkerToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := filepath.Join(t.TempDir(), "worker-token")
	cfg := authz.DevConfig{Org: w.org, Addr: local, TokenFile: filepath.Join(t.TempDir(), "token"),
		WorkerTokenFile: file}
	before, err := authz.NewDev(cfg)
	require.NoError(t, err)
	dev, err := authz.NewDev(cfg)
	require.NoError(t, err)
	content, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, dev.WorkerToken()+"\n", string(content))
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	api, _ := w.remote(t, authz.Config{Dev: dev})
	ask := func(token string) int {
		return call(api, "POST", "/remote/worker", "{}", append(asWorker(token), "Host", local)...).Code
	}
	require.Equal(t, 200, ask(dev.WorkerToken()))
	require.Equal(t, 200, ask(w.token(t, authz.NewToken{Name: "fleet",
		Kind: authz.KindWorker, Runtimes: []string{"lambda"}})), "those that an admin made go on")
	require.Equal(t, before.WorkerToken(), dev.WorkerToken(), "it stays from start to start")
	require.NoError(t, os.WriteFile(file, []byte("dev_no_token_of_workers\n"), 0o600))
	another, err := authz.NewDev(cfg)
	require.NoError(t, err)
	require.NotEqual(t, dev.WorkerToken(), another.WorkerToken())
	require.Equal(t, 401, ask(another.WorkerToken()))
	require.Equal(t, 401, ask(dev.Token()))
	require.Equal(t, 401, call(api, "GET", "/v1/whoami", "", append(as(dev.WorkerToken()), "Host", local)...).Code)
}
