package auditlog_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

func TestPages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.write(t, w.acme, "thing.change", "thing.change", "thing.change", "thing.change", "thing.change")
	want := []string{"thing 4", "thing 3", "thing 2", "thing 1", "thing 0"}

	// Entries with the same time are the hard case for paging.
	w.exec(t, `UPDATE audit_log SET at = '2024-01-01' WHERE action = 'thing.change'`)
	var got []string
	for page := (rest.PageInput{Limit: 2}); ; {
		list, err := auditlog.List(t.Context(), w.requests, w.acme,
			auditlog.Filter{Actor: "token:root", Action: "thing.change"}, page)
		require.NoError(t, err)
		for _, e := range list.Items {
			got = append(got, e.Object)
			require.Equal(t, []any{"r-1", authz.Done, int64(0), ""}, []any{e.RequestID, e.Outcome, e.Seq, e.Hash})
		}
		if list.NextCursor == "" {
			break
		}
		page.Cursor = list.NextCursor
	}
	require.Equal(t, want, got)

	require.NoError(t, w.sealer.Seal(t.Context()))
	list, err := auditlog.List(t.Context(), w.requests, w.acme, auditlog.Filter{}, rest.PageInput{Limit: 1})
	require.NoError(t, err)
	require.Positive(t, list.Items[0].Seq)
	require.Regexp(t, `^[0-9a-f]{64}$`, list.Items[0].Hash)
}

// filtered lists what somebody did, and what a filter leaves of it.
func TestFilters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ci := w.acme
	ci.Actor = "token:ci"
	read := func(datasets ...string) map[string]any {
		all := []any{}
		for _, d := range datasets {
			all = append(all, map[string]any{"dataset": d, "columns": []string{"orders"}})
		}
		return map[string]any{"datasets": all, "rows": 3}
	}
	require.NoError(t, pg.InOrgTx(t.Context(), w.requests, ci.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		for _, e := range []struct {
			action, object string
			detail         any
		}{
			{"token.create", "token:a", nil}, {"token.revoke", "token:a", nil}, {"tokens.other", "token:b", nil},
			{"query.run", "orders,people", read("orders", "people")}, {"dataset.preview", "people", read("people")},
			{"dag.delete", "orders", map[string]any{"datasets": 2}},
		} {
			if err := authz.Audit(ctx, tx, ci, e.action, e.object, e.detail); err != nil {
				return err
			}
		}
		return authz.AuditSignIn(ctx, tx, w.acme, authz.Refused, map[string]any{"reason": "disabled"})
	}))
	w.exec(t, `UPDATE audit_log SET at = '2024-01-01' WHERE action = 'token.create'`)
	new2024 := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

	for name, tc := range map[string]struct {
		filter auditlog.Filter
		want   []string
	}{
		"actor":    {auditlog.Filter{Actor: "system"}, []string{"org.create"}},
		"action":   {auditlog.Filter{Action: "token.create"}, []string{"token.create"}},
		"noun":     {auditlog.Filter{Action: "token.*"}, []string{"token.revoke", "token.create"}},
		"prefix":   {auditlog.Filter{Action: "token*"}, []string{"tokens.other", "token.revoke", "token.create"}},
		"no LIKE":  {auditlog.Filter{Action: "t_ken.*"}, []string{}},
		"object":   {auditlog.Filter{Object: "token:a"}, []string{"token.revoke", "token.create"}},
		"dataset":  {auditlog.Filter{Dataset: "people"}, []string{"dataset.preview", "query.run"}},
		"dataset2": {auditlog.Filter{Dataset: "orders"}, []string{"query.run"}},
		"part":     {auditlog.Filter{Dataset: "order"}, []string{}},
		"refused":  {auditlog.Filter{Outcome: authz.Refused}, []string{"user.sign_in"}},
		"done":     {auditlog.Filter{Outcome: authz.Done, Object: "token:b"}, []string{"tokens.other"}},
		"until":    {auditlog.Filter{Until: new2024.Add(time.Microsecond)}, []string{"token.create"}},
		"before":   {auditlog.Filter{Until: new2024}, []string{}},
		"since":    {auditlog.Filter{Since: new2024, Action: "token.create"}, []string{"token.create"}},
		"later":    {auditlog.Filter{Since: time.Now().Add(time.Hour)}, []string{}},
		"all of them": {auditlog.Filter{Actor: "token:ci", Action: "query.*", Object: "orders,people",
			Dataset: "people", Outcome: authz.Done, Since: new2024,
			Until: time.Now().Add(time.Hour)}, []string{"query.run"}},
	} {
		list, err := auditlog.List(t.Context(), w.requests, w.acme, tc.filter, rest.PageInput{Limit: 100})
		require.NoError(t, err, name)
		got := []string{}
		for _, e := range list.Items {
			got = append(got, e.Action)
		}
		require.Equal(t, tc.want, got, name)
	}
	_, err := auditlog.List(t.Context(), w.requests, w.acme, auditlog.Filter{Action: "*.create"},
		rest.PageInput{Limit: 1})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	// The routes take the same filters.
	get := w.api(t)
	answer := get("/v1/audit?dataset=people&action=query.*&outcome=done&until=2100-01-01T00:00:00Z")
	require.Equal(t, 200, answer.Code, answer.Body.String())
	var list rest.List[authz.AuditEntry]
	require.NoError(t, json.Unmarshal(answer.Body.Bytes(), &list))
	require.Len(t, list.Items, 1)
	require.Equal(t, 422, get("/v1/audit?outcome=perhaps").Code)
}

func TestSignIns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	user := authz.Caller{OrgID: w.acme.OrgID, OrgSlug: "acme", Actor: "user:7", RequestID: "r-2"}
	require.NoError(t, pg.InOrgTx(t.Context(), w.requests, user.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := authz.AuditSignIn(ctx, tx, user, authz.Done, nil); err != nil {
			return err
		}
		return authz.AuditSignIn(ctx, tx, user, authz.Refused, map[string]any{"issuer": "https://id.example.com"})
	}))
	list, err := auditlog.List(t.Context(), w.requests, w.acme, auditlog.Filter{Action: "user.sign_in"},
		rest.PageInput{Limit: 5})
	require.NoError(t, err)
	require.Len(t, list.Items, 2)
	refused, done := list.Items[0], list.Items[1]
	require.Equal(t, []any{authz.Refused, "user:7", "user:7", `{"issuer": "https://id.example.com"}`},
		[]any{refused.Outcome, refused.Actor, refused.Object, string(refused.Detail)})
	require.Equal(t, []any{authz.Done, `{}`}, []any{done.Outcome, string(done.Detail)})
	w.sealed(t, 1)
	require.True(t, w.verify(t, w.acme, auditlog.Head{}).Whole)
}
