package dispatchertest

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/dagctl/dagctl/internal/sandbox"
)

// Main runs the tests of a package and fails if they leave goroutines behind. The test server of PostgreSQL, and the
// DuckDB session that the SQL operator parses with, live as long as the process.
func Main(m *testing.M) {
	sandbox.Stage()
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/internal/sandbox.startKeeper.func1"),
		goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/internal/pgdev.(*Server).launch.func1"),
		goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"),
		goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/engine/inside.Serve"),
		goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/engine/inside.Serve.func1"))
}
