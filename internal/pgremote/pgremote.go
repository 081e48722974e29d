// Package pgremote connects to PostgreSQL databases of users, which their configs name.
//
// Vocabulary: an Address is what a config says of such a database. Nothing of it comes from the server's environment,
// and connections go only where the server's dialer goes. See package remotedb for what all kinds have in common. It
// owns no tables.
package pgremote

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/remotedb"
)

// Address is a database and who logs in to it.
type Address struct{ remotedb.Address }

// usualPort is PostgreSQL's.
const usualPort = 5432

// Schema is the part of a config schema that describes an Address.
var Schema = remotedb.Schema(usualPort, "role", 63)

// URL returns where a password goes, as remotedb.Address.URL does.
func (a Address) URL() *url.URL { return a.Address.URL(usualPort) }

// SecretsTo returns where the password of a config that holds an Address goes; empty if it holds none.
func SecretsTo(config map[string]any) string { return remotedb.SecretsTo(config, usualPort) }

func (a Address) hostPort() string { return a.HostPort(usualPort) }

func (a Address) port() uint16 {
	if a.Port == 0 {
		return usualPort
	}
	return a.Port
}

// Connect logs in. When the context of a statement ends, the server is asked to cancel it, and the connection closes
// half a second later at the latest. Errors hold neither the password nor addresses that the host leads to.
func (a Address) Connect(ctx context.Context, d *dial.Dialer, password, application string) (*pgx.Conn, error) {
	cfg, err := pgx.ParseConfig("host=unset user=unset sslmode=disable") // what the environment adds is replaced below
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", a.Host, err)
	}
	cfg.Host, cfg.Port, cfg.Database, cfg.User, cfg.Password = a.Host, a.port(), a.Database, a.User, password
	cfg.Fallbacks, cfg.ValidateConnect, cfg.KerberosSrvName, cfg.KerberosSpn = nil, nil, "", ""
	cfg.RuntimeParams = map[string]string{"application_name": application, "client_encoding": "UTF8"}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeDescribeExec // poolers keep no statements
	cfg.StatementCacheCapacity, cfg.DescriptionCacheCapacity = 0, 0
	cfg.ConnectTimeout = 20 * time.Second

	// The dialer resolves the name itself and checks what it leads to; a cancel request dials the same way.
	cfg.LookupFunc = func(_ context.Context, host string) ([]string, error) { return []string{host}, nil }
	cfg.DialFunc = d.DialContext
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: 500 * time.Millisecond}
	}
	// Who is not known to be the database gets no password in clear text.
	if cfg.RequireAuth = "none,md5,scram-sha-256"; a.Verified() {
		cfg.RequireAuth = ""
	}
	if cfg.TLSConfig, err = a.TLS(); err != nil {
		return nil, err
	}

	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, a.refused(ctx, err)
	}
	return conn, nil
}

// refused returns the error of a failed login without what pgconn adds to it.
func (a Address) refused(ctx context.Context, err error) error {
	var (
		answered *pgconn.PgError
		inner    *fault.Error
	)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &inner):
		return inner
	case errors.As(err, &answered):
		return Error(a.Host, answered)
	}

	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(next) {
		err = next
	}
	return fault.New(fault.Unavailable, "%s: %s", a.hostPort(), err)
}

// Error returns what a database says of a statement or a login as an error that users see. It is Invalid if the
// statement, the data or the login is at fault, so that trying again cannot mend it, and Unavailable otherwise. The
// details that a server adds may hold values of rows and are left out.
func Error(host string, e *pgconn.PgError) error {
	kind := fault.Unavailable
	switch e.Code[:min(2, len(e.Code))] {
	// No such feature, data, constraint, transaction state, login, database, syntax or permission, object state
	case "0A", "21", "22", "23", "25", "28", "3D", "3F", "42", "2B":
		kind = fault.Invalid
	}
	return fault.New(kind, "%s: %s (SQLSTATE %s)", host, e.Message, e.Code)
}

// ErrorOf returns the error of a statement on a connection to a host: that of its context if it has ended. It does not
// tell what the host leads to.
func ErrorOf(ctx context.Context, host string, err error) error {
	var (
		answered *pgconn.PgError
		broken   *net.OpError
	)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &answered):
		return Error(host, answered)
	case errors.As(err, &broken):
		return fault.New(fault.Unavailable, "%s: the connection is gone: %s", host, broken.Err)
	}
	return err
}
