package migrations_test

import (
	"context"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/migrations"
)

// reaches are the ways of SQL to another role, or to the rights of one.
var reaches = []string{
	`SET ROLE NONE`, `RESET ROLE`, `SET ROLE OWNER`, `SET LOCAL ROLE OWNER`, `SET SESSION ROLE OWNER`,
	`SELECT set_config('role', 'none', false)`, `SELECT set_config('role', 'OWNER', false)`,
	`SET SESSION AUTHORIZATION OWNER`, `SET SESSION AUTHORIZATION DEFAULT`, `RESET SESSION AUTHORIZATION`,
	`SELECT set_config('session_authorization', 'OWNER', false)`, `RESET ALL`, `DISCARD ALL`,
	`SET ROLE dagctl_app`, `SET ROLE pg_read_all_data`, `SET ROLE pg_execute_server_program`,
	`GRANT OWNER TO CURRENT_USER`, `GRANT pg_read_all_data TO CURRENT_USER`, `ALTER ROLE CURRENT_USER SUPERUSER`,
	`ALTER ROLE CURRENT_USER BYPASSRLS`, `ALTER ROLE dagctl_app BYPASSRLS`, `CREATE ROLE other SUPERUSER LOGIN`,
	`ALTER ROLE OWNER PASSWORD 'known'`, `ALTER ROLE dagctl_app LOGIN`,
	`SET row_security = off`, `ALTER TABLE tasks DISABLE ROW LEVEL SECURITY`, `DROP POLICY one_org ON tasks`,
	`CREATE POLICY mine ON tasks USING (true)`, `ALTER TABLE tasks OWNER TO CURRENT_USER`,
	`GRANT SELECT ON secrets TO CURRENT_USER`, `SELECT ciphertext FROM secrets`, `SELECT * FROM river_job`,
	`SELECT * FROM pg_authid`, `SELECT pg_read_file('PG_VERSION')`, `COPY tasks TO PROGRAM 'cat'`,
	`COPY tasks FROM '/etc/passwd'`, `SELECT lo_import('/etc/passwd')`, `SELECT pg_terminate_backend(1)`,
	`CREATE FUNCTION f() RETURNS INT SECURITY DEFINER LANGUAGE sql AS 'SELECT 1'`,
	`CREATE EXTENSION dblink`, `CREATE EXTENSION postgres_fdw`, `CREATE SCHEMA mine`, `CREATE TABLE mine (n INT)`,
	`DO $$ BEGIN EXECUTE 'SET ROLE OWNER'; END $$`, `DO $$ BEGIN PERFORM set_config('role', 'none', false); END $$`,
	`REASSIGN OWNED BY OWNER TO CURRENT_USER`, `DROP OWNED BY OWNER`, `ALTER DEFAULT PRIVILEGES FOR ROLE OWNER GRANT ` +
		`SELECT ON TABLES TO PUBLIC`, `ALTER SYSTEM SET row_security = off`, `LOAD 'auto_explain'`,
}

// Nothing that a request says makes it anybody else, or shows it a row of another org.
func TestNothingARequestSaysReachesAnotherRole(t *testing.T) {
	t.Parallel()
	address := testdb.URL(t)
	owner := open(t, address)
	org := uuid.New()
	_, err := owner.Exec(t.Context(), `INSERT INTO orgs (id, name, slug) VALUES ($1, 'Acme', 'acme')`, org)
	require.NoError(t, err)
	_, err = owner.Exec(t.Context(), `INSERT INTO tasks (id, org_id, job_id, kind, slot, runtime)
		SELECT gen_random_uuid(), $1, gen_random_uuid(), 'manual', '', 'dispatcher' FROM generate_series(1, 28)`, org)
	require.NoError(t, err)
	login, err := pg.RequestLogin(address, "")
	require.NoError(t, err)
	requests, err := pg.OpenRequests(t.Context(), address, pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(requests.Close)

	for _, said := range reaches {
		said = strings.ReplaceAll(said, "OWNER", pgx.Identifier{owner.Config().ConnConfig.User}.Sanitize())
		said = strings.ReplaceAll(said, `'"`, `'`)
		said = strings.ReplaceAll(said, `"'`, `'`)
		_, refused := requests.Exec(t.Context(), said, pgx.QueryExecModeSimpleProtocol)

		var session, current string
		require.NoError(t, requests.QueryRow(t.Context(), `SELECT session_user, current_user`,
			pgx.QueryExecModeSimpleProtocol).Scan(&session, &current), said)
		require.Equal(t, login.Name, session, said)
		require.Contains(t, []string{login.Name, pg.RequestRole}, current, "%s: %v", said, refused)
		seen := 0
		err := requests.QueryRow(t.Context(), `SELECT count(*) FROM tasks`, pgx.QueryExecModeSimpleProtocol).Scan(&seen)
		if err != nil { // row_security = off makes PostgreSQL refuse the query
			require.ErrorContains(t, err, "row-level security", said)
		}
		require.Zero(t, seen, "%s: %v", said, refused)
		_, err = requests.Exec(t.Context(), `RESET row_security; RESET ROLE`, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, said)
	}

	rights := roleRights(t, owner)
	require.NoError(t, migrations.Up(t.Context(), address), "whatever it said, nothing is lacking now")
	require.Equal(t, rights, roleRights(t, owner))
	require.Empty(t, mustLacks(t, owner, ""))
}

// roleRights describes all that dagctl_app may do in a database.
func roleRights(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT concat_ws(' ', c.relname, c.relkind, c.relrowsecurity, (SELECT string_agg(privilege_type, ',' ORDER BY 1)
			FROM aclexplode(c.relacl) WHERE grantee = r.oid)) AS text
		FROM pg_class c, pg_roles r WHERE r.rolname = 'dagctl_app' AND c.relnamespace = 'public'::regnamespace
		  AND c.relkind IN ('r', 'p', 'v', 'S') AND c.relname <> 'river_job'
		UNION ALL
		SELECT concat_ws(' ', attrelid::regclass, attname, privilege_type)
		FROM pg_attribute CROSS JOIN LATERAL aclexplode(attacl) a JOIN pg_roles r ON r.oid = a.grantee
		WHERE r.rolname = 'dagctl_app'
		UNION ALL
		SELECT concat_ws(' ', p.polrelid::regclass, p.polname, pg_get_expr(p.polqual, p.polrelid),
			'check', coalesce(pg_get_expr(p.polwithcheck, p.polrelid), pg_get_expr(p.polqual, p.polrelid)))
		FROM pg_policy p JOIN pg_roles r ON r.oid = ANY (p.polroles) WHERE r.rolname = 'dagctl_app'
		UNION ALL
		SELECT concat_ws(' ', p.proname, 'runs', has_function_privilege('dagctl_app', p.oid, 'EXECUTE'), 'everybody',
			has_function_privilege('public', p.oid, 'EXECUTE'))
		FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace
		ORDER BY 1`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// A dump does not hold roles, so a restore into another cluster loses all rights and policies of requests. A migration
// that grants something to requests says so in the tables of requests.go too, or this test fails.
func TestMigrateMendsADatabaseThatWasRestoredElsewhere(t *testing.T) {
	t.Parallel()
	from := testdb.URL(t)
	dump := filepath.Join(t.TempDir(), "dump")
	run(t, "pg_dump", "--format=custom", "--no-owner", "--file="+dump, from)
	elsewhere, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, elsewhere.Stop(context.Background())) })
	to := elsewhere.URL()
	// Not --exit-on-error: the role that the grants name is not there.
	out, err := exec.Command(client(t, "pg_restore"), "--no-owner", "--dbname="+to, dump).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), `role "dagctl_app" does not exist`)

	pool := open(t, to)
	require.Empty(t, mustPending(t, pool))
	what := migrations.Describe(mustLacks(t, pool, ""))
	require.Contains(t, what, "the role dagctl_app does not exist")
	require.Contains(t, what, "by which requests log in, does not exist")
	_, err = pg.OpenRequests(t.Context(), to)
	require.ErrorContains(t, err, "requests cannot log in as")

	group, ctx := errgroup.WithContext(t.Context())
	for range 4 {
		group.Go(func() error { return migrations.Up(ctx, to) })
	}
	require.NoError(t, group.Wait())
	require.Empty(t, mustLacks(t, pool, ""))
	require.Equal(t, roleRights(t, open(t, from)), roleRights(t, pool))
	requests, err := pg.OpenRequests(t.Context(), to)
	require.NoError(t, err)
	requests.Close()
}

// own starts a cluster of the test's own, whose roles it may change, with a migrated database.
func own(t *testing.T) (address string, owner *pgxpool.Pool) {
	t.Helper()
	srv, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop(context.Background())) })
	require.NoError(t, migrations.Up(t.Context(), srv.URL()))
	return srv.URL(), open(t, srv.URL())
}

func TestMigrateMendsTheLoginOfRequests(t *testing.T) {
	t.Parallel()
	address, owner := own(t)
	login, err := pg.RequestLogin(address, "")
	require.NoError(t, err)
	name := pgx.Identifier{login.Name}.Sanitize()
	for _, c := range []struct{ spoil, lack string }{
		{`ALTER ROLE LOGIN_ NOLOGIN`, "may not log in"},
		{`ALTER ROLE LOGIN_ SUPERUSER`, "is SUPERUSER"},
		{`ALTER ROLE LOGIN_ BYPASSRLS CREATEROLE`, "is BYPASSRLS"},
		{`GRANT OWNER TO LOGIN_`, "is a member of"},
		{`CREATE ROLE between; GRANT OWNER TO between; GRANT between TO LOGIN_`, "is a member of between"},
		{`REVOKE dagctl_app FROM LOGIN_`, "is no member of dagctl_app"},
		{`ALTER ROLE LOGIN_ PASSWORD 'another'`, ""},
		{`REVOKE INSERT ON tasks FROM dagctl_app`, "requests may not INSERT tasks"},
		{`REVOKE SELECT (name) ON secrets FROM dagctl_app`, "requests may not read the column name of secrets"},
		{`DROP POLICY one_org ON events`, "the table events has no policy"},
		{`DROP POLICY shown_to_reader ON events`, "the table events shows readers what is hidden from them"},
		{`REVOKE SELECT ON task_outlines FROM dagctl_app`, "requests may not SELECT task_outlines"},
		{`GRANT EXECUTE ON FUNCTION hidden_externals TO PUBLIC`, "everybody may run the function hidden_externals"},
		{`REVOKE EXECUTE ON FUNCTION hidden_externals FROM dagctl_app`, "requests may not run the function hidden_ext"},
		{`ALTER TABLE events DISABLE ROW LEVEL SECURITY`, "the table events has no row-level security"},
		{`DROP OWNED BY dagctl_app; DROP ROLE dagctl_app, LOGIN_`, "does not exist"},
	} {
		spoil := strings.ReplaceAll(strings.ReplaceAll(c.spoil, "LOGIN_", name), "OWNER",
			pgx.Identifier{owner.Config().ConnConfig.User}.Sanitize())
		_, err := owner.Exec(t.Context(), spoil, pgx.QueryExecModeSimpleProtocol)
		require.NoError(t, err, spoil)
		if c.lack != "" {
			require.Contains(t, fmt.Sprint(mustLacks(t, owner, "")), c.lack, spoil)
		}

		require.NoError(t, migrations.Up(t.Context(), address), spoil)
		require.Empty(t, mustLacks(t, owner, ""), spoil)
		requests, err := pg.OpenRequests(t.Context(), address, pg.WithMaxConns(1))
		require.NoError(t, err, spoil)
		requests.Close()
	}
}

// Where the owner may make no roles, an administrator makes one, and the config names it.
func TestALoginOfRequestsThatTheConfigNames(t *testing.T) {
	t.Parallel()
	address, owner := own(t)
	_, err := owner.Exec(t.Context(), `CREATE ROLE asked LOGIN PASSWORD 'of requests'`)
	require.NoError(t, err)
	u, err := url.Parse(address)
	require.NoError(t, err)
	u.User = url.UserPassword("asked", "of requests")
	asked := u.String()

	require.Contains(t, fmt.Sprint(mustLacks(t, owner, asked)), "the role asked is no member of dagctl_app")
	require.NoError(t, migrations.UpFor(t.Context(), address, asked))
	require.Empty(t, mustLacks(t, owner, asked))
	requests, err := pg.OpenRequests(t.Context(), address, pg.WithRequestsURL(asked), pg.WithMaxConns(1))
	require.NoError(t, err)
	t.Cleanup(requests.Close)
	var session string
	require.NoError(t, requests.QueryRow(t.Context(), `SELECT session_user`).Scan(&session))
	require.Equal(t, "asked", session)

	for _, c := range []struct{ asked, said string }{
		{address, "by which requests log in, is BYPASSRLS"}, // the owner's own URL
		{strings.Replace(asked, "asked:", "nobody:", 1), "the role nobody, by which requests log in, does not exist"},
	} {
		err := migrations.UpFor(t.Context(), address, c.asked)
		require.ErrorContains(t, err, c.said)
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	}
	_, err = owner.Exec(t.Context(), `ALTER ROLE asked PASSWORD 'another'`)
	require.NoError(t, err)
	require.ErrorContains(t, migrations.UpFor(t.Context(), address, asked), "requests cannot log in as asked")
}

// An owner without CREATEROLE is told what an administrator has to run, and goes on once that is done.
func TestAnOwnerThatMayMakeNoRoles(t *testing.T) {
	t.Parallel()
	srv, err := pgdev.Start(t.Context(), pgdev.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, srv.Stop(context.Background())) })
	admin := open(t, srv.URL())
	for _, sql := range []string{`CREATE ROLE plain LOGIN PASSWORD 'plain'`, `CREATE ROLE dagctl_app NOLOGIN NOINHERIT`,
		`GRANT dagctl_app TO plain`, `CREATE DATABASE its OWNER plain`} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	u, err := url.Parse(srv.URL())
	require.NoError(t, err)
	u.User, u.Path = url.UserPassword("plain", "plain"), "/its"

	err = migrations.Up(t.Context(), u.String())
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "the role plain_requests, by which requests log in, does not exist")
	var f *fault.Error
	require.ErrorAs(t, err, &f)
	require.Contains(t, f.Hint, `CREATE ROLE plain_requests LOGIN`)
	for _, sql := range []string{`CREATE ROLE asked LOGIN PASSWORD 'asked'`, `GRANT dagctl_app TO asked`} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	asked := *u
	asked.User = url.UserPassword("asked", "asked")
	require.NoError(t, migrations.UpFor(t.Context(), u.String(), asked.String()))
	require.Empty(t, mustLacks(t, open(t, u.String()), asked.String()))
}

func mustLacks(t *testing.T, pool *pgxpool.Pool, requestsURL string) []migrations.Lack {
	t.Helper()
	all, err := migrations.Lacks(t.Context(), pool, requestsURL)
	require.NoError(t, err)
	return all
}

func run(t *testing.T, program string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), client(t, program), args...).CombinedOutput()
	require.NoError(t, err, string(out))
}

// client returns the path of one of PostgreSQL's client programs, which are installed beside the tests' server.
func client(t *testing.T, name string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/", "/opt/homebrew/opt/postgresql@*/bin/",
		"/usr/local/opt/postgresql@*/bin/"} {
		if found, _ := filepath.Glob(pattern + name); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	require.FailNow(t, name+" is not installed; it comes with PostgreSQL")
	return ""
}
