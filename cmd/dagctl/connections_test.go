package main

import (
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/server"
)

// docs/operations.md says how many connections a server opens, and how to bound them.
func TestConnectionsOfAServerAreBoundedAsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(page), "## Connections to PostgreSQL\n")
	require.True(t, found)
	require.Contains(t, section, "each of up to 20 connections")
	require.Contains(t, section, "?pool_max_conns=10")

	const bound = 4
	w := newWorld(t, func(cfg *server.Config) {
		address, err := url.Parse(cfg.DatabaseURL)
		require.NoError(t, err)
		query := address.Query()
		query.Set("pool_max_conns", "4")
		address.RawQuery = query.Encode()
		cfg.DatabaseURL = address.String()
	})

	var requests sync.WaitGroup
	for range 20 * bound {
		requests.Go(func() {
			var tokens any
			if err := w.as(admin).Get(t.Context(), "/v1/tokens", nil, &tokens); err != nil {
				t.Error(err)
			}
		})
	}
	requests.Wait()
	var open int
	require.NoError(t, w.pool.QueryRow(t.Context(), `
		SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'dagctl%'`).Scan(&open))
	require.Positive(t, open)
	const ofTheTest = 2 + 2
	require.LessOrEqual(t, open, 2*bound+1+ofTheTest)
}
