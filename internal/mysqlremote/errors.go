package mysqlremote

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/go-sql-driver/mysql"

	"github.com/dagctl/dagctl/internal/fault"
)

// unknownThread is the number of the error of a session that is not there.
const unknownThread = 1094

// passing are the numbers of errors that go away although the class of their SQLSTATE says otherwise: too many
// connections of an account, limits of what it may do in an hour, too many prepared statements.
var passing = []uint16{1203, 1226, 1461}

// lasting are those that stay although their SQLSTATE is the general one: the host may not log in, collations do not go
// together, an option of the server forbids it, a view is broken, the password has expired, ORDER BY does not go with
// DISTINCT, window functions where there may be none.
var lasting = []uint16{1130, 1267, 1270, 1271, 1290, 1356, 1820, 1862, 3065, 3593}

// refused returns the error of a failed login.
func (c *Conn) refused(ctx context.Context, err error) error {
	var (
		inner  *fault.Error
		failed *net.OpError
	)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &inner):
		return inner
	case errors.As(err, &failed):
		return fault.New(fault.Unavailable, "%s: %s", c.address.HostPort(usualPort), failed.Err)
	case errors.As(err, new(*mysql.MySQLError)):
		return c.ErrorOf(ctx, err)
	case errors.Is(err, mysql.ErrInvalidConn), errors.Is(err, driver.ErrBadConn), errors.Is(err, io.EOF):
		return fault.New(fault.Unavailable, "%s: the connection ended during the login", c.address.HostPort(usualPort))
	case errors.Is(err, mysql.ErrCleartextPassword):
		return fault.New(fault.Invalid, "%s wants the password in clear text, which it gets only with sslmode "+
			"verify-full", c.address.Host)
	}
	return fault.New(fault.Unavailable, "%s: %s", c.address.HostPort(usualPort), err)
}

// ErrorOf returns the error of a statement as users see it: that of its context if it has ended. It does not tell what
// the host leads to. It is Invalid if the statement, the data or the login is at fault, so that trying again cannot
// mend it, and Unavailable otherwise.
func (c *Conn) ErrorOf(ctx context.Context, err error) error {
	var answered *mysql.MySQLError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case c.wire.left <= 0:
		return fault.New(fault.TooLarge, "%s sent %w", c.address.Host, errTooLong).
			WithHint("select less of long columns")
	case errors.As(err, &answered):
		return c.answered(answered)
	case errors.As(err, new(*fault.Error)):
		return err
	}
	return fault.New(fault.Unavailable, "%s: the connection is gone", c.address.Host)
}

func (c *Conn) answered(e *mysql.MySQLError) error {
	kind, state := fault.Unavailable, string(e.SQLState[:])
	switch state[:2] {
	// No such feature, data, transaction state, login, syntax or permission
	case "0A", "21", "22", "23", "25", "28", "42":
		kind = fault.Invalid
	}
	switch {
	case slices.Contains(passing, e.Number):
		kind = fault.Unavailable
	case slices.Contains(lasting, e.Number):
		kind = fault.Invalid
	}
	return fault.New(kind, "%s: %w", c.address.Host, said{e})
}

// said is what a server says, with the number of its error.
type said struct{ *mysql.MySQLError }

func (s said) Error() string { return fmt.Sprintf("%s (error %d)", s.Message, s.Number) }

func (s said) Unwrap() error { return s.MySQLError }

// Number returns the number that a server gave to an error; 0: it is none of a server.
func Number(err error) uint16 {
	var e *mysql.MySQLError
	if errors.As(err, &e) {
		return e.Number
	}
	return 0
}
