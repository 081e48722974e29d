package builtin

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A secret is removed from a line's message and from its attributes, however the logger got these.
func TestLinesOfOperatorsShowNoSecret(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	redact := func(text string) string { return strings.ReplaceAll(text, "hunter2", "[secret]") }
	log := slog.New(redacting{slog.NewTextHandler(&out, nil), redact})
	log.With("key", "hunter2", "n", 7).WithGroup("g").Info("with hunter2", "url", "x?k=hunter2", "rows", 3)
	require.NotContains(t, out.String(), "hunter2")
	for _, kept := range []string{`msg="with [secret]"`, "key=[secret]", "n=7", `g.url="x?k=[secret]"`, "g.rows=3"} {
		require.Contains(t, out.String(), kept)
	}
}
