// Package remotedb describes databases of users, which their configs name, whatever their kind.
//
// Vocabulary: an Address is what a config says of such a database. Nothing of it comes from the server's environment.
// It owns no tables.
package remotedb

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
)

// Address is a database and who logs in to it.
type Address struct {
	Host     string `json:"host"`
	Port     uint16 `json:"port"` // 0: the usual one of the kind
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

// Schema returns the part of a config schema that describes an Address: port is the usual one of the kind, user what
// logs in to it, and longest how many characters names may have.
func Schema(port int, user string, longest int) string {
	return fmt.Sprintf(`
    "host": {"type": "string", "pattern": "^[A-Za-z0-9:]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$",
      "description": "Name or IP address of the database's server."},
    "port": {"type": "integer", "minimum": 1, "maximum": 65535, "description": "The server's port; %[1]d by default."},
    "database": {"type": "string", "minLength": 1, "maxLength": %[3]d, "description": "Name of the database."},
    "user": {"type": "string", "minLength": 1, "maxLength": %[3]d, "description": "The %[2]s that logs in."},
    "password": {"type": "string",
      "description": "The %[2]s's password: {secret: NAME}, which an admin has bound to HOST:PORT, or to http://HOST:PORT where sslmode is not verify-full."},
    "sslmode": {"enum": ["verify-full", "require", "disable"],
      "description": "verify-full, the default: TLS, and the certificate has to be the host's. require: TLS with whoever answers. disable: no TLS."},
    "ca": {"type": "string", "minLength": 1,
      "description": "verify-full: certificates in PEM of the authorities to trust; those of the system by default."}`,
		port, user, longest)
}

// Operational are the fields of an Address that cannot change what a query returns.
var Operational = []string{"password", "sslmode", "ca"}

// Check checks what the schema cannot express.
func (a Address) Check() error {
	switch a.Password.(type) {
	case nil, map[string]any:
	default:
		return errors.New(secret.WrittenOut("password"))
	}

	if _, err := netip.ParseAddr(a.Host); strings.Contains(a.Host, ":") && err != nil {
		return errors.New("host is a name or an IP address: write the port as `port`")
	}
	if a.CA == "" {
		return nil
	}
	if a.Verified() && x509.NewCertPool().AppendCertsFromPEM([]byte(a.CA)) {
		return nil
	}
	return errors.New("ca is for sslmode verify-full, and has certificates in PEM")
}

// URL returns where a password goes, in the form that secrets are bound to: https stands for a server that proves to
// be the one of that name, http for anything less. usual is the port where the address names none.
func (a Address) URL(usual uint16) *url.URL {
	scheme := "http"
	if a.Verified() {
		scheme = "https"
	}
	return &url.URL{Scheme: scheme, Host: a.HostPort(usual), Path: "/"}
}

// SecretsTo returns where the password of a config that holds an Address goes; empty if it holds none.
func SecretsTo(config map[string]any, usual uint16) string {
	var a Address
	text, err := json.Marshal(config)
	if err != nil || json.Unmarshal(text, &a) != nil {
		return ""
	}
	return a.URL(usual).String()
}

// Verified reports whether the server has to prove that it is the one of its name.
func (a Address) Verified() bool { return a.SSLMode == "" || a.SSLMode == verifyFull }

// HostPort returns where to connect to.
func (a Address) HostPort(usual uint16) string {
	port := a.Port
	if port == 0 {
		port = usual
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(port)))
}

// TLS returns how to talk TLS; nil: not at all.
func (a Address) TLS() (*tls.Config, error) {
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
