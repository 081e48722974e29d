// Package notices tells the receivers that DAGs name of trouble, and of its end. Notices are written to the outbox in
// the transaction of the trouble itself.
//
// Vocabulary: a topic is a receiver, a DAG, a kind of trouble and what it is about, such as a job; the troubles of a
// topic that come at about the same time are one message. A topic that was told of stays open until its trouble is
// over, which is told as well.
//
// A notice names things, counts them and has the error of one of them. What works with data that not everybody in the
// org may read is told without its error: that stays behind the API, where roles decide who sees it. It owns
// told_notices.
package notices

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/dial"
)

// Config is what Notices need.
type Config struct {
	Pool  *pgxpool.Pool
	Tasks *tasks.Store
	Vault *authz.Vault // holds the addresses of receivers; nil: there are none
	Log   *slog.Logger

	// BaseURL is the address of the pages, for links; empty: messages have none.
	BaseURL string
	// Dialer reaches the receivers; nil: at public addresses only.
	Dialer *dial.Dialer
	// Timeout bounds one try to reach a receiver; default 10 s, less than 1 min.
	Timeout time.Duration
	// TLS says whom to trust; nil: whom the machine trusts.
	TLS *tls.Config
}

// Notices delivers notices to receivers, and announces late datasets and the end of troubles.
type Notices struct {
	pool    *pgxpool.Pool
	tasks   *tasks.Store
	vault   *authz.Vault
	log     *slog.Logger
	base    string
	dialer  *dial.Dialer
	client  *http.Client
	tls     *tls.Config
	timeout time.Duration
	under   underway
}

// New returns Notices.
func New(c Config) (*Notices, error) {
	if c.Dialer == nil {
		var err error
		if c.Dialer, err = dial.New(dial.Config{}); err != nil {
			return nil, err
		}
	}
	timeout := cmp.Or(c.Timeout, tryTimeout)
	client := c.Dialer.StrictClient(timeout)
	if transport, ok := client.Transport.(*http.Transport); ok && c.TLS != nil {
		transport.TLSClientConfig = c.TLS.Clone()
	}
	return &Notices{pool: c.Pool, tasks: c.Tasks, vault: c.Vault, log: c.Log, base: strings.TrimRight(c.BaseURL, "/"),
		dialer: c.Dialer, client: client, tls: c.TLS, timeout: timeout, under: underway{byOrg: map[uuid.UUID]int{},
			receivers: map[string]bool{}}}, nil
}
