//go:build soak

package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

var (
	pagesAsked = flag.Int("pages-asked", 100, "how often each page is asked for")
	pagesSizes = flag.String("pages-size", "20x500x100", "DAGs, jobs of each and versions of each")
	pagesKept  = flag.String("pages-database", "",
		"`URL` of a migrated database to measure on: it is filled if it is empty, and kept")
	pagesOnly  = flag.String("pages-only", "", "measure only addresses with this text")
	pagesExact = flag.String("pages-exact", "", "measure only this address")
	pagesTop   = flag.Int("pages-statements", 0,
		"also print so many statements that took the longest for each page; the database needs pg_stat_statements")
)

// closedReader is a reader with one org role, from whom the datasets of another are closed.
const closedReader = "finance"

// TestPagesAtScale fills a database with an org of 10,000 datasets with 100 versions each and a million tasks, asks for
// every page many times, as an admin and as a reader from whom some is closed, and prints how long the answers took.
// It judges nothing: the machine may be busy.
func TestPagesAtScale(t *testing.T) {
	w, s := scaleWorld(t)
	addresses := s.addresses(t, w)
	for _, caller := range []string{admin, closedReader} {
		for _, path := range addresses {
			if strings.Contains(path, *pagesOnly) && (*pagesExact == "" || path == *pagesExact) {
				w.measurePage(t, caller, path)
			}
		}
	}
}

// scaleWorld returns a world with a large org, and what is in it.
func scaleWorld(t *testing.T) (*world, scale) {
	t.Helper()
	s := scale{}
	_, err := fmt.Sscanf(*pagesSizes, "%dx%dx%d", &s.dags, &s.jobs, &s.versions)
	require.NoError(t, err, "-pages-size")
	filled := false
	change := []func(*server.Config){withBaseURL}
	if *pagesKept != "" {
		filled = releaseOrg(t, *pagesKept)
		change = append(change, func(cfg *server.Config) { cfg.DatabaseURL = *pagesKept })
	}

	w := newWorld(t, change...)
	if filled {
		takeOrg(t, w)
	} else {
		s.fill(t, w)
	}
	w.newToken(t, authz.NewToken{Name: closedReader, Role: authz.RoleReader, OrgRoles: []string{"role:finance"}})
	return w, s
}

// releaseOrg gives the org of a database that an earlier run filled another name, so that a new world can be made on
// it. It reports whether there is one.
func releaseOrg(t *testing.T, database string) bool {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	var n int
	if err := conn.QueryRow(t.Context(), `SELECT count(*) FROM orgs`).Scan(&n); err != nil || n == 0 {
		return false
	}

	for _, sql := range []string{`DELETE FROM service_tokens WHERE name IN ('admin', 'reader', 'writer', 'worker',
		'provisioner', 'finance') OR org_id IN (SELECT id FROM orgs WHERE slug LIKE 'umbrella%')`,
		`UPDATE orgs SET slug = 'kept' WHERE slug = 'acme'`,
		`UPDATE orgs SET slug = 'umbrella_' || left(id::text, 8) WHERE slug = 'umbrella'`,
		`UPDATE installation SET marked_at = NULL`} {
		_, err := conn.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	return true
}

// takeOrg gives a new world the org that releaseOrg released.
func takeOrg(t *testing.T, w *world) {
	t.Helper()
	for _, sql := range []string{
		`UPDATE service_tokens SET org_id = (SELECT id FROM orgs WHERE slug = 'kept')
			WHERE org_id = (SELECT id FROM orgs WHERE slug = 'acme')`,
		`UPDATE orgs SET slug = 'once_' || left(id::text, 8) WHERE slug = 'acme'`,
		`UPDATE orgs SET slug = 'acme' WHERE slug = 'kept'`} {
		_, err := w.pool.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
}

// addresses lists the pages of the route table, with names that exist and with their other states.
func (s scale) addresses(t *testing.T, w *world) (paths []string) {
	t.Helper()
	find := func(sql string) (found string) {
		require.NoError(t, w.pool.QueryRow(t.Context(), sql).Scan(&found), sql)
		return found
	}
	task := find(`SELECT id::text FROM tasks WHERE status = 'Completed' ORDER BY id DESC LIMIT 1`)
	dead := find(`SELECT task_id::text FROM waiting WHERE reason = 'dead' ORDER BY task_id LIMIT 1`)
	queued := find(`SELECT task_id::text FROM ready ORDER BY task_id LIMIT 1`)
	group := find(`SELECT error_group(t.error_message) FROM tasks t WHERE id = '` + dead + `'`)
	user := find(`SELECT id::text FROM users ORDER BY email LIMIT 1`)
	timer := find(`SELECT id::text FROM scheduled_events WHERE status = 'PENDING' LIMIT 1`)
	backfill := find(`SELECT id::text FROM backfills ORDER BY status = 'Running' DESC LIMIT 1`)
	worker := find(`SELECT id FROM workers WHERE id LIKE 'worker-%' LIMIT 1`)

	dagName := fmt.Sprintf("dag_%02d", s.dags/2)
	job := fmt.Sprintf("job_%03d", s.jobs/2)
	dataset := fmt.Sprintf("%s_%03d", dagName, s.jobs/2)
	rule := func(path, id string) string {
		values := map[string]string{"{dag}": dagName, "{job}": job, "{version}": fmt.Sprint(s.versions),
			"{name...}": dataset, "{name}": "secret-7", "{id}": id, "{user}": user, "{rule}": "rule-7", "{$}": "",
			"{slug}": "role_7", "{verb}": "retry", "{provider}": "none", "{token}": "token-7", "{key}": "2026-01-01",
			"{path...}": "x"}
		return placeholder.ReplaceAllStringFunc(path, func(p string) string { return values[p] })
	}
	for _, route := range w.app.API.Routes() {
		program := slices.ContainsFunc([]string{"/v1/", "/internal/", "/scim/", "/.well-known/", "/healthz", "/readyz",
			"/metrics"}, func(prefix string) bool { return strings.HasPrefix(route.Path, prefix) })
		if route.Method != http.MethodGet || program || strings.HasPrefix(route.Path, "/static/") {
			continue
		}
		id := task // or what else the page is about
		switch {
		case strings.HasPrefix(route.Path, "/timers/"):
			id = timer
		case strings.Contains(route.Path, "backfills/"):
			id = backfill
		case strings.HasPrefix(route.Path, "/workers/"):
			id = url.PathEscape(worker)
		case strings.HasSuffix(route.Path, "/retry"), strings.HasSuffix(route.Path, "/skip"):
			id = dead
		case strings.HasSuffix(route.Path, "/cancel"):
			id = queued
		}
		path := rule(route.Path, id)
		switch route.Path {
		case "/dead/retry", "/dead/skip":
			path += "?dead=1&error_group=" + group
		case "/bulk/{verb}":
			path += "?status=Failed&dag=" + dagName
		case "/sources/{dag}/{job}":
			path = rule("/sources/{dag}/", "") + "job_000"
		case "/signin/device", "/signin/link", "/signin/cli", "/signin/with/{provider}", "/palette":
			continue
		case "/dags/{dag}/versions/{version}/promote", "/dags/{dag}/versions/{version}/rollback":
			path = strings.Replace(path, fmt.Sprint("versions/", s.versions), fmt.Sprint("versions/", s.versions-1), 1)
		}
		paths = append(paths, path)
	}

	q := "/datasets/" + dataset
	paths = append(paths, "/palette?q=dag_1", "/tasks?dead=1", "/tasks?status=Queued", "/tasks?status=Failed",
		"/tasks?status=Canceled", "/tasks?status=Running", "/tasks?status=Completed", "/tasks?kind=backfill",
		"/tasks?dag="+dagName, "/tasks?dag="+dagName+"&job="+job, "/tasks?status=Completed&dag="+dagName,
		"/tasks?status=Failed&dag="+dagName, "/tasks?partition=2026-11-01&dag="+dagName, "/tasks?error=disk",
		"/tasks?error_group="+group, "/tasks?partition=2026-11-01", "/tasks/"+dead, "/tasks/"+queued,
		"/dead?dag="+dagName, "/late?dag="+dagName, "/datasets?search=mesurements+delay",
		"/datasets?search=dag_03_111",
		"/datasets?tag=fifth", "/datasets?dag="+dagName, "/datasets?owner=team-3", q+"/lineage",
		q+"/lineage?depth=100&limit=5000",
		q+"/lineage?column=delay", "/audit?object="+dagName, "/audit?action=dag.deploy", "/audit?actor=token:writer",
		"/costs?by=dag", "/costs?by=dataset", "/costs?by=owner", "/costs?by=job", "/dags/"+dagName+"?before=50",
		"/v1/dags", "/v1/dags/"+dagName, "/v1/tasks?limit=100", "/v1/tasks/errors?dead=true", "/v1/attention",
		"/v1/jobs/"+dagName+"/"+job, "/v1/datasets?limit=100", "/v1/datasets/"+dataset,
		"/v1/datasets/"+dataset+"/lineage", "/v1/datasets/"+dataset+"/partitions?limit=100")
	return paths
}

// measurePage asks for a page as one caller, and prints how long the answers took.
func (w *world) measurePage(t *testing.T, caller, path string) {
	t.Helper()
	var took []time.Duration
	status, size := 0, 0
	var used time.Duration
	for i := range *pagesAsked + 1 {
		if i == 1 {
			w.resetStatements(t)
			used = processorTime(t)
		}
		start := time.Now()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+w.tokens[caller])
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		text, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		status, size = response.StatusCode, len(text)
		if i > 0 { // the first one also plans statements, and fills what is kept in the process
			took = append(took, time.Since(start))
		}
		if status >= http.StatusInternalServerError {
			t.Errorf("%s %s: %d %.300s", caller, path, status, text)
		}
	}

	used = processorTime(t) - used
	slices.Sort(took)
	at := func(share float64) float64 {
		return took[min(int(share*float64(len(took))), len(took)-1)].Seconds() * 1000
	}
	fmt.Printf("%-8s median %7.1f ms  p99 %7.1f ms  processor %6.1f ms  %d %8d B  %s\n", caller, at(0.5), at(0.99),
		used.Seconds()*1000/float64(*pagesAsked), status, size, path)
	w.printStatements(t)
}

// processorTime returns what this process has used, that is the server without its database, and who asks it.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// resetStatements forgets which statements took how long, if that is to be printed.
func (w *world) resetStatements(t *testing.T) {
	t.Helper()
	if *pagesTop > 0 {
		_, err := w.pool.Exec(t.Context(), `SELECT pg_stat_statements_reset()`)
		require.NoError(t, err, "CREATE EXTENSION pg_stat_statements, and preload its library")
	}
}

// printStatements prints the statements that took the longest since they were forgotten, for each time that the page
// was asked for. Those of the server's own upkeep are among them.
func (w *world) printStatements(t *testing.T) {
	t.Helper()
	if *pagesTop == 0 {
		return
	}
	rows, err := w.pool.Query(t.Context(), `
		SELECT total_exec_time / $1, calls::float8 / $1, (shared_blks_hit + shared_blks_read) / $1,
			left(regexp_replace(query, '\s+', ' ', 'g'), 150), sum(total_exec_time) OVER () / $1
		FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid AND d.datname = current_database()
		ORDER BY total_exec_time DESC LIMIT $2`, float64(*pagesAsked), *pagesTop)
	require.NoError(t, err)

	var (
		took, calls, blocks, all float64
		text                     string
	)
	_, err = pgx.ForEachRow(rows, []any{&took, &calls, &blocks, &text, &all}, func() error {
		fmt.Printf("    %7.1f of %7.1f ms  %5.1f calls  %8.0f blocks  %s\n", took, all, calls, blocks, text)
		return nil
	})
	require.NoError(t, err)
}

// scale is the size of an org.
type scale struct{ dags, jobs, versions int }

// yaml returns the document of a DAG: layers of 25 jobs, each of which reads two of the layer before; some read the
// last layer of the DAG before.
func (s scale) yaml(d int) string {
	const width = 25
	var b, publish strings.Builder
	fmt.Fprintf(&b, "name: dag_%02d\njobs:\n", d)
	for n := range s.jobs {
		name := fmt.Sprintf("dag_%02d_%03d", d, n)
		fmt.Fprintf(&b, "  - name: job_%03d\n", n)
		if n < width {
			source := "{ kind: manual }"
			if n < 10 {
				source = `{ kind: cron, schedule: "0 7 1 1 *", timezone: Europe/Berlin }`
			}
			fmt.Fprintf(&b, "    operator: command\n    source: %s\n    partition_by: { time: day }\n"+
				"    config: { argv: [\"true\"] }\n", source)
		} else {
			before, place := n/width-1, n%width
			one, other := before*width+place, before*width+(place+1)%width
			fmt.Fprintf(&b, "    operator: sql\n    inputs: [{ from: { job: job_%03d } }, { from: { job: job_%03d } }",
				one, other)
			if before == 0 && place < 5 && d > 0 {
				fmt.Fprintf(&b, ", { from: { dataset: dag_%02d_%03d } }", d-1, s.jobs-1-place)
			}
			fmt.Fprintf(&b, "]\n    execution_strategy: PerPartition\n    update_strategy: replace\n"+
				"    config: { query: \"SELECT o.id, o.delay, p.price FROM job_%03d AS o "+
				"JOIN job_%03d AS p USING (id)\" }\n"+
				"    checks: [{ not_null: [id] }]\n", one, other)
		}
		fmt.Fprintf(&publish, "  %s: { from: { job: job_%03d }, description: \"Measurements of %d, by day.\", "+
			"owner: team-%d, tags: [%s]", name, n, n, n%40, []string{"fifth", "daily", "daily", "daily", "daily"}[n%5])
		if n%10 == 9 {
			publish.WriteString(", due: { within: 24h }")
		}
		publish.WriteString(" }\n")
	}
	return b.String() + "publish:\n" + publish.String()
}

// fill deploys the DAGs, and inserts what months of running and of deploys would leave.
func (s scale) fill(t *testing.T, w *world) {
	t.Helper()
	for d := range s.dags {
		file := writeDAG(t, t.TempDir(), fmt.Sprintf("dag_%02d", d), s.yaml(d))
		must(t, w.env(t, admin), "deploy", file)
	}
	conn, err := pgx.Connect(t.Context(), cmp.Or(*pagesKept, w.pool.Config().ConnString()))
	require.NoError(t, err)
	defer conn.Close(t.Context())

	for _, sql := range scaleData {
		var args []any
		if strings.Contains(sql, "$1") {
			args = append(args, s.versions-1)
		}
		start := time.Now()
		_, err := conn.Exec(t.Context(), sql, args...)
		require.NoError(t, err, sql)
		if took := time.Since(start); took > time.Second {
			t.Logf("%6.1f s: %.70s", took.Seconds(), strings.Join(strings.Fields(sql), " "))
		}
	}
}
