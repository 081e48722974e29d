package notices

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/webhook"
)

const (
	tryTimeout = 10 * time.Second // bounds one try, unless the config says otherwise
	lease      = time.Minute      // longer than a try
)

// Send delivers a batch of notices; see tasks.Deliver.
func (n *Notices) Send(ctx context.Context, now time.Time) (more bool, err error) {
	more, err = n.tasks.Deliver(ctx, tasks.Delivery{Kind: "notify", Lease: lease}, now, n.post)
	return more, fault.Wrap(err, "deliver notices")
}

// post sends a notice. Its errors are stored and logged, so they do not name the receiver: the URL is a secret.
func (n *Notices) post(ctx context.Context, row tasks.OutboxRow) error {
	var p notifyPayload
	if err := json.Unmarshal(row.Payload, &p); err != nil {
		return fmt.Errorf("payload of notice: %w", err)
	}

	values, err := n.vault.Reveal(ctx, row.OrgID, authz.SecretUser{Name: p.Notice.Data.DAG}, []string{p.Secret})
	if err != nil {
		return err
	}
	target, key, err := webhook.Target(p.Secret, values[p.Secret].Reveal())
	if err != nil {
		return err
	}
	if _, err := values[p.Secret].For(target); err != nil {
		return err
	}

	req, err := request(ctx, p, target, key)
	if err != nil {
		return err
	}
	resp, err := n.client.Do(req)
	if err != nil {
		var named *url.Error // contains the URL
		if errors.As(err, &named) {
			err = named.Err
		}
		return fmt.Errorf("webhook of secret %s: %w", p.Secret, err)
	}
	defer resp.Body.Close()

	_, _ = io.CopyN(io.Discard, resp.Body, 4<<10) // so that the connection can be used again
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fault.New(fault.Unavailable, "webhook of secret %s answered %d", p.Secret, resp.StatusCode)
	}
	return nil
}

// request returns the signed request that delivers a notice.
func request(ctx context.Context, p notifyPayload, target *url.URL, key string) (*http.Request, error) {
	body, err := json.Marshal(p.Notice)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "secret %s is not a URL to send to", p.Secret)
	}

	stamp := strconv.FormatInt(clock.Now().Unix(), 10)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "dagctl", "Idempotency-Key": p.Notice.ID,
		"webhook-id": p.Notice.ID, "webhook-timestamp": stamp,
		"webhook-signature": webhook.Sign(key, p.Notice.ID, stamp, body),
	} {
		req.Header.Set(name, value)
	}
	return req, nil
}
