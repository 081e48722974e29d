package storage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Fixed queries copy rows from one read-only snapshot to Parquet: users' SQL never reaches Postgres.

func (t *tables) open(ctx context.Context, g Generation, partitions []Partition, dir string) ([][]string, error) {
	out := make([][]string, len(partitions))
	err := t.read(ctx, g, dir, func(r *reader) error {
		for i, p := range partitions {
			file, _, err := r.partition(ctx, p, -1)
			if err != nil {
				return err
			}
			out[i] = []string{file}
		}
		return nil
	}, len(partitions))
	return out, err
}

func (t *tables) head(ctx context.Context, g Generation, partitions []Partition, n int, dir string) ([]string, error) {
	var out []string
	err := t.read(ctx, g, dir, func(r *reader) error {
		for _, p := range partitions {
			if n <= 0 && len(out) > 0 {
				return nil
			}

			file, rows, err := r.partition(ctx, p, max(n, 0))
			if err != nil {
				return err
			}
			out = append(out, file)
			n -= int(rows)
		}
		return nil
	}, len(partitions))
	return out, err
}

func (t *tables) openSealed(ctx context.Context, g Generation, m Manifest, dir string) ([]string, error) {
	from, err := staging(m.Location)
	if err != nil {
		return nil, err
	}
	var file string
	err = t.read(ctx, g, dir, func(r *reader) error {
		r.columns = m.Schema
		file, _, err = r.copyOut(ctx, fmt.Sprintf("SELECT %s FROM %s ORDER BY _row",
			sqltext.QuoteAll(columnNames(m.Schema)), from))
		if hasCode(err, undefinedTable) {
			return fault.New(fault.Conflict, "%s is already published or discarded", m.Location)
		}
		return err
	}, 1)
	return []string{file}, err
}

// reader copies rows from one snapshot.
type reader struct {
	physical
	tx      pgx.Tx
	rows    Rows
	columns []Column
	dir     string
	files   int
}

func (t *tables) read(ctx context.Context, g Generation, dir string, with func(*reader) error, reads int) error {
	if reads == 0 {
		return nil
	}
	p, err := physicalOf(g)
	if err != nil {
		return err
	}

	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, t.pool, options, func(tx pgx.Tx) error {
		columns, err := t.columns(ctx, tx, p)
		if err != nil {
			return err
		}
		return with(&reader{physical: p, tx: tx, rows: t.rows, columns: columns, dir: dir})
	})
}

// partition copies a partition's rows if it is still at its revision: at most limit rows, or all if limit is negative.
func (r *reader) partition(ctx context.Context, p Partition, limit int) (string, int64, error) {
	var revision int64
	err := pgx.ErrNoRows
	if r.columns != nil {
		err = r.tx.QueryRow(ctx, fmt.Sprintf(`SELECT revision FROM %s WHERE generation = $1 AND partition = $2`,
			r.revisions), r.generation.Version, p.Key).Scan(&revision)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", 0, fault.New(fault.Conflict, "partition %q of %s has no rows in postgres storage", p.Key,
			r.generation.Version)
	case err != nil:
		return "", 0, fmt.Errorf("open partition %q: %w", p.Key, err)
	case revision != p.Revision:
		return "", 0, fault.New(fault.Conflict, "partition %q of %s is at revision %d, but %d was pinned", p.Key,
			r.generation.Version, revision, p.Revision)
	}

	// COPY takes no parameters, but it can read a setting of this transaction.
	if _, err := r.tx.Exec(ctx, `SELECT set_config('dagctl.partition', $1, true)`, p.Key); err != nil {
		return "", 0, fmt.Errorf("open partition %q: %w", p.Key, err)
	}
	query := fmt.Sprintf("SELECT %s FROM %s WHERE _partition = current_setting('dagctl.partition') ORDER BY _row",
		sqltext.QuoteAll(columnNames(r.columns)), r.table)
	if limit >= 0 {
		query += fmt.Sprintf(" LIMIT %d", limit)
	}

	file, rows, err := r.copyOut(ctx, query)
	if err != nil {
		return "", 0, fmt.Errorf("open partition %q: %w", p.Key, err)
	}
	return file, rows, nil
}

// copyOut writes a query's rows to a Parquet file with their DuckDB types.
func (r *reader) copyOut(ctx context.Context, query string) (string, int64, error) {
	file := filepath.Join(r.dir, fmt.Sprintf("rows%d.parquet", r.files))
	r.files++
	sent, err := os.OpenFile(file+".copy", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", 0, err
	}
	defer os.Remove(sent.Name())

	_, err = r.tx.Conn().PgConn().CopyTo(ctx, sent, fmt.Sprintf("COPY (%s) TO STDOUT (FORMAT binary)", query))
	if err = errors.Join(err, sent.Close()); err != nil {
		return "", 0, err
	}
	rows, err := r.rows.CopyIn(ctx, r.generation.OrgID.String(), r.columns, sent.Name(), file)
	return file, rows, err
}
