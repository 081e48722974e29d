package operators

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// maxAppended is how many files a revision may have before an append rewrites them as one.
const maxAppended = 64

// sealAppended seals base plus new rows, with one row per unique key. If the new rows repeat no key, it names the
// base's files again and writes only the new ones. Otherwise it rewrites all rows, and the last row of a key wins: new
// after base, and by position within each.
func (c storageCarrier) sealAppended(
	ctx context.Context, a storage.Attempt, base *storage.Partition, written []string, scratch string,
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

	g, err := c.work.engine(ctx)
	if err != nil {
		return storage.Manifest{}, err
	}
	q := engine.Merge{Key: a.Generation.UniqueKey, Keep: len(baseFiles)+len(written) <= maxAppended,
		Target: g.Out("merged.parquet")}
	if q.Base, err = g.In(baseFiles...); err != nil {
		return storage.Manifest{}, err
	}
	if q.Added, err = g.In(written...); err != nil {
		return storage.Manifest{}, err
	}
	var merged engine.Merged
	if err := g.Do(ctx, q, &merged); err != nil {
		return storage.Manifest{}, err
	}

	if merged.Apart && q.Keep {
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

	whole := filepath.Join(scratch, "merged.parquet")
	if err := g.Fetch(q.Target, whole); err != nil {
		return storage.Manifest{}, err
	}
	return c.storage.Seal(ctx, a, []string{whole})
}
