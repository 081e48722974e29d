package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry/search"
	"github.com/dagctl/dagctl/storage"
)

// Hit is a place in the answer to a search: the best first, and those of one score by name.
type Hit struct {
	Score int       `json:"score"`
	Name  string    `json:"name"` // in small letters
	ID    uuid.UUID `json:"id"`
}

func (h Hit) compare(to Hit) int {
	return cmp.Or(cmp.Compare(to.Score, h.Score), strings.Compare(h.Name, to.Name), slices.Compare(h.ID[:], to.ID[:]))
}

// searches reports whether the filter has a search, so that the list is ranked.
func (f DatasetFilter) searches() bool { return strings.TrimSpace(f.Search) != "" }

// ReadCursor sets where the list begins from the cursor of a page before it.
func (f *DatasetFilter) ReadCursor(page rest.PageInput) error {
	if !f.searches() {
		_, err := page.After(&f.After)
		return err
	}
	var place Hit
	found, err := page.After(&place)
	if found {
		f.AfterHit = &place
	}
	return err
}

// Position returns the place of a dataset in the list, for the cursor of the next page.
func (f DatasetFilter) Position(d Dataset) any {
	if f.searches() {
		return d.Hit
	}
	return d.Name
}

// indexes keeps one index per org in this process. What an index knows of a dataset counts only while the row that the
// caller's transaction sees has the stamp with which it was read, so an index is never behind.
type indexes struct {
	mu   sync.Mutex
	orgs map[uuid.UUID]*search.Index
}

// mostOrgs bounds how many orgs have an index in a process.
const mostOrgs = 64

func (x *indexes) of(org uuid.UUID) *search.Index {
	x.mu.Lock()
	defer x.mu.Unlock()
	index, ok := x.orgs[org]
	if !ok {
		if x.orgs == nil || len(x.orgs) >= mostOrgs {
			x.orgs = map[uuid.UUID]*search.Index{}
		}
		index = new(search.Index)
		x.orgs[org] = index
	}
	return index
}

// searched lists what a search finds, beginning after f.AfterHit. First it asks which datasets the caller may see at
// this moment; it looks at no other one, so that neither ranks nor counts nor its duration depend on what is hidden.
func (r *Registry) searched(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, f DatasetFilter, now time.Time,
) (found []Dataset, err error) {
	entries, err := searchable(ctx, tx, caller, f)
	if err != nil {
		return nil, fmt.Errorf("list what may be searched: %w", err)
	}
	index, q := r.indexes.of(caller.OrgID), search.Parse(f.Search)
	if err := learn(ctx, tx, caller, index, entries); err != nil {
		return nil, fmt.Errorf("read what is searched: %w", err)
	}

	hits := after(index.Rank(q, entries), f.AfterHit)
	for len(hits) > 0 && len(found) < f.Limit {
		n := min(len(hits), f.Limit)
		page, err := datasetsOf(ctx, tx, caller, hits[:n])
		if err != nil {
			return nil, err
		}
		if err := MarkLate(ctx, tx, caller.OrgID, page, now); err != nil {
			return nil, err
		}
		hits = hits[n:]

		for _, d := range page {
			if (!f.Late || d.Late != nil) && len(found) < f.Limit {
				d.Matched = q.Explain(d.document())
				found = append(found, d)
			}
		}
	}
	return found, nil
}

// searchable lists the datasets that a search is about. A stamp changes with whatever is searched: xmin is that of the
// row's last writer.
func searchable(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, f DatasetFilter,
) (found []search.Entry, err error) {
	args := []any{caller.OrgID}
	rows, err := tx.Query(ctx, `
		SELECT d.id, hashtextextended(concat_ws(' ', d.xmin, g.id, g.schema_hash), 0)
		FROM datasets d
		LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.org_id = $1 AND `+f.condition(caller, &args), args...)
	if err != nil {
		return nil, err
	}
	var e search.Entry
	_, err = pgx.ForEachRow(rows, []any{&e.ID, &e.Stamp}, func() error { found = append(found, e); return nil })
	return found, err
}

// learn gives an index the entries that it lacks, as the caller sees them.
func learn(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, index *search.Index, entries []search.Entry,
) error {
	missing := index.Missing(entries)
	if len(missing) == 0 {
		return nil
	}
	stamps := make(map[uuid.UUID]int64, len(entries))
	for _, e := range entries {
		stamps[e.ID] = e.Stamp
	}

	const atOnce = 2000
	for part := range slices.Chunk(missing, atOnce) {
		args := []any{caller.OrgID, part}
		rows, err := tx.Query(ctx, `
			SELECT d.id, d.name, coalesce(d.description, ''), coalesce(d.owner, ''), d.tags, d.columns, g.schema
			FROM datasets d
			LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
			LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
			LEFT JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE d.org_id = $1 AND d.id = ANY($2) AND `+VisibleTo(caller, &args), args...)
		if err != nil {
			return err
		}

		var (
			d            Dataset
			descriptions map[string]string
			schema       []storage.Column
		)
		_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.Name, &d.Description, &d.Owner, &d.Tags, &descriptions, &schema},
			func() error {
				d.Columns = columnsOf(schema, descriptions)
				index.Put(search.Entry{ID: d.ID, Stamp: stamps[d.ID]}, d.document())
				descriptions, schema = nil, nil
				return nil
			})
		if err != nil {
			return err
		}
	}
	return nil
}

// document returns the texts of a dataset that a search looks at.
func (d Dataset) document() search.Document {
	doc := search.Document{{Field: search.Name, Text: d.Name}}
	for _, tag := range d.Tags {
		doc = append(doc, search.Text{Field: search.Tag, Text: tag})
	}
	doc = append(doc, search.Text{Field: search.Owner, Text: d.Owner})
	for _, c := range d.Columns {
		doc = append(doc, search.Text{Field: search.Column, Text: c.Name})
	}
	doc = append(doc, search.Text{Field: search.Description, Text: d.Description})
	for _, c := range d.Columns {
		if c.Description != "" {
			doc = append(doc, search.Text{Field: search.ColumnDescription, Text: c.Name + ": " + c.Description})
		}
	}
	return doc
}

// after returns the hits that come after a place.
func after(hits []search.Hit, place *Hit) []Hit {
	var rest []Hit
	for _, h := range hits {
		if hit := (Hit{h.Score, h.Name, h.ID}); place == nil || hit.compare(*place) > 0 {
			rest = append(rest, hit)
		}
	}
	return rest
}

// datasetsOf returns the catalogue entries of some hits, in their order.
func datasetsOf(ctx context.Context, tx pgx.Tx, caller authz.Caller, hits []Hit) ([]Dataset, error) {
	ids, place := make([]uuid.UUID, len(hits)), make(map[uuid.UUID]int, len(hits))
	for i, h := range hits {
		ids[i], place[h.ID] = h.ID, i
	}

	args := []any{caller.OrgID, ids}
	rows, err := tx.Query(ctx, `SELECT `+datasetColumns+` FROM datasets d `+datasetJoins+`
		WHERE d.org_id = $1 AND d.id = ANY($2) AND `+VisibleTo(caller, &args), args...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, scanDataset)
	if err != nil {
		return nil, err
	}

	for i := range found {
		found[i].Hit = hits[place[found[i].ID]]
	}
	slices.SortFunc(found, func(a, b Dataset) int { return cmp.Compare(place[a.ID], place[b.ID]) })
	return found, nil
}
