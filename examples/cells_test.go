package examples_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/pgdev"
)

// cell is a PostgreSQL of its own with a server on it.
type cell struct {
	postgres *pgdev.Server
	server   *url.URL
	files    string
}

// newCell starts a cell whose file sources may read a folder below landing for each org.
func newCell(t *testing.T, landing string, orgs ...string) *cell {
	t.Helper()
	c := &cell{files: t.TempDir()}
	var err error
	c.postgres, err = pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { c.stop(t) })
	processtest.Must(t, ".", "migrate", "--database-url", c.postgres.URL())
	args := []string{"--storage-root", c.files}
	for _, org := range orgs {
		args = append(args, "--file-root", org+"="+filepath.Join(landing, org))
	}
	address, _ := processtest.Serve(t, c.postgres.URL(), args...)
	c.server, err = url.Parse(address)
	require.NoError(t, err)
	return c
}

func (c *cell) stop(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, c.postgres.Stop(ctx))
}

// org creates an org and returns a tenant of it.
func (c *cell) org(t *testing.T, f *front, slug, landing string, more ...string) *tenant {
	t.Helper()
	args := append([]string{"admin", "bootstrap", "--database-url", c.postgres.URL(), "--org", slug}, more...)
	token := strings.TrimSpace(processtest.Run(t, ".", args...).Out)
	require.NotEmpty(t, token)
	f.cells.Store(slug, c)
	return &tenant{address: "http://" + slug + ".dagctl.test", token: token, front: f.URL,
		landing: filepath.Join(landing, slug), dir: t.TempDir()}
}

// tenant is a user of an org, who knows one address and nothing of cells.
type tenant struct{ address, token, front, landing, dir string }

// run runs a command. The front stands in for DNS: requests to any address go there.
func (u *tenant) run(t *testing.T, args ...string) processtest.Result {
	t.Helper()
	return processtest.RunWith(t, u.dir, []string{"DAGCTL_URL=" + u.address, "DAGCTL_TOKEN=" + u.token, "HTTP_PROXY=" +
		u.front}, args...)
}

func (u *tenant) must(t *testing.T, args ...string) string {
	t.Helper()
	r := u.run(t, args...)
	require.Zero(t, r.Code, "dagctl %s\n%s%s", strings.Join(args, " "), r.Out, r.Err)
	return r.Out
}

// land writes a file of readings and waits until it is a partition.
func (u *tenant) land(t *testing.T, day string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(u.landing, day+".csv"),
		[]byte("org,n\n"+filepath.Base(u.landing)+",1\n"), 0o600))
	processtest.Eventually(t, day+" of "+u.address, func() bool {
		return strings.Contains(u.must(t, "datasets", "partitions", "daily"), day)
	})
}

// front sends each org's address to its cell, as a load balancer's host rules do.
type front struct {
	*httptest.Server
	cells sync.Map // slug → *cell
}

func newFront(t *testing.T) *front {
	t.Helper()
	f := new(front)
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		org, _, _ := strings.Cut(r.Host, ".")
		found, ok := f.cells.Load(org)
		if !ok {
			http.NotFound(w, r)
			return
		}
		(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(found.(*cell).server)
		}}).ServeHTTP(w, r)
	}))

	t.Cleanup(f.Close)
	return f
}

const cellDAG = `
name: readings
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: ROOT, pattern: "{date}.csv", format: csv }
  - name: daily
    operator: sql
    inputs: [{ from: { job: landing } }]
    config: { query: "SELECT org, sum(n) AS n FROM landing GROUP BY org" }
publish:
  daily: { from: { job: daily } }
`

// Two orgs share one PostgreSQL, and a third gets its own. One of the two moves there with its token, its address and
// all that it has computed. Then the first PostgreSQL is shut down, which only affects the org that stayed.
func TestTwoCells(t *testing.T) {
	t.Parallel()
	landing, slugs := t.TempDir(), []string{"acme", "globex", "initech"}
	for _, slug := range slugs {
		require.NoError(t, os.Mkdir(filepath.Join(landing, slug), 0o755))
	}

	one, two, f := newCell(t, landing, slugs...), newCell(t, landing, slugs...), newFront(t)
	acme := one.org(t, f, "acme", landing)
	globex := one.org(t, f, "globex", landing, "--another-org")
	initech := two.org(t, f, "initech", landing)
	for _, u := range []*tenant{acme, globex, initech} {
		file := filepath.Join(u.dir, "dag.yaml")
		require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(cellDAG, "ROOT", u.landing)), 0o600))
		u.must(t, "deploy", file)
		u.land(t, "2026-01-01")
		require.Contains(t, u.must(t, "datasets", "preview", "daily"), filepath.Base(u.landing))
	}

	stranger := *acme
	stranger.address = initech.address
	require.Equal(t, http.StatusUnauthorized, status(t, &stranger), "a token is valid only in its own cell")

	globex.must(t, "pause", "--org", "--reason", "moves to another cell")
	processtest.Eventually(t, "globex rests", func() bool { return one.rests(t, "globex") })
	move(t, one, two, "globex")
	f.cells.Store("globex", two)
	require.Contains(t, globex.must(t, "datasets", "preview", "daily"), "globex", "its data moved, too")

	globex.must(t, "resume", "--org")

	one.stop(t)
	require.NotZero(t, acme.run(t, "datasets", "list").Code)
	initech.land(t, "2026-01-02")
	globex.land(t, "2026-01-02")
	require.Contains(t, globex.must(t, "datasets", "partitions", "daily"), "2026-01-01")
}

func (c *cell) connect(t *testing.T) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), c.postgres.URL())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) }) // its server may have ended
	return conn
}

// rests reports whether an org has no running task and no pending event or delivery.
func (c *cell) rests(t *testing.T, org string) (yes bool) {
	t.Helper()
	conn := c.connect(t)
	defer conn.Close(t.Context())
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT NOT EXISTS (SELECT FROM leases WHERE org_id = o.id)
		AND NOT EXISTS (SELECT FROM outbox WHERE org_id = o.id AND status = 'Pending') FROM orgs o
			WHERE slug = $1`, org).Scan(&yes))
	return yes
}

// move copies an org at rest: its row, the rows of all tables with an org_id, and its folder of files.
func move(t *testing.T, from, to *cell, slug string) {
	t.Helper()
	source, target := from.connect(t), to.connect(t)
	var id string
	require.NoError(t, source.QueryRow(t.Context(), `SELECT id::text FROM orgs WHERE slug = $1`, slug).Scan(&id))

	rows, err := source.Query(t.Context(), `
		SELECT c.relname, string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum)
			FILTER (WHERE NOT (c.relname = 'outbox' AND a.attname = 'id'))
		FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			AND a.attgenerated = ''
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
		GROUP BY c.relname HAVING c.relname = 'orgs' OR bool_or(a.attname = 'org_id')`)
	require.NoError(t, err)

	tables := map[string]string{}
	var table, columns string
	_, err = pgx.ForEachRow(rows, []any{&table, &columns}, func() error { tables[table] = columns; return nil })
	require.NoError(t, err)
	require.Greater(t, len(tables), 40)

	run := func(conn *pgx.Conn, sql string) {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	run(source, `BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	run(target, `BEGIN`)
	run(target, `SET LOCAL session_replication_role = replica`) // foreign keys come in any order

	for table, columns := range tables {
		key := "org_id"
		if table == "orgs" {
			key = "id"
		}
		var content bytes.Buffer
		out, err := source.PgConn().CopyTo(t.Context(), &content,
			fmt.Sprintf(`COPY (SELECT %s FROM %s WHERE %s = '%s') TO STDOUT`, columns, table, key, id))
		require.NoError(t, err, table)
		in, err := target.PgConn().CopyFrom(t.Context(), &content, fmt.Sprintf(`COPY %s (%s) FROM STDIN`, table,
			columns))
		require.NoError(t, err, table)
		require.Equal(t, out.RowsAffected(), in.RowsAffected(), table)
	}

	run(target, `COMMIT`)
	run(source, `COMMIT`)
	require.NoError(t, os.CopyFS(filepath.Join(to.files, slug), os.DirFS(filepath.Join(from.files, slug))))
}

// status returns the API's status for a tenant who lists datasets.
func status(t *testing.T, u *tenant) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u.front+"/v1/datasets", nil)
	require.NoError(t, err)
	request.Host = strings.TrimPrefix(u.address, "http://")
	request.Header.Set("Authorization", "Bearer "+u.token)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer.StatusCode
}
