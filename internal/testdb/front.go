package testdb

import (
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Front is a port of the loopback address behind which a test's database is: for programs that are given host and port.
type Front struct {
	Host, Database, User, Password string
	Port                           int
}

// sslRequest is the code of the message by which a client asks for TLS, after its length of 8 bytes.
const sslRequest = 80877103

// Behind opens a port for a database of this package, until the test ends. With a TLS config, the port answers clients
// that ask for TLS as a PostgreSQL with a certificate does; without one, it passes on what they send.
func Behind(t testing.TB, url string, secure *tls.Config) Front {
	t.Helper()
	cfg, err := pgconn.ParseConfig(url)
	if err != nil {
		t.Fatalf("the test's database: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("open a port for the test's database: %v", err)
	}

	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go forward(client, cfg, secure)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return Front{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Database: cfg.Database, User: cfg.User,
		Password: cfg.Password}
}

// forward serves a client until one side closes.
func forward(client net.Conn, cfg *pgconn.Config, secure *tls.Config) {
	defer client.Close()
	server, err := net.Dial(pgconn.NetworkAddress(cfg.Host, cfg.Port))
	if err != nil {
		return
	}
	defer server.Close()

	if secure != nil {
		first := make([]byte, 8)
		if _, err := io.ReadFull(client, first); err != nil {
			return
		}
		if binary.BigEndian.Uint32(first[4:]) == sslRequest {
			if _, err := client.Write([]byte("S")); err != nil {
				return
			}
			client = tls.Server(client, secure)
		} else if _, err := server.Write(first); err != nil {
			return
		}
	}

	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(server, client)
		_ = server.Close()
	}()
	_, _ = io.Copy(client, server)
	_ = client.Close()
	<-done
}

// Config returns what a job's config says of the database, with the password as the secret PG.
func (f Front) Config(more ...string) map[string]any {
	config := map[string]any{"host": f.Host, "port": f.Port, "database": f.Database, "user": f.User,
		"password": map[string]any{"secret": "PG"}, "sslmode": "disable"}
	for _, pair := range more {
		key, value, _ := strings.Cut(pair, "=")
		config[key] = value
	}
	return config
}
