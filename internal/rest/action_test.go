package rest

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

func TestActionsShareAPattern(t *testing.T) {
	t.Parallel()
	api, err := New(Config{})
	require.NoError(t, err)
	type input struct {
		ID string `path:"id"`
	}
	type answer struct{ Body string }
	for _, action := range []string{"retry", "cancel"} {
		op := huma.Operation{OperationID: action, Method: http.MethodPost, Path: "/things/{id}:" + action}
		Register(api, op, func(_ context.Context, in *input) (*answer, error) {
			return &answer{action + " " + in.ID}, nil
		})
	}

	tests := []struct {
		method, path string
		status       int
		body         string
	}{
		{http.MethodPost, "/things/7:retry", 200, `"retry 7"`},
		{http.MethodPost, "/things/7:cancel", 200, `"cancel 7"`},
		{http.MethodPost, "/things/a%3Ab:cancel", 200, `"cancel a:b"`},
		{http.MethodPost, "/things/7:explode", 404, "no such route"},
		{http.MethodPost, "/things/7", 404, "no such route"},
		{http.MethodPost, "/things/retry", 404, "no such route"},
		{http.MethodGet, "/things/7:retry", 405, "does not take GET"},
	}

	for _, test := range tests {
		w := httptest.NewRecorder()
		api.Handler().ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
		require.Equal(t, test.status, w.Code, test.path)
		require.Contains(t, w.Body.String(), test.body, test.path)
	}
	require.Contains(t, api.OpenAPI().Paths, "/things/{id}:retry")
}
