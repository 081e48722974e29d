package operators

import (
	"context"
	"log/slog"
	"slices"
)

// lateAttrs is a handler that formats the attributes of a logger when something is logged, and not when it is made: most
// tasks log nothing.
type lateAttrs struct {
	slog.Handler
	attrs []slog.Attr
}

// Handle implements slog.Handler.
func (l lateAttrs) Handle(ctx context.Context, r slog.Record) error {
	return l.Handler.WithAttrs(l.attrs).Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l lateAttrs) WithAttrs(attrs []slog.Attr) slog.Handler {
	return lateAttrs{l.Handler, slices.Concat(l.attrs, attrs)}
}

// WithGroup implements slog.Handler: what comes after is in the group, and what came before is not.
func (l lateAttrs) WithGroup(name string) slog.Handler {
	return lateAttrs{Handler: l.Handler.WithAttrs(l.attrs).WithGroup(name)}
}
