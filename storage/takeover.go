package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// TakeOver gives a generation a revision of another generation of the same dataset and kind, under the same number, and
// returns its manifest at its new place, a.Location. It computes nothing, and the generations share nothing
// afterwards, so that each may be removed. Files get a second name; rows are copied inside the transaction. A revision
// that the other generation no longer holds is a fault.Conflict. TakeOver may be repeated after a crash.
func (s *Storage) TakeOver(
	ctx context.Context, tx pgx.Tx, from Generation, a Attempt, revision int64, m Manifest,
) (Manifest, error) {
	if from.Kind != a.Generation.Kind {
		return m, fault.New(fault.Invalid, "data in %s storage cannot be taken over into %s storage", from.Kind,
			a.Generation.Kind)
	}
	b, err := s.of(from.Kind)
	if err != nil {
		return m, err
	}
	taken, err := b.takeOver(ctx, tx, from, a, revision, m)
	if err != nil {
		return m, fmt.Errorf("take over partition %q of %s: %w", a.Partition, from.Version, err)
	}
	return taken, nil
}

func (f *files) takeOver(
	ctx context.Context, _ pgx.Tx, from Generation, a Attempt, _ int64, m Manifest,
) (Manifest, error) {
	old := m.Files
	m.Location, m.Files = f.location(a), make([]File, len(old))
	final := strings.TrimSuffix(m.Location, "/")
	for i, file := range old {
		if !strings.HasPrefix(file.Path, generationDir(from)+"/") {
			return m, fault.New(fault.Invalid, "file %q does not belong to generation %s", file.Path, from.Version)
		}
		m.Files[i] = file
		m.Files[i].Path = path.Join(final, fmt.Sprintf("%05d.parquet", i))
	}

	if f.verify(ctx, m) == nil {
		return m, nil // placed by a process that crashed before recording it
	}
	temporary := final + sealing + rand.Text()
	defer f.root.RemoveAll(temporary) // it no longer exists if all went well

	if err := errors.Join(f.root.RemoveAll(final), f.root.MkdirAll(temporary, 0o750)); err != nil {
		return m, err
	}
	for i, file := range old {
		err := f.secondName(file.Path, path.Join(temporary, path.Base(m.Files[i].Path)))
		if errors.Is(err, fs.ErrNotExist) {
			return m, fault.New(fault.Conflict, "file %s no longer exists", file.Path)
		}
		if err != nil {
			return m, err
		}
	}

	dir, err := f.root.Open(temporary)
	if err != nil {
		return m, err
	}
	if err := errors.Join(dir.Sync(), dir.Close(), f.root.Rename(temporary, final)); err != nil {
		return m, err
	}
	return m, f.syncParents(final)
}

// secondName gives a committed file, which never changes, another name, or copies it if the file system allows only one
// name.
func (f *files) secondName(name, other string) error {
	err := f.root.Link(name, other)
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP) && !errors.Is(err, unix.EMLINK) {
		return err
	}
	from, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()

	to, err := f.root.OpenFile(other, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o440)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Sync(), to.Close())
}

// takeOver locks the other generation's partition at its revision while it copies the rows.
func (t *tables) takeOver(
	ctx context.Context, tx pgx.Tx, from Generation, a Attempt, revision int64, m Manifest,
) (Manifest, error) {
	m.Location, m.Files = t.location(a), nil
	source, err := physicalOf(from)
	if err != nil {
		return m, err
	}
	target, err := physicalOf(a.Generation)
	if err != nil {
		return m, err
	}

	columns, err := t.columns(ctx, tx, source)
	if err != nil {
		return m, err
	}
	if columns == nil {
		return m, fault.New(fault.Conflict, "its table no longer exists")
	}

	if err := t.ensureTable(ctx, target, columns); err != nil {
		return m, err
	}
	var have int64
	err = tx.QueryRow(ctx, fmt.Sprintf(`SELECT revision FROM %s WHERE generation = $1 AND partition = $2 FOR SHARE`,
		source.revisions),
		from.Version, a.Partition).Scan(&have)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && have != revision {
		return m, fault.New(fault.Conflict, "it is at revision %d, not %d", have, revision)
	}
	if err != nil {
		return m, err
	}

	tag, err := tx.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s AS r (generation, partition, revision) VALUES ($1, $2, $3)
		ON CONFLICT (generation, partition) DO UPDATE SET revision = EXCLUDED.revision
		WHERE r.revision < EXCLUDED.revision`, target.revisions), a.Generation.Version, a.Partition, revision)
	if err != nil || tag.RowsAffected() == 0 { // the generation already has rows of its own there
		return m, err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE _partition = $1`, target.table),
		a.Partition); err != nil { // an older revision that it took over before
		return m, err
	}

	list := sqltext.QuoteAll(columnNames(columns))
	_, err = tx.Exec(ctx,
		fmt.Sprintf(`INSERT INTO %s (%s, _partition, _revision, _row) SELECT %[2]s, _partition, _revision, _row FROM %[3]s
			WHERE _partition = $1 ORDER BY _row`,
			target.table, list, source.table), a.Partition)
	if hasCode(err, uniqueViolation) {
		return m, fault.New(fault.Invalid, "its rows are not unique by the new unique_key")
	}
	return m, err
}
