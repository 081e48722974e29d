package authz_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

// A query or a stream that runs ends when its caller loses a right.
func TestALostRightEndsWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	began := make(chan struct{})
	api.HandleStream(authz.Reader, "GET /v1/endless",
		func(_ http.ResponseWriter, r *http.Request, _ authz.Caller) error {
			began <- struct{}{}
			<-r.Context().Done()
			return r.Context().Err()
		})
	authz.Handle(api, authz.Reader, huma.Operation{Method: http.MethodPost, Path: "/v1/slow", OperationID: "slow"},
		func(ctx context.Context, _ authz.Caller, _ *struct{}) (*struct{}, error) {
			began <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		})

	set := func(what string) {
		_, err := w.owner.Exec(t.Context(), `UPDATE service_tokens SET `+what+` WHERE name LIKE 'analyst%'`)
		require.NoError(t, err)
	}
	_, err := authz.CreateOrgRole(t.Context(), w.requests, w.admin(), "finance", "")
	require.NoError(t, err)
	secret := w.token(t, authz.NewToken{Name: "analyst", Role: authz.RoleWriter, OrgRoles: []string{"role:finance"},
		Grants: []authz.Grant{{Role: authz.RoleWriter, DAGs: "sales-*"}}})
	for _, less := range []string{"org_roles = '{role:other}'", "role = 'reader'", "grants = '{writer:hr}'"} {
		set("role = 'writer', org_roles = '{role:finance}', grants = '{writer:sales-*}'")
		answers := make(chan *httptest.ResponseRecorder, 2)
		for _, route := range [][2]string{{"POST", "/v1/slow"}, {"GET", "/v1/endless"}} {
			go func() { answers <- call(api, route[0], route[1], "", as(secret)...) }()
			<-began
		}
		set(less)
		for range 2 {
			answer := <-answers
			require.Equal(t, http.StatusForbidden, answer.Code, answer.Body.String())
			require.Contains(t, answer.Body.String(), "has become less while this ran")
		}
	}
}

// A query or a stream that runs ends when its token is revoked, with the answer that a new request would get.
func TestARevokedTokenEndsWhatRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	api := w.api(t, authz.Config{})
	began := make(chan struct{})
	wait := func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}
	authz.Handle(api, authz.Reader, huma.Operation{Method: http.MethodPost, Path: "/v1/slow", OperationID: "slow"},
		func(ctx context.Context, _ authz.Caller, _ *struct{}) (*struct{}, error) { return nil, wait(ctx) })
	api.HandleStream(authz.Reader, "GET /v1/endless",
		func(_ http.ResponseWriter, r *http.Request, _ authz.Caller) error { return wait(r.Context()) })

	secret := w.token(t, authz.NewToken{Name: "analyst", Kind: authz.KindUser, Role: authz.RoleReader})
	answers := make(chan int)
	for _, route := range [][2]string{{"POST", "/v1/slow"}, {"GET", "/v1/endless"}} {
		go func() {
			answers <- call(api, route[0], route[1], "", "Authorization", "Bearer "+secret).Code
		}()
		<-began
	}
	require.NoError(t, authz.RevokeToken(t.Context(), w.requests, w.admin(), "analyst"))
	require.Equal(t, http.StatusUnauthorized, <-answers)
	require.Equal(t, http.StatusUnauthorized, <-answers)
}
