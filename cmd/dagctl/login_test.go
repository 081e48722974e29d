package main

import (
	"bufio"
	"bytes"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/testoidc"
	"github.com/dagctl/dagctl/registry"
)

// withProvider lets the people of a provider sign in at the server.
func withProvider(t *testing.T, p *testoidc.Provider) func(*server.Config) {
	return func(cfg *server.Config) {
		cfg.BaseURL = "http://" + cfg.Listen
		p.SetClient(testoidc.Client{ID: "dagctl", RedirectURIs: []string{cfg.BaseURL + "/signin/callback/corp"}})
		cfg.Identity.Providers = []server.ProviderConfig{{Name: "corp", Issuer: p.Issuer, ClientID: "dagctl",
			Scopes: []string{"openid", "email", "profile", "groups"}}}
		cfg.Operators.AllowedAddresses = []string{"127.0.0.0/8"}
	}
}

var ada = testoidc.User{Subject: "ada", Email: "ada@example.com", EmailVerified: true, Name: "Ada"}

// browse is a browser that is signed in as a subject.
type browse struct {
	t      *testing.T
	client *http.Client
}

func (w *world) browse(t *testing.T, p *testoidc.Provider, subject string) *browse {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browse{t, &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}}
	_, there := b.open(w.url + "/signin/with/corp")
	status, _ := b.open(p.SignIn(t, there, subject))
	require.Equal(t, http.StatusSeeOther, status)
	return b
}

// open returns the status and the redirect, or else the text, of a page.
func (b *browse) open(address string) (int, string) {
	b.t.Helper()
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodGet, address, nil)
	require.NoError(b.t, err)
	return b.do(request)
}

func (b *browse) do(request *http.Request) (int, string) {
	b.t.Helper()
	response, err := b.client.Do(request)
	require.NoError(b.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(b.t, err)
	if to := response.Header.Get("Location"); to != "" {
		return response.StatusCode, to
	}
	return response.StatusCode, string(text)
}

var hiddenField = regexp.MustCompile(`name="(\w+)" value="([^"]*)"`)

// submit sends the form of a page, with changes.
func (b *browse) submit(address string, change url.Values) string {
	b.t.Helper()
	status, page := b.open(address)
	require.Equal(b.t, http.StatusOK, status, page)
	form := url.Values{}
	for _, f := range hiddenField.FindAllStringSubmatch(page, -1) {
		if f[1] != "deny" {
			form.Set(f[1], html.UnescapeString(f[2]))
		}
	}
	for name, values := range change {
		form[name] = values
	}

	there, err := url.Parse(address)
	require.NoError(b.t, err)
	request, err := http.NewRequestWithContext(b.t.Context(), http.MethodPost, there.Scheme+"://"+there.Host+there.Path,
		strings.NewReader(form.Encode()))
	require.NoError(b.t, err)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("Origin", there.Scheme+"://"+there.Host)
	status, page = b.do(request)
	require.Equal(b.t, http.StatusOK, status, page)
	return page
}

// commandLine is a command line that runs.
type commandLine struct {
	lines *bufio.Scanner // of its messages
	out   bytes.Buffer
	code  chan int
}

func start(t *testing.T, env map[string]string, args ...string) *commandLine {
	t.Helper()
	messages, w := io.Pipe()
	r := &commandLine{lines: bufio.NewScanner(messages), code: make(chan int, 1)}
	go func() {
		r.code <- run(t.Context(), args, cli.Environment{In: strings.NewReader(""), Out: &r.out, Err: w,
			Getenv: func(name string) string { return env[name] }})
		_ = w.Close()
	}()
	return r
}

// await returns what a pattern finds in the messages.
func (r *commandLine) await(t *testing.T, pattern string) string {
	t.Helper()
	seen := ""
	for r.lines.Scan() {
		seen += r.lines.Text() + "\n"
		if found := regexp.MustCompile(pattern).FindStringSubmatch(r.lines.Text()); found != nil {
			go func() { // nobody may wait for the rest to be read
				for r.lines.Scan() {
				}
			}()
			return found[1]
		}
	}
	require.Fail(t, "no "+pattern, seen)
	return ""
}

func TestLoginByABrowserAndByADevice(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, withProvider(t, p))
	must(t, w.env(t, admin), "users", "invite", ada.Email, "--role", "writer")
	home := t.TempDir()
	env := map[string]string{"HOME": home}
	b := w.browse(t, p, "ada")

	login := start(t, env, "login", w.url, "--no-browser")
	done := b.submit(login.await(t, `Sign in at (\S+)`), nil)
	back := regexp.MustCompile(`href="(http://127[^"]+)"`).FindStringSubmatch(done)
	require.NotNil(t, back, done)
	status, text := b.open(strings.Replace(html.UnescapeString(back[1]), "state=", "state=x", 1))
	require.Equal(t, http.StatusNotFound, status, text)
	status, text = b.open(html.UnescapeString(back[1]))
	require.Equal(t, http.StatusOK, status, text)
	require.Contains(t, text, "signed in")
	require.Zero(t, <-login.code)
	require.Contains(t, login.out.String(), "ada@example.com, writer of acme")

	file, err := os.Stat(filepath.Join(home, ".config", "dagctl", "config.yaml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), file.Mode().Perm())
	require.Equal(t, "ada@example.com", decode[authz.Identity](t, env, "whoami").Name)
	must(t, env, "logout")
	require.Equal(t, 1, dagctl(t, env, "whoami").code)

	login = start(t, env, "login", "--device")
	code := login.await(t, `type the code (\S+)`)
	b.submit(w.url+"/signin/device?code="+code, nil)
	require.Zero(t, <-login.code)
	require.Equal(t, "ada@example.com", decode[authz.Identity](t, env, "whoami").Name)

	// Signing in again ends the session before it.
	sessions := func() int { return decode[[]identity.User](t, w.env(t, admin), "users", "list")[0].Sessions }
	before := sessions()
	again := start(t, env, "login", "--device")
	b.submit(w.url+"/signin/device?code="+again.await(t, `type the code (\S+)`), nil)
	require.Zero(t, <-again.code)
	require.Equal(t, before, sessions())

	other := start(t, map[string]string{"HOME": t.TempDir()}, "login", w.url, "--device")
	b.submit(w.url+"/signin/device?code="+other.await(t, `type the code (\S+)`), url.Values{"deny": {"1"}})
	require.Equal(t, 1, <-other.code)

	must(t, w.env(t, admin), "users", "disable", ada.Email)
	require.Equal(t, 1, dagctl(t, env, "whoami").code)
	users := decode[[]identity.User](t, w.env(t, admin), "users", "list")
	require.NotNil(t, users[0].DisabledAt)
	require.Zero(t, users[0].Sessions)
}

func TestAPipelineDeploysWithoutAStoredSecret(t *testing.T) {
	t.Parallel()
	ci := testoidc.Start(t, testoidc.Options{})
	w := newWorld(t, withProvider(t, ci))
	made := decode[identity.Rule](t, w.env(t, admin), "trust", "add", "main", "--issuer", ci.Issuer, "--role", "reader",
		"--claim", "repository_id=42", "--claim", "ref=refs/heads/main", "--grant", "writer:read*")
	tokenOf := func(repository int, ref string) map[string]string {
		token := ci.Sign(map[string]any{"iss": ci.Issuer, "aud": made.Audience, "repository_id": repository, "ref": ref,
			"sub": "repo:acme/readings:ref:" + ref, "exp": time.Now().Add(10 * time.Minute).Unix()}, testoidc.Signing{})
		return map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": token, "HOME": t.TempDir()}
	}

	w.land(t, "2026-01-01")
	file := writeDAG(t, t.TempDir(), "dag", readingsDAG)
	require.Equal(t, 1, dagctl(t, tokenOf(42, "refs/heads/feature"), "deploy", file).code)
	require.Equal(t, 1, dagctl(t, tokenOf(43, "refs/heads/main"), "deploy", file).code)
	must(t, tokenOf(42, "refs/heads/main"), "deploy", file)
	history := must(t, w.env(t, admin), "history", "readings")
	require.Contains(t, history, "workload:main")
	require.Equal(t, 1, dagctl(t, tokenOf(42, "refs/heads/main"), "users", "list").code)
	require.Contains(t, must(t, w.env(t, admin), "trust", "list"), "ref=refs/heads/main repository_id=42")
	must(t, w.env(t, admin), "trust", "remove", "main", "--yes")
	require.Equal(t, 1, dagctl(t, tokenOf(42, "refs/heads/main"), "whoami").code)
}

func TestADisabledUserIsOutInFiveSeconds(t *testing.T) {
	t.Parallel()
	p := testoidc.Start(t, testoidc.Options{Users: []testoidc.User{ada}})
	w := newWorld(t, withProvider(t, p))
	must(t, w.env(t, admin), "users", "invite", ada.Email, "--role", "writer")
	long := strings.NewReplacer("cat > /dev/null", "sleep 60", "kind: timer", "kind: manual").Replace(timedDAG)
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "long", long))
	must(t, w.env(t, writer), "run", "readings-timed/note")
	b := w.browse(t, p, "ada")

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		w.url+"/v1/tasks/"+w.tasks(t)[0].ID.String()+"/logs/stream", nil)
	require.NoError(t, err)
	stream, err := b.client.Do(request)
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)

	must(t, w.env(t, admin), "users", "disable", ada.Email)
	disabled := time.Now()
	_, err = io.Copy(io.Discard, stream.Body)
	require.NoError(t, err, "the stream ends")
	require.Less(t, time.Since(disabled), 5*time.Second)
	status, _ := b.open(w.url + "/v1/whoami")
	require.Equal(t, http.StatusUnauthorized, status)
}

func TestTheFirstAdminGetsInByALink(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(cfg *server.Config) { cfg.BaseURL = "http://" + cfg.Listen })
	env := map[string]string{"DAGCTL_DATABASE_URL": w.pool.Config().ConnString(), "HOME": t.TempDir()}
	link := decode[identity.Link](t, env, "admin", "sign-in-link", "ops@example.com", "--org", "acme", "--base-url",
		w.url)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browse{t, &http.Client{Jar: jar}}
	b.submit(link.URL, nil)
	status, me := b.open(w.url + "/v1/whoami")
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, me, "ops@example.com")

	must(t, w.env(t, admin), "users", "invite", "bo@example.com", "--role", "reader", "--local")
	must(t, w.env(t, admin), "roles", "create", "finance")
	changed := decode[identity.User](t, w.env(t, admin), "users", "set", "bo@example.com", "--grant", "writer:sales-*",
		"--org-role", "role:finance")
	require.Equal(t, []string{"role:finance"}, changed.OrgRoles)
	require.Equal(t, authz.RoleReader, changed.Role)
	require.Contains(t, must(t, w.env(t, admin), "users", "link", "bo@example.com"),
		w.url+"/signin/link?token=dagctl_link_")
	must(t, w.env(t, admin), "users", "remove", "bo@example.com", "--yes")
	require.Equal(t, 1, dagctl(t, w.env(t, admin), "users", "link", "bo@example.com").code)
}

func TestNewDatasetsHaveTheOrgsReadRoles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	must(t, w.env(t, admin), "roles", "create", "staff")
	require.NotZero(t, dagctl(t, w.env(t, admin), "org", "set", "--default-read-role", "role:nobody").code)
	must(t, w.env(t, admin), "org", "set", "--default-read-role", "role:staff")
	require.Contains(t, must(t, w.env(t, reader), "org", "show"), "role:staff")
	w.newToken(t, authz.NewToken{Name: "staffer", Role: authz.RoleWriter, OrgRoles: []string{"role:staff"}})
	w.land(t, "2026-01-01")
	must(t, w.env(t, "staffer"), "deploy", writeDAG(t, t.TempDir(), "dag", readingsDAG))

	require.Empty(t, decode[[]registry.Dataset](t, w.env(t, reader), "datasets", "list"))
	require.Len(t, decode[[]registry.Dataset](t, w.env(t, "staffer"), "datasets", "list"), 1)
}
