package postgresload

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// obstacles returns what a table has that a new one in its place would not have.
const obstacles = `
	WITH t AS (SELECT * FROM pg_class WHERE oid = to_regclass($1))
	SELECT 'it is no ordinary table' FROM t WHERE relkind <> 'r' OR relispartition
	UNION ALL SELECT 'it is of another owner' FROM t WHERE pg_get_userbyid(relowner) <> current_user
	UNION ALL SELECT 'row level security' FROM t WHERE relrowsecurity
	UNION ALL SELECT 'trigger ' || tgname FROM t JOIN pg_trigger ON tgrelid = t.oid WHERE NOT tgisinternal
	UNION ALL SELECT 'foreign key ' || c.conname FROM t JOIN pg_constraint c ON t.oid IN (c.conrelid, c.confrelid)
		WHERE c.contype = 'f'
	UNION ALL SELECT 'rule ' || rulename FROM t JOIN pg_rewrite ON ev_class = t.oid
	UNION ALL SELECT 'inheritance' FROM t JOIN pg_inherits i ON t.oid IN (i.inhrelid, i.inhparent)
	UNION ALL SELECT 'a publication' FROM t JOIN pg_publication_rel p ON p.prrelid = t.oid
	UNION ALL SELECT 'privileges on columns' FROM t WHERE EXISTS (
		SELECT FROM pg_attribute a WHERE a.attrelid = t.oid AND a.attacl IS NOT NULL AND NOT a.attisdropped)
	LIMIT 3`

// swap fills a new table of the target's form and puts it in its place: readers go on reading the old rows until the
// transaction ends.
func (l *load) swap(ctx context.Context, tx pgx.Tx) error {
	found, err := texts(ctx, tx, obstacles, l.target())
	if err != nil {
		return err
	}
	const hint = "use mode upsert, or replace_partition, which keep the table"
	if len(found) > 0 {
		return fault.New(fault.Invalid, "table %s cannot be swapped for another: %s would be lost", l.Table,
			strings.Join(found, ", ")).WithHint(hint)
	}

	fresh := "_dagctl_" + strings.ReplaceAll(l.task.TaskID.String(), "-", "")
	if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE TABLE %s (LIKE %s INCLUDING ALL)", l.in(fresh),
		l.target())); err != nil {
		return err
	}
	if err := l.insert(ctx, tx, l.in(fresh)); err != nil {
		return err
	}
	after, err := l.copied(ctx, tx, fresh)
	if err != nil {
		return err
	}

	_, err = tx.Exec(ctx, "DROP TABLE "+l.target())
	if e := new(pgconn.PgError); errors.As(err, &e) && e.Code == "2BP01" {
		return fault.New(fault.Invalid, "table %s cannot be swapped for another: views or others depend on it",
			l.Table).WithHint(hint)
	}
	for _, statement := range after {
		if err == nil {
			_, err = tx.Exec(ctx, statement)
		}
	}
	return err
}

// copied returns the statements that make the new table what the old one was, once that is gone: its name, the names of
// its indexes, its privileges and its comment.
func (l *load) copied(ctx context.Context, tx pgx.Tx, fresh string) ([]string, error) {
	after := []string{fmt.Sprintf("ALTER TABLE %s RENAME TO %s", l.in(fresh), sqltext.Quote(l.name()))}
	for _, q := range []struct {
		text   string
		values []any
	}{
		// Indexes are the same if they are after their names, and those that are the same are in the same order.
		{`WITH i AS (
			SELECT indrelid, c.relname, substring(pg_get_indexdef(indexrelid) FROM ' USING .*') AS form, indisunique,
				indisprimary
			FROM pg_index JOIN pg_class c ON c.oid = indexrelid
			WHERE indrelid IN (to_regclass($1), to_regclass($2))),
		n AS (SELECT *, row_number() OVER (PARTITION BY indrelid, form, indisunique, indisprimary ORDER BY relname) AS at
			FROM i)
		SELECT format('ALTER INDEX %I.%I RENAME TO %I', $3::text, b.relname, a.relname)
		FROM n a JOIN n b USING (form, indisunique, indisprimary, at)
		WHERE a.indrelid = to_regclass($1) AND b.indrelid = to_regclass($2)`,
			[]any{l.target(), l.in(fresh), l.schema()}},
		{`SELECT format('GRANT %s ON %s TO %s%s', g.privilege_type, $1::text,
				CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END,
				CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)
		FROM pg_class, aclexplode(relacl) AS g
		WHERE oid = to_regclass($1) AND g.grantee <> relowner`, []any{l.target()}},
		{`SELECT format('COMMENT ON TABLE %s IS %L', $1::text, obj_description(to_regclass($1), 'pg_class'))
		WHERE obj_description(to_regclass($1), 'pg_class') IS NOT NULL`, []any{l.target()}},
	} {
		found, err := texts(ctx, tx, q.text, q.values...)
		if err != nil {
			return nil, err
		}
		after = append(after, found...)
	}
	return after, nil
}

func texts(ctx context.Context, tx pgx.Tx, query string, values ...any) ([]string, error) {
	rows, err := tx.Query(ctx, query, values...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}
