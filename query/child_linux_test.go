package query

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/relations"
)

func TestChildIsConfined(t *testing.T) {
	t.Parallel()
	p, err := start(t.Context(), t.TempDir(), nil,
		task{Scope: relations.UTC, SQL: "SELECT 1", Memory: 128 << 20, Threads: 1, CPU: time.Minute, Rows: 1,
			Bytes: 1 << 20})
	require.NoError(t, err)
	defer p.Stop()
	var names parsed
	require.NoError(t, p.ask(t.Context(), p.task, &names))

	text := func(name string) string {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID(), name))
		require.NoError(t, err)
		return string(content)
	}
	require.Empty(t, text("environ"))
	for _, limit := range []string{"Max cpu time 65 65 seconds", "Max file size 0 0 bytes",
		"Max core file size 0 0 bytes", "Max data size 1543503872 1543503872 bytes"} {
		require.Contains(t, strings.Join(strings.Fields(text("limits")), " "), limit)
	}
}
