package pg

import (
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/fault"
)

// Away reports whether an error means that the database or the connection to it is gone: the server restarts or refuses
// connections, or the network is broken. It is then unknown whether a transaction in its COMMIT took effect. A caller
// may try again if doing so twice does no harm.
func Away(err error) bool {
	if err == nil {
		return false
	}
	var said *pgconn.PgError
	if errors.As(err, &said) {
		switch said.Code {
		case "57P01", "57P02", "57P03", // it shuts down, has crashed, is starting
			"25P03", // it took this process for frozen, in the middle of a transaction
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
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err,
		syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return true
	}
	return pgconn.SafeToRetry(err) // the connection was closed before anything was sent
}

// Refusing returns why the database takes nothing more to store, for people, if err says so: its disk is full, or it is
// a standby. It is empty for any other error.
func Refusing(err error) string {
	var said *pgconn.PgError
	if !errors.As(err, &said) {
		return ""
	}
	switch said.Code {
	case "53100":
		return "the disk of the database is full"
	case "25006":
		return "the database can only be read: it is a standby, or an operator has made it read-only"
	}
	return ""
}

// Busy returns a fault that says what is in use, and to try again, if err means that a statement waited for a lock for
// longer than lock_timeout. It returns any other error as it is.
func Busy(err error, what string) error {
	var said *pgconn.PgError
	if errors.As(err, &said) && said.Code == "55P03" {
		return &fault.Error{Kind: fault.Unavailable, Message: what, Hint: "try again in a moment", Err: err}
	}
	return err
}

// Lasting reports whether the database refused a statement for a reason that will be the same next time, such as a
// constraint, a missing right or an object that depends on another.
func Lasting(err error) bool {
	var said *pgconn.PgError
	if !errors.As(err, &said) || Away(err) || lostToOthers(err) || len(said.Code) < 2 {
		return false
	}
	switch said.Code[:2] {
	case "53", "55", "57", "58", "XX": // resources, locks, operators and the machine; what nobody foresaw
		return false
	}
	return true
}
