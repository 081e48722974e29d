package dispatcher

import (
	"testing"

	"go.uber.org/goleak"
)

// The test server of PostgreSQL, and the DuckDB session that the SQL operator parses with, live as long as the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/internal/pgdev.(*Server).launch.func1"),
		goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}
