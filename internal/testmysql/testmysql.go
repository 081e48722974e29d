package testmysql

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// Database is a database of a test and an account that owns it and can do nothing else.
type Database struct {
	Host, Database, User, Password string
	Port                           int
	CA                             string // PEM of the authority of the server's certificate

	Admin *sql.DB // for everything else; it takes several statements at once

	secured bool // the account logs in over TLS only
}

var theServer = sync.OnceValues(func() (*Server, error) { return start(context.Background()) })

// New returns a database of the test's own, which is dropped with the test.
func New(t testing.TB) Database {
	t.Helper()
	s, err := theServer()
	if err != nil {
		t.Fatal(err)
	}
	return s.database(t)
}

// NewOn returns a database on a server of the test's own, which is started with more arguments.
func NewOn(t testing.TB, arguments ...string) Database {
	t.Helper()
	s, err := start(t.Context(), arguments...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop(false) })
	return s.database(t)
}

func (s *Server) database(t testing.TB) Database {
	t.Helper()
	name := "t" + strings.ToLower(rand.Text()[:12])
	d := Database{Host: "127.0.0.1", Port: s.port, Database: name, User: name, Password: rand.Text(), CA: s.CA,
		secured: s.login != byNative}
	general, err := s.open("")
	if err == nil {
		_, err = general.ExecContext(t.Context(), "CREATE DATABASE "+name+" CHARACTER SET utf8mb4; CREATE USER "+name+
			"@'%' IDENTIFIED "+s.login+" '"+d.Password+"'; GRANT ALL ON "+name+".* TO "+name+"@'%'")
	}
	if err == nil {
		d.Admin, err = s.open(name)
	}
	if err != nil {
		t.Fatalf("make the test's database: %v", err)
	}

	t.Cleanup(func() {
		_ = d.Admin.Close()
		_, err := general.ExecContext(context.WithoutCancel(t.Context()), "DROP USER "+name+"; DROP DATABASE "+name)
		if err != nil {
			t.Errorf("drop the test's database: %v", err)
		}
		_ = general.Close()
	})
	return d
}

// Exec runs statements as the admin.
func (d Database) Exec(t testing.TB, statements string) {
	t.Helper()
	if _, err := d.Admin.ExecContext(t.Context(), statements); err != nil {
		t.Fatal(err)
	}
}

// Config returns what a job's config says of the database, with the password as the secret DB.
func (d Database) Config(query string) map[string]any {
	config := map[string]any{"host": d.Host, "port": d.Port, "database": d.Database, "user": d.User,
		"password": map[string]any{"secret": "DB"}, "sslmode": "disable", "query": query}
	if d.secured {
		config["sslmode"], config["ca"] = "verify-full", d.CA
	}
	return config
}

// certificate makes a certificate for the loopback address, which is its own authority, and its key.
func certificate() (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return "", "", err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}

	block := func(name string, of []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: name, Bytes: of}))
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", secret), nil
}
