// Package pgremote connects to PostgreSQL databases of users, which their configs name.
//
// Vocabulary: an Address is what a config says of such a database. Nothing of it comes from the server's environment,
// and connections go only where the server's dialer goes. It owns no tables.
package pgremote

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

// Address is a database and who logs in to it.
type Address struct {
	Host     string `json:"host"`
	Port     uint16 `json:"port"` // 0: 5432
	Database string `json:"database"`
	User     string `json:"user"`
	Password any    `json:"password"` // {secret: NAME}; nil: none
	SSLMode  string `json:"sslmode"`  // empty: verify-full
	CA       string `json:"ca"`       // PEM; empty: the system's authorities
}

// The values of Address.SSLMode.
const (
	verifyFull = "verify-full"
	require    = "require"
	disable    = "disable"
)

// Schema is the part of a config schema that describes an Address.
const Schema = `
    "host": {"type": "string", "pattern": "^[A-Za-z0-9:]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$",
      "description": "Name or IP address of the database's server."},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "The server's port; 5432 by default."},
    "database": {"type": "string", "minLength": 1, "maxLength": 63, "description": "Name of the database."},
    "user": {"type": "string", "minLength": 1, "maxLength": 63, "description": "The role that logs in."},
    "password": {"type": "string",
      "description": "The role's password: {secret: NAME}, which an admin has bound to HOST:PORT, or to http://HOST:PORT where sslmode is not verify-full."},
    "sslmode": {"enum": ["verify-full", "require", "disable"],
      "description": "verify-full, the default: TLS, and the certificate has to be the host's. require: TLS with whoever answers. disable: no TLS."},
    "ca": {"type": "string", "minLength": 1,
      "description": "verify-full: certificates in PEM of the authorities to trust; those of the system by default."}`

// Operational are the fields of an Address that cannot change what a query returns.
var Operational = []string{"password", "sslmode", "ca"}

// Check checks what the schema cannot express.
func (a Address) Check() error {
	switch a.Password.(type) {
	case nil, map[string]any:
	default:
		return errors.New(secret.WrittenOut("password"))
	}

	if a.CA == "" {
		return nil
	}
	if a.verified() && x509.NewCertPool().AppendCertsFromPEM([]byte(a.CA)) {
		return nil
	}
	return errors.New("ca is for sslmode verify-full, and has certificates in PEM")
}

// URL returns where a password goes, in the form that secrets are bound to: https stands for a server that proves to
// be the one of that name, http for anything less.
func (a Address) URL() *url.URL {
	scheme := "http"
	if a.verified() {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: a.hostPort(), Path: "/"}
}

// SecretsTo returns where the password of a config that holds an Address goes; empty if it holds none.
func SecretsTo(config map[string]any) string {
	var a Address
	text, err := json.Marshal(config)
	if err != nil || json.Unmarshal(text, &a) != nil {
		return ""
	}
	return a.URL().String()
}

func (a Address) verified() bool { return a.SSLMode == "" || a.SSLMode == verifyFull }

func (a Address) hostPort() string { return net.JoinHostPort(a.Host, strconv.Itoa(int(a.port()))) }

func (a Address) port() uint16 {
	if a.Port == 0 {
		return 5432
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
	if cfg.RequireAuth = "none,md5,scram-sha-256"; a.verified() {
		cfg.RequireAuth = ""
	}
	if cfg.TLSConfig, err = a.tls(); err != nil {
		return nil, err
	}

	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, a.refused(ctx, err)
	}
	return conn, nil
}

func (a Address) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.Host}
	switch {
	case a.SSLMode == disable:
		return nil, nil
	case a.SSLMode == require:
		c.InsecureSkipVerify = true
	case a.CA != "":
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(a.CA)) {
			return nil, fault.New(fault.Invalid, "ca has no certificate in PEM")
		}
	}
	return c, nil
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
