package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// Of two servers with storage roots of their own, the second says that it takes no work, and why.
func TestAServerWithAnotherRootIsNotReady(t *testing.T) {
	t.Parallel()
	cfg := servedConfig(t, testdb.URL(t))
	serveUntilEnd(t, cfg)
	waitUntil(t, "the first server is ready", isReady(t, cfg.Listen))

	other, lines := cfg, new(logLines)
	other.Listen, other.Storage.Root = processtest.FreeAddress(t), t.TempDir()
	serveLogged(t, other, slog.New(slog.NewTextHandler(lines, nil)))
	waitUntil(t, "the second server is not ready", func() (bool, error) {
		status, text := ask(t, http.MethodGet, "http://"+other.Listen+"/readyz")
		says := strings.Contains(text, "not the one that this installation wrote to before")
		return status == http.StatusServiceUnavailable && says, fmt.Errorf("%d %s", status, text)
	})
	require.Len(t, lines.with("this server takes no tasks"), 1)
	require.Contains(t, lines.with("this server takes no tasks")[0], "give every server the same storage.root")
	found := checkStorage(t.Context(), &other, other.DatabaseURL)
	require.False(t, found[len(found)-1].OK)
	require.Contains(t, found[len(found)-1].Hint, "give every server the same storage.root")

	marker := ".dagctl-installation"
	id, err := os.ReadFile(filepath.Join(cfg.Storage.Root, marker))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(other.Storage.Root, marker), id, 0o600))
	waitUntil(t, "the marker is there", func() (bool, error) { // the first server finds out in time that it is a copy
		status, text := ask(t, http.MethodGet, "http://"+other.Listen+"/readyz")
		return status != 0 && !strings.Contains(text, "wrote to before"), fmt.Errorf("%d %s", status, text)
	})
	for _, f := range checkStorage(t.Context(), &other, other.DatabaseURL) {
		require.True(t, f.OK, f.Detail)
	}
}
