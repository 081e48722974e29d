package operators

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLateAttributesAreFormattedTheSame(t *testing.T) {
	t.Parallel()
	write := func(handler func(slog.Handler) slog.Handler) string {
		var out bytes.Buffer
		plain := slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}})
		log := slog.New(handler(plain)).With("org", "acme", "task", 1)
		log.Info("first", "n", 1)
		log.WithGroup("g").With("in", "it").Warn("second", "n", 2)
		log.With("more", true).Debug("not told")
		log.With("more", true).Error("third")
		return out.String()
	}
	require.Equal(t, write(func(h slog.Handler) slog.Handler {
		return h
	}), write(func(h slog.Handler) slog.Handler { return lateAttrs{Handler: h} }))
}
