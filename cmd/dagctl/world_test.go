package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/worker/protocol"
)

// world is a running server on a database of its own, with callers of every kind.
type world struct {
	url      string
	app      *server.App
	pool     *pgxpool.Pool // the owner's
	requests *pgxpool.Pool // under row-level security
	roots    string        // folder that org acme's file sources may read
	files    string        // where the storage keeps files
	tokens   map[string]string
}

// The callers of a world. foreign is an admin of another org; anyWorker has a worker token, for every runtime there is,
// anyTask a capability of an attempt that never was, and anyProvisioner a scim token.
const (
	nobody, reader, writer, admin, foreign = "nobody", "reader", "writer", "admin", "foreign"
	anyWorker, anyTask, anyProvisioner     = "worker", "task", "provisioner"
)

func newWorld(t *testing.T, change ...func(*server.Config)) *world {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &world{roots: t.TempDir(), files: t.TempDir(), tokens: map[string]string{nobody: ""}}
	cfg := server.DefaultConfig
	cfg.DatabaseURL, cfg.Storage.Root = testdb.URL(t), w.files
	cfg.FileRoots = map[string][]string{"acme": {w.roots}}
	cfg.Operators.AllowCommand = []string{"acme"}
	cfg.Operators.CommandShared = []string{os.TempDir()} // marks and pipes of tests
	cfg.Runtimes = server.RuntimesConfig{"dispatcher": {{Kind: backends.InProcess}},
		"elsewhere": {{Kind: backends.Poll}}}
	cfg.Limits = server.LimitsConfig{RequestsPerSecond: 10_000, Burst: 10_000,
		WorkerRequestsPerSecond: 10_000, WorkerBurst: 10_000,
		RefusedPerSecond: 10_000, RefusedBurst: 10_000, SignInsPerSecond: 10_000, SignInBurst: 10_000}
	cfg.SecretKeys = []string{authz.NewVaultKey()}
	key, err := authz.EnsureTaskKey(filepath.Join(t.TempDir(), "task.pem"))
	require.NoError(t, err)
	cfg.TaskKeys = []authz.TaskKey{key}
	listener, err := server.Listen("127.0.0.1:0")
	require.NoError(t, err)
	cfg.Listen = listener.Addr().String()
	for _, f := range change {
		f(&cfg)
	}
	require.NoError(t, cfg.Validate())

	log := new(output)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.String())
		}
	})
	changed := new(noted)
	a, err := server.New(ctx, cfg, cfg.Folders(), nil,
		slog.New(mutations{slog.NewTextHandler(log, nil), changed}))
	require.NoError(t, err)
	w.app, w.url = a, "http://"+listener.Addr().String()
	w.pool, err = pg.Open(ctx, cfg.DatabaseURL, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(w.pool.Close)
	w.requests, err = pg.OpenRequests(ctx, cfg.DatabaseURL, pg.WithMaxConns(2))
	require.NoError(t, err)
	t.Cleanup(w.requests.Close)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listener) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		w.audited(t, changed)
		a.Close()
	})

	secret, org, err := authz.Bootstrap(ctx, w.pool,
		authz.FirstToken{OrgSlug: "acme", TokenName: "admin", Another: true})
	require.NoError(t, err)
	w.tokens[admin] = secret
	caller := authz.Caller{OrgID: org.ID, OrgSlug: org.Slug, Actor: "token:admin", Role: authz.RoleAdmin}
	for name, role := range map[string]authz.Role{reader: authz.RoleReader, writer: authz.RoleWriter} {
		w.tokens[name], _, err = authz.CreateToken(ctx, w.requests, caller, authz.NewToken{Name: name, Role: role})
		require.NoError(t, err)
	}
	w.tokens[anyWorker], _, err = authz.CreateToken(ctx, w.requests, caller,
		authz.NewToken{Name: anyWorker, Kind: authz.KindWorker, Runtimes: cfg.RuntimeMap().Names()})
	require.NoError(t, err)
	w.tokens[anyProvisioner], _, err = authz.CreateToken(ctx, w.requests, caller,
		authz.NewToken{Name: anyProvisioner, Kind: authz.KindSCIM, Issuer: "https://login.example.com"})
	require.NoError(t, err)
	signer, err := authz.NewSigner(authz.SignerConfig{Issuer: cmp.Or(cfg.BaseURL, "dagctl"), Keys: cfg.TaskKeys})
	require.NoError(t, err)
	w.tokens[anyTask], err = signer.Issue(authz.Capability{OrgID: org.ID, TaskID: uuid.New(), Attempt: 1,
		ExpiresAt: time.Now().Add(time.Hour)}, time.Now())
	require.NoError(t, err)
	w.tokens[foreign], _, err = authz.Bootstrap(ctx, w.pool,
		authz.FirstToken{OrgSlug: "umbrella", TokenName: "admin", Another: true})
	require.NoError(t, err)
	return w
}

// as returns a client for one of the callers.
func (w *world) as(name string) *cli.Client {
	return cli.NewClient(cli.Target{Name: name, URL: w.url, Token: w.tokens[name]})
}

// env returns the environment for command lines of one of the callers.
func (w *world) env(t *testing.T, caller string) map[string]string {
	return map[string]string{"DAGCTL_URL": w.url, "DAGCTL_TOKEN": w.tokens[caller], "HOME": t.TempDir()}
}

// result is the outcome of a command line.
type result struct {
	out, err string
	code     int
}

// dagctl runs a command line in this process.
func dagctl(t *testing.T, env map[string]string, args ...string) result {
	t.Helper()
	return dagctlWithInput(t, env, "", args...)
}

func dagctlWithInput(t *testing.T, env map[string]string, input string, args ...string) result {
	t.Helper()
	var out, errs output
	code := run(t.Context(), args, cli.Environment{In: strings.NewReader(input), Out: &out, Err: &errs,
		Getenv: func(name string) string { return env[name] }})
	return result{out.String(), errs.String(), code}
}

// must runs a command line that must succeed, and returns its output.
func must(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	r := dagctl(t, env, args...)
	require.Zero(t, r.code, "dagctl %s\n%s%s", strings.Join(args, " "), r.out, r.err)
	return r.out
}

// decode runs a command line with --output json, and returns the decoded output.
func decode[T any](t *testing.T, env map[string]string, args ...string) T {
	t.Helper()
	var v T
	text := must(t, env, append(args, "--output", "json")...)
	require.NoError(t, json.Unmarshal([]byte(text), &v), text)
	return v
}

// landingJob reads the files that land writes, into one partition per day.
const landingJob = `  - name: landing
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: landing, pattern: "{date}.csv", format: csv }
`

// readingsDAG is a small DAG over files of the world's folder, with one partition per day, one published dataset, one
// hidden intermediate and a manual job.
const readingsDAG = `name: readings
jobs:
` + landingJob + `  - name: daily
    operator: sql
    inputs:
      - from: { job: landing }
    execution_strategy: PerPartition
    update_strategy: replace
    config: { query: "SELECT station, max(celsius) AS highest FROM landing GROUP BY station ORDER BY station" }
    checks:
      - not_null: [station]
  - name: note
    operator: command
    source: { kind: manual }
    outputs: 0
    payload_schema: { type: object, required: [text], properties: { text: { type: string, maxLength: 100 } } }
    config: { argv: [/bin/sh, -c, "cat > /dev/null"] }
publish:
  daily_highest: { from: { job: daily }, description: Highest of each day., tags: [weather] }
`

// deployReadings deploys readingsDAG with the given days and waits until nothing is left to do.
func (w *world) deployReadings(t *testing.T, days ...string) {
	t.Helper()
	for _, day := range days {
		w.land(t, day)
	}
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(readingsDAG), 0o600))
	must(t, w.env(t, writer), "deploy", file)
}

// landText writes a file of the landing folder.
func (w *world) landText(t *testing.T, day, text string) {
	t.Helper()
	dir := filepath.Join(w.roots, "landing")
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, day+".csv.new"), []byte(text), 0o600))
	require.NoError(t, os.Rename(filepath.Join(dir, day+".csv.new"), filepath.Join(dir, day+".csv")))
}

// land writes a day's file into the landing folder.
func (w *world) land(t *testing.T, day string) {
	t.Helper()
	w.landText(t, day, "station,celsius\nharbour,3.5\nharbour,5.25\nsummit,-8\n")
}

// eventually asks until the answer is yes, or two minutes have passed: the lease of a killed server lasts one.
func eventually(t *testing.T, what string, ask func() (bool, error)) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		ok, err := ask()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			require.NoError(t, err)
			require.Fail(t, "never happened: "+what)
		}
		require.NoError(t, cli.Sleep(t.Context(), 50*time.Millisecond))
	}
}

// partitions returns the keys of a dataset's partitions.
func (w *world) partitions(t *testing.T, dataset string) []string {
	t.Helper()
	list, err := cli.Fetch[registry.Revision](t.Context(), w.as(writer), cli.DatasetPath(dataset)+"/partitions",
		nil, cli.Page{Limit: 1000})
	require.NoError(t, err)
	keys := []string{}
	for _, p := range list {
		keys = append(keys, p.Key)
	}
	return keys
}

func (w *world) tasks(t *testing.T) []views.Task {
	t.Helper()
	list, err := cli.Fetch[views.Task](t.Context(), w.as(writer), "/v1/tasks", nil, cli.Page{Limit: 1000})
	require.NoError(t, err)
	return list
}

// send sends a raw request as one of the callers.
func (w *world) send(t *testing.T, caller, method, path, contentType string, body io.Reader) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, w.url+path, body)
	require.NoError(t, err)
	if token := w.tokens[caller]; caller == anyTask {
		request.Header.Set(protocol.CapabilityHeader, token)
	} else if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if caller == anyWorker || caller == anyTask {
		request.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version))
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	noRedirects := http.Client{CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
	response, err := noRedirects.Do(request)
	if errors.Is(err, io.EOF) {
		return 0, ""
	}
	require.NoError(t, err, "%s %s", method, path)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}
