package authz_test

import (
	"context"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
)

func TestTokensOverHTTP(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	root := w.token(t, authz.NewToken{Name: "root", Role: authz.RoleAdmin})

	answer := call(api, "POST", "/v1/tokens", `{"name":"ci","role":"writer","ttl_seconds":3600}`, as(root)...)
	require.Equal(t, 201, answer.Code, answer.Body.String())
	made := decode[authz.CreatedToken](t, answer)
	require.Equal(t, authz.KindUser, made.Kind)
	require.Equal(t, "token:root", made.CreatedBy)
	require.Equal(t, time.Hour, made.ExpiresAt.Sub(made.CreatedAt))
	require.Regexp(t, `^dagctl_user_[0-9A-Za-z]{43}$`, made.Secret)

	who := call(api, "GET", "/v1/whoami", "", as(made.Secret)...)
	require.Equal(t, authz.Identity{Org: "acme", Actor: "token:ci", Role: authz.RoleWriter, ExpiresAt: &made.ExpiresAt},
		decode[authz.Identity](t, who))
	require.Equal(t, made.ExpiresAt.Format(time.RFC3339), who.Header().Get(rest.TokenExpires))

	answer = call(api, "POST", "/v1/tokens", `{"name":"ci","role":"writer"}`, as(root)...)
	require.Equal(t, 409, answer.Code, answer.Body.String())
	answer = call(api, "POST", "/v1/tokens", `{"name":"CI!","role":"writer"}`, as(root)...)
	require.Equal(t, 422, answer.Code)
	require.Equal(t, "name", decode[rest.Problem](t, answer).Errors[0].Location)
	require.Equal(t, 422, call(api, "POST", "/v1/tokens", `{"name":"x","role":"root"}`, as(root)...).Code)
	require.Equal(t, 422, call(api, "POST", "/v1/tokens", `{"name":"x","role":"admin","ttl_seconds":99999999}`,
		as(root)...).Code)

	list := decode[rest.List[authz.Token]](t, call(api, "GET", "/v1/tokens?limit=1", "", as(root)...))
	require.Equal(t, "ci", list.Items[0].Name)
	require.NotNil(t, list.Items[0].LastUsedAt)
	next := call(api, "GET", "/v1/tokens?limit=1&cursor="+list.NextCursor, "", as(root)...)
	require.Equal(t, "root", decode[rest.List[authz.Token]](t, next).Items[0].Name)
	require.NotContains(t, next.Body.String(), "hash")

	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/ci", "", as(root)...).Code)
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/ci", "", as(root)...).Code, "again changes nothing")
	require.Equal(t, 404, call(api, "DELETE", "/v1/tokens/other", "", as(root)...).Code)
	require.Equal(t, 401, call(api, "GET", "/v1/whoami", "", as(made.Secret)...).Code)

	audit := call(api, "GET", "/v1/audit", "", as(root)...)
	require.NotContains(t, audit.Body.String(), made.Secret)
	var done []string
	for _, e := range decode[rest.List[authz.AuditEntry]](t, audit).Items {
		done = append(done, e.Actor+" "+e.Action+" "+e.Object)
	}
	require.Equal(t, []string{"token:root token.revoke token:ci", "token:root token.create token:ci",
		"token:root token.create token:root", "system org.create acme"}, done)
}

func TestInvalidTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tokens := authz.NewTokens(w.owner)
	good := w.token(t, authz.NewToken{Name: "good", Role: authz.RoleReader})
	expired := w.token(t, authz.NewToken{Name: "expired", Role: authz.RoleReader})
	_, err := w.owner.Exec(t.Context(), `UPDATE service_tokens SET expires_at = now() WHERE name = 'expired'`)
	require.NoError(t, err)
	revoked := w.token(t, authz.NewToken{Name: "revoked", Role: authz.RoleReader})
	require.NoError(t, authz.RevokeToken(t.Context(), w.requests, w.admin(), "revoked"))
	worker := w.token(t, authz.NewToken{Name: "worker", Kind: authz.KindWorker, Runtimes: []string{"lambda"}})
	require.True(t, strings.HasPrefix(worker, "dagctl_worker_"))

	for _, tc := range []struct {
		name, header string
		ok, refused  bool
	}{
		{"good", "Bearer " + good, true, false},
		{"scheme in any case", "bearer " + good, true, false},
		{"none", "", false, false},
		{"another scheme", "Basic " + good, false, false},
		{"no scheme", good, false, false},
		{"another sort of token", "Bearer eyJhbGciOi", false, false},
		{"cut off", "Bearer " + good[:len(good)-1], false, false},
		{"unknown", "Bearer dagctl_user_" + strings.Repeat("z", 43), false, true},
		{"expired", "Bearer " + expired, false, true},
		{"revoked", "Bearer " + revoked, false, true},
		{"worker", "Bearer " + worker, false, true},
		{"worker's secret as a user's", "Bearer dagctl_user_" + strings.TrimPrefix(worker, "dagctl_worker_"), false,
			true},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		if tc.header != "" {
			r.Header.Set("Authorization", tc.header)
		}
		caller, ok, err := tokens.Authenticate(r)
		require.Equal(t, tc.ok, ok, tc.name)
		require.Equal(t, tc.refused, fault.Is(err, fault.Unauthenticated), "%s: %v", tc.name, err)
		require.Equal(t, tc.ok, caller.May(authz.Read, authz.WholeOrg), tc.name)
	}
	// Even a worker's row under a user's prefix identifies no caller.
	_, err = w.owner.Exec(t.Context(), `UPDATE service_tokens
		SET hash = sha256(convert_to('dagctl_user_' || repeat('w', 43), 'UTF8')) WHERE name = 'worker'`)
	require.NoError(t, err)
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer dagctl_user_"+strings.Repeat("w", 43))
	_, ok, err := tokens.Authenticate(r)
	require.False(t, ok)
	require.True(t, fault.Is(err, fault.Unauthenticated))
}

func TestInvalidNewTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, n := range map[string]authz.NewToken{
		"no name":          {Role: authz.RoleReader},
		"bad name":         {Name: "a b", Role: authz.RoleReader},
		"no role":          {Name: "a"},
		"unknown role":     {Name: "a", Role: "root"},
		"too long":         {Name: "a", Role: authz.RoleReader, TTL: authz.MaxTTL + 1},
		"already over":     {Name: "a", Role: authz.RoleReader, TTL: -time.Hour},
		"unknown kind":     {Name: "a", Kind: "task", Role: authz.RoleReader},
		"user that claims": {Name: "a", Role: authz.RoleReader, Runtimes: []string{"lambda"}},
		"worker with a role": {Name: "a", Kind: authz.KindWorker, Role: authz.RoleAdmin,
			Runtimes: []string{"lambda"}},
		"worker without runtimes": {Name: "a", Kind: authz.KindWorker},
	} {
		_, _, err := authz.CreateToken(t.Context(), w.requests, w.admin(), n)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}

	_, token, err := authz.CreateToken(t.Context(), w.requests, w.admin(),
		authz.NewToken{Name: "a", Role: authz.RoleReader})
	require.NoError(t, err)
	require.Equal(t, authz.DefaultTTL, token.ExpiresAt.Sub(token.CreatedAt))
}

func TestOnlyTheHashIsStored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secret := w.token(t, authz.NewToken{Name: "a", Role: authz.RoleReader})
	var rows string
	require.NoError(t, w.owner.QueryRow(t.Context(), `
		SELECT jsonb_build_array((SELECT jsonb_agg(t) FROM service_tokens t),
			(SELECT jsonb_agg(a) FROM audit_log a))::text`).Scan(&rows))
	require.NotContains(t, rows, strings.TrimPrefix(secret, "dagctl_user_"))
	require.Contains(t, rows, `"name": "a"`)
}

func TestLastUseIsWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	secret := w.token(t, authz.NewToken{Name: "a", Role: authz.RoleReader})
	usedAfter := func(sql string) (rowVersion string) {
		if sql != "" {
			_, err := w.owner.Exec(t.Context(), sql)
			require.NoError(t, err)
		}

		require.Equal(t, 200, call(api, "GET", "/v1/whoami", "", as(secret)...).Code)
		require.NoError(t, w.owner.QueryRow(t.Context(),
			`SELECT xmin::text FROM service_tokens WHERE last_used_at > now() - interval '50 seconds'`).
			Scan(&rowVersion))
		return rowVersion
	}
	first := usedAfter("")
	require.Equal(t, first, usedAfter(""), "no write within the minute")
	require.NotEqual(t, first, usedAfter(`UPDATE service_tokens SET last_used_at = now() - interval '61 seconds'`))
}

func TestBootstrap(t *testing.T) {
	t.Parallel()
	w := newWorld(t) // has an org
	_, _, err := authz.Bootstrap(t.Context(), w.owner, authz.FirstToken{OrgSlug: "b", TokenName: "root"})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = w.owner.Exec(t.Context(), `DELETE FROM audit_log; DELETE FROM orgs`)
	require.NoError(t, err)

	_, _, err = authz.Bootstrap(t.Context(), w.owner, authz.FirstToken{OrgSlug: "b", TokenName: "not a name"})
	require.True(t, fault.Is(err, fault.Invalid))
	_, err = authz.OrgBySlug(t.Context(), w.owner, "b")
	require.True(t, fault.Is(err, fault.NotFound), "an org without its token is not left behind")

	// If several callers ask at once, exactly one gets it.
	var wg sync.WaitGroup
	results := make(chan error, 4)
	for range cap(results) {
		wg.Go(func() {
			_, _, err := authz.Bootstrap(t.Context(), w.owner,
				authz.FirstToken{OrgSlug: "first", OrgName: "First", TokenName: "root"})
			results <- err
		})
	}
	wg.Wait()
	close(results)
	won := 0
	for err := range results {
		if err == nil {
			won++
			continue
		}
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	}
	require.Equal(t, 1, won)

	secret, org, err := authz.Bootstrap(t.Context(), w.owner,
		authz.FirstToken{OrgSlug: "second", TokenName: "root", Another: true})
	require.NoError(t, err)
	require.Equal(t, "second", org.Name)
	who := decode[authz.Identity](t, call(w.api(t, authz.Config{}), "GET", "/v1/whoami", "", as(secret)...))
	require.WithinDuration(t, time.Now().Add(authz.DefaultTTL), *who.ExpiresAt, time.Minute)
	who.ExpiresAt = nil
	require.Equal(t, authz.Identity{Org: "second", Actor: "token:root", Role: authz.RoleAdmin}, who)
}

// An org never ends up with nobody who may make a token, and where it has, the server's administrator makes one.
func TestAnOrgIsNotLockedOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	root := w.token(t, authz.NewToken{Name: "root", Role: authz.RoleAdmin})
	w.token(t, authz.NewToken{Name: "reader", Role: authz.RoleReader})
	ended := w.token(t, authz.NewToken{Name: "ended", Role: authz.RoleAdmin})
	_, err := w.owner.Exec(t.Context(), `UPDATE service_tokens SET expires_at = now() WHERE name = 'ended'`)
	require.NoError(t, err)
	require.Equal(t, 401, call(api, "GET", "/v1/whoami", "", as(ended)...).Code)

	refused := call(api, "DELETE", "/v1/tokens/root", "", as(root)...)
	require.Equal(t, 409, refused.Code)
	require.Contains(t, refused.Body.String(), "token root is the last admin token of org acme")
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/reader", "", as(root)...).Code)
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/ended", "", as(root)...).Code)

	require.NoError(t, authz.RevokeAnyToken(t.Context(), w.owner, "acme", "root"))
	ends := func() (at map[uuid.UUID]time.Time) {
		require.NoError(t, pg.InTx(t.Context(), w.owner, func(ctx context.Context, tx pgx.Tx) (err error) {
			at, err = authz.AdminsEnd(ctx, tx)
			return err
		}))
		return at
	}
	org, err := authz.OrgBySlug(t.Context(), w.owner, "acme")
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), ends()[org.ID], time.Minute)

	// Who signs in can make tokens: their org has no need of an admin token.
	_, err = w.owner.Exec(t.Context(), `INSERT INTO users (org_id, issuer, external_id, role, last_seen_at)
		VALUES ($1, 'https://idp.example.com', 'ada', 'admin', now())`, w.org.ID)
	require.NoError(t, err)
	require.Empty(t, ends())
	_, err = w.owner.Exec(t.Context(), `DELETE FROM users`)
	require.NoError(t, err)

	_, _, err = authz.CreateUserToken(t.Context(), w.owner, "umbrela", authz.NewToken{Name: "x", Role: authz.RoleAdmin})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	secret, made, err := authz.CreateUserToken(t.Context(), w.owner, "acme",
		authz.NewToken{Name: "rescue", Role: authz.RoleAdmin})
	require.NoError(t, err)
	require.Equal(t, made.ExpiresAt, ends()[org.ID])
	require.Equal(t, 201, call(api, "POST", "/v1/tokens", `{"name":"ci","role":"writer"}`, as(secret)...).Code)
}

// Admin tokens that end within a day are no reason to revoke a longer one, unless an admin can sign in.
func TestAdminTokensThatEndSoonAreNotEnough(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	root := w.token(t, authz.NewToken{Name: "root", Role: authz.RoleAdmin})
	short := w.token(t, authz.NewToken{Name: "short", Role: authz.RoleAdmin, TTL: time.Minute})
	w.token(t, authz.NewToken{Name: "day", Role: authz.RoleAdmin, TTL: 23 * time.Hour})

	refused := call(api, "DELETE", "/v1/tokens/root", "", as(short)...)
	require.Equal(t, 409, refused.Code, refused.Body.String())
	require.Contains(t, refused.Body.String(), "without token root the last admin token of org acme ends at ")
	require.Contains(t, refused.Body.String(), "dagctl tokens create NAME --role admin")
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/day", "", as(root)...).Code, "root lasts longer")

	user := func(seen, disabled string) {
		_, err := w.owner.Exec(t.Context(), `DELETE FROM users`)
		require.NoError(t, err)
		_, err = w.owner.Exec(t.Context(), `
			INSERT INTO users (org_id, issuer, external_id, role, last_seen_at, disabled_at)
			VALUES ($1, 'https://idp.example.com', 'ada', 'admin', `+seen+`, `+disabled+`)`, w.org.ID)
		require.NoError(t, err)
	}
	user("NULL", "NULL")
	require.Equal(t, 409, call(api, "DELETE", "/v1/tokens/root", "", as(short)...).Code, "nobody knows of a way in")
	user("now()", "now()")
	require.Equal(t, 409, call(api, "DELETE", "/v1/tokens/root", "", as(short)...).Code, "the user is disabled")
	user("now()", "NULL")
	require.Equal(t, 204, call(api, "DELETE", "/v1/tokens/root", "", as(short)...).Code)
	require.Equal(t, 409, call(api, "DELETE", "/v1/tokens/short", "", as(short)...).Code, "it is the last one")
}

func TestOrgs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, slug := range []string{"", "Acme", "1a", "a-b", strings.Repeat("a", 41)} {
		_, err := authz.CreateOrg(t.Context(), w.owner, slug, "")
		require.True(t, fault.Is(err, fault.Invalid), slug)
	}
	_, err := authz.CreateOrg(t.Context(), w.owner, "acme", "")
	require.True(t, fault.Is(err, fault.Conflict))

	settings := authz.Settings{DefaultReadRoles: []string{"role:finance"}, FileRoots: []string{"/data"}}
	require.NoError(t, authz.SetOrgSettings(t.Context(), w.owner, w.admin(), settings))
	org, err := authz.OrgBySlug(t.Context(), w.owner, "acme")
	require.NoError(t, err)
	require.Equal(t, authz.Org{ID: w.org.ID, Slug: "acme", Name: "Acme", Settings: settings}, org)
	require.Error(t, authz.SetOrgSettings(t.Context(), w.requests, w.admin(), authz.Settings{}),
		"no request changes what its org may read")
}
