// Package dispatchertest is the world in which the dispatcher and its rooms are tested: a database, storage, operators
// that do as a test says, and a dispatcher whose loops the test turns by hand.
//
// It also holds the DAGs, requests and observations that several rooms share. It owns no tables.
package dispatchertest

import (
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// World is one database with storage, operators and orgs, and a dispatcher whose loops the test turns by hand: Route,
// Advance, Work. Nothing runs by itself unless a test starts it.
type World struct {
	*Tenant  // the org of most tests
	T        *testing.T
	URL      string
	Pool     *pgxpool.Pool
	Requests *pgxpool.Pool // the pool of requests
	Storage  *storage.Storage
	Ops      *operators.Registry
	Scratch  string
	Data     string // where the storage keeps files
	Probe    *Probe
	Vault    *authz.Vault
	Signer   *authz.Signer
	Roots    sync.Map // org slug → landing folder
	D        *service.Service
}

// Tenant is an org as its people see it.
type Tenant struct {
	W       *World
	Caller  authz.Caller
	Landing string
}

// NewWorld returns a world with the org acme and one dispatcher; change alters its storage.
func NewWorld(t *testing.T, change ...func(*storage.Config)) *World {
	t.Helper()
	w := &World{T: t, URL: testdb.URL(t), Probe: newProbe(), Scratch: t.TempDir(), Data: t.TempDir()}
	w.Pool = w.Open(pg.Open)
	w.Requests = w.Open(pg.OpenRequests)

	var err error
	keeps := storage.Config{Root: w.Data, Pool: w.Pool, Rows: enginetest.Engines()}
	for _, f := range change {
		f(&keeps)
	}
	w.Storage, err = storage.New(keeps)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Storage.Close()) })

	w.Vault, err = authz.NewVault(authz.VaultConfig{Owner: w.Pool, Requests: w.Requests, Users: registry.SecretUsers,
		Programs: registry.Programs,
		Keys:     []string{authz.NewVaultKey()}})
	require.NoError(t, err)

	w.Ops, err = operators.NewRegistry(enginetest.Engines(), slices.Concat(builtins(t), w.Probe.operators())...)
	require.NoError(t, err)

	key, err := authz.EnsureTaskKey(filepath.Join(t.TempDir(), "tasks.pem"))
	require.NoError(t, err)
	w.Signer, err = authz.NewSigner(authz.SignerConfig{Issuer: "http://dagctl.test", Keys: []authz.TaskKey{key}})
	require.NoError(t, err)

	w.Tenant = w.Org("acme")
	w.D = w.Dispatcher("one")
	w.D.Stepped = true
	w.D.Builds.Doubt = true
	return w
}

// builtin is one set for all tests: its only state is a session that parses SQL.
var builtin = sync.OnceValues(func() (*operators.Registry, error) {
	return standard.New(operators.Options{Engines: enginetest.Engines(),
		Threads: 1, ReuseByColumn: true, AllowedAddresses: []string{"127.0.0.0/8"},
		ExportRoots: map[string][]string{"acme": {os.TempDir()}},
		Command: operators.CommandOptions{Every: true, Paths: append(operators.ToolFolders(), os.TempDir()),
			Shared: []string{os.TempDir()}}})
})

func builtins(t *testing.T) (ops []operators.Operator) {
	t.Helper()
	set, err := builtin()
	require.NoError(t, err)
	for _, name := range set.Names() {
		op, _ := set.Get(name)
		ops = append(ops, op)
	}
	return ops
}

// Open returns a pool on the database of the world, which closes with the test.
func (w *World) Open(open func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
	w.T.Helper()
	pool, err := open(w.T.Context(), w.URL, pg.WithMaxConns(14))
	require.NoError(w.T, err)
	w.T.Cleanup(pool.Close)
	return pool
}

// Org creates another tenant.
func (w *World) Org(slug string) *Tenant {
	w.T.Helper()
	tn := &Tenant{W: w, Landing: w.T.TempDir(), Caller: authz.Caller{OrgSlug: slug, Actor: "dev",
		Role: authz.RoleAdmin}}
	require.NoError(w.T, w.Pool.QueryRow(w.T.Context(), `INSERT INTO orgs (name, slug) VALUES ($1, $1) RETURNING id`,
		slug).Scan(&tn.Caller.OrgID))
	w.Roots.Store(slug, tn.Landing)
	return tn
}

// Dispatcher returns a service that is another process as far as the database can see.
func (w *World) Dispatcher(id string, change ...func(*service.Config)) *service.Service {
	w.T.Helper()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(w.T.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	reg, err := registry.New(registry.Config{Pool: w.Pool, Requests: w.Requests, Storage: w.Storage,
		Catalog: w.Ops.Catalog([]string{"dispatcher", "other", "poll", "lambda"}), Vault: w.Vault, Log: log,
		Misfit: w.Ops.Misfit})
	require.NoError(w.T, err)

	c := service.Config{Config: dispatcher.Config{Pool: w.Pool, Requests: w.Requests, Registry: reg, Operators: w.Ops,
		Storage: w.Storage, Vault: w.Vault,
		Runner:   &operators.Runner{Registry: w.Ops, Storage: w.Storage, ScratchDir: w.Scratch, Log: log},
		Runtimes: []string{"dispatcher", "other"}, Signer: w.Signer, WorkerID: id, Poll: 50 * time.Millisecond,
		Log:   log,
		Roots: func(slug, _ string) []string { root, _ := w.Roots.Load(slug); return []string{root.(string)} }}}
	for _, f := range change {
		f(&c)
	}

	d, err := service.New(c)
	require.NoError(w.T, err)
	require.NoError(w.T, d.Register(w.T.Context()))
	return d
}

// Start runs a whole dispatcher until the test ends or calls stop.
func (w *World) Start(d *service.Service) (stop func()) {
	w.T.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.T.Context()))
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.T, <-done)
	})
	w.T.Cleanup(stop)
	return stop
}

// Eventually waits until cond holds, which the running dispatchers bring about by themselves.
func (w *World) Eventually(what string, cond func() bool) {
	w.T.Helper()
	require.Eventually(w.T, cond, 30*time.Second, 10*time.Millisecond, what)
}

// InBucket puts the Parquet files of a world into the bucket of a server.
func InBucket(srv *tests3.Server) func(*storage.Config) {
	return func(c *storage.Config) {
		c.S3 = &storage.S3Config{Bucket: srv.Bucket, Region: srv.Region, Endpoint: srv.Endpoint, PathStyle: true,
			AccessKeyID: srv.AccessKeyID, SecretAccessKey: srv.SecretAccessKey}
	}
}
