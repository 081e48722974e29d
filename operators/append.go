package operators

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
)

// maxAppended is how many files a revision may have before an append rewrites them as one.
const maxAppended = 64

// sealAppended seals base plus new rows, with one row per unique key. If the new rows repeat no key, it names the
// base's files again and writes only the new ones. Otherwise it rewrites all rows, and the last row of a key wins: new
// after base, and by position within each.
func (c storageCarrier) sealAppended(
	ctx context.Context, of Assignment, a storage.Attempt, base *storage.Partition, written []string, scratch string,
) (storage.Manifest, error) {
	if len(a.Generation.UniqueKey) == 0 {
		return storage.Manifest{}, fault.New(fault.Invalid, "append needs a unique_key")
	}
	var baseFiles []string
	if base != nil {
		opened, err := c.storage.Open(ctx, a.Generation, []storage.Partition{*base}, scratch)
		if err != nil {
			return storage.Manifest{}, fmt.Errorf("open the revision to append to: %w", err)
		}
		baseFiles = opened[0]
	}

	session, err := duck.OpenData(ctx, duck.Data{Scope: of.Scope(), Limits: c.limits,
		Files: slices.Concat(baseFiles, written), Dirs: []string{scratch}, Spill: scratch})
	if err != nil {
		return storage.Manifest{}, err
	}
	defer session.Close()

	m := merge{session: session, key: sqltext.QuoteAll(a.Generation.UniqueKey), base: baseFiles, added: written}
	apart, err := m.apart(ctx)
	if err != nil {
		return storage.Manifest{}, err
	}

	if apart && len(baseFiles)+len(written) <= maxAppended {
		sealed, err := c.storage.Seal(ctx, a, written)
		if err != nil || base == nil {
			return sealed, err
		}
		for _, f := range base.Files {
			sealed.Rows += f.Rows
			sealed.Bytes += f.Bytes
		}
		sealed.Files = slices.Concat(base.Files, sealed.Files)
		return sealed, nil
	}

	merged := filepath.Join(scratch, "merged.parquet")
	if err := m.write(ctx, merged); err != nil {
		return storage.Manifest{}, err
	}
	return c.storage.Seal(ctx, a, []string{merged})
}

// merge joins the rows of two lists of files.
type merge struct {
	session     *duck.Session
	key         string // quoted column list
	base, added []string
}

// apart reports whether base and added can be kept as they are: they have the same columns and share no key.
func (m merge) apart(ctx context.Context) (bool, error) {
	added, err := m.session.Describe(ctx, "SELECT * FROM "+duck.ReadParquet(m.added))
	if err != nil {
		return false, err
	}
	var repeated bool
	query := fmt.Sprintf("SELECT count(*) > 0 FROM (SELECT 1 FROM %s GROUP BY %s HAVING count(*) > 1 LIMIT 1)",
		duck.ReadParquet(m.added), m.key)
	if err := m.session.Value(ctx, &repeated, query); err != nil || repeated || len(m.base) == 0 {
		return !repeated, err
	}

	base, err := m.session.Describe(ctx, "SELECT * FROM "+duck.ReadParquet(m.base))
	if err != nil || !slices.Equal(base, added) {
		return false, err
	}

	// INTERSECT counts NULLs as equal, as the unique key does.
	query = fmt.Sprintf("SELECT count(*) > 0 FROM (SELECT %[1]s FROM %[2]s INTERSECT SELECT %[1]s FROM %[3]s)", m.key,
		duck.ReadParquet(m.base), duck.ReadParquet(m.added))
	err = m.session.Value(ctx, &repeated, query)
	return !repeated, err
}

// write writes the merged rows in the order in which each key was last written.
func (m merge) write(ctx context.Context, file string) error {
	const position = `"dagctl position"`
	from := "SELECT * FROM " + duck.ReadParquet(m.added)
	if len(m.base) > 0 {
		from = "SELECT * FROM " + duck.ReadParquet(m.base) + " UNION ALL BY NAME " + from
	}
	query := fmt.Sprintf(`SELECT * EXCLUDE (%[1]s) FROM (SELECT *, row_number() OVER () AS %[1]s FROM (%[2]s))
		QUALIFY row_number() OVER (PARTITION BY %[3]s ORDER BY %[1]s DESC) = 1 ORDER BY %[1]s`, position, from, m.key)
	_, err := m.session.CopyToParquet(ctx, query, file)
	return err
}
