package proof_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/timers"
	"github.com/dagctl/dagctl/web"
	"github.com/dagctl/dagctl/worker/protocol"
)

// server is the API of a running installation, as its clients see it.
type server struct {
	url    string
	token  string
	client *http.Client
}

func newServer(url, token string) *server {
	return &server{url, token, &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// listen serves the API and the pages of a world in this process.
func (w *world) listen() *server {
	w.t.Helper()
	api, err := authz.NewAPI(authz.Config{REST: rest.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))},
		Authenticators: []authz.Authenticator{authz.NewTokens(w.pool)}})
	require.NoError(w.t, err)

	w.registry.AddRoutes(api)
	deploy.New(w.registry).AddRoutes(api)
	w.d.API.AddRoutes(api)
	w.query.AddRoutes(api)
	graphs, err := lineage.New(w.asked, w.registry)
	require.NoError(w.t, err)
	graphs.AddRoutes(api)
	times, err := timers.New(timers.Config{Pool: w.pool, Requests: w.asked, Dispatcher: w.d.Dispatcher,
		Sources: w.d.Sources, Log: slog.New(slog.NewTextHandler(io.Discard, nil))})
	require.NoError(w.t, err)
	times.AddRoutes(api)
	site, err := web.New(web.Config{Registry: w.registry, Deployer: deploy.New(w.registry), Dispatcher: w.d,
		Query: w.query, Lineage: graphs, Timers: times})
	require.NoError(w.t, err)

	site.AddRoutes(api)
	secret, _, err := authz.CreateToken(w.t.Context(), w.pool, w.caller,
		authz.NewToken{Name: "proof", Role: authz.RoleAdmin})
	require.NoError(w.t, err)

	listener := httptest.NewServer(api.Handler())
	s := newServer(listener.URL, secret)
	w.t.Cleanup(func() {
		s.client.CloseIdleConnections()
		listener.Close()
	})
	return s
}

// refused is an answer with an error status.
type refused struct {
	code int
	body string
}

func (r *refused) Error() string { return fmt.Sprintf("%d: %s", r.code, r.body) }

func (s *server) call(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}

	req.Header.Set("Authorization", "Bearer "+s.token)
	req.Header.Set(protocol.VersionHeader, strconv.Itoa(protocol.Version)) // for what workers call
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()

	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode >= 300 {
		return &refused{resp.StatusCode, string(text)}
	}
	return json.Unmarshal(text, answer)
}

func (s *server) get(ctx context.Context, path string, answer any) error {
	return s.call(ctx, http.MethodGet, path, nil, answer)
}

// deploy deploys a document that should become active, and returns its version.
func (s *server) deploy(ctx context.Context, dag, yaml string) (registry.Version, error) {
	var d registry.Deployment
	err := s.call(ctx, http.MethodPost, "/v1/dags/"+dag+"/versions",
		registry.DeployRequest{YAML: yaml, Supersede: true}, &d)
	return d.Version, err
}

// rollback rolls back to a version by its number.
func (s *server) rollback(ctx context.Context, dag string, to int) error {
	var v registry.Version
	return s.call(ctx, http.MethodPost, "/v1/dags/"+dag+"/rollback", map[string]int{"to": to}, &v)
}

// version reads a version.
func (s *server) version(ctx context.Context, dag string, number int) (registry.Version, error) {
	var v registry.Version
	return v, s.get(ctx, fmt.Sprintf("/v1/dags/%s/versions/%d", dag, number), &v)
}
