// Package mysqlremote connects to MySQL and MariaDB databases of users, which their configs name.
//
// Vocabulary: an Address is what a config says of such a database. Nothing of it comes from the server's environment,
// and connections go only where the server's dialer goes. See package remotedb for what all kinds have in common. It
// owns no tables.
package mysqlremote

import (
	"bytes"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/remotedb"
)

// Address is a database and who logs in to it.
type Address struct{ remotedb.Address }

// usualPort is that of MySQL and MariaDB.
const usualPort = 3306

// Schema is the part of a config schema that describes an Address.
var Schema = remotedb.Schema(usualPort, "account", 80)

// URL returns where a password goes, as remotedb.Address.URL does.
func (a Address) URL() *url.URL { return a.Address.URL(usualPort) }

// SecretsTo returns where the password of a config that holds an Address goes; empty if it holds none.
func SecretsTo(config map[string]any) string { return remotedb.SecretsTo(config, usualPort) }

// Conn is a connection that is logged in. One goroutine uses it.
type Conn struct {
	address   Address
	connector driver.Connector
	conn      driver.Conn
	wire      *wire
	at        place
	again     func(ctx context.Context) (*Conn, error) // another connection
	// MariaDB reports whether the server is one.
	MariaDB bool
}

// place is a session on a server: behind one address, there may be several servers.
type place struct {
	session int64
	server  string
}

// Connect logs in. Errors hold neither the password nor addresses that the host leads to.
func (a Address) Connect(ctx context.Context, d *dial.Dialer, password, application string) (*Conn, error) {
	cfg := mysql.NewConfig()
	cfg.User, cfg.Passwd, cfg.DBName = a.User, password, a.Database
	cfg.Net, cfg.Addr = "tcp", a.HostPort(usualPort)
	cfg.Logger = &mysql.NopLogger{} // it would name addresses
	// A comma ends an attribute.
	cfg.ConnectionAttributes = "program_name:" + strings.ReplaceAll(application, ",", "")
	cfg.CheckConnLiveness = false
	// Who is not known to be the database gets no password in clear text.
	cfg.AllowCleartextPasswords = a.Verified()
	var err error
	if cfg.TLS, err = a.TLS(); err != nil {
		return nil, err
	}

	c := &Conn{address: a}
	c.again = func(ctx context.Context) (*Conn, error) { return a.Connect(ctx, d, password, application) }
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c.wire = &wire{Conn: conn, left: maxAnswer}
		return c.wire, nil
	}
	if c.connector, err = mysql.NewConnector(cfg); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", a.Host, err)
	}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// open logs in and finds out where that was.
func (c *Conn) open(ctx context.Context) (err error) {
	within, cancel := context.WithTimeoutCause(ctx, 20*time.Second,
		fault.New(fault.Unavailable, "%s did not answer within 20 seconds", c.address.Host))
	defer cancel()
	defer c.odd(&err)

	if c.conn, err = c.connector.Connect(within); err != nil {
		return c.refused(within, err)
	}
	// The names of servers tell them apart where the addresses that lead to them do not.
	rows, err := c.ask(within, "SELECT CONNECTION_ID(), CONCAT_WS(' ', @@hostname, @@port, @@server_id), VERSION()")
	if err == nil {
		c.at, c.MariaDB, err = placeOf(rows)
	}
	if err != nil {
		c.Close()
		return err
	}
	return nil
}

func placeOf(rows [][]driver.Value) (at place, mariaDB bool, err error) {
	if len(rows) == 1 && len(rows[0]) == 3 {
		row := rows[0]
		session, ok := row[0].(int64)
		server, ok1 := row[1].([]byte)
		version, ok2 := row[2].([]byte)
		if ok && ok1 && ok2 {
			return place{session, string(server)}, strings.Contains(string(version), "MariaDB"), nil
		}
	}
	return at, false, fault.New(fault.Unavailable, "the server does not say which session this is")
}

// ask returns the rows of a statement without parameters.
func (c *Conn) ask(ctx context.Context, statement string) (all [][]driver.Value, err error) {
	defer c.odd(&err)
	c.wire.left = maxAnswer
	rows, err := c.conn.(driver.QueryerContext).QueryContext(ctx, statement, nil)
	if err != nil {
		return nil, c.ErrorOf(ctx, err)
	}
	defer rows.Close()

	for {
		row := make([]driver.Value, len(rows.Columns()))
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, c.ErrorOf(ctx, err)
		}
		for i, v := range row {
			if text, ok := v.([]byte); ok {
				row[i] = bytes.Clone(text) // it is the driver's
			}
		}
		all = append(all, row)
	}
}

// Warnings returns the numbers of the warnings of the last statement.
func (c *Conn) Warnings(ctx context.Context) (numbers []int64, err error) {
	rows, err := c.ask(ctx, "SHOW WARNINGS")
	for _, row := range rows {
		if len(row) == 3 { // level, code, message
			number, _ := row[1].(int64)
			numbers = append(numbers, number)
		}
	}
	return numbers, err
}

// Exec runs a statement that has no rows.
func (c *Conn) Exec(ctx context.Context, statement string) (err error) {
	defer c.odd(&err)
	c.wire.left = maxAnswer
	_, err = c.conn.(driver.ExecerContext).ExecContext(ctx, statement, nil)
	return c.ErrorOf(ctx, err)
}

// Close leaves the server.
func (c *Conn) Close() { _ = c.conn.Close() }

// Kill ends the session on the server from another connection, with all that runs in it. A session that has ended
// already is none to end.
func (c *Conn) Kill(ctx context.Context) error {
	within, cancel := context.WithTimeoutCause(ctx, 3*time.Second,
		fault.New(fault.Unavailable, "%s did not answer within 3 seconds", c.address.Host))
	defer cancel()
	other, err := c.again(within)
	if err != nil {
		return err
	}
	defer other.Close()

	if other.at.server != c.at.server {
		return fault.New(fault.Unavailable, "%s led to another server", c.address.Host)
	}
	if err = other.Exec(within, fmt.Sprintf("KILL %d", c.at.session)); Number(err) == unknownThread {
		return nil
	}
	return err
}

// maxAnswer is the most bytes that a server may send in answer to one request, or for one row.
const maxAnswer = 256 << 20

// wire is a connection from which only so much is read until more is allowed.
type wire struct {
	net.Conn
	left int64
}

var errTooLong = errors.New("more than 256 MiB in one answer or row")

func (w *wire) Read(into []byte) (int, error) {
	if w.left <= 0 {
		return 0, errTooLong
	}
	n, err := w.Conn.Read(into)
	w.left -= int64(n)
	return n, err
}

// odd makes an error of a panic of the driver, which trusts servers to send what the protocol says.
func (c *Conn) odd(err *error) {
	if p := recover(); p != nil {
		*err = fault.New(fault.Unavailable, "%s does not answer as MySQL does", c.address.Host)
	}
}
