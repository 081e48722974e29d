package processtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pgdev"
	"github.com/dagctl/dagctl/migrations"
)

// Clock is a clock that a test sets, and a PostgreSQL that goes by it. dagctl's servers go by their database's clock,
// so they need nothing else; other programs go by it with the environment of Env. It is libfaketime's, which is loaded
// before the C library and reads from a file how much to add to the machine's time.
type Clock struct {
	URL string // of a migrated database

	library, file string
}

// libraries is where libfaketime is, by the packages of Debian, Fedora, Arch Linux and Homebrew.
var libraries = []string{"/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1",
	"/usr/lib/faketime/libfaketimeMT.so.1", "/opt/homebrew/lib/faketime/libfaketime.1.dylib",
	"/usr/local/lib/faketime/libfaketime.1.dylib"}

// NewClock starts a PostgreSQL whose clock says at. It ends with the test.
func NewClock(t testing.TB, at time.Time) *Clock {
	t.Helper()
	c := &Clock{}
	for _, pattern := range libraries {
		if found, err := filepath.Glob(pattern); err == nil && len(found) > 0 {
			c.library = found[0]
			break
		}
	}
	require.NotEmpty(t, c.library, "libfaketime is missing: `make test-servers` installs it")

	// The account that runs PostgreSQL reads the file, below folders that only their owner may list.
	dir, err := os.MkdirTemp("", "dagctl-clock-*")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	c.file = filepath.Join(dir, "offset")
	c.Set(t, at)

	server, err := pgdev.Start(t.Context(), pgdev.Config{Env: c.Env()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	c.URL = server.URL()
	require.NoError(t, migrations.Up(t.Context(), c.URL))
	return c
}

// Env returns what a program's environment needs for it to go by the clock. Spans of time stay the machine's.
func (c *Clock) Env() []string {
	return []string{"LD_PRELOAD=" + c.library, "DYLD_INSERT_LIBRARIES=" + c.library, "DYLD_FORCE_FLAT_NAMESPACE=1",
		"FAKETIME_TIMESTAMP_FILE=" + c.file, "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
		"FAKETIME_DISABLE_SHM=1", "NO_FAKE_STAT=1"}
}

// Set sets the clock. It goes on from there.
func (c *Clock) Set(t testing.TB, at time.Time) {
	t.Helper()
	draft := c.file + ".draft" // a reader sees the whole of one or the other
	require.NoError(t, os.WriteFile(draft, fmt.Appendf(nil, "%+.6f\n", time.Until(at).Seconds()), 0o644))
	require.NoError(t, os.Rename(draft, c.file))
}
