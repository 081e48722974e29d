package query

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/relations"
)

func TestEnginesOfQueriesAreConfined(t *testing.T) {
	t.Parallel()
	a, _, err := asking(t, Limits{Memory: 128 << 20, Threads: 1, Timeout: time.Minute, Rows: 1, Bytes: 1 << 20}).
		begin(t.Context(), uuid.New(), "tester", relations.UTC, Statement{SQL: "SELECT 1", Limit: 1})
	require.NoError(t, err)
	defer a.Discard()

	text := func(name string) string {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", a.PID(), name))
		require.NoError(t, err)
		return string(content)
	}
	require.Equal(t, "GOGC=400\x00GOMAXPROCS=1\x00", text("environ"), "nothing of the server's")
	for _, limit := range []string{"Max cpu time 65 65 seconds", "Max file size 0 0 bytes",
		"Max core file size 0 0 bytes", "Max data size 1543503872 1543503872 bytes"} {
		require.Contains(t, strings.Join(strings.Fields(text("limits")), " "), limit)
	}
}
