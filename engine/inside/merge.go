package inside

import (
	"context"
	"fmt"
	"slices"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// merge joins rows so that one is left per key. If the new rows repeat no key, both lists can be kept as they are.
// Otherwise the last row of a key wins: added after base, and by position within each.
func (h *host) merge(ctx context.Context, q engine.Merge) (merged engine.Merged, err error) {
	session, err := h.any(ctx, slices.Concat(q.Base, q.Added)...)
	if err != nil {
		return merged, err
	}
	m := merge{session: session, key: sqltext.QuoteAll(q.Key), base: q.Base, added: q.Added}
	if merged.Apart, err = m.apart(ctx); err != nil || merged.Apart && q.Keep {
		return merged, err
	}
	merged.Rows, err = m.write(ctx, q.Target)
	return merged, err
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
func (m merge) write(ctx context.Context, file string) (int64, error) {
	const position = `"dagctl position"`
	from := "SELECT * FROM " + duck.ReadParquet(m.added)
	if len(m.base) > 0 {
		from = "SELECT * FROM " + duck.ReadParquet(m.base) + " UNION ALL BY NAME " + from
	}
	query := fmt.Sprintf(`SELECT * EXCLUDE (%[1]s) FROM (SELECT *, row_number() OVER () AS %[1]s FROM (%[2]s))
		QUALIFY row_number() OVER (PARTITION BY %[3]s ORDER BY %[1]s DESC) = 1 ORDER BY %[1]s`, position, from, m.key)
	return m.session.CopyToParquet(ctx, query, file)
}
