// Package workerapitest serves the worker protocol to tests: a dispatcher on a database of its own, the routes that
// people, workers and attempts call, and faults that a test puts between a worker and the server. It owns no tables.
package workerapitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/tasklogs"
	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi"
)

// Runtime is the runtime whose tasks wait for workers.
const Runtime = "poll"

// Lease is the shortest heartbeat_timeout that a job may have. Workers extend a lease at a third of its length, so a
// test that waits for a heartbeat waits for less than two seconds.
const Lease = 5 * time.Second

// Server is a server with one org, acme, and tokens for its admin and for workers.
type Server struct {
	URL   string
	Admin string // token
	Token string // of workers that may claim every task of acme
	Org   authz.Org
	Pool  *pgxpool.Pool // the owner's
	API   *authz.API
	Vault *authz.Vault

	mu     sync.Mutex
	faults []Fault
	calls  map[string]int
}

// Fault decides on a call before the server does. It reports whether it has answered.
type Fault func(w http.ResponseWriter, r *http.Request) bool

// New starts a server, which runs until the test ends.
func New(t *testing.T) *Server {
	t.Helper()
	s := &Server{calls: map[string]int{}}
	front := httptest.NewServer(s)
	t.Cleanup(front.Close)
	s.URL = front.URL

	address := testdb.URL(t)
	s.Pool = open(t, address, pg.Open)
	requests := open(t, address, pg.OpenRequests)
	var err error
	s.Org, err = authz.CreateOrg(t.Context(), s.Pool, "acme", "Acme")
	require.NoError(t, err)

	s.Admin = s.NewToken(t, s.Org, authz.NewToken{Name: "admin", Role: authz.RoleAdmin})
	s.Token = s.NewToken(t, s.Org, authz.NewToken{Name: "workers", Kind: authz.KindWorker, Runtimes: []string{Runtime}})

	s.serve(t, requests)
	return s
}

// serve wires the slices as `dagctl serve` does and starts the dispatcher.
func (s *Server) serve(t *testing.T, requests *pgxpool.Pool) {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept, err := storage.New(storage.Config{Root: t.TempDir(), Pool: s.Pool, Rows: enginetest.Engines()})
	require.NoError(t, err)

	t.Cleanup(func() { require.NoError(t, kept.Close()) })
	s.Vault, err = authz.NewVault(authz.VaultConfig{Owner: s.Pool, Requests: requests,
		Programs: registry.Programs, Keys: []string{authz.NewVaultKey()}})
	require.NoError(t, err)

	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1, ReuseByColumn: true})
	require.NoError(t, err)
	versions, err := registry.New(registry.Config{Pool: s.Pool, Requests: requests, Storage: kept, Vault: s.Vault,
		Catalog: builtin.Catalog([]string{"dispatcher", Runtime}), Log: log, Misfit: builtin.Misfit})
	require.NoError(t, err)

	key, err := authz.EnsureTaskKey(filepath.Join(t.TempDir(), "tasks.pem"))
	require.NoError(t, err)
	signer, err := authz.NewSigner(authz.SignerConfig{Issuer: s.URL, Keys: []authz.TaskKey{key}})
	require.NoError(t, err)

	runner := &operators.Runner{Registry: builtin, Storage: kept, ScratchDir: t.TempDir(), Log: log}
	d, err := service.New(service.Config{Config: dispatcher.Config{Pool: s.Pool, Requests: requests, Registry: versions,
		Operators: builtin, Runner: runner, Storage: kept, Vault: s.Vault, Signer: signer, BaseURL: s.URL,
		Runtimes: []string{"dispatcher"}, WorkerID: "server", Poll: 50 * time.Millisecond, Log: log,
	}})
	require.NoError(t, err)

	lines, err := tasklogs.New(tasklogs.Config{Pool: s.Pool, Requests: requests, Dispatcher: d.Dispatcher,
		Views: d.Views, Log: log})
	require.NoError(t, err)
	engines, err := engine.New(engine.Config{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, engines.Close()) })
	rows, err := query.New(query.Config{Requests: requests, Registry: versions, Storage: kept, Engines: engines})
	require.NoError(t, err)

	remote, err := workerapi.New(workerapi.Config{Dispatcher: d.Dispatcher, Registry: versions, Storage: kept,
		Runner:  runner,
		Queries: rows})
	require.NoError(t, err)

	limiter, err := rest.NewLimiter(10_000, 10_000)
	require.NoError(t, err)
	tokens := authz.NewTokens(s.Pool)
	api, err := authz.NewAPI(authz.Config{REST: rest.Config{Logger: log}, Limiter: limiter, WorkerLimiter: limiter,
		Authenticators: []authz.Authenticator{tokens}, Workers: tokens, Signer: signer})
	require.NoError(t, err)

	versions.AddRoutes(api)
	deploy.New(versions).AddRoutes(api)
	d.API.AddRoutes(api)
	lines.AddRoutes(api)
	remote.AddRoutes(api)

	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
	})

	s.mu.Lock()
	defer s.mu.Unlock()
	s.API = api
}

func open(
	t *testing.T, address string, open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error),
) *pgxpool.Pool {
	t.Helper()
	pool, err := open(t.Context(), address, pg.WithMaxConns(10))
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// NewToken makes a token of an org and returns its secret.
func (s *Server) NewToken(t *testing.T, org authz.Org, token authz.NewToken) string {
	t.Helper()
	maker := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "system", Role: authz.RoleAdmin}
	secret, _, err := authz.CreateToken(t.Context(), s.Pool, maker, token)
	require.NoError(t, err)
	return secret
}

// ServeHTTP implements http.Handler: faults come first, then the routes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.calls[r.URL.Path]++
	faults, api := s.faults, s.API
	s.mu.Unlock()
	for _, answers := range faults {
		if answers(w, r) {
			return
		}
	}
	api.Handler().ServeHTTP(w, r)
}

// Calls returns how many calls of a path have arrived.
func (s *Server) Calls(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[path]
}

// Break adds a fault.
func (s *Server) Break(f Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, f)
}

// Refuse answers the next n calls of a path with a status.
func (s *Server) Refuse(path string, n, status int) {
	var mu sync.Mutex
	s.Break(func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != path || n == 0 {
			return false
		}
		n--
		w.WriteHeader(status)
		return true
	})
}

// Deploy deploys a DAG and waits until it serves.
func (s *Server) Deploy(t *testing.T, name, yaml string) {
	t.Helper()
	s.Do(t, http.MethodPost, "/v1/dags/"+name+"/versions", registry.DeployRequest{YAML: yaml}, nil)
	s.Eventually(t, name+" to serve", func() bool {
		var status string
		err := s.Pool.QueryRow(t.Context(),
			`SELECT status FROM dag_versions WHERE dag_name = $1 ORDER BY number DESC LIMIT 1`, name).Scan(&status)
		require.NoError(t, err)
		return status == "Active"
	})
}

// Enqueue makes a task of a manual job.
func (s *Server) Enqueue(t *testing.T, dag, job string, item dispatcher.EnqueueItem) uuid.UUID {
	t.Helper()
	var made struct{ Items []dispatcher.Enqueued }
	s.Do(t, http.MethodPost, "/v1/jobs/"+dag+"/"+job+"/tasks", item, &made)
	require.Len(t, made.Items, 1)
	return made.Items[0].ID
}

// Task reads a task.
func (s *Server) Task(t *testing.T, id uuid.UUID) (task views.TaskDetail) {
	t.Helper()
	s.Do(t, http.MethodGet, "/v1/tasks/"+id.String(), nil, &task)
	return task
}

// Reach waits until a task satisfies a condition and returns it.
func (s *Server) Reach(
	t *testing.T, id uuid.UUID, what string, is func(views.TaskDetail) bool,
) (task views.TaskDetail) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("task %s is %s at attempt %d: %s %s", id, task.Status, task.Attempt, task.Reason, task.Error)
		}
	}()
	s.Eventually(t, what, func() bool {
		task = s.Task(t, id)
		return is(task)
	})
	return task
}

// Ended waits until a task has a status and returns it.
func (s *Server) Ended(t *testing.T, id uuid.UUID, status string) views.TaskDetail {
	t.Helper()
	return s.Reach(t, id, "the task to be "+status, func(task views.TaskDetail) bool {
		return string(task.Status) == status
	})
}

// Do makes a call as the org's admin, which has to succeed.
func (s *Server) Do(t *testing.T, method, path string, body, into any) {
	t.Helper()
	status, text := s.Send(t, method, path, body, http.Header{"Authorization": {"Bearer " + s.Admin}})
	require.Less(t, status, 300, "%s %s: %s", method, path, text)
	if into != nil {
		require.NoError(t, json.Unmarshal(text, into), "%s", text)
	}
}

// Send makes a call and returns the answer. A body of type string is sent as it is, any other as JSON.
func (s *Server) Send(t *testing.T, method, path string, body any, header http.Header) (status int, answer []byte) {
	t.Helper()
	var content io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		content = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		require.NoError(t, err)
		content = bytes.NewReader(text)
	}

	request, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, content)
	require.NoError(t, err)
	request.Header.Set("Content-Type", "application/json")
	for name, values := range header {
		request.Header[http.CanonicalHeaderKey(name)] = values
	}

	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, answer
}

// AsWorker returns the headers of a call with a worker's token.
func AsWorker(token string) http.Header {
	return http.Header{"Authorization": {"Bearer " + token},
		protocol.VersionHeader: {strconv.Itoa(protocol.Version)}}
}

// AsTask returns the headers of a call of a claimed attempt, with the fence that calls with data need.
func AsTask(claim protocol.Claim) http.Header {
	fence := claim.Fence()
	return http.Header{protocol.VersionHeader: {strconv.Itoa(protocol.Version)},
		protocol.CapabilityHeader: {claim.CapabilityToken}, protocol.TaskHeader: {fence.TaskID.String()},
		protocol.AttemptHeader: {strconv.Itoa(fence.Attempt)}, protocol.LeaseTokenHeader: {fence.LeaseToken.String()}}
}

// Claim claims a task by its id with the workers' token.
func (s *Server) Claim(t *testing.T, task uuid.UUID) (claim protocol.Claim) {
	t.Helper()
	status, text := s.Send(t, http.MethodPost, "/internal/task-claim",
		protocol.ClaimRequest{TaskID: task, WorkerID: "tester", Runtime: Runtime}, AsWorker(s.Token))
	require.Equal(t, http.StatusOK, status, "%s", text)
	require.NoError(t, json.Unmarshal(text, &claim))
	return claim
}

// Expire ends the lease of a task's attempt, as if its worker had been silent for as long as it lasts.
func (s *Server) Expire(t *testing.T, task uuid.UUID) {
	t.Helper()
	tag, err := s.Pool.Exec(t.Context(),
		`UPDATE leases SET expires_at = now() - interval '1 minute' WHERE task_id = $1`, task)
	require.NoError(t, err)
	require.EqualValues(t, 1, tag.RowsAffected())
}

// Eventually waits for a condition. It waits long, because machines that run tests may be busy.
func (s *Server) Eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			require.Fail(t, "waited in vain", "%s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
