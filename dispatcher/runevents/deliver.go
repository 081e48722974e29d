package runevents

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/registry"
)

const (
	tryTimeout = 10 * time.Second // bounds one request, unless the config says otherwise
	lease      = 3 * time.Minute  // longer than two requests
)

// SecretUser is what a receiver's secret is bound to, as `dagctl secrets bind --job` names it.
const SecretUser = "openlineage"

// Config is what a Sender needs.
type Config struct {
	Pool      *pgxpool.Pool // the owner's
	Tasks     *tasks.Store
	Registry  *registry.Registry
	Vault     *authz.Vault // holds the tokens of receivers; nil: there are none
	Receivers Receivers
	Version   string // of the program

	// Dialer reaches the receivers; nil: at public addresses only.
	Dialer *dial.Dialer
	// Timeout bounds one request; default 10 s, less than 1 min.
	Timeout time.Duration
}

// Sender delivers events.
type Sender struct {
	pool     *pgxpool.Pool
	tasks    *tasks.Store
	registry *registry.Registry
	vault    *authz.Vault
	to       Receivers
	version  string
	client   *http.Client
}

// New returns a Sender.
func New(c Config) (*Sender, error) {
	if c.Dialer == nil {
		var err error
		if c.Dialer, err = dial.New(dial.Config{}); err != nil {
			return nil, err
		}
	}
	client := c.Dialer.StrictClient(cmp.Or(c.Timeout, tryTimeout))
	return &Sender{pool: c.Pool, tasks: c.Tasks, registry: c.Registry, vault: c.Vault, to: c.Receivers,
		version: cmp.Or(c.Version, "unknown"), client: client}, nil
}

// Send tells of a batch of attempts; see tasks.Deliver. Attempts of orgs that have no receiver in this process's config
// are left to others.
func (s *Sender) Send(ctx context.Context, now time.Time) (more bool, err error) {
	if len(s.to) == 0 {
		return false, nil
	}
	d := tasks.Delivery{Kind: "openlineage", Orgs: s.to.orgs(), Lease: lease}
	more, err = s.tasks.Deliver(ctx, d, now, s.tell)
	return more, fault.Wrap(err, "tell of ends of attempts")
}

// tell sends the events of an attempt, in their order.
func (s *Sender) tell(ctx context.Context, row tasks.OutboxRow) error {
	var e end
	if err := json.Unmarshal(row.Payload, &e); err != nil {
		return fmt.Errorf("payload of the end of an attempt: %w", err)
	}
	var (
		run openlineage.Run
		to  Receiver
	)
	err := pg.InTx(ctx, s.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		var slug string
		if err := tx.QueryRow(ctx, `SELECT org_slug($1)`, row.OrgID).Scan(&slug); err != nil {
			return fmt.Errorf("org of the end of an attempt: %w", err)
		}
		to = s.to[slug]
		run, err = s.run(ctx, tx, row.OrgID, e, to.Namespace)
		return err
	})
	if err != nil {
		return err
	}

	for _, event := range openlineage.Events(run) {
		if err := s.post(ctx, row.OrgID, to, event); err != nil {
			return err
		}
	}
	return nil
}

// post sends one event. Its errors are stored and logged, so they do not name the receiver.
func (s *Sender) post(ctx context.Context, org uuid.UUID, to Receiver, event openlineage.Event) error {
	body, err := json.Marshal(event)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(body))
	if err != nil {
		return fault.New(fault.Invalid, "the OpenLineage receiver's url is not valid")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "dagctl")
	if to.Secret != "" {
		token, err := s.token(ctx, org, to.Secret, req.URL)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}

	resp, err := s.client.Do(req)
	if err != nil {
		var named *url.Error // contains the URL
		if errors.As(err, &named) {
			err = named.Err
		}
		return fmt.Errorf("OpenLineage receiver: %w", err)
	}
	defer resp.Body.Close()

	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fault.New(fault.Unavailable, "the OpenLineage receiver answered %d", resp.StatusCode)
	}
	return nil
}

// token returns the value of a secret that is bound to the events and to the receiver's host.
func (s *Sender) token(ctx context.Context, org uuid.UUID, name string, target *url.URL) (string, error) {
	if s.vault == nil {
		return "", fault.New(fault.Forbidden, "the server keeps no secrets, and the OpenLineage receiver needs %s",
			name)
	}
	values, err := s.vault.Reveal(ctx, org, authz.SecretUser{Name: SecretUser}, []string{name})
	if err != nil {
		return "", err
	}
	return values[name].For(target)
}
