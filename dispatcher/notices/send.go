package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/notices/formats"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

const (
	tryTimeout = 10 * time.Second // bounds one try, unless the config says otherwise
	lease      = time.Minute      // longer than a try
	lookEvery  = time.Second      // for notices that are due
)

// Run delivers notices until ctx ends. No receiver waits for another one.
func (n *Notices) Run(ctx context.Context) error {
	defer n.under.Wait()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		if err := n.start(ctx, clock.Now()); err != nil && ctx.Err() == nil {
			n.log.Error("notices could not be sent, will try again", "error", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// Send delivers the next notice of each receiver, and waits for that.
func (n *Notices) Send(ctx context.Context, now time.Time) error {
	err := n.start(ctx, now)
	n.under.Wait()
	return err
}

// start begins to deliver the next notice of each receiver.
func (n *Notices) start(ctx context.Context, now time.Time) error {
	taken, err := n.take(ctx, now)
	if err != nil {
		return err
	}

	for _, d := range taken {
		if !n.under.begin(d.OrgID, d.receiver) {
			continue // its lease ends
		}
		n.under.Go(func() {
			defer n.under.end(d.OrgID, d.receiver)
			if err := n.deliver(ctx, d, now); err != nil && ctx.Err() == nil {
				n.log.Error("notice was not delivered", "org", d.OrgID, "error", err)
			}
		})
	}
	return nil
}

// deliver tries once to send a notice with all others of its topic, and removes or postpones it. No transaction is open
// while a receiver takes its time.
func (n *Notices) deliver(ctx context.Context, d due, now time.Time) error {
	var p payload
	if err := json.Unmarshal(d.Payload, &p); err != nil {
		return n.tasks.Postpone(ctx, []tasks.OutboxRow{d.OutboxRow}, fmt.Errorf("payload of notice: %w", err), now)
	}
	if p.Receiver.Secret == "" {
		p.Receiver.Secret = p.Secret // of a server of the build before
	}
	send, err := n.join(ctx, d, &p, now)
	if err != nil || !send {
		return err
	}
	if err := n.explain(ctx, d, &p); err != nil {
		return err
	}

	_, err = n.post(ctx, d.OrgID, p)
	if ctx.Err() != nil {
		return ctx.Err() // it is not the receiver's fault
	}
	if err != nil {
		return n.tasks.Postpone(ctx, []tasks.OutboxRow{d.OutboxRow}, err, now)
	}
	if err := n.told(ctx, d, p, now); err != nil {
		return err
	}
	return n.tasks.Delivered(ctx, d.OutboxRow)
}

// explain adds the error of what a notice tells of, unless not everybody in the org may read what may be in it, and the
// page that says more. Neither is stored with the notice.
func (n *Notices) explain(ctx context.Context, d due, p *payload) error {
	data := &p.Notice.Data
	data.Link = n.link(p.Notice)
	if p.Notice.Type != noticeDead && p.Notice.Type != noticeFailedDeploy {
		return nil
	}

	err := pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) error {
		restricted, err := registry.Restricted(ctx, tx, d.OrgID, data.DAG, data.Job)
		if err != nil || restricted {
			return err
		}
		if p.Notice.Type == noticeFailedDeploy {
			data.Error, err = registry.FailureOf(ctx, tx, d.OrgID, data.DAG, data.Version)
			return err
		}
		err = tx.QueryRow(ctx, `SELECT coalesce(error_message, '') FROM tasks WHERE org_id = $1 AND id = $2`,
			d.OrgID, data.TaskID).Scan(&data.Error)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("explain notice %s: %w", p.Notice.ID, err)
	}
	data.Error = formats.Cut(fault.Headline(data.Error), longestError)
	return nil
}

const longestError = 2000 // characters

// errUnknownFormat is that of a notice of a server of a later build.
func errUnknownFormat(format string) error {
	return fault.New(fault.Invalid, "this server knows no notices of the format %s", format)
}
