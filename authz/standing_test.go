package authz_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
)

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
