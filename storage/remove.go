package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Rows in the database decide what to remove. The caller has marked them first, so that nobody begins to read. Each
// removal may be repeated after a crash.

// DropGeneration removes a generation whose partitions were written to the given locations.
func (s *Storage) DropGeneration(ctx context.Context, g Generation, locations []string) error {
	if err := s.Discard(ctx, locations...); err != nil {
		return fmt.Errorf("drop generation %s: %w", g.Version, err)
	}
	b, err := s.of(g.Kind)
	if err != nil {
		return err
	}
	if err := b.drop(ctx, g, locations); err != nil {
		return fmt.Errorf("drop generation %s: %w", g.Version, err)
	}
	return nil
}

// Forget removes what readers saw of a partition up to a revision, unless that is in files at the revision's location.
func (s *Storage) Forget(ctx context.Context, g Generation, partition string, revision int64) error {
	b, err := s.of(g.Kind)
	if err != nil {
		return err
	}
	if err := b.forget(ctx, g, partition, revision); err != nil {
		return fmt.Errorf("forget partition %q of generation %s: %w", partition, g.Version, err)
	}
	return nil
}

// VerifyPublished checks that a published revision exists as its row describes it: every file with its size, or, in
// Postgres, the revision itself.
func (s *Storage) VerifyPublished(
	ctx context.Context, g Generation, partition string, revision int64, m Manifest,
) error {
	b, err := s.of(g.Kind)
	if err != nil {
		return err
	}
	return b.verifyPublished(ctx, g, partition, revision, m)
}

// drop removes empty folders. A folder that is not empty has the files of an attempt, which are removed with it.
func (f *files) drop(_ context.Context, g Generation, locations []string) error {
	folders := []string{}
	for _, location := range locations {
		folders = append(folders, path.Dir(strings.TrimSuffix(location, "/")))
	}
	for _, folder := range append(folders, generationDir(g)) {
		err := f.root.Remove(folder)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) &&
			!errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func (f *files) forget(context.Context, Generation, string, int64) error { return nil }

func (f *files) verifyPublished(ctx context.Context, _ Generation, _ string, _ int64, m Manifest) error {
	return f.verify(ctx, m)
}

// drop removes the generation's table. The views of published names no longer use it; a view that still does has a name
// that nobody publishes any more.
func (t *tables) drop(ctx context.Context, g Generation, _ []string) error {
	p, err := physicalOf(g)
	if err != nil {
		return err
	}
	return pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL lock_timeout = %d`, lockTimeout.Milliseconds())); err != nil {
			return err
		}
		there, err := t.exists(ctx, tx, p.table)
		if err != nil || !there {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT DISTINCT v.oid::regclass::text
			FROM pg_depend d
			JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
			JOIN pg_class v ON v.oid = w.ev_class AND v.relkind = 'v' AND v.relnamespace = to_regnamespace($2)
			WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass($1)`, p.table, p.schema)
		if err != nil {
			return err
		}
		views, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return err
		}
		for _, view := range views {
			if _, err := tx.Exec(ctx, "DROP VIEW IF EXISTS "+view); err != nil {
				return err
			}
		}

		// Two servers may drop it at once: the second waits for the first one's lock, and then there is nothing left.
		if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+p.table); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE generation = $1`, p.revisions), g.Version)
		return err
	})
}

func (t *tables) exists(ctx context.Context, tx querier, name string) (there bool, err error) {
	rows, err := tx.Query(ctx, `SELECT to_regclass($1) IS NOT NULL`, name)
	if err != nil {
		return false, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
}

// forget deletes rows by their revision, so that a revision published since stays. The partition's number stays, too,
// because the next one must be above it.
func (t *tables) forget(ctx context.Context, g Generation, partition string, revision int64) error {
	p, err := physicalOf(g)
	if err != nil {
		return err
	}
	there, err := t.exists(ctx, t.pool, p.table)
	if err != nil || !there {
		return err
	}
	_, err = t.pool.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE %s = $1 AND %s <= $2`, p.table,
		sqltext.Quote(partitionColumn), sqltext.Quote(revisionColumn)),
		partition, revision)
	return err
}

func (t *tables) verifyPublished(
	ctx context.Context, g Generation, partition string, revision int64, _ Manifest,
) error {
	p, err := physicalOf(g)
	if err != nil {
		return err
	}
	there, err := t.exists(ctx, t.pool, p.table)
	if err != nil {
		return err
	}

	have := int64(0)
	if there {
		err := t.pool.QueryRow(ctx,
			fmt.Sprintf(`SELECT coalesce(max(revision), 0) FROM %s WHERE generation = $1 AND partition = $2`,
				p.revisions),
			g.Version, partition).Scan(&have)
		if err != nil {
			return err
		}
	}

	if have != revision {
		return fault.New(fault.NotFound, "the table of generation %s holds revision %d of partition %q, not %d",
			g.Version, have, partition, revision)
	}
	return nil
}

// NarrowView defines a view over the remaining generations, the live one first. If their columns differ, it shows the
// first alone; where users' objects keep it from that, none of them serves, and it only answers with an error. A view
// without generations goes, unless users' objects depend on it: then it stays as one that only answers with an error.
func (s *Storage) NarrowView(ctx context.Context, v View) error {
	if len(v.Generations) > 0 {
		err := s.EnsureView(ctx, v)
		if errors.Is(err, ErrColumnsDiffer) {
			v.Generations = v.Generations[:1]
			err = s.EnsureView(ctx, v)
		}
		if fault.Is(err, fault.Conflict) {
			v.Generations = nil
			err = s.EnsureView(ctx, v)
		}
		return err
	}

	t, err := s.viewable(v)
	if err != nil {
		return err
	}
	schema, err := schemaOf(v.OrgSlug)
	if err != nil {
		return err
	}
	name := sqltext.Quote(schema) + "." + sqltext.Quote(ViewName(v.Name))
	err = pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error {
		return briefly(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "DROP VIEW IF EXISTS "+name)
			return err
		})
	})
	if hasCode(err, dependentObjects) {
		return s.EnsureView(ctx, v)
	}
	return fault.Wrap(err, "drop view "+name)
}

// Renumber gives the content of a partition another, higher revision number in the transaction.
func (s *Storage) Renumber(ctx context.Context, tx pgx.Tx, g Generation, partition string, revision int64) error {
	b, err := s.of(g.Kind)
	if err != nil {
		return err
	}
	return b.renumber(ctx, tx, g, partition, revision)
}

// renumber has nothing to do: the number is in the row of the committed list.
func (f *files) renumber(context.Context, pgx.Tx, Generation, string, int64) error { return nil }

func (t *tables) renumber(ctx context.Context, tx pgx.Tx, g Generation, partition string, revision int64) error {
	p, err := physicalOf(g)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx,
		fmt.Sprintf(`UPDATE %s SET revision = $3 WHERE generation = $1 AND partition = $2 AND revision < $3`,
			p.revisions),
		g.Version, partition, revision)
	if err != nil {
		return fmt.Errorf("renumber partition %q of generation %s: %w", partition, g.Version, err)
	}
	return nil
}
