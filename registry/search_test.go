package registry_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

// found returns the names that a caller's search finds, over pages of so many.
func (w *world) found(ctx context.Context, caller authz.Caller, f registry.DatasetFilter, limit int) (names []string) {
	w.t.Helper()
	page := rest.PageInput{Limit: limit}
	for {
		require.NoError(w.t, f.ReadCursor(page))
		f.Limit = limit + 1
		datasets, err := w.registry.Datasets(ctx, caller, f)
		require.NoError(w.t, err)
		list, err := rest.NewList(datasets, limit, f.Position)
		require.NoError(w.t, err)

		for _, d := range list.Items {
			names = append(names, d.Name)
			require.Equal(w.t, f.Search != "", d.Matched != nil, d.Name)
		}
		if list.NextCursor == "" {
			return names
		}
		page.Cursor = list.NextCursor
	}
}

// searchWorld has 60 datasets, of which a search for "sold" finds 50 with several scores.
func searchWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	_, err := w.pool.Exec(t.Context(), `
		INSERT INTO datasets (org_id, name, published, producer_dag_name, producer_job_name, producer_output_index,
			description, owner, tags)
		SELECT $1, CASE n % 3 WHEN 0 THEN 'sold_goods_' ELSE 'table_' END || n, n % 10 <> 9, 'shop', 'job', n,
			CASE n % 3 WHEN 1 THEN 'What was sold' ELSE '' END, 'team',
			CASE n % 3 WHEN 2 THEN ARRAY['sold'] ELSE '{}' END
		FROM generate_series(1, 60) AS n`, w.caller.OrgID)
	require.NoError(t, err)
	return w
}

func TestPagesOfASearchShowEachOnce(t *testing.T) {
	t.Parallel()
	w := searchWorld(t)
	whole := w.found(t.Context(), w.caller, registry.DatasetFilter{Search: "sold"}, 500)
	require.Len(t, whole, 54, "60 but the six that are not published")
	require.Regexp(t, "^sold_goods", whole[0])
	require.Regexp(t, "^table", whole[53])
	for _, limit := range []int{1, 7, 18, 53, 54} {
		require.Equal(t, whole, w.found(t.Context(), w.caller, registry.DatasetFilter{Search: "sold"}, limit), limit)
	}
	tagged := w.found(t.Context(), w.caller, registry.DatasetFilter{Search: "sold", Tag: "sold"}, 5)
	require.Len(t, tagged, 18)

	f := registry.DatasetFilter{Search: "sold"}
	named, err := rest.Cursor("table_1")
	require.NoError(t, err)
	require.True(t, fault.Is(f.ReadCursor(rest.PageInput{Cursor: named}), fault.Invalid), "of a list by name")
}

// A change is found by the next search, whoever made it: this registry is not told.
func TestASearchIsNeverBehind(t *testing.T) {
	t.Parallel()
	w := searchWorld(t)
	find := func(text string) []string {
		return w.found(t.Context(), w.caller, registry.DatasetFilter{Search: text}, 100)
	}
	require.Empty(t, find("harbour"))
	for _, change := range []string{`description = 'of the harbour'`, `description = '', tags = '{harbour}'`,
		`tags = '{}', owner = 'harbour'`, `owner = '', name = 'harbour'`} {
		_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET `+change+` WHERE producer_output_index = 5`)
		require.NoError(t, err)
		require.Len(t, find("harbour"), 1, change)
	}
	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET deleted_at = now() WHERE name = 'harbour'`)
	require.NoError(t, err)
	require.Empty(t, find("harbour"))

	w.serve(shop(), "2026-01-01")
	require.Equal(t, []string{"best_customers"}, find("customr spent"))
	require.Equal(t, "column", w.search(w.caller, "spent")[0].Matched.Field)
}

// What is hidden is in no answer, although the index has it: neither where only the code hides it, nor where only
// row-level security does.
func TestASearchTellsNothingOfWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := searchWorld(t)
	whole := w.found(t.Context(), w.caller, registry.DatasetFilter{Search: "sold"}, 500)
	_, err := w.pool.Exec(t.Context(), `UPDATE datasets SET read_roles = '{role:finance}' WHERE name LIKE 'sold%'`)
	require.NoError(t, err)
	require.Len(t, w.found(t.Context(), w.caller, registry.DatasetFilter{Search: "sold"}, 500), len(whole))

	reader := authz.Caller{OrgID: w.caller.OrgID, OrgSlug: "acme", Actor: "user:reader", Role: authz.RoleReader}
	behind := pg.WithReader(t.Context(), pg.Reader{OrgRoles: []string{}, Inspects: []string{}})
	for name, tc := range map[string]struct {
		ctx    context.Context
		caller authz.Caller
	}{
		"the code alone":           {t.Context(), reader},
		"row-level security alone": {behind, w.caller},
		"both":                     {behind, reader},
	} {
		for _, limit := range []int{3, 500} {
			got := w.found(tc.ctx, tc.caller, registry.DatasetFilter{Search: "sold"}, limit)
			require.Len(t, got, 36, name)
			for _, dataset := range got {
				require.Regexp(t, "^table", dataset, name)
			}
			require.Empty(t, w.found(tc.ctx, tc.caller, registry.DatasetFilter{Search: "goods"}, limit), name)
		}
	}

	member := reader
	member.OrgRoles = []string{"role:finance"}
	require.Equal(t, whole, w.found(t.Context(), member, registry.DatasetFilter{Search: "sold"}, 10))
	var other authz.Caller
	other.OrgSlug, other.Actor, other.Role = "umbrella", "user:other", authz.RoleAdmin
	require.NoError(t, w.pool.QueryRow(t.Context(),
		`INSERT INTO orgs (name, slug) VALUES ('umbrella', 'umbrella') RETURNING id`).Scan(&other.OrgID))
	require.Empty(t, w.found(t.Context(), other, registry.DatasetFilter{Search: "sold"}, 10))
}

// search returns the first page of what a search finds.
func (w *world) search(caller authz.Caller, text string) []registry.Dataset {
	w.t.Helper()
	found, err := w.registry.Datasets(w.t.Context(), caller, registry.DatasetFilter{Search: text, Limit: 100})
	require.NoError(w.t, err)
	return found
}
