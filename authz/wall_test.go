package authz_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

// TestTheWallBetweenOrgs walks the catalogue, so that a new table cannot be forgotten: each table with an org_id holds
// a row of either org, and a request of one org must find nothing of the other's.
func TestTheWallBetweenOrgs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := t.Context()
	other, err := authz.CreateOrg(ctx, w.owner, "other", "Other")
	require.NoError(t, err)
	mine, theirs := w.org.ID, other.ID

	tables := w.column(t, `
		SELECT c.relname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'org_id'
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		ORDER BY 1`)
	require.Greater(t, len(tables), 30)
	// The rows are nonsense: the test is about the separation of orgs and not about references between rows.
	for _, drop := range w.column(t, `
		SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname) FROM pg_constraint
		WHERE connamespace = 'public'::regnamespace AND contype IN ('c', 'f')`) {
		_, err := w.owner.Exec(ctx, drop)
		require.NoError(t, err)
	}
	for _, table := range tables {
		for _, org := range []uuid.UUID{mine, theirs} {
			_, err := w.owner.Exec(ctx, w.insert(t, table), org)
			require.NoError(t, err, table)
		}
	}

	for _, view := range outlines {
		require.Equal(t, []string{mine.String()}, w.seen(t, mine, `SELECT DISTINCT org_id::text FROM `+view), view)
	}
	for _, table := range tables {
		quoted := pgx.Identifier{table}.Sanitize()
		counts := func(run func(context.Context, func(context.Context, pgx.Tx) error) error) (all, foreign int) {
			require.NoError(t, run(ctx, func(ctx context.Context, tx pgx.Tx) error {
				return tx.QueryRow(ctx, `SELECT count(*), count(*) FILTER (WHERE org_id <> $1) FROM `+quoted,
					mine).Scan(&all, &foreign)
			}), table)
			return all, foreign
		}
		all, foreign := counts(func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
			return pg.InOrgTx(ctx, w.requests, mine, fn)
		})
		require.Positive(t, all, "%s: an org sees its own rows", table)
		require.Zero(t, foreign, "%s: an org sees another's rows", table)
		all, _ = counts(func(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
			return pg.InTx(ctx, w.requests, fn)
		})
		require.Zero(t, all, "%s: without an org nothing is seen", table)

		for _, statement := range []string{
			`UPDATE ` + quoted + ` SET org_id = org_id WHERE org_id = $1`,
			`DELETE FROM ` + quoted + ` WHERE org_id = $1`,
		} {
			n, err := w.asOrg(ctx, mine, statement, theirs)
			require.True(t, denied(err) || (err == nil && n == 0), "%s: %s changed %d rows: %v",
				table, statement, n, err)
		}
		_, err := w.asOrg(ctx, mine, w.insert(t, table), theirs)
		require.True(t, denied(err), "%s: an org wrote a row of another: %v", table, err)
		n, err := w.asOrg(ctx, mine, `UPDATE `+quoted+` SET org_id = $1`, theirs)
		require.True(t, denied(err), "%s: an org gave %d rows to another: %v", table, n, err)
	}

	require.Equal(t, []string{"acme"}, w.seen(t, mine, `SELECT slug FROM orgs`))
	_, err = w.asOrg(ctx, mine, `UPDATE orgs SET name = 'x' WHERE id = $1`, mine)
	require.True(t, denied(err), "an org changed itself: %v", err)
}

// outlines are the views that run as their owner, each with a condition on the org of its own.
var outlines = []string{"dataset_outlines", "generation_outlines", "pointer_outlines", "task_outlines"}

// TestTheRequestsRoleHasNoOtherRights lists what else the role of requests may touch.
func TestTheRequestsRoleHasNoOtherRights(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	require.Equal(t, []string{"backpressure", "orgs", "workers"}, w.column(t, `
		SELECT c.relname FROM pg_class c
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p')
		  AND has_any_column_privilege('dagctl_app', c.oid, 'SELECT, INSERT, UPDATE')
		  AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'org_id')
		ORDER BY 1`), "tables without an org that a request can read")
	require.Equal(t, outlines, w.column(t, `
		SELECT relname FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('v', 'm')
		  AND has_table_privilege('dagctl_app', oid, 'SELECT')
			AND NOT COALESCE('security_invoker=true' = ANY (reloptions), false)
		ORDER BY 1`), "views that run as their owner")

	// worker_token_revoked answers yes or no about a token whose org and name the caller knows, and nothing else. What
	// is hidden is told of the transaction's org only.
	require.Equal(t, []string{"hidden_datasets", "hidden_externals", "hidden_generations", "hidden_ids",
		"hidden_is_kept", "hidden_jobs", "keep_previous_secret", "note_reading_row", "note_reading_rows",
		"stable_view_unserved", "take_quota", "worker_token_revoked"}, w.column(t, `
		SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prosecdef
		ORDER BY 1`), "functions that run as their owner")
	_, err := w.asOrg(t.Context(), uuid.New(),
		`SELECT * FROM stable_view_unserved($1, 'theirs', 'secrets') AS u (a text)`, uuid.New())
	require.ErrorContains(t, err, `dataset "secrets" is not published`, "it says no more to who cannot read the view")
	require.Equal(t, []string{"false false false"}, w.column(t, `
		SELECT concat_ws(' ', rolsuper::text, rolbypassrls::text, rolcreaterole::text) FROM pg_roles
		WHERE rolname = 'dagctl_app'`))
	require.Empty(t, w.column(t, `SELECT relname FROM pg_class WHERE pg_get_userbyid(relowner) = 'dagctl_app'`),
		"row-level security does not apply to owners")
}

// insert is a statement that puts a row of the org $1 into a table, with any value that will do in the other columns.
func (w world) insert(t *testing.T, table string) string {
	t.Helper()
	rows, err := w.owner.Query(t.Context(), `
		SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity = ''
		  AND (attnotnull AND NOT (atthasdef AND attname LIKE '%id') OR attname = 'org_id')`, table)
	require.NoError(t, err)

	var names, values []string
	var name, typ string
	_, err = pgx.ForEachRow(rows, []any{&name, &typ}, func() error {
		names = append(names, pgx.Identifier{name}.Sanitize())
		switch {
		case name == "org_id":
			values = append(values, "$1")
		case typ == "uuid":
			values = append(values, "gen_random_uuid()")
		case typ == "jsonb":
			values = append(values, "'{}'")
		case typ == "text":
			values = append(values, "gen_random_uuid()::text")
		case typ == "xid8":
			values = append(values, "pg_current_xact_id()")
		case typ == "bytea":
			values = append(values, "sha256(random()::text::bytea)")
		case strings.HasSuffix(typ, "[]"):
			values = append(values, "'{}'")
		case strings.HasPrefix(typ, "timestamp"):
			values = append(values, "now()")
		case typ == "boolean":
			values = append(values, "false")
		default:
			values = append(values, "(random() * 1000)::int::"+typ)
		}
		return nil
	})
	require.NoError(t, err)
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", pgx.Identifier{table}.Sanitize(), strings.Join(names, ", "),
		strings.Join(values, ", "))
}

// asOrg runs a statement as a request of an org does.
func (w world) asOrg(ctx context.Context, org uuid.UUID, sql string, args ...any) (affected int64, err error) {
	err = pg.InOrgTx(ctx, w.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		affected = tag.RowsAffected()
		return err
	})
	return affected, err
}

func (w world) seen(t *testing.T, org uuid.UUID, sql string) (values []string) {
	t.Helper()
	require.NoError(t, pg.InOrgTx(t.Context(), w.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql)
		if err != nil {
			return err
		}
		values, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}))
	return values
}

// column is the one column that the owner reads.
func (w world) column(t *testing.T, sql string) []string {
	t.Helper()
	rows, err := w.owner.Query(t.Context(), sql)
	require.NoError(t, err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return values
}

// denied reports whether a privilege or a policy stood in the way.
func denied(err error) bool {
	var pgErr *pgconn.PgError
	return err != nil && errors.As(err, &pgErr) && pgErr.Code == "42501"
}
