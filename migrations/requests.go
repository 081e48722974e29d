package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// Lack is something that requests need of the database and do not have: a role, a right or a wall.
type Lack struct {
	What string // for people
	Mend string // statements that mend it; empty: only a person can decide
}

// The rights of requests that are not those of every table with an org (see lacks).
const (
	// readByRequests are the tables without an org that requests may read: the processes that run tasks, and the load.
	readByRequests = `'orgs', 'workers', 'backpressure'`
	// appendedByRequests are the tables that requests may add to and not change.
	appendedByRequests = `'audit_log'`
	// shownToRequests are the tables of an org that its requests may read and not write: others decide them.
	shownToRequests = `'org_quotas', 'org_usage', 'org_backpressure', 'usage_hours', 'usage_days', 'usage_stored',
		'usage_dag_days'`
	// hiddenColumns are what requests may write and not read.
	hiddenColumns = `('secrets', 'ciphertext')`
	// closedFunctions are not for everybody, as functions are by default; requests may run those that are true.
	closedFunctions = `('hidden_externals', true), ('keep_hidden', false), ('note_reading_change', false)`
	// outlines is the pattern of the names of views that requests may read and that run with the owner's rights.
	outlines = `'%\_outlines'`
)

// lacks finds what the login $1 lacks, in the order in which it can be mended: what is missing of a role that does not
// exist shows itself once the role is there. $2: the role is dagctl's to change, and not the config's. $3: the schema
// is newer than this program, whose rules for tables do not hold then: a later migration may give fewer rights to its
// own tables, and take some away from others. It reads the catalogue only.
const lacks = `
WITH app AS (SELECT oid FROM pg_roles WHERE rolname = 'dagctl_app'),
login AS (SELECT * FROM pg_roles WHERE rolname = $1),
tenants AS ( -- tables that hold rows of orgs
	SELECT c.oid, c.relname, c.relrowsecurity, CASE c.relname WHEN 'orgs' THEN 'id' ELSE 'org_id' END AS org
	FROM pg_class c
	WHERE NOT $3 AND c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p')
	  AND (c.relname = 'orgs' OR EXISTS (
		SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'org_id' AND NOT a.attisdropped))),
rights AS (
	SELECT t.oid, t.relname, r.right FROM tenants t
	CROSS JOIN LATERAL unnest(CASE
		WHEN t.relname IN (` + readByRequests + `, ` + shownToRequests + `) THEN ARRAY['SELECT']
		WHEN t.relname IN (` + appendedByRequests + `) THEN ARRAY['SELECT', 'INSERT']
		WHEN t.relname IN (SELECT h.t FROM (VALUES ` + hiddenColumns + `) AS h(t, c))
		THEN ARRAY['INSERT', 'UPDATE', 'DELETE']
		ELSE ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'] END) AS r("right")
	UNION ALL
	SELECT c.oid, c.relname, 'SELECT' FROM pg_class c
	WHERE NOT $3 AND c.relnamespace = current_schema()::regnamespace
	  AND (c.relname IN (` + readByRequests + `) AND c.relkind = 'r' AND c.relname <> 'orgs'
	    OR c.relkind = 'v' AND ('security_invoker=true' = ANY (c.reloptions) OR c.relname LIKE ` + outlines + `))),
closed AS (
	SELECT p.oid, p.proname, f.granted FROM (VALUES ` + closedFunctions + `) AS f(name, granted)
	JOIN pg_proc p ON p.proname = f.name AND p.pronamespace = current_schema()::regnamespace
	WHERE NOT $3)

SELECT 1 AS step, 'the role dagctl_app does not exist' AS what, 'CREATE ROLE dagctl_app NOLOGIN NOINHERIT' AS mend
WHERE NOT EXISTS (SELECT FROM app)
UNION ALL
SELECT 1, format('the role %s, by which requests log in, does not exist', $1),
	CASE WHEN $2 THEN format('CREATE ROLE %I LOGIN', $1) ELSE '' END
WHERE NOT EXISTS (SELECT FROM login)
UNION ALL
SELECT 2, format('the role %s may not log in', $1), CASE WHEN $2 THEN format('ALTER ROLE %I LOGIN', $1) ELSE '' END
FROM login WHERE NOT rolcanlogin
UNION ALL
SELECT 2, format('the role %s, by which requests log in, is %s', $1, attribute),
	CASE WHEN $2 THEN format('ALTER ROLE %I NO%s', $1, attribute) ELSE '' END
FROM login CROSS JOIN LATERAL (VALUES ('SUPERUSER', rolsuper), ('BYPASSRLS', rolbypassrls),
	('CREATEROLE', rolcreaterole), ('CREATEDB', rolcreatedb), ('REPLICATION', rolreplication)) AS a(attribute, held)
WHERE held
UNION ALL
SELECT 2, format('the role dagctl_app is %s', attribute), format('ALTER ROLE dagctl_app NO%s', attribute)
FROM pg_roles r CROSS JOIN LATERAL (VALUES ('SUPERUSER', rolsuper), ('BYPASSRLS', rolbypassrls)) AS a(attribute, held)
WHERE rolname = 'dagctl_app' AND held
UNION ALL
SELECT 3, format('the role %s, by which requests log in, is a member of %s', $1, r.rolname),
	CASE WHEN $2 AND EXISTS (SELECT FROM pg_auth_members m WHERE m.member = l.oid AND m.roleid = r.oid)
		THEN format('REVOKE %I FROM %I', r.rolname, $1) ELSE '' END
FROM login l JOIN pg_roles r ON r.oid <> l.oid AND r.rolname <> 'dagctl_app' AND pg_has_role(l.oid, r.oid, 'MEMBER')
WHERE NOT l.rolsuper
UNION ALL
SELECT 3, format('the role %s is no member of dagctl_app', $1), format('GRANT dagctl_app TO %I', $1)
FROM login l, app WHERE NOT pg_has_role(l.oid, app.oid, 'USAGE')
UNION ALL
SELECT 3, format('the role %s, by which requests log in, owns %s and others', $1, min(c.relname)), ''
FROM login l, pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relowner IN (l.oid, (SELECT oid FROM app))
HAVING count(*) > 0
UNION ALL
SELECT 4, format('requests may not use the schema %s', current_schema()),
	format('GRANT USAGE ON SCHEMA %I TO dagctl_app', current_schema())
FROM app WHERE NOT has_schema_privilege(app.oid, current_schema(), 'USAGE')
UNION ALL
SELECT 4, format('requests may not connect to the database %s', current_database()),
	format('GRANT CONNECT ON DATABASE %I TO dagctl_app', current_database())
FROM app WHERE NOT has_database_privilege(app.oid, current_database(), 'CONNECT')
UNION ALL
SELECT 4, 'requests have no rights to the tables of a newer dagctl, which only its own ` +
	"`dagctl migrate`" + ` can give them', ''
FROM app WHERE $3 AND NOT has_table_privilege(app.oid, 'orgs', 'SELECT')
UNION ALL
SELECT 4, format('the table %s has no row-level security', relname),
	format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', relname)
FROM tenants WHERE NOT relrowsecurity
UNION ALL
SELECT 4, format('the table %s has no policy for requests', relname), format(
	'CREATE POLICY one_org ON %1$I TO dagctl_app USING (%2$s = NULLIF(current_setting(''dagctl.org'', true), '''')::uuid)
		WITH CHECK (%2$s = NULLIF(current_setting(''dagctl.org'', true), '''')::uuid)', relname, org)
FROM tenants t, app
WHERE NOT EXISTS (
	SELECT FROM pg_policy p WHERE p.polrelid = t.oid AND app.oid = ANY (p.polroles) AND p.polpermissive)
UNION ALL
SELECT 4, format('the table %s shows readers what is hidden from them', relname), format(
	'CREATE POLICY shown_to_reader ON %I AS RESTRICTIVE FOR SELECT TO dagctl_app USING (%s)', relname, r.shown)
FROM reader_policies() r JOIN tenants t USING (relname), app
WHERE NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = t.oid AND app.oid = ANY (p.polroles) AND NOT p.polpermissive)
UNION ALL
SELECT 4, format('requests may not %s %s', r.right, r.relname), format('GRANT %s ON %I TO dagctl_app', r.right, r.relname)
FROM rights r, app WHERE NOT has_table_privilege(app.oid, r.oid, r.right)
UNION ALL
SELECT 4, format('requests may not read the column %s of %s', a.attname, t.relname),
	format('GRANT SELECT (%I) ON %I TO dagctl_app', a.attname, t.relname)
FROM app, tenants t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE t.relname IN (SELECT h.t FROM (VALUES ` + hiddenColumns + `) AS h(t, c))
  AND (t.relname, a.attname) NOT IN (VALUES ` + hiddenColumns + `)
  AND NOT has_column_privilege(app.oid, t.oid, a.attnum, 'SELECT')
UNION ALL
SELECT 4, format('everybody may run the function %s', p.proname),
	format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', p.oid::regprocedure)
FROM closed p WHERE has_function_privilege('public', p.oid, 'EXECUTE')
UNION ALL
SELECT 4, format('requests may not run the function %s', p.proname),
	format('GRANT EXECUTE ON FUNCTION %s TO dagctl_app', p.oid::regprocedure)
FROM closed p, app WHERE p.granted AND NOT has_function_privilege(app.oid, p.oid, 'EXECUTE')
UNION ALL
SELECT 4, format('requests may not use the sequence %s', c.relname),
	format('GRANT USAGE ON SEQUENCE %I TO dagctl_app', c.relname)
FROM app, pg_class c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relname = 'outbox_id_seq'
  AND NOT has_sequence_privilege(app.oid, c.oid, 'USAGE')
ORDER BY step, what`

// Lacks returns what the login of requests lacks in a database that has every migration. requestsURL is that of the
// config, or empty.
func Lacks(ctx context.Context, pool *pgxpool.Pool, requestsURL string) ([]Lack, error) {
	login, err := pg.RequestLogin(pool.Config().ConnString(), requestsURL)
	if err != nil {
		return nil, err
	}
	return lacksOf(ctx, pool, login)
}

func lacksOf(ctx context.Context, pool *pgxpool.Pool, login pg.Login) ([]Lack, error) {
	ahead, err := Ahead(ctx, pool)
	if err != nil {
		return nil, err
	}

	rows, _ := pool.Query(ctx, lacks, login.Name, !login.Given, len(ahead) > 0) // the rows have its error
	var step int
	var l Lack
	var all []Lack
	_, err = pgx.ForEachRow(rows, []any{&step, &l.What, &l.Mend}, func() error {
		all = append(all, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look at the roles and rights of requests: %w", err)
	}
	return all, nil
}

// Describe returns lacks as one line for people, cut after the first few.
func Describe(all []Lack) string {
	const shown = 3
	var text []string
	for _, l := range all[:min(shown, len(all))] {
		text = append(text, l.What)
	}
	if more := len(all) - shown; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(text, "; ")
}

// mendTries bounds how often mend looks: what a role lacks shows itself when the role exists, and other databases of
// the cluster may change the same roles at the same time.
const mendTries = 10

// mend gives requests the roles and rights that they lack, and their login its password.
func mend(ctx context.Context, pool *pgxpool.Pool, url, requestsURL string) error {
	login, err := pg.RequestLogin(url, requestsURL)
	if err != nil {
		return err
	}

	for range mendTries {
		all, err := lacksOf(ctx, pool, login)
		if err != nil {
			return err
		}
		if len(all) == 0 {
			return logIn(ctx, pool, url, requestsURL, login)
		}
		mendable := slices.DeleteFunc(slices.Clone(all), func(l Lack) bool { return l.Mend == "" })
		if len(mendable) == 0 {
			return fault.New(fault.Conflict, "%s", Describe(all)).
				WithHint("requests need a role that is nobody but a member of dagctl_app; see docs/operations.md")
		}
		if err := apply(ctx, pool, mendable); err != nil {
			return err
		}
	}
	return fault.New(fault.Unavailable, "other processes keep changing the role %s", login.Name).WithHint("try again")
}

// apply runs the statements that mend lacks.
func apply(ctx context.Context, pool *pgxpool.Pool, all []Lack) error {
	for i, l := range all {
		_, err := pool.Exec(ctx, l.Mend)
		switch {
		case err == nil, changedByOthers(err):
			continue
		case hasCode(err, "42501"): // the owner may not
			return mayNot(all[i:], err)
		}
		return fmt.Errorf("mend that %s: %w", l.What, err)
	}
	return nil
}

// mayNot tells an administrator of the database what to run.
func mayNot(all []Lack, err error) error {
	statements := make([]string, len(all))
	for i, l := range all {
		statements[i] = l.Mend + ";"
	}
	return fault.New(fault.Forbidden, "%s, and the database's owner may not mend that: %w", Describe(all), err).
		WithHint("let an administrator of the database run: %s", strings.Join(statements, " "))
}

// logIn tries to log in as requests do, and sets the password if it is another one.
func logIn(ctx context.Context, pool *pgxpool.Pool, url, requestsURL string, login pg.Login) error {
	try := func() error {
		requests, err := pg.OpenRequests(ctx, url, pg.WithRequestsURL(requestsURL), pg.WithMaxConns(1),
			pg.WithApplicationName("dagctl migrate"))
		if err == nil {
			requests.Close()
		}
		return err
	}
	err := try()
	if err == nil || login.Given || !pg.RefusesLogin(err) {
		return err
	}

	var method string
	if err := pool.QueryRow(ctx, `SHOW password_encryption`).Scan(&method); err != nil {
		return fmt.Errorf("read password_encryption: %w", err)
	}
	verifier, err2 := login.Verifier(method)
	if err2 != nil {
		return err2
	}
	if verifier == "" { // the owner has no password either, and the server does not trust this role
		return fault.New(fault.Unavailable, "requests cannot log in as %s: %w", login.Name, err).
			WithHint("the owner's URL has no password to derive theirs from: set requests_database_url")
	}
	for range mendTries {
		_, err = pool.Exec(ctx, fmt.Sprintf(`ALTER ROLE %s PASSWORD '%s'`, pgx.Identifier{login.Name}.Sanitize(),
			verifier))
		if !changedByOthers(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("set the password of role %s: %w", login.Name, err)
	}
	return try()
}

// changedByOthers reports whether a statement about a role failed because another database's migration changed it at
// the same moment.
func changedByOthers(err error) bool {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return false
	}
	return said.Code == "42710" || said.Code == "23505" || // it exists by now
		said.Code == "XX000" // tuple concurrently updated: roles have no locks
}

func hasCode(err error, code string) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && said.Code == code
}
