package operators

import (
	"context"
	"log/slog"
	"slices"
)

// lateAttrs is a handler that formats a logger's attributes when a line is logged, not when the logger is made: most
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

// WithGroup implements slog.Handler. Only later attributes are in the group.
func (l lateAttrs) WithGroup(name string) slog.Handler {
	return lateAttrs{Handler: l.Handler.WithAttrs(l.attrs).WithGroup(name)}
}
