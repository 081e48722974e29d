package authz_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/authz/authztest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/worker/protocol"
)

func TestWhatAWorkerMayClaim(t *testing.T) {
	t.Parallel()
	acme, umbrella := uuid.New(), uuid.New()
	narrow := authz.Worker{Orgs: []uuid.UUID{acme}, Runtimes: []string{"lambda"}, Operators: []string{"sql", "udf"}}

	for name, tc := range map[string]struct {
		worker            authz.Worker
		org               uuid.UUID
		runtime, operator string
		may               bool
	}{
		"its own":            {narrow, acme, "lambda", "udf", true},
		"another org's":      {narrow, umbrella, "lambda", "udf", false},
		"another runtime's":  {narrow, acme, "ecs_udf", "udf", false},
		"another operator's": {narrow, acme, "lambda", "command", false},
		"any operator": {authz.Worker{Orgs: []uuid.UUID{acme}, Runtimes: []string{"lambda"}}, acme, "lambda",
			"command", true},
		"any runtime": {authz.Worker{Orgs: []uuid.UUID{acme}}, acme, "lambda", "command", true},
		"one of several orgs": {authz.Worker{Orgs: []uuid.UUID{acme, umbrella}}, umbrella, "lambda", "command",
			true},
		"no org is not all": {authz.Worker{OrgID: acme}, acme, "lambda", "command", false},
		"nobody":            {authz.Worker{}, uuid.Nil, "", "", false},
		"the token's own org only": {authz.Worker{OrgID: acme, Orgs: []uuid.UUID{umbrella}}, acme, "lambda", "sql",
			false},
		"a prefix is no match": {narrow, acme, "lambda2", "sql", false},
	} {
		require.Equal(t, tc.may, tc.worker.MayClaim(tc.org, tc.runtime, tc.operator), name)
	}
}

// remote is an API with a route for workers and one for tasks; both return the caller.
func (w world) remote(t *testing.T, cfg authz.Config) (*authz.API, *authz.Signer) {
	t.Helper()
	_, key := taskKey(t, "key")
	s := signer(t, key)
	cfg.Workers, cfg.Signer = authz.NewTokens(w.owner), s
	api := w.api(t, cfg)
	type input struct {
		Body struct {
			Text string `json:"text,omitempty"`
		}
	}

	type output struct{ Body string }
	operation := func(id string) huma.Operation {
		return huma.Operation{OperationID: id, Method: http.MethodPost, Path: "/remote/" + id, DefaultStatus: 200}
	}
	authz.HandleWorker(api, operation("worker"), func(_ context.Context, w authz.Worker, _ *input) (*output, error) {
		return &output{w.Actor()}, nil
	})
	authz.HandleTask(api, operation("task"), func(_ context.Context, c authz.Capability, _ *input) (*output, error) {
		return &output{c.TaskID.String()}, nil
	})
	authz.HandleWorkerRaw(api, operation("worker-raw"), 10,
		func(w http.ResponseWriter, r *http.Request, worker authz.Worker) error {
			return answerWith(w, r, worker.Actor())
		})
	authz.HandleTaskRaw(api, operation("task-raw"), 10,
		func(w http.ResponseWriter, r *http.Request, c authz.Capability) error {
			if _, err := authz.FenceOf(r, c); r.Header.Get(protocol.TaskHeader) != "" && err != nil {
				return err
			}
			return answerWith(w, r, c.TaskID.String())
		})
	return api, s
}

func answerWith(w http.ResponseWriter, r *http.Request, text string) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s %s", text, body)
	return err
}

const protocolVersion = "1"

func capable(token string, header ...string) []string {
	return append([]string{protocol.CapabilityHeader, token, protocol.VersionHeader, protocolVersion}, header...)
}

func asWorker(token string) []string {
	return append(as(token), protocol.VersionHeader, protocolVersion)
}

// live returns a capability of a running attempt.
func live(t *testing.T, s *authz.Signer, org uuid.UUID) (string, authz.Capability) {
	t.Helper()
	c := authz.Capability{OrgID: org, TaskID: uuid.New(), Attempt: 2, ExpiresAt: time.Now().Add(time.Hour)}
	token, err := s.Issue(c, time.Now())
	require.NoError(t, err)
	return token, c
}

func TestWorkersAndTasksAreNoOtherPrincipal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, s := w.remote(t, authz.Config{})
	capability, _ := live(t, s, w.org.ID)
	authztest.Matrix{
		Handler: api.Handler(), Routes: api.Routes(), Tokens: authztest.NewTokens(t, w.owner, w.org),
		Capability: capability,
		Param:      func(authz.Route, string) string { return "none" },
	}.Check(t)
}

func TestRemoteRoutes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, s := w.remote(t, authz.Config{})
	worker := w.token(t, authz.NewToken{Name: "fleet", Kind: authz.KindWorker, Runtimes: []string{"lambda"}})
	token, c := live(t, s, w.org.ID)

	require.Equal(t, "\"token:fleet\"\n", call(api, "POST", "/remote/worker", "{}", asWorker(worker)...).Body.String())
	require.Equal(t, "\""+c.TaskID.String()+"\"\n",
		call(api, "POST", "/remote/task", "{}", capable(token)...).Body.String())
	require.Equal(t, "token:fleet bytes", call(api, "POST", "/remote/worker-raw", "bytes",
		asWorker(worker)...).Body.String())
	require.Equal(t, c.TaskID.String()+" bytes",
		call(api, "POST", "/remote/task-raw", "bytes", capable(token)...).Body.String())

	long := call(api, "POST", "/remote/task-raw", "eleven byte", capable(token)...)
	require.Equal(t, http.StatusRequestEntityTooLarge, long.Code, long.Body)
	require.Equal(t, "application/problem+json", long.Header().Get("Content-Type"))

	for said, ok := range map[string]bool{"1": true, "": false, "0": false, "2": false, "-1": false, "one": false,
		"1.0": false} {
		header := append(as(worker), protocol.VersionHeader, said)
		answer := call(api, "POST", "/remote/worker", "{}", header...)
		require.Equal(t, ok, answer.Code == 200, "%q: %s", said, answer.Body)
		if !ok {
			require.Equal(t, 422, answer.Code)
			require.Contains(t, answer.Body.String(), protocol.VersionHeader)
		}
	}

	lease := uuid.NewString()
	for name, tc := range map[string]struct {
		task, attempt, lease string
		status               int
	}{
		"its own":         {c.TaskID.String(), "2", lease, 200},
		"another task":    {uuid.NewString(), "2", lease, 403},
		"another attempt": {c.TaskID.String(), "3", lease, 403},
		"no attempt":      {c.TaskID.String(), "", lease, 422},
		"attempt 0":       {c.TaskID.String(), "0", lease, 422},
		"no lease":        {c.TaskID.String(), "2", "", 422},
		"junk":            {"x", "y", "z", 422},
	} {
		header := capable(token, protocol.TaskHeader, tc.task, protocol.AttemptHeader, tc.attempt,
			protocol.LeaseTokenHeader, tc.lease)
		answer := call(api, "POST", "/remote/task-raw", "", header...)
		require.Equal(t, tc.status, answer.Code, "%s: %s", name, answer.Body)
		if name == "junk" {
			require.Len(t, decode[rest.Problem](t, answer).Errors, 3, "every fault is listed")
		}
	}
	answer := call(api, "GET", "/internal/jwks/task", "")
	require.Equal(t, 200, answer.Code)
	require.Equal(t, s.JWKS(), decode[authz.KeySet](t, answer))
}

func TestInvalidWorkerTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, _ := w.remote(t, authz.Config{})
	worker := func(name string) string {
		return w.token(t, authz.NewToken{Name: name, Kind: authz.KindWorker, Runtimes: []string{"lambda"}})
	}
	good, expired, revoked := worker("good"), worker("expired"), worker("revoked")
	_, err := w.owner.Exec(t.Context(), `UPDATE service_tokens SET expires_at = now() WHERE name = 'expired'`)
	require.NoError(t, err)
	require.NoError(t, authz.RevokeToken(t.Context(), w.requests, w.admin(), "revoked"))
	user := w.token(t, authz.NewToken{Name: "user", Role: authz.RoleAdmin})

	require.Equal(t, 200, call(api, "POST", "/remote/worker", "{}", asWorker(good)...).Code)
	for name, token := range map[string]string{
		"expired": expired, "revoked": revoked, "a user's": user,
		"a user's secret as a worker's": "dagctl_worker_" + strings.TrimPrefix(user, "dagctl_user_"),
		"cut off":                       good[:len(good)-1], "unknown": "dagctl_worker_" + strings.Repeat("z", 43),
		"of a dev server": "dagctl_dev_" + strings.Repeat("z", 43),
	} {
		require.Equal(t, 401, call(api, "POST", "/remote/worker", "{}", asWorker(token)...).Code, name)
	}
	require.Equal(t, 401, call(api, "GET", "/v1/whoami", "", as(good)...).Code, "a worker is no user")

	// Even a user's row under a worker's prefix identifies no worker.
	_, err = w.owner.Exec(t.Context(), `UPDATE service_tokens
		SET hash = sha256(convert_to('dagctl_worker_' || repeat('u', 43), 'UTF8')) WHERE name = 'user'`)
	require.NoError(t, err)
	require.Equal(t, 401, call(api, "POST", "/remote/worker", "{}",
		asWorker("dagctl_worker_"+strings.Repeat("u", 43))...).Code)
}

func TestLimitsOfWorkersAndTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	limiter := func(burst int) *rest.Limiter {
		l, err := rest.NewLimiter(1e-6, burst)
		require.NoError(t, err)
		return l
	}

	api, s := w.remote(t, authz.Config{Limiter: limiter(2), WorkerLimiter: limiter(3)})
	worker := w.token(t, authz.NewToken{Name: "fleet", Kind: authz.KindWorker, Runtimes: []string{"lambda"}})
	one, _ := live(t, s, w.org.ID)
	other, _ := live(t, s, w.org.ID)
	for name, tc := range map[string]struct {
		path    string
		header  []string
		allowed int
	}{
		"worker":       {"/remote/worker", asWorker(worker), 3},
		"task":         {"/remote/task", capable(one), 2},
		"another task": {"/remote/task-raw", capable(other), 2},
	} {
		for range tc.allowed {
			require.Equal(t, 200, call(api, "POST", tc.path, "{}", tc.header...).Code, name)
		}
		answer := call(api, "POST", tc.path, "{}", tc.header...)
		require.Equal(t, 429, answer.Code, name)
		require.NotEmpty(t, answer.Header().Get("Retry-After"), name)
	}
}

func TestWorkerTokensOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, _ := w.remote(t, authz.Config{})
	_, err := authz.CreateOrg(t.Context(), w.owner, "umbrella", "Umbrella")
	require.NoError(t, err)
	root := w.token(t, authz.NewToken{Name: "root", Role: authz.RoleAdmin})
	answer := call(api, "POST", "/v1/tokens",
		`{"name":"fleet","kind":"worker","runtimes":["lambda"],"operators":["sql"],"orgs":["acme"]}`, as(root)...)
	require.Equal(t, 201, answer.Code, answer.Body)
	made := decode[authz.CreatedToken](t, answer)
	require.Equal(t, 1, made.Orgs)
	require.Regexp(t, `^dagctl_worker_[0-9A-Za-z]{43}$`, made.Secret)
	require.Equal(t, 200, call(api, "POST", "/remote/worker", "{}", asWorker(made.Secret)...).Code)

	for body, status := range map[string]int{
		`{"name":"a","kind":"worker","runtimes":["lambda"],"orgs":["umbrella"]}`:        403,
		`{"name":"a","kind":"worker","runtimes":["lambda"],"orgs":["acme","umbrella"]}`: 403,
		`{"name":"a","kind":"worker","runtimes":["lambda"],"orgs":["nothing"]}`:         403,
		`{"name":"a","kind":"worker","runtimes":["lambda"],"role":"writer"}`:            422,
		`{"name":"a","kind":"worker","runtimes":["*"]}`:                                 422,
		`{"name":"a","kind":"worker","runtimes":["lambda"],"operators":["'; DROP"]}`:    422,
		`{"name":"a","kind":"worker"}`:                                                  422,
		`{"name":"a","role":"writer","orgs":["acme"]}`:                                  422,
		`{"name":"a","role":"writer","operators":["sql"]}`:                              422,
		`{"name":"a","kind":"task","runtimes":["lambda"]}`:                              422,
	} {
		answer := call(api, "POST", "/v1/tokens", body, as(root)...)
		require.Equal(t, status, answer.Code, "%s: %s", body, answer.Body)
	}
	list := call(api, "GET", "/v1/tokens", "", as(root)...)
	require.Equal(t, []string{"sql"}, decode[rest.List[authz.Token]](t, list).Items[0].Operators)
	require.NotNil(t, decode[rest.List[authz.Token]](t, list).Items[0].LastUsedAt)
	require.Contains(t, call(api, "GET", "/v1/audit?action=token.create", "", as(root)...).Body.String(), "token:fleet")
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/fleet", "", as(root)...).Code)
	require.Equal(t, 401, call(api, "POST", "/remote/worker", "{}", asWorker(made.Secret)...).Code, "at once")
}

func TestConcurrentWorkerTokensGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secrets := map[string]string{}
	for _, name := range []string{"one", "two", "revoked"} {
		secret, _, err := authz.CreateWorkerToken(t.Context(), w.owner,
			authz.NewToken{Name: name, Runtimes: []string{name}, Orgs: []string{"acme"}})
		require.NoError(t, err)
		secrets[name] = secret
	}
	require.NoError(t, authz.RevokeAnyToken(t.Context(), w.owner, "acme", "revoked"))

	secrets["unknown"] = secrets["one"][:len(secrets["one"])-1]
	tokens := authz.NewTokens(w.owner)
	var all errgroup.Group
	for range 25 {
		for name, secret := range secrets {
			all.Go(func() error {
				r := httptest.NewRequestWithContext(t.Context(), "POST", "/", nil)
				r.Header.Set("Authorization", "Bearer "+secret)
				got, err := tokens.AuthenticateWorker(r)
				if allowed := name == "one" || name == "two"; allowed && (err != nil || got.TokenName != name) ||
					!allowed && !fault.Is(err, fault.Unauthenticated) {
					return fmt.Errorf("%s: %+v, %w", name, got, err)
				}
				return nil
			})
		}
	}
	require.NoError(t, all.Wait())
}

func TestAWorkerTokenOfSeveralOrgs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, _ := w.remote(t, authz.Config{})
	umbrella, err := authz.CreateOrg(t.Context(), w.owner, "umbrella", "Umbrella")
	require.NoError(t, err)
	fleet := authz.NewToken{Name: "fleet", Runtimes: []string{"lambda"}, Orgs: []string{"umbrella", "acme", "umbrella"}}

	for _, wrong := range []authz.NewToken{
		{Name: "a", Runtimes: []string{"lambda"}}, {Name: "a", Orgs: []string{"acme"}}, {Name: "a",
			Runtimes: []string{"lambda"}, Orgs: []string{"nothing"}},
		{Name: "a", Runtimes: []string{"lambda"}, Orgs: []string{"acme"}, Role: authz.RoleAdmin},
	} {
		_, _, err := authz.CreateWorkerToken(t.Context(), w.owner, wrong)
		require.True(t, fault.Is(err, fault.Invalid) || fault.Is(err, fault.NotFound), "%v: %v", wrong, err)
	}
	secret, token, err := authz.CreateWorkerToken(t.Context(), w.owner, fleet)
	require.NoError(t, err)
	require.Equal(t, 2, token.Orgs)
	_, _, err = authz.CreateWorkerToken(t.Context(), w.requests, fleet)
	require.Error(t, err, "no request makes one")

	r, err := http.NewRequestWithContext(t.Context(), "POST", "/", nil)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+secret)
	got, err := authz.NewTokens(w.owner).AuthenticateWorker(r)
	require.NoError(t, err)
	require.Equal(t, authz.Worker{OrgID: umbrella.ID, TokenName: "fleet",
		Orgs: []uuid.UUID{umbrella.ID, w.org.ID}, Runtimes: []string{"lambda"}}, got)

	for org, object := range map[uuid.UUID]string{umbrella.ID: "token:fleet", w.org.ID: "umbrella/token:fleet"} {
		caller := authz.Caller{OrgID: org, Role: authz.RoleAdmin}
		list, err := auditlog.List(t.Context(), w.requests, caller, auditlog.Filter{Action: "token.create"},
			rest.PageInput{Limit: 5})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		require.Equal(t, object, list.Items[0].Object)
		require.NotContains(t, string(list.Items[0].Detail), secret)
	}
	// The admin of one org cannot revoke a token that other orgs use.
	admin := authz.Caller{OrgID: umbrella.ID, OrgSlug: "umbrella", Actor: "token:root", Role: authz.RoleAdmin}
	require.True(t, fault.Is(authz.RevokeToken(t.Context(), w.requests, admin, "fleet"), fault.Forbidden))
	require.Equal(t, 200, call(api, "POST", "/remote/worker", "{}", asWorker(secret)...).Code)
	require.True(t, fault.Is(authz.RevokeAnyToken(t.Context(), w.owner, "acme", "fleet"), fault.NotFound))
	require.NoError(t, authz.RevokeAnyToken(t.Context(), w.owner, "umbrella", "fleet"))
	require.NoError(t, authz.RevokeAnyToken(t.Context(), w.owner, "umbrella", "fleet"), "again changes nothing")
	require.Equal(t, 401, call(api, "POST", "/remote/worker", "{}", asWorker(secret)...).Code)
}

func TestARemoteRouteNeedsAnAuthenticator(t *testing.T) {
	t.Parallel()
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(nil)}})
	require.NoError(t, err)
	op := huma.Operation{OperationID: "x", Method: "POST", Path: "/x"}
	require.Panics(t, func() {
		authz.HandleWorker(api, op, func(context.Context, authz.Worker, *struct{}) (*struct{}, error) {
			return nil,
				nil
		})
	})

	require.Panics(t, func() {
		authz.HandleTask(api, op, func(context.Context, authz.Capability, *struct{}) (*struct{}, error) {
			return nil,
				nil
		})
	})
	for _, rule := range []authz.Rule{authz.ByWorker, authz.ByTask} {
		require.Panics(t, func() {
			authz.Handle(api, rule, op, func(context.Context, authz.Caller, *struct{}) (*struct{}, error) {
				return nil,
					nil
			})
		}, "a Caller is neither")
		require.Panics(t, func() { api.HandleStream(rule, "GET /x", nil) })
	}
}

func TestTwoAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api, s := w.remote(t, authz.Config{})
	worker := asWorker(w.token(t, authz.NewToken{Name: "fleet", Kind: authz.KindWorker, Runtimes: []string{"lambda"}}))
	token, _ := live(t, s, w.org.ID)
	root := as(w.token(t, authz.NewToken{Name: "root", Role: authz.RoleAdmin}))
	sides := map[string]http.Handler{"one": api.Handler(), "people": api.PeopleHandler(), "remote": api.RemoteHandler()}

	for _, tc := range []struct {
		method, path string
		header       []string
		statuses     map[string]int
	}{
		{"POST", "/remote/worker", worker, map[string]int{"one": 200, "people": 404, "remote": 200}},
		{"POST", "/remote/task", capable(token), map[string]int{"one": 200, "people": 404, "remote": 200}},
		{"POST", "/remote/task-raw", capable(token), map[string]int{"one": 200, "people": 404, "remote": 200}},
		{"POST", "/remote/task", nil, map[string]int{"one": 401, "people": 404, "remote": 401}},
		{"GET", "/remote/task", nil, map[string]int{"one": 405, "people": 404, "remote": 405}},
		{"GET", "/v1/whoami", root, map[string]int{"one": 200, "people": 200, "remote": 404}},
		{"GET", "/v1/whoami", nil, map[string]int{"one": 401, "people": 401, "remote": 404}},
		{"PUT", "/v1/whoami", root, map[string]int{"one": 405, "people": 405, "remote": 404}},
		{"DELETE", "/v1/tokens/none", root, map[string]int{"one": 404, "people": 404, "remote": 404}},
		{"GET", "/internal/jwks/task", nil, map[string]int{"one": 200, "people": 200, "remote": 200}},
		{"HEAD", "/openapi.json", nil, map[string]int{"one": 200, "people": 200, "remote": 200}},
		{"GET", "/nothing", nil, map[string]int{"one": 404, "people": 404, "remote": 404}},
	} {
		for side, status := range tc.statuses {
			answer := callHandler(sides[side], tc.method, tc.path, "{}", tc.header...)
			require.Equal(t, status, answer.Code, "%s %s at %s: %s", tc.method, tc.path, side, answer.Body)

			if status == 404 && tc.path != "/v1/tokens/none" {
				require.Contains(t, answer.Body.String(), "there is no such route", "%s %s at %s",
					tc.method, tc.path, side)
				require.Empty(t, answer.Header().Get("Allow"))
			}
		}
	}
}
