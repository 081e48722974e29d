package dispatcher

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
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
)

const (
	noticeBatch   = 16               // are on their way at once, in each process
	noticeTimeout = 10 * time.Second // of one try, unless the config says otherwise
	noticeLease   = time.Minute      // a process that took a notice is given up after this; longer than a try
)

// newNoticeClient makes requests to the webhooks of DAGs: through the dialer, which keeps to public addresses unless the
// server's config allows more, and without following redirects, which could lead elsewhere.
func newNoticeClient(dialer *dial.Dialer, timeout time.Duration) *http.Client {
	client := dialer.Client(timeout)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return client
}

// sendNotices delivers a batch of notices, each at least once. No transaction is open meanwhile: a receiver may take its
// time. What a process took and did not end is tried again after noticeLease.
func (d *Dispatcher) sendNotices(ctx context.Context, now time.Time) (more bool, err error) {
	rows, err := d.Pool.Query(ctx, `
		UPDATE outbox SET available_at = $2 WHERE id IN (
			SELECT id FROM outbox WHERE status = 'Pending' AND available_at <= $1 AND kind = 'notify'
			ORDER BY available_at, id LIMIT $3 FOR UPDATE SKIP LOCKED)
		RETURNING id, org_id, payload, attempts`, now, now.Add(noticeLease), noticeBatch)
	if err != nil {
		return false, fmt.Errorf("take notices: %w", err)
	}
	taken, err := pgx.CollectRows(rows, pgx.RowToStructByPos[outboxRow])
	if err != nil {
		return false, fmt.Errorf("take notices: %w", err)
	}
	var wg sync.WaitGroup
	failed := make([]error, len(taken))
	for i, row := range taken {
		wg.Go(func() { failed[i] = d.sendNotice(ctx, row) })
	}
	wg.Wait()
	return len(taken) == noticeBatch, errors.Join(failed...)
}

// sendNotice tries a notice once, and removes or postpones it.
func (d *Dispatcher) sendNotice(ctx context.Context, row outboxRow) error {
	err := d.postNotice(ctx, row)
	if ctx.Err() != nil {
		return ctx.Err() // it is not the receiver's fault
	}
	if err != nil {
		return d.postpone(ctx, []outboxRow{row}, err, time.Now())
	}
	if _, err := d.Pool.Exec(ctx, `DELETE FROM outbox WHERE id = $1`, row.ID); err != nil {
		return fmt.Errorf("remove notice: %w", err)
	}
	return nil
}

// postNotice sends a notice. Its errors are stored and logged, so they do not say where it was sent: the URL is a secret.
func (d *Dispatcher) postNotice(ctx context.Context, row outboxRow) error {
	var p notifyPayload
	if err := json.Unmarshal(row.Payload, &p); err != nil {
		return fmt.Errorf("payload of notice: %w", err)
	}
	values, err := d.Vault.Reveal(ctx, row.OrgID, p.Notice.Data.DAG, []string{p.Secret})
	if err != nil {
		return err
	}
	target, key, err := noticeTarget(p.Secret, values[p.Secret].Reveal())
	if err != nil {
		return err
	}
	if _, err := values[p.Secret].For(target); err != nil {
		return err
	}
	body, err := json.Marshal(p.Notice)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return fault.New(fault.Invalid, "secret %s is not a URL to send to", p.Secret)
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": "dagctl", "Idempotency-Key": p.Notice.ID,
		"webhook-id": p.Notice.ID, "webhook-timestamp": stamp, "webhook-signature": sign(key, p.Notice.ID, stamp, body),
	} {
		req.Header.Set(name, value)
	}
	resp, err := d.notices.Do(req)
	if err != nil {
		var named *url.Error // says the URL
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

// noticeTarget reads a secret as a URL to send to and the key to sign with: what stands behind #, which is never sent,
// or else the whole text, which nobody but its receiver has either. It is pure.
func noticeTarget(name, text string) (*url.URL, string, error) {
	target, err := url.Parse(text)
	if err != nil || target.Host == "" || target.Scheme != "https" && target.Scheme != "http" {
		return nil, "", fault.New(fault.Invalid, "secret %s is not a URL to send to", name).
			WithHint("set it to https://HOST/PATH, or https://HOST/PATH#KEY to sign with a key of its own")
	}
	key := text
	if target.Fragment != "" {
		key, target.Fragment, target.RawFragment = target.Fragment, "", ""
	}
	return target, key, nil
}
