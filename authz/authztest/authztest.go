// Package authztest tests that every route of a server enforces its rule, for every role and against a foreign org.
package authztest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Tokens are service tokens of an org, one of each kind, and one of an admin of another org.
type Tokens struct {
	Reader, Proposer, Writer, Admin, Worker, Foreign string
	Provisioner                                      string
	// OneDAG is a reader that is a writer of a DAG that does not exist: it may nowhere write.
	OneDAG string
}

// NewTokens creates the tokens and the foreign org. The pool is the owner's.
func NewTokens(t testing.TB, owner *pgxpool.Pool, org authz.Org) Tokens {
	t.Helper()
	foreign, err := authz.CreateOrg(t.Context(), owner, "authztest_foreign", "Foreign")
	require.NoError(t, err)

	token := func(org authz.Org, n authz.NewToken) string {
		t.Helper()
		maker := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system", Role: authz.RoleAdmin}
		secret, _, err := authz.CreateToken(t.Context(), owner, maker, n)
		require.NoError(t, err)
		return secret
	}
	return Tokens{
		Reader:   token(org, authz.NewToken{Name: "authztest-reader", Role: authz.RoleReader}),
		Proposer: token(org, authz.NewToken{Name: "authztest-proposer", Role: authz.RoleProposer}),
		OneDAG: token(org, authz.NewToken{Name: "authztest-one-dag", Role: authz.RoleReader,
			Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "authztest-*"}}}),
		Writer: token(org, authz.NewToken{Name: "authztest-writer", Role: authz.RoleWriter}),
		Admin:  token(org, authz.NewToken{Name: "authztest-admin", Role: authz.RoleAdmin}),
		Worker: token(org, authz.NewToken{Name: "authztest-worker", Kind: authz.KindWorker,
			Runtimes: []string{"dispatcher"}}),
		Provisioner: token(org, authz.NewToken{Name: "authztest-provisioner", Kind: authz.KindSCIM,
			Issuer: "https://login.example.com"}),
		Foreign: token(foreign, authz.NewToken{Name: "authztest-foreign", Role: authz.RoleAdmin}),
	}
}

// Matrix describes a server whose routes Check walks.
type Matrix struct {
	Handler http.Handler
	Routes  []authz.Route
	Tokens  Tokens
	// Param returns the name of something that exists in the org, for a parameter of a route's path. The walk may
	// change or delete it. A route whose parameter has no value fails the test, so that none is forgotten.
	Param func(route authz.Route, name string) string
	// Capability is the token of an attempt, for routes for tasks.
	Capability string
	// Marks are texts that only the org's own rows hold. No answer to a stranger may hold one.
	Marks []string
}

// Check sends a request to every route as nobody, with junk, as a worker, as each role and from the foreign org.
func (m Matrix) Check(t *testing.T) {
	t.Helper()
	require.NotEmpty(t, m.Routes)
	for _, route := range m.Routes {
		method, path := route.Method, m.path(t, route)
		if method == "" {
			method = http.MethodGet
		}
		name := method + " " + route.Path
		ask := func(token string) *httptest.ResponseRecorder { return send(m.Handler, method, path, token, "") }
		if route.Rule.Principal() == authz.Anyone {
			require.NotContains(t, []int{401, 403, 500}, ask("").Code, "%s is public", name)
			continue
		}

		if route.Rule.Principal() == authz.Sender {
			for _, token := range []string{"", "junk", m.Tokens.Worker, m.Tokens.Reader, m.Tokens.Admin,
				m.Tokens.Foreign} {
				require.Equal(t, http.StatusNotFound, ask(token).Code, "%s: a token is no signature", name)
			}
			continue
		}
		switch route.Rule.Principal() {
		case authz.AWorker, authz.ATask:
			m.checkRemote(t, route, method, path)
			continue
		case authz.AProvisioner:
			m.checkProvisioner(t, route, method, path)
			continue
		}
		strangers := map[string]string{"nobody": "", "junk": "junk", "capability": m.Capability,
			"unknown token": "dagctl_user_" + strings.Repeat("0", 43), "worker token": m.Tokens.Worker,
			"scim token": m.Tokens.Provisioner}
		for who, token := range strangers {
			w := ask(token)
			require.Equal(t, http.StatusUnauthorized, w.Code, "%s as %s: %s", name, who, w.Body)
			require.Contains(t, w.Header().Get("WWW-Authenticate"), "Bearer", "%s as %s", name, who)
			m.requireNoMarks(t, w, name+" as "+who)
		}
		require.Equal(t, http.StatusUnauthorized, send(m.Handler, method, path, "", m.Capability).Code, "%s as a task",
			name)

		// The foreign admin has every role, and nothing here is theirs.
		w := ask(m.Tokens.Foreign)
		require.NotContains(t, []int{401, 403, 500}, w.Code, "%s from the foreign org: %s", name, w.Body)
		if pathParam.MatchString(route.Path) {
			require.GreaterOrEqual(t, w.Code, 400, "%s from the foreign org reached something: %s", name, w.Body)
		}
		m.requireNoMarks(t, w, name+" from the foreign org")

		// The least role first: the walk may delete what the path names.
		for _, as := range []struct {
			role  authz.Role
			token string
		}{{authz.RoleReader, m.Tokens.Reader}, {authz.RoleReader, m.Tokens.OneDAG},
			{authz.RoleProposer, m.Tokens.Proposer}, {authz.RoleWriter, m.Tokens.Writer},
			{authz.RoleAdmin, m.Tokens.Admin}} {
			w := ask(as.token)
			allowed := (authz.Caller{Role: as.role}).May(route.Rule.Action(), authz.WholeOrg)
			if as.token == m.Tokens.OneDAG && route.Rule.Target() == authz.InBody {
				continue // the handler decides
			}
			require.Equal(t, allowed, w.Code != http.StatusForbidden, "%s as %s: %d %s", name, as.role, w.Code, w.Body)
			require.NotContains(t, []int{401, 500}, w.Code, "%s as %s: %s", name, as.role, w.Body)
		}
	}
}

// checkRemote checks that a route for workers or tasks refuses every other principal.
func (m Matrix) checkRemote(t *testing.T, route authz.Route, method, path string) {
	t.Helper()
	worker, capability := m.Tokens.Worker, ""
	strangers := map[string][2]string{ // bearer token and capability
		"nobody": {}, "junk": {"junk", "junk"}, "reader": {m.Tokens.Reader}, "writer": {m.Tokens.Writer},
		"admin":         {m.Tokens.Admin},
		"provisioner":   {m.Tokens.Provisioner},
		"foreign admin": {m.Tokens.Foreign}, "capability as a bearer": {m.Capability},
		"worker token as a capability": {m.Tokens.Admin, m.Tokens.Worker},
		"user token as a capability":   {"", m.Tokens.Admin},
		"unknown worker token":         {"dagctl_worker_" + strings.Repeat("0", 43)},
	}

	if route.Rule.Principal() == authz.AWorker {
		strangers["task"] = [2]string{"", m.Capability}
	} else {
		require.NotEmpty(t, m.Capability, "%s %s: give the walk a capability", method, route.Path)
		strangers["worker"] = [2]string{m.Tokens.Worker}
		worker, capability = "", m.Capability
	}

	for who, credentials := range strangers {
		w := send(m.Handler, method, path, credentials[0], credentials[1])
		require.Equal(t, http.StatusUnauthorized, w.Code, "%s %s as %s: %s", method, route.Path, who, w.Body)
		m.requireNoMarks(t, w, method+" "+route.Path+" as "+who)
	}

	w := send(m.Handler, method, path, worker, capability)
	require.NotContains(t, []int{401, 500}, w.Code, "%s %s as a %s: %s", method, route.Path, route.Rule, w.Body)
}

// checkProvisioner checks that a route for identity providers refuses every other principal.
func (m Matrix) checkProvisioner(t *testing.T, route authz.Route, method, path string) {
	t.Helper()
	for who, credentials := range map[string][2]string{ // bearer token and capability
		"nobody": {}, "junk": {"junk"}, "reader": {m.Tokens.Reader}, "admin": {m.Tokens.Admin},
		"foreign admin": {m.Tokens.Foreign}, "worker": {m.Tokens.Worker}, "task": {"", m.Capability},
		"capability as a bearer": {m.Capability}, "unknown scim token": {"dagctl_scim_" + strings.Repeat("0", 43)},
	} {
		w := send(m.Handler, method, path, credentials[0], credentials[1])
		require.Equal(t, http.StatusUnauthorized, w.Code, "%s %s as %s: %s", method, route.Path, who, w.Body)
		m.requireNoMarks(t, w, method+" "+route.Path+" as "+who)
	}
	w := send(m.Handler, method, path, m.Tokens.Provisioner, "")
	require.NotContains(t, []int{401, 403, 500}, w.Code, "%s %s as a provisioner: %s", method, route.Path, w.Body)
}

func (m Matrix) requireNoMarks(t *testing.T, w *httptest.ResponseRecorder, what string) {
	t.Helper()
	for _, mark := range m.Marks {
		require.NotContains(t, w.Body.String(), mark, what)
	}
}

var pathParam = regexp.MustCompile(`\{([A-Za-z_]\w*)(\.\.\.)?\}`)

// path returns the path of a route with its parameters filled in.
func (m Matrix) path(t *testing.T, route authz.Route) string {
	t.Helper()
	path := strings.TrimSuffix(route.Path, "{$}")
	return pathParam.ReplaceAllStringFunc(path, func(param string) string {
		name := pathParam.FindStringSubmatch(param)[1]
		value := ""
		if m.Param != nil {
			value = m.Param(route, name)
		}
		require.NotEmpty(t, value, "%s %s: give the walk a value for {%s}", route.Method, route.Path, name)
		return value
	})
}

func send(h http.Handler, method, path, token, capability string) *httptest.ResponseRecorder {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if capability != "" {
		r.Header.Set(protocol.CapabilityHeader, capability)
	}
	r.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
	w := httptest.NewRecorder()
	h.ServeHTTP(endAtFlush{w, cancel}, r)
	return w
}

// endAtFlush ends the request as soon as a stream begins.
type endAtFlush struct {
	*httptest.ResponseRecorder
	leave context.CancelFunc
}

func (e endAtFlush) Flush() {
	e.ResponseRecorder.Flush()
	e.leave()
}
