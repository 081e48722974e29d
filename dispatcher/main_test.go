package dispatcher

import (
	"testing"

	"go.uber.org/goleak"
)

// The test server of PostgreSQL lives as long as the process: somebody waits for it all the time.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dagctl/dagctl/internal/pgdev.(*Server).launch.func1"))
}
