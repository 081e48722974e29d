// Package notices writes notices of trouble to the outbox, in the transaction of the trouble itself, and delivers them
// to the webhooks that DAGs name. Each webhook gets a notice of its own.
//
// A notice names things and counts them. Error messages, failing rows and keys that are values of rows stay behind the
// API, where roles decide who sees them.
package notices

import (
	"cmp"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/dial"
)

// Config is what Notices need.
type Config struct {
	Pool  *pgxpool.Pool
	Tasks *tasks.Store
	Vault *authz.Vault // holds the URLs of webhooks; nil: there are none

	// Dialer reaches the webhooks; nil: at public addresses only.
	Dialer *dial.Dialer
	// Timeout bounds one try to reach a webhook; default 10 s, less than 1 min.
	Timeout time.Duration
}

// Notices delivers notices to webhooks, and announces late datasets.
type Notices struct {
	pool   *pgxpool.Pool
	tasks  *tasks.Store
	vault  *authz.Vault
	client *http.Client
}

// New returns Notices.
func New(c Config) (*Notices, error) {
	if c.Dialer == nil {
		var err error
		if c.Dialer, err = dial.New(dial.Config{}); err != nil {
			return nil, err
		}
	}
	client := c.Dialer.StrictClient(cmp.Or(c.Timeout, tryTimeout))
	return &Notices{pool: c.Pool, tasks: c.Tasks, vault: c.Vault, client: client}, nil
}
