package pg

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Away reports whether an error says that the database, or the connection to it, went away: it restarts, it refuses, the
// network broke. Whether a transaction that was being committed took effect is not known then. What was asked for can be
// asked for again, where asking twice does no harm.
func Away(err error) bool {
	var said *pgconn.PgError
	if errors.As(err, &said) {
		switch said.Code {
		case "57P01", "57P02", "57P03", // it shuts down, crashed, starts
			"53300": // it has no connection left
			return true
		}
		return strings.HasPrefix(said.Code, "08") // the connection is broken
	}
	var refused *pgconn.ConnectError
	var broken *net.OpError
	switch {
	case errors.As(err, &refused), errors.As(err, &broken):
		return true
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	}
	return pgconn.SafeToRetry(err) // it found its connection closed before it had sent anything
}
