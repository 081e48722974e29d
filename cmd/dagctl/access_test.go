package main

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/internal/testoidc"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/timers"
)

// placeholders matches the placeholders of route paths, as net/http and OpenAPI write them.
var placeholder = regexp.MustCompile(`\{[^}]*\}`)

// address fills the placeholders of a route's path with names that exist in org acme.
func address(path, task string) string {
	values := map[string]string{
		"{dag}": "readings", "{job}": "note", "{version}": "1", "{name}": "daily_highest", "{name...}": "daily_highest",
		"{org}": "acme", "{path...}": "readings/hook",
		"{index}": "0", "{id}": task, "{key}": "2026-01-01", "{file}": "style.css", "{$}": "", "{slug}": "no-such-role",
		"{user}": "nobody@example.com", "{rule}": "no-such-rule", "{provider}": "no-such-provider",
		"{token}": "no-such-token", "{verb}": "retry",
	}
	if strings.HasPrefix(path, "/v1/tokens/") {
		values["{name}"] = "no-such-token"
	}
	return placeholder.ReplaceAllStringFunc(path, func(p string) string {
		value, known := values[p]
		if !known {
			panic(path + ": give the tests a value for " + p)
		}
		return value
	})
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

// Further callers of org acme, which a test makes itself.
const (
	proposer, ofReadings, ofAnother = "proposer", "of-readings", "of-another"
	ofVault, finance                = "of-vault", "finance"
	member, disabled                = "member", "disabled" // users, with sessions
)

// newToken makes a further caller.
func (w *world) newToken(t *testing.T, n authz.NewToken) {
	t.Helper()
	request := authz.CreateTokenRequest{Name: n.Name, Role: n.Role, Grants: n.Grants, OrgRoles: n.OrgRoles}
	var made authz.CreatedToken
	require.NoError(t, w.as(admin).Post(t.Context(), "/v1/tokens", request, &made))
	w.tokens[n.Name] = made.Secret
}

// timedDAG has a job for timers.
const timedDAG = `name: readings-timed
jobs:
  - name: note
    operator: command
    source: { kind: timer }
    outputs: 0
    config: { argv: [/bin/sh, -c, "cat > /dev/null"] }
`

// timer deploys timedDAG with a timer, and returns its id.
func (w *world) timer(t *testing.T) string {
	t.Helper()
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "timed", timedDAG))
	var made timers.Timer
	require.NoError(t, w.as(writer).Post(t.Context(), "/v1/scheduled-events", timers.NewTimer{DAG: "readings-timed",
		Job: "note", Local: "2100-01-01T00:00:00", Timezone: "UTC"}, &made))
	return made.ID.String()
}

// session returns the token of a session of the command line, of a new user whom a link signs in.
func (w *world) session(t *testing.T, email, role string) string {
	t.Helper()
	must(t, w.env(t, admin), "users", "invite", email, "--role", role, "--local")
	link := decode[identity.Link](t, w.env(t, admin), "users", "link", email)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browse{t, &http.Client{Jar: jar}}
	b.submit(link.URL, nil)

	home := t.TempDir()
	login := start(t, map[string]string{"HOME": home}, "login", w.url, "--device")
	b.submit(w.url+"/signin/device?code="+login.await(t, `type the code (\S+)`), nil)
	require.Zero(t, <-login.code)
	kept, err := os.ReadFile(filepath.Join(home, ".config", "dagctl", "config.yaml"))
	require.NoError(t, err)
	return regexp.MustCompile(`dagctl_session_\w+`).FindString(string(kept))
}

// withPages gives the server the address at which people sign in.
func withPages(cfg *server.Config) { cfg.BaseURL = "http://" + cfg.Listen }

// hideable are the targets of which a caller may see none.
var hideable = map[authz.Target]bool{authz.TheJobs: true, authz.TheTasks: true, authz.TheTimers: true,
	authz.TheDatasets: true, authz.TheBackfills: true, authz.TheBulk: true}

// TestAccessMatrix calls every route as every kind of caller, on what its caller may read and on what is hidden. The
// routes are those of the server's table: one without a rule, or whose object the test cannot name, fails.
func TestAccessMatrix(t *testing.T) {
	t.Parallel()
	t.Run("visible", testVisible)
	t.Run("hidden", testHidden)
}

// everyCaller adds callers of all other kinds to a world, and returns what those may do that are known.
func (w *world) everyCaller(t *testing.T) map[string]authz.Caller {
	t.Helper()
	w.tokens[disabled], w.tokens[member] = w.session(t, "gone@example.com", "admin"), w.session(t, "ada@example.com",
		"writer")
	must(t, w.env(t, admin), "users", "disable", "gone@example.com")
	must(t, w.env(t, admin), "roles", "create", "role:finance")
	callers := map[string]authz.Caller{reader: {Role: authz.RoleReader}, proposer: {Role: authz.RoleProposer},
		writer: {Role: authz.RoleWriter}, member: {Role: authz.RoleWriter}, admin: {Role: authz.RoleAdmin},
		foreign:    {Role: authz.RoleAdmin},
		finance:    {Role: authz.RoleWriter, OrgRoles: []string{"role:finance"}},
		ofReadings: {Role: authz.RoleReader, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "read*"}}},
		ofVault:    {Role: authz.RoleReader, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "vau*"}}},
		ofAnother:  {Role: authz.RoleReader, Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "another-*"}}}}
	for _, name := range []string{proposer, finance, ofReadings, ofVault, ofAnother} {
		w.newToken(t, authz.NewToken{Name: name, Role: callers[name].Role, Grants: callers[name].Grants,
			OrgRoles: callers[name].OrgRoles})
	}
	return callers
}

func testVisible(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	callers := w.everyCaller(t)
	w.deployReadings(t, "2026-01-01")
	someTask := w.tasks(t)[0].ID.String()
	someTimer := w.timer(t)
	acme := regexp.MustCompile(`daily_highest|harbour|landing|token:writer`)
	routes := w.app.API.Routes()
	slices.SortStableFunc(routes, func(a, b authz.Route) int { // what deletes comes last: the rest needs its objects
		return cmp.Compare(strings.Count(a.Method, http.MethodDelete), strings.Count(b.Method, http.MethodDelete))
	})
	for _, route := range routes {
		some, on := someTask, authz.OnDAG("readings")
		switch route.Rule.Target() {
		case authz.TheTimers:
			some, on = someTimer, authz.OnDAG("readings-timed")
		case authz.TheOrg, authz.InBody:
			on = authz.WholeOrg
		}
		path := address(route.Path, some)
		for _, caller := range []string{nobody, disabled, ofAnother, reader, proposer, ofReadings, writer, member,
			finance, admin, foreign, anyWorker, anyTask, anyProvisioner} {
			if caller == member && strings.HasSuffix(route.Path, "sign-out") || route.Path == "/signout" {
				continue // it would end the session
			}
			status, body := w.send(t, caller, route.Method, path, "application/json", strings.NewReader("{}"))
			where := route.Method + " " + path + " as " + caller
			require.NotZero(t, status, where)
			require.Less(t, status, 500, "%s: %s", where, body)
			as, known := callers[caller]
			switch {
			case route.Rule == authz.Public:
				require.NotEqual(t, http.StatusUnauthorized, status, where)
				continue
			case route.Rule == authz.Hook:
				require.Equal(t, http.StatusNotFound, status, "%s: a token is no signature: %s", where, body)
				continue
			case route.Rule == authz.ByWorker && caller == anyWorker, route.Rule == authz.ByTask && caller == anyTask,
				route.Rule == authz.ByProvisioner && caller == anyProvisioner:
				require.NotEqual(t, http.StatusUnauthorized, status, "%s: %s", where, body)
				continue
			case route.Rule == authz.ByWorker, route.Rule == authz.ByTask, route.Rule == authz.ByProvisioner:
				require.Equal(t, http.StatusUnauthorized, status, where)
				continue
			case !known:
				require.Equal(t, http.StatusUnauthorized, status, where)
			case route.Rule.Target() == authz.InBody && as.MaySomewhere(route.Rule.Action()):
				require.NotEqual(t, http.StatusUnauthorized, status, where) // the body's object decides
			case caller == ofAnother && hideable[route.Rule.Target()] && as.MaySomewhere(route.Rule.Action()):
				hidden := status == http.StatusNotFound
				require.True(t, hidden || status == http.StatusForbidden, "%s: %s", where, body)
			case !as.May(route.Rule.Action(), on):
				require.Equal(t, http.StatusForbidden, status, where)
			default:
				require.NotContains(t, []int{http.StatusUnauthorized, http.StatusForbidden}, status, "%s: %s", where,
					body)
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

// A token of one team works on that team's DAGs, and a proposer touches nothing that is live.
func TestRolesOnSomeDAGs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	dir, admins := t.TempDir(), w.env(t, admin)
	doubles := writeDAG(t, dir, "doubles", doublesDAG)
	as := func(name string, args ...string) map[string]string {
		env := w.env(t, admin)
		env["DAGCTL_TOKEN"] = strings.TrimSpace(must(t, env, append([]string{"tokens", "create", name}, args...)...))
		return env
	}
	team := as("team", "--role", "reader", "--grant", "writer:dou*")
	suggests := as("suggests", "--role", "proposer")

	for _, command := range [][]string{{"deploy", doubles}, {"run", "readings/note", "--payload", `{"text": "x"}`},
		{"backfill", "readings/daily", "--from", "2026-01-01", "--to", "2026-01-01"}, {"pause", "readings"}} {
		r := dagctl(t, suggests, command...)
		require.Equal(t, cli.ExitFailed, r.code, command)
		require.Contains(t, r.err, "this needs the role writer", command)
	}
	must(t, suggests, "plan", doubles)

	must(t, team, "deploy", doubles)
	must(t, team, "pause", "doubles")
	require.Equal(t, []string{"doubled"}, w.namesOf(t, team, "--all", "--dag", "doubles"))
	require.Equal(t, []string{"daily_highest"}, w.namesOf(t, team, "--all", "--dag", "readings"), "no unpublished one")
	must(t, team, "tasks", "retry", "--dag", "doubles", "--dead", "--yes")
	require.Contains(t, dagctl(t, team, "tasks", "retry", "--dead", "--yes").err, "for the whole org")
	require.Contains(t, dagctl(t, team, "pause", "readings").err, "or a grant of it on DAG readings")
	stolen := strings.NewReplacer("{ job: doubled }", "{ job: doubled }, takes_over: readings", "  doubled: {",
		"  daily_highest: {").Replace(doublesDAG)
	require.Contains(t, dagctl(t, team, "plan", writeDAG(t, dir, "stolen", stolen)).err, "is published by DAG readings")
	require.Contains(t, must(t, team, "whoami"), "reader,writer:dou*")
	require.Contains(t, must(t, admins, "tokens", "list"), "reader,writer:dou*")
	bad := dagctl(t, admins, "tokens", "create", "bad", "--role", "reader", "--grant", "admin:x")
	require.Contains(t, bad.err, `grants[0].role must be one of`)
	for _, ttl := range []string{"90000h", "2s"} {
		bad = dagctl(t, admins, "tokens", "create", "bad", "--role", "reader", "--ttl", ttl)
		require.Contains(t, bad.err, "--ttl: a token lives a minute at least and a year at most, not ")
		require.Contains(t, bad.err, "--ttl 8760h for a year")
	}
	require.Contains(t, dagctl(t, admins, "tokens", "create", "bad").err,
		"there is no role: name reader, proposer, writer or admin")
}

// An identity provider keeps users by a token that the command line makes.
func TestAProvisionersToken(t *testing.T) {
	t.Parallel()
	okta, partners := testoidc.Start(t, testoidc.Options{}), testoidc.Start(t, testoidc.Options{})
	w := newWorld(t, withProvider(t, okta), func(cfg *server.Config) {
		cfg.Identity.Providers = append(cfg.Identity.Providers, server.ProviderConfig{Name: "partners",
			Issuer: partners.Issuer, ClientID: "dagctl", Orgs: []string{"umbrella"}})
	})
	admins := w.env(t, admin)
	for _, issuer := range []string{"https://acme.okta.com", partners.Issuer} {
		refused := dagctl(t, admins, "tokens", "create", "okta", "--kind", "scim", "--issuer", issuer)
		require.Equal(t, cli.ExitFailed, refused.code, refused.err)
		require.Contains(t, refused.err, issuer+`" is no provider of this server at which people of acme sign in`)
		require.Contains(t, refused.err, "people of acme sign in at "+okta.Issuer)
	}

	w.tokens["okta"] = strings.TrimSpace(must(t, admins, "tokens", "create", "okta", "--kind", "scim", "--issuer",
		okta.Issuer, "--subject-from", "externalId"))
	status, body := w.send(t, "okta", http.MethodGet, "/scim/v2/Users", "", nil)
	require.Equal(t, http.StatusOK, status)
	require.JSONEq(t, `{"schemas": ["urn:ietf:params:scim:api:messages:2.0:ListResponse"], "totalResults": 0,
		"startIndex": 1, "itemsPerPage": 0, "Resources": []}`, body)
	status, body = w.send(t, "okta", http.MethodPost, "/scim/v2/Users", "application/scim+json",
		strings.NewReader(`{"userName": "ada@example.com", "externalId": "00u1"}`))
	require.Equal(t, http.StatusCreated, status, body)

	made := decode[[]authz.Token](t, admins, "tokens", "list")
	i := slices.IndexFunc(made, func(token authz.Token) bool { return token.Name == "okta" })
	require.Equal(t, []any{authz.KindSCIM, authz.RoleReader, okta.Issuer, authz.FromExternalID},
		[]any{made[i].Kind, made[i].Role, made[i].Issuer, made[i].SubjectFrom})
	must(t, admins, "tokens", "revoke", "okta", "--yes")
	status, _ = w.send(t, "okta", http.MethodGet, "/scim/v2/Users", "", nil)
	require.Equal(t, http.StatusUnauthorized, status)
}

// namesOf returns the names of datasets that a caller lists.
func (w *world) namesOf(t *testing.T, env map[string]string, args ...string) (names []string) {
	t.Helper()
	for _, d := range decode[[]registry.Dataset](t, env, append([]string{"datasets", "list"}, args...)...) {
		names = append(names, d.Name)
	}
	return names
}

func TestNoRouteTakesTheOrgFromTheRequest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	list := func(query string) (status int, body string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/dags"+query, nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+w.tokens[foreign])
		request.Header.Set("X-Org", "acme")
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		return response.StatusCode, string(text)
	}

	_, body := list("")
	require.JSONEq(t, `{"items": []}`, body)
	status, body := list("?org=acme&org_id=acme")
	require.Equal(t, http.StatusUnprocessableEntity, status)
	require.NotContains(t, body, "readings")
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
	for body, place := range map[string]string{
		`{"payload": {"text": "x"}, "priority": 99999999999}`:                                             "body.priority",
		`{"items": [{"payload": {"text": "x"}}, {"priority": -99999999999}]}`:                             "body.items[1].priority",
		`{"payload": {"text": "x", "deep": ` + strings.Repeat("[", 600) + strings.Repeat("]", 600) + `}}`: "payload: is nested too deeply",
	} {
		status, answer := w.send(t, writer, http.MethodPost, "/v1/jobs/readings/note/tasks", "application/json",
			strings.NewReader(body))
		require.Equal(t, http.StatusUnprocessableEntity, status, answer)
		require.Contains(t, answer, place)
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
