package storage

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
)

// A view is a name that users build on: they are granted rights to it, they comment it, and views of their own read it.
// A change keeps all of that. It adds columns in place; where columns go, a new view takes the old one's name and
// everything that hangs on it, and users' views are defined over it again. Only what reads a column that goes, or
// cannot be defined again, refuses the change.

// madeBy ends the comment of a view: a hash of its query, because the definition as Postgres returns it differs from
// the query. What users write before it stays.
var madeBy = late.Pattern(`\n?made by dagctl from [0-9a-f]{64}$`)

// ensureView makes the view as it is to be, unless it is. It gives way to readers: while they hold the view, the error
// is fault.Unavailable and names the first of them. The transaction stays usable after an error.
func (t *tables) ensureView(ctx context.Context, tx pgx.Tx, v View) error {
	d, err := t.design(ctx, tx, v)
	if err != nil || d.query == "" {
		return err
	}
	if comment, err := d.comment(ctx, tx); err != nil || strings.HasSuffix(comment, d.mark()) {
		return err
	}

	err = briefly(ctx, tx, func(tx pgx.Tx) error {
		// Two processes that create a view at once would fail. The one that waited looks again.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('dagctl view ' || $1, 0))`,
			d.name); err != nil {
			return err
		}
		d, err := t.design(ctx, tx, v)
		if err != nil || d.query == "" {
			return err
		}
		mark := d.mark()
		comment, err := d.comment(ctx, tx)
		if err != nil || strings.HasSuffix(comment, mark) {
			return err
		}

		if d.fits() {
			err = d.replace(ctx, tx)
		} else {
			err = d.remake(ctx, tx)
		}
		if err != nil {
			return err
		}
		return d.setComment(ctx, tx, comment, mark)
	})
	return d.explain(ctx, tx, err)
}

// briefly calls fn in a savepoint in which no lock is waited for longer than lockTimeout.
func briefly(ctx context.Context, tx pgx.Tx, fn func(tx pgx.Tx) error) error {
	var before string
	if err := tx.QueryRow(ctx, `SELECT current_setting('lock_timeout')`).Scan(&before); err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockTimeout.Milliseconds())); err != nil {
			return err
		}
		if err := fn(tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, before)
		return err
	})
}

func (d design) mark() string {
	return fmt.Sprintf("made by dagctl from %x", sha256.Sum256([]byte(d.query)))
}

func (d design) comment(ctx context.Context, tx pgx.Tx) (comment string, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(obj_description(to_regclass($1), 'pg_class'), '')`, d.name).Scan(&comment)
	return comment, err
}

func (d design) setComment(ctx context.Context, tx pgx.Tx, before, mark string) error {
	if text := madeBy.ReplaceAllString(before, ""); text != "" {
		mark = text + "\n" + mark
	}
	_, err := tx.Exec(ctx, fmt.Sprintf("COMMENT ON VIEW %s IS %s", d.name, quoteText(mark)))
	return err
}

// replace creates the view, or redefines it with the same columns and perhaps more.
func (d design) replace(ctx context.Context, tx pgx.Tx) error {
	options, err := d.options(ctx, tx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, fmt.Sprintf("CREATE OR REPLACE VIEW %s%s AS %s", d.name, options, d.query))
	return err
}

// options returns the clause with the options that the view has, such as security_barrier.
func (d design) options(ctx context.Context, tx pgx.Tx) (clause string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT coalesce((SELECT ' WITH (' || array_to_string(reloptions, ', ') || ')' FROM pg_class
			WHERE oid = to_regclass($1)), '')`, d.name).Scan(&clause)
	return clause, err
}

// remake creates the view anew, because it loses columns. Its owner, grants and comments, and the views that users
// defined over it, move to the new one.
func (d design) remake(ctx context.Context, tx pgx.Tx) error {
	followers, err := d.followers(ctx, tx)
	if err != nil {
		return err
	}
	keep, err := d.belongings(ctx, tx)
	if err != nil {
		return err
	}
	options, err := d.options(ctx, tx)
	if err != nil {
		return err
	}

	schema, _, _ := strings.Cut(d.name, ".")
	sum := sha256.Sum256([]byte(d.name))
	old := fmt.Sprintf(`"_v_%x"`, sum[:8])
	statements := []string{
		fmt.Sprintf("ALTER VIEW %s RENAME TO %s", d.name, old),
		fmt.Sprintf("CREATE VIEW %s%s AS %s", d.name, options, d.query),
	}
	for _, f := range followers {
		statements = append(statements, f.definition)
	}
	statements = append(statements, fmt.Sprintf("DROP VIEW %s.%s", schema, old))
	for _, statement := range statements {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return d.restore(ctx, tx, keep)
}

// belongings returns the statements that give the new view the grants, the comments on columns and the owner of the
// present one.
func (d design) belongings(ctx context.Context, tx pgx.Tx) ([]string, error) {
	stay := make([]string, len(d.want))
	for i, c := range d.want {
		stay[i] = c.Name
	}
	rows, err := tx.Query(ctx, `
		WITH view AS (SELECT oid, relacl, relowner FROM pg_class WHERE oid = to_regclass($1)),
		stays AS (
			SELECT a.attname, a.attnum, a.attacl, v.oid FROM view v
			JOIN pg_attribute a ON a.attrelid = v.oid AND a.attnum > 0 AND a.attname = ANY($2::name[])),
		grants AS (
			SELECT x.privilege_type AS what, x.grantee, x.is_grantable FROM view v, aclexplode(v.relacl) AS x
			WHERE x.grantee <> v.relowner
			UNION ALL
			SELECT format('%s (%I)', x.privilege_type, s.attname), x.grantee, x.is_grantable
			FROM stays s, aclexplode(s.attacl) AS x)
		SELECT format('GRANT %s ON %s TO %s%s', what, $1,
			CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
			CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM grants
		UNION ALL
		SELECT format('COMMENT ON COLUMN %s.%I IS %L', $1, attname, col_description(oid, attnum))
		FROM stays WHERE col_description(oid, attnum) IS NOT NULL
		UNION ALL
		SELECT format('ALTER VIEW %s OWNER TO %I', $1, pg_get_userbyid(relowner))
		FROM view WHERE pg_get_userbyid(relowner) <> current_user`, d.name, stay)
	if err != nil {
		return nil, fmt.Errorf("grants on view %s: %w", d.name, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// restore takes the default privileges from the new view, and runs the statements of belongings.
func (d design) restore(ctx context.Context, tx pgx.Tx, keep []string) error {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT format('REVOKE ALL ON %s FROM %s', $1::text,
			CASE x.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(x.grantee)) END)
		FROM pg_class v, aclexplode(v.relacl) AS x WHERE v.oid = to_regclass($1) AND x.grantee <> v.relowner`, d.name)
	if err != nil {
		return err
	}
	revoke, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}

	for _, statement := range slices.Concat(revoke, keep) {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// follower is a view of a user that reads a stable view.
type follower struct {
	object     string // as people call it
	definition string // the statement that defines it again
	columns    []string
	view, ours bool // it is a plain view; this role may replace it
}

// followers returns the users' views over this one. It refuses, and says what to do, where something depends on a
// column that goes or cannot be defined over a new view.
func (d design) followers(ctx context.Context, tx pgx.Tx) ([]follower, error) {
	rows, err := tx.Query(ctx, `
		SELECT object, definition, columns, is_view, ours FROM (
			SELECT CASE WHEN k.oid IS NULL THEN pg_describe_object(d.classid, d.objid, d.objsubid)
					ELSE pg_describe_object('pg_class'::regclass, k.oid, 0) END AS object,
				coalesce(bool_and(k.relkind = 'v' AND d.refclassid = 'pg_class'::regclass), false) AS is_view,
				coalesce(bool_and(pg_has_role(k.relowner, 'USAGE')), false) AS ours,
				coalesce(array_agg(DISTINCT a.attname::text) FILTER (WHERE a.attname IS NOT NULL), '{}') AS columns,
				coalesce(min('CREATE OR REPLACE VIEW ' || k.oid::regclass
					|| coalesce(' WITH (' || array_to_string(k.reloptions, ', ') || ')', '')
					|| ' AS ' || pg_get_viewdef(k.oid)) FILTER (WHERE k.relkind = 'v'), '') AS definition
			FROM pg_class v
			JOIN pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = v.oid
				OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (v.reltype,
					(SELECT typarray FROM pg_type WHERE oid = v.reltype))
			LEFT JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
			LEFT JOIN pg_class k ON k.oid = r.ev_class
			LEFT JOIN pg_attribute a ON d.refclassid = 'pg_class'::regclass AND a.attrelid = v.oid
				AND a.attnum = d.refobjsubid AND d.refobjsubid > 0
			WHERE v.oid = to_regclass($1) AND d.deptype IN ('n', 'a') AND k.oid IS DISTINCT FROM v.oid
			GROUP BY 1, k.oid) AS dependents
		ORDER BY object`, d.name)
	if err != nil {
		return nil, fmt.Errorf("objects that depend on view %s: %w", d.name, err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (f follower, err error) {
		return f, row.Scan(&f.object, &f.definition, &f.columns, &f.view, &f.ours)
	})
	if err != nil {
		return nil, fmt.Errorf("objects that depend on view %s: %w", d.name, err)
	}

	for _, f := range found {
		if err := d.refuse(f); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// refuse returns why a user's object keeps the view from losing its columns.
func (d design) refuse(f follower) error {
	gone := d.gone()
	for _, c := range gone {
		if slices.Contains(f.columns, c.Name) {
			return fault.New(fault.Conflict, "view %s: %s, and %s uses it. Change or drop %[3]s, then try again; "+
				"a failed deploy goes on with --resume", d.plainName(), d.becomes(c), f.object)
		}
	}

	what := "depends on it, and cannot be moved to a view without that column"
	if f.view && f.ours {
		return nil
	}
	if f.view {
		what = "depends on it and belongs to another role, so that it cannot be moved to a view without that column"
	}
	return fault.New(fault.Conflict, "view %s: %s, and %s %s. Drop %[3]s and create it again afterwards; "+
		"a failed deploy goes on with --resume", d.plainName(), d.becomes(gone[0]), f.object, what)
}

func (d design) becomes(c pgColumn) string {
	for _, w := range d.want {
		if w.Name == c.Name {
			return fmt.Sprintf("column %q changes from %s to %s", c.Name, c.Type, w.Type)
		}
	}
	return fmt.Sprintf("column %q (%s) goes away", c.Name, c.Type)
}

func (d design) plainName() string { return strings.ReplaceAll(d.name, `"`, "") }

// explain makes an error of a change one for people: it says who holds a view that could not be locked, and says what
// will pass from what stays wrong.
func (d design) explain(ctx context.Context, tx pgx.Tx, err error) error {
	var said *pgconn.PgError
	switch {
	case err == nil || fault.Is(err, fault.Conflict):
		return err // refuse has named the view
	case hasCode(err, lockNotAvailable):
		holder, lookErr := d.holder(ctx, tx)
		if lookErr != nil {
			return errors.Join(err, lookErr)
		}
		return fault.New(fault.Unavailable, "view %s is locked by %s", d.plainName(), holder).
			WithHint("wait until that transaction ends, or end it with SELECT pg_terminate_backend(PID), and try again")
	case pg.Lasting(err) && errors.As(err, &said):
		text := said.Message
		if said.Detail != "" {
			text += ": " + said.Detail
		}
		return fault.New(fault.Conflict, "view %s cannot be defined: %s (SQLSTATE %s)", d.plainName(), text, said.Code)
	}
	return fmt.Errorf("view %s: %w", d.plainName(), err)
}

// holder describes the oldest transaction that holds the view or what users defined over it. What Postgres does not
// show to this role is left out.
func (d design) holder(ctx context.Context, tx pgx.Tx) (holder string, err error) {
	err = tx.QueryRow(ctx, `
		WITH views AS (
			SELECT to_regclass($1)::oid AS oid
			UNION SELECT r.ev_class FROM pg_depend d
			JOIN pg_rewrite r ON d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass($1))
		SELECT concat_ws(', ', 'process ' || a.pid, 'application "' || nullif(a.application_name, '') || '"',
			'role ' || a.usename, a.state,
			'in a transaction for ' || date_trunc('second', clock_timestamp() - a.xact_start))
		FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'relation' AND l.granted AND l.relation IN (SELECT oid FROM views)
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND l.pid <> pg_backend_pid()
		ORDER BY a.xact_start, a.pid LIMIT 1`, d.name).Scan(&holder)
	if errors.Is(err, pgx.ErrNoRows) {
		return "a transaction that has ended by now", nil
	}
	return holder, err
}
