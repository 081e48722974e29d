package authz_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/authz/authztest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// world is a database with one org and the pools of a server on it.
type world struct {
	owner, requests *pgxpool.Pool
	org             authz.Org
}

// The port that an address has anyway may be written or not.
func TestHostsWithTheirOwnPort(t *testing.T) {
	t.Parallel()
	api := newWorld(t).api(t, authz.Config{Hosts: []string{"x.example", "y.example:8443"}})
	for host, want := range map[string]int{"x.example": 401, "X.example:443": 401, "x.example:80": 401,
		"x.example:8443": 403, "y.example:8443": 401, "y.example": 403, "z.example:443": 403, "x.example:443:80": 403} {
		require.Equal(t, want, call(api, http.MethodGet, "/v1/whoami", "", "Host", host).Code, host)
	}
}

func newWorld(t *testing.T) world {
	t.Helper()
	url := testdb.URL(t)
	open := func(opener func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
		pool, err := opener(t.Context(), url, pg.WithMaxConns(4))
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	w := world{owner: open(pg.Open), requests: open(pg.OpenRequests)}
	org, err := authz.CreateOrg(t.Context(), w.owner, "acme", "Acme")
	require.NoError(t, err)
	w.org = org
	return w
}

// admin is an admin of the org.
func (w world) admin() authz.Caller {
	return authz.Caller{OrgID: w.org.ID, OrgSlug: w.org.Slug, Actor: "token:root",
		Role: authz.RoleAdmin, RequestID: "r-1"}
}

// token makes a token in the org.
func (w world) token(t *testing.T, n authz.NewToken) string {
	t.Helper()
	secret, _, err := authz.CreateToken(t.Context(), w.requests, w.admin(), n)
	require.NoError(t, err)
	return secret
}

// api is this package's routes on the world.
func (w world) api(t *testing.T, cfg authz.Config) *authz.API {
	t.Helper()
	cfg.REST.Logger = slog.New(slog.DiscardHandler)
	cfg.Authenticators = append(cfg.Authenticators, authz.NewTokens(w.owner))
	api, err := authz.NewAPI(cfg)
	require.NoError(t, err)
	authz.Register(api, w.requests, nil)
	auditlog.AddRoutes(api, w.requests)
	vault, err := authz.NewVault(authz.VaultConfig{Owner: w.owner, Requests: w.requests,
		Keys: []string{authz.NewVaultKey()}})
	require.NoError(t, err)
	vault.AddRoutes(api)
	return api
}

// call sends a request; header is names and values in turn.
func call(api *authz.API, method, target, body string, header ...string) *httptest.ResponseRecorder {
	return callHandler(api.Handler(), method, target, body, header...)
}

func callHandler(h http.Handler, method, target, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
			continue
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func as(token string) []string { return []string{"Authorization", "Bearer " + token} }

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &v), w.Body.String())
	return v
}

func TestEveryRouteEnforcesItsRule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	for _, rule := range []authz.Rule{authz.Public, authz.Reader, authz.To(authz.Operate, authz.TheOrg), authz.Admin} {
		api.HandlePage(rule, "GET /page/"+strings.ReplaceAll(rule.String(), " ", "-"),
			func(w http.ResponseWriter, _ *http.Request, _ authz.Caller) error {
				_, err := io.WriteString(w, "ok")
				return err
			})
	}

	authztest.Matrix{
		Handler: api.Handler(), Routes: api.Routes(), Tokens: authztest.NewTokens(t, w.owner, w.org),
		Param: func(route authz.Route, _ string) string {
			// Each route gets its own object to revoke or delete.
			if strings.HasPrefix(route.Path, "/v1/secrets/") {
				_, err := w.vault(t, authz.NewVaultKey()).SetSecret(t.Context(), w.admin(), "victim", "its value")
				require.NoError(t, err)
			} else if strings.HasPrefix(route.Path, "/v1/roles/") {
				_, err := authz.CreateOrgRole(t.Context(), w.owner, w.admin(), "victim", "")
				require.NoError(t, err)
			} else {
				w.token(t, authz.NewToken{Name: "victim", Role: authz.RoleReader})
			}
			return "victim"
		},
		Marks: []string{"victim\"", "authztest-reader", "acme"},
	}.Check(t)
}

func TestARouteWithoutARulePanics(t *testing.T) {
	t.Parallel()
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(nil)}})
	require.NoError(t, err)
	handler := func(context.Context, authz.Caller, *struct{}) (*struct{}, error) { return nil, nil }
	require.PanicsWithValue(t, "route GET /x has no rule", func() {
		authz.Handle(api, authz.Rule{}, huma.Operation{OperationID: "x", Method: "GET", Path: "/x"}, handler)
	})
	require.PanicsWithValue(t, "route GET /x: its object is a dag, but its path has no {dag}", func() {
		rule := authz.To(authz.Deploy, authz.TheDAG)
		authz.Handle(api, rule, huma.Operation{OperationID: "x", Method: "GET", Path: "/x"}, handler)
	})
	require.Panics(t, func() {
		rule := authz.To("unheard-of", authz.TheOrg)
		authz.Handle(api, rule, huma.Operation{OperationID: "x", Method: "GET", Path: "/x"}, handler)
	})
	require.Panics(t, func() { api.HandlePage(authz.Rule{}, "GET /x", nil) })
	require.Equal(t, []authz.Route{{Method: "GET", Path: "/openapi.json", Rule: authz.Public}}, api.Routes())

	_, err = authz.NewAPI(authz.Config{})
	require.Error(t, err, "an API that nobody could use")
	for _, origin := range []string{"dagctl.example.com", "ftp://x", "https://x/path", "https://u@x", "*"} {
		_, err = authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(nil)},
			Origins: []string{origin}})
		require.Error(t, err, origin)
	}
}

func TestStreamsOfTheAPIFailLikeOperations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{SignInPath: "/login"})
	missing := func(http.ResponseWriter, *http.Request, authz.Caller) error {
		return fault.New(fault.NotFound, "there is none")
	}
	api.HandleStream(authz.Reader, "GET /v1/stream", missing)
	api.HandleStream(authz.Reader, "GET /stream", missing)
	reader := as(w.token(t, authz.NewToken{Name: "reader", Role: authz.RoleReader}))

	answer := call(api, "GET", "/v1/stream", "", reader...)
	require.Equal(t, 404, answer.Code)
	require.Equal(t, "there is none", decode[rest.Problem](t, answer).Detail)
	answer = call(api, "GET", "/v1/stream", "")
	require.Equal(t, 401, answer.Code, "a program is not sent to sign in")
	require.NotEmpty(t, answer.Header().Get("WWW-Authenticate"))
	require.Equal(t, 303, call(api, "GET", "/stream", "", "Accept", "text/html").Code)
	require.Equal(t, "text/plain; charset=utf-8",
		call(api, "GET", "/stream", "", reader...).Header().Get("Content-Type"))
}

func TestCallersAreAuthenticatedBeforeTheBodyIsRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	read := false
	body := readerFunc(func([]byte) (int, error) { read = true; return 0, errors.New("read") })
	r := httptest.NewRequest("POST", "/v1/tokens", body)
	answer := httptest.NewRecorder()
	api.Handler().ServeHTTP(answer, r)
	require.Equal(t, 401, answer.Code)
	require.False(t, read)
	require.Equal(t, "application/problem+json", answer.Header().Get("Content-Type"))
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func TestOperationsDeclareTheirSecurity(t *testing.T) {
	t.Parallel()
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(nil)}})
	require.NoError(t, err)
	authz.Register(api, nil, nil)
	authz.Handle(api, authz.Public, huma.Operation{OperationID: "health", Method: "GET", Path: "/healthz"},
		func(context.Context, authz.Caller, *struct{}) (*struct{}, error) { return nil, nil })
	doc := decode[struct {
		Paths map[string]map[string]struct {
			Security []map[string][]string
		}

		Components struct {
			SecuritySchemes map[string]struct{ Type, Scheme string }
		}
	}](t, call(api, "GET", "/openapi.json", ""))
	require.Equal(t, "bearer", doc.Components.SecuritySchemes["token"].Scheme)
	require.Contains(t, doc.Paths["/v1/tokens"]["post"].Security[0], "token")
	require.Empty(t, doc.Paths["/healthz"]["get"].Security)
}

func TestEveryCallerHasItsOwnRateLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limiter, err := rest.NewLimiter(0.001, 2)
	require.NoError(t, err)
	api := w.api(t, authz.Config{Limiter: limiter})
	one := w.token(t, authz.NewToken{Name: "one", Role: authz.RoleReader})
	two := w.token(t, authz.NewToken{Name: "two", Role: authz.RoleReader})
	for range 2 {
		require.Equal(t, 200, call(api, "GET", "/v1/whoami", "", as(one)...).Code)
	}
	answer := call(api, "GET", "/v1/whoami", "", as(one)...)
	require.Equal(t, 429, answer.Code)
	require.Regexp(t, `^\d+$`, answer.Header().Get("Retry-After"))
	require.Equal(t, "too_many", decode[rest.Problem](t, answer).Kind)
	require.Equal(t, 200, call(api, "GET", "/v1/whoami", "", as(two)...).Code)
}

func TestPagesRenderErrorsForPeople(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	reader := w.token(t, authz.NewToken{Name: "reader", Role: authz.RoleReader})
	page := func(api *authz.API) {
		api.HandlePage(authz.Admin, "GET /dags/{dag}", func(http.ResponseWriter, *http.Request, authz.Caller) error {
			return errors.New("hunter2")
		})
		api.HandlePage(authz.Reader, "GET /broken", func(http.ResponseWriter, *http.Request, authz.Caller) error {
			return errors.New("hunter2")
		})
	}
	api := w.api(t, authz.Config{})
	page(api)
	answer := call(api, "GET", "/dags/x?y=1", "")
	require.Equal(t, 401, answer.Code)
	require.Equal(t, "text/plain; charset=utf-8", answer.Header().Get("Content-Type"))
	require.Contains(t, answer.Body.String(), "this needs a token")
	require.Equal(t, 403, call(api, "GET", "/dags/x", "", as(reader)...).Code)
	answer = call(api, "GET", "/broken", "", as(reader)...)
	require.Equal(t, 500, answer.Code)
	require.NotContains(t, answer.Body.String(), "hunter2")
	require.Contains(t, answer.Header().Get("Content-Security-Policy"), "default-src 'self'")

	api = w.api(t, authz.Config{SignInPath: "/login",
		RenderError: func(w http.ResponseWriter, _ *http.Request, p *rest.Problem) {
			w.WriteHeader(p.Status)
			fmt.Fprint(w, "<h1>", p.Title)
		}})
	page(api)
	require.Equal(t, 401, call(api, "GET", "/dags/x?y=1&z=2", "").Code, "a program is not sent to sign in")
	answer = call(api, "GET", "/dags/x?y=1&z=2", "", "Accept", "text/html,*/*;q=0.8")
	require.Equal(t, 303, answer.Code)
	require.Equal(t, "/login?next=%2Fdags%2Fx%3Fy%3D1%26z%3D2", answer.Header().Get("Location"))
	require.Equal(t, "<h1>Forbidden", call(api, "GET", "/dags/x", "", as(reader)...).Body.String())
}

func TestStreamsHaveNoTimeLimit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{REST: rest.Config{Timeout: time.Minute}})
	limited := map[string]bool{}
	note := func(_ http.ResponseWriter, r *http.Request, _ authz.Caller) error {
		_, limited[r.URL.Path] = r.Context().Deadline()
		return nil
	}
	api.HandlePage(authz.Public, "GET /page", note)
	api.HandleStream(authz.Public, "GET /stream", note)
	call(api, "GET", "/page", "")
	call(api, "GET", "/stream", "")
	require.Equal(t, map[string]bool{"/page": true, "/stream": false}, limited)
}
