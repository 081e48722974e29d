package storage

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// ensureTable creates the org's schema and the generation's table when the columns become known, and later requires
// every attempt to have these columns: a generation in Postgres has one schema for good. It uses a short transaction
// of its own, because the completion must not wait for its locks.
func (t *tables) ensureTable(ctx context.Context, p physical, columns []Column) error {
	have, err := t.columns(ctx, t.pool, p)
	if err != nil {
		return err
	}

	if have == nil {
		err = pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error {
			// One at a time per org: CREATE SCHEMA IF NOT EXISTS fails when another transaction commits first.
			if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('dagctl storage ' || $1, 0))`,
				p.schema); err != nil {
				return err
			}
			if have, err = t.columns(ctx, tx, p); err != nil || have != nil {
				return err
			}
			return p.create(ctx, tx, columns)
		})
		if err != nil {
			return fmt.Errorf("create the table of generation %s: %w", p.generation.Version, err)
		}
		if have == nil {
			return nil
		}
	}

	return sameColumns(have, columns)
}

func sameColumns(have, columns []Column) error {
	for _, c := range columns {
		i := slices.IndexFunc(have, func(h Column) bool { return h.Name == c.Name })
		switch {
		case i < 0:
			return schemaMoved("it has no column %q", c.Name)
		case have[i].Type != c.Type:
			return schemaMoved("column %q is %s in the table, and %s here", c.Name, have[i].Type, c.Type)
		}
	}

	for _, h := range have {
		if !slices.Contains(columns, h) {
			return schemaMoved("column %q is missing here", h.Name)
		}
	}
	return nil
}

func schemaMoved(format string, args ...any) error {
	what := fmt.Sprintf(format, args...)
	return fault.New(fault.Invalid, "the columns of a table in PostgreSQL cannot change: %s", what).
		WithHint("cast the columns in the query, or name their types in `types` where files are read, so that all " +
			"partitions have the same; or compute the dataset anew with `dagctl rematerialize`")
}

func (p physical) create(ctx context.Context, tx pgx.Tx, columns []Column) error {
	statements := []string{
		"CREATE SCHEMA IF NOT EXISTS " + p.schema,
		"CREATE TABLE IF NOT EXISTS " + p.revisions +
			" (generation uuid, partition text, revision bigint NOT NULL, PRIMARY KEY (generation, partition))",
		fmt.Sprintf("CREATE TABLE %s (%s, _partition text NOT NULL, _revision bigint NOT NULL, _row bigint NOT NULL)",
			p.table, columnList(columns)),
	}

	if key := p.generation.UniqueKey; len(key) > 0 {
		statements = append(statements, fmt.Sprintf("CREATE UNIQUE INDEX ON %s (_partition, %s) NULLS NOT DISTINCT",
			p.table, sqltext.QuoteAll(key)))
	} else {
		statements = append(statements, fmt.Sprintf("CREATE INDEX ON %s (_partition, _row)", p.table))
	}

	for _, index := range p.generation.Indexes {
		statements = append(statements, fmt.Sprintf("CREATE INDEX ON %s (%s)", p.table, sqltext.QuoteAll(index)))
	}
	for _, c := range columns {
		statements = append(statements, fmt.Sprintf("COMMENT ON COLUMN %s.%s IS %s", p.table, sqltext.Quote(c.Name),
			quoteText(c.Type)))
	}

	for _, statement := range statements {
		_, err := tx.Exec(ctx, statement)
		if hasCode(err, undefinedColumn) || hasCode(err, undefinedObject) { // json has no order
			return fault.New(fault.Invalid, "storage.postgres.indexes or unique_key: %w", err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// columns returns the columns of the generation's table with their DuckDB types; nil: there is no table yet.
func (t *tables) columns(ctx context.Context, db querier, p physical) ([]Column, error) {
	rows, err := db.Query(ctx, `
		SELECT attname, col_description(attrelid, attnum)
		FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attname NOT IN ('_partition',
			'_revision', '_row')
		ORDER BY attnum`, p.table)
	if err != nil {
		return nil, fmt.Errorf("look up the columns of generation %s: %w", p.generation.Version, err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Column])
	if err != nil {
		return nil, fmt.Errorf("look up the columns of generation %s: %w", p.generation.Version, err)
	}
	if len(columns) == 0 {
		return nil, nil
	}
	return columns, nil
}
