package auditlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// world is a database with two orgs, each with one entry, and a sealer.
type world struct {
	owner, requests *pgxpool.Pool
	sealer          *auditlog.Sealer
	acme, umbrella  authz.Caller // admins
}

func newWorld(t testing.TB) world {
	t.Helper()
	url := testdb.URL(t)
	open := func(opener func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
		pool, err := opener(t.Context(), url, pg.WithMaxConns(8))
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	w := world{owner: open(pg.Open), requests: open(pg.OpenRequests)}
	w.sealer = w.newSealer()
	for slug, caller := range map[string]*authz.Caller{"acme": &w.acme, "umbrella": &w.umbrella} {
		org, err := authz.CreateOrg(t.Context(), w.owner, slug, "")
		require.NoError(t, err)
		*caller = authz.Caller{OrgID: org.ID, OrgSlug: slug, Actor: "token:root", Role: authz.RoleAdmin,
			RequestID: "r-1"}
	}
	return w
}

func (w world) newSealer() *auditlog.Sealer {
	return auditlog.NewSealer(w.owner, slog.New(slog.DiscardHandler))
}

// write adds entries to the log of a caller's org, one a transaction.
func (w world) write(t testing.TB, caller authz.Caller, actions ...string) {
	t.Helper()
	for i, action := range actions {
		err := pg.InOrgTx(t.Context(), w.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			return authz.Audit(ctx, tx, caller, action, fmt.Sprint("thing ", i), map[string]any{
				"before": nil, "after": []any{"<é> & \u2028", 1.50, i}})
		})
		require.NoError(t, err)
	}
}

// sealed writes n entries of acme, n - 1 besides the one that it has, and seals all.
func (w world) sealed(t testing.TB, n int) {
	t.Helper()
	for range n - 1 {
		w.write(t, w.acme, "thing.change")
	}
	require.NoError(t, w.sealer.Seal(t.Context()))
}

func (w world) verify(t testing.TB, caller authz.Caller, remembered auditlog.Head) auditlog.ChainCheck {
	t.Helper()
	found, err := auditlog.Verify(t.Context(), w.requests, caller, remembered)
	require.NoError(t, err)
	return found
}

// exec runs statements of somebody who has the rights of the database's owner.
func (w world) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	tag, err := w.owner.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	require.Positive(t, tag.RowsAffected(), "%s changed nothing", sql)
}

// api returns the routes of the audit log, and a function that sends a GET request as an admin of acme.
func (w world) api(t *testing.T) func(target string) *httptest.ResponseRecorder {
	t.Helper()
	api, err := authz.NewAPI(authz.Config{Authenticators: []authz.Authenticator{authz.NewTokens(w.owner)}})
	require.NoError(t, err)
	auditlog.AddRoutes(api, w.requests)
	secret, _, err := authz.CreateToken(t.Context(), w.requests, w.acme,
		authz.NewToken{Name: "auditor", Role: authz.RoleAdmin})
	require.NoError(t, err)

	handler := api.Handler()
	return func(target string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", target, nil)
		r.Header.Set("Authorization", "Bearer "+secret)
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, r)
		return answer
	}
}
