package notices

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

const (
	// quiet is how long nothing more is told of a topic that was just told of.
	quiet = 5 * time.Minute
	// mostAtOnce and mostOfOrg bound the notices that a process sends at once. A receiver gets one at a time, so that
	// one that hangs takes one place.
	mostAtOnce = 64
	mostOfOrg  = 16

	mostTasks  = 20   // that a notice names
	mostChecks = 1000 // failed checks whose end is looked for
)

// underway is what a process is sending.
type underway struct {
	sync.WaitGroup
	mu        sync.Mutex
	receivers map[string]bool
	byOrg     map[uuid.UUID]int
}

// free returns the number of free places, the receivers that have to wait and the orgs that have no place left.
func (u *underway) free() (places int, busy []string, full []uuid.UUID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	busy, full = []string{}, []uuid.UUID{}
	for r := range u.receivers {
		busy = append(busy, r)
	}
	for org, n := range u.byOrg {
		if n >= mostOfOrg {
			full = append(full, org)
		}
	}
	return mostAtOnce - len(busy), busy, full
}

// begin takes a place, and reports whether the receiver and its org have one.
func (u *underway) begin(org uuid.UUID, receiver string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.receivers[receiver] || u.byOrg[org] >= mostOfOrg {
		return false
	}
	u.receivers[receiver] = true
	u.byOrg[org]++
	return true
}

func (u *underway) end(org uuid.UUID, receiver string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.receivers, receiver)
	if u.byOrg[org]--; u.byOrg[org] == 0 {
		delete(u.byOrg, org)
	}
}

// due is a notice that is to be sent, and its receiver.
type due struct {
	tasks.OutboxRow
	receiver string // with its org
}

// take leases the next notice of each receiver that has a place. It relies on idx_outbox_pending.
func (n *Notices) take(ctx context.Context, now time.Time) (taken []due, err error) {
	places, busy, full := n.under.free()
	rows, err := n.pool.Query(ctx, `
		WITH due AS (
			SELECT DISTINCT ON (org_id, whom) id, org_id, available_at, org_id || ' ' || whom AS whom
			FROM outbox
			CROSS JOIN LATERAL (SELECT coalesce(payload ->> 'receiver', payload ->> 'secret', '')) AS w(whom)
			WHERE status = 'Pending' AND kind = 'notify' AND available_at <= $1
			  AND org_id || ' ' || whom <> ALL($4) AND org_id <> ALL($5)
			ORDER BY org_id, whom, available_at, id),
		next AS (
			SELECT id, whom, available_at, row_number() OVER (PARTITION BY org_id ORDER BY available_at, id) AS turn
			FROM due)
		UPDATE outbox o SET available_at = $2
		FROM (SELECT id, whom FROM next ORDER BY turn, available_at, id LIMIT $3) AS n
		WHERE o.id = n.id AND o.status = 'Pending' AND o.available_at <= $1
		RETURNING o.id, o.org_id, o.payload, o.attempts, n.whom`, now, now.Add(lease), places, busy, full)
	if err != nil {
		return nil, fmt.Errorf("take notices: %w", err)
	}

	var d due
	_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.OrgID, &d.Payload, &d.Attempts, &d.receiver}, func() error {
		taken = append(taken, d)
		d.Payload = nil
		return nil
	})
	return taken, err
}

// join makes one notice of all that are due of the topic of a taken one. It reports false where the topic has to wait:
// it was just told of, or another notice of it is on its way or waits to be tried again. Then they wait together.
func (n *Notices) join(ctx context.Context, d due, p *payload, now time.Time) (send bool, err error) {
	if p.Topic == "" || p.Notice.Type == noticeOver {
		return true, nil
	}
	err = pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) error {
		others, err := absorb(ctx, tx, d, *p, now)
		if err != nil {
			return err
		}
		if len(others) > 0 {
			p.merge(others)
		}

		wait, err := heldUntil(ctx, tx, d, *p, now)
		if err != nil {
			return err
		}
		send = wait == nil
		if len(others) == 0 && send {
			return nil
		}
		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE outbox SET payload = $2, available_at = coalesce($3, available_at) WHERE id = $1`,
			d.ID, text, wait)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("join the notices of %s: %w", p.Topic, err)
	}
	return send, nil
}

// absorb removes the other notices of a topic that are due, and returns what they say. Others may be taking one: those
// are left alone. It relies on idx_outbox_topics.
func absorb(ctx context.Context, tx pgx.Tx, d due, p payload, now time.Time) ([]payload, error) {
	rows, err := tx.Query(ctx, `
		DELETE FROM outbox WHERE id IN (
			SELECT id FROM outbox
			WHERE kind = 'notify' AND status = 'Pending' AND org_id = $1 AND payload ->> 'topic' = $2 AND id <> $3
			  AND available_at <= $4 AND payload #>> '{notice,type}' <> 'over'
			FOR UPDATE SKIP LOCKED)
		RETURNING payload`, d.OrgID, p.Topic, d.ID, now)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[payload])
}

// heldUntil returns until when a notice has to wait; nil: it may be sent.
func heldUntil(ctx context.Context, tx pgx.Tx, d due, p payload, now time.Time) (until *time.Time, err error) {
	if d.Attempts > 0 {
		return nil, nil
	}
	err = tx.QueryRow(ctx, `
		SELECT greatest(
			(SELECT told_at + make_interval(secs => $4) FROM told_notices WHERE org_id = $1 AND topic = $2),
			(SELECT max(available_at) FROM outbox WHERE kind = 'notify' AND status = 'Pending' AND org_id = $1
			   AND payload ->> 'topic' = $2 AND id <> $3 AND (attempts > 0 OR available_at > $5)))`,
		d.OrgID, p.Topic, d.ID, quiet.Seconds(), now.Add(2*gather)).Scan(&until)
	if err != nil || until == nil || !until.After(now) {
		return nil, err
	}
	return until, nil
}

// merge adds what other notices of the same topic say. What is said anew has an id of its own: a receiver that has seen
// the former one would drop it.
func (p *payload) merge(others []payload) {
	for _, o := range others {
		p.Count += o.Count
		p.Checks = append(p.Checks, o.Checks...)
		if p.Notice.Type == noticeDead {
			p.Notice.Data.Tasks = append(p.Notice.Data.named(), o.Notice.Data.named()...)
		}
		if o.Notice.At.After(p.Notice.At) {
			tasks := p.Notice.Data.Tasks
			p.Notice = o.Notice
			p.Notice.Data.Tasks = tasks
		}
	}
	p.Checks = p.Checks[:min(len(p.Checks), mostChecks)]
	p.Notice.ID, p.Notice.Data.Count = newID(), p.Count
	p.Notice.Data.Tasks = p.Notice.Data.Tasks[:min(len(p.Notice.Data.Tasks), mostTasks)]
}

// named returns the tasks that a notice names.
func (d NoticeData) named() []uuid.UUID {
	if len(d.Tasks) == 0 && d.TaskID != nil {
		return []uuid.UUID{*d.TaskID}
	}
	return d.Tasks
}

// told notes that a receiver has been told of a topic, whose end is to be told as well.
func (n *Notices) told(ctx context.Context, d due, p payload, now time.Time) error {
	if p.Topic == "" || p.Notice.Type == noticeOver {
		return nil
	}
	err := pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) error {
		var before payload
		err := tx.QueryRow(ctx, `SELECT payload FROM told_notices WHERE org_id = $1 AND topic = $2 FOR UPDATE`,
			d.OrgID, p.Topic).Scan(&before)
		if err == nil {
			p.Checks = latest(append(before.Checks, p.Checks...))
		} else if !errors.Is(err, pgx.ErrNoRows) {
			return err
		}

		text, err := json.Marshal(p)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO told_notices (org_id, topic, dag_name, payload, told_at) VALUES ($1, $2, $3, $4, $5)
			ON CONFLICT (org_id, topic) DO UPDATE SET payload = EXCLUDED.payload, told_at = EXCLUDED.told_at`,
			d.OrgID, p.Topic, p.Notice.Data.DAG, text, now)
		return err
	})
	if err != nil {
		return fmt.Errorf("note what was told of %s: %w", p.Topic, err)
	}
	return nil
}

// latest returns the last checked revisions, each partition once.
func latest(checks []registry.CheckedRevision) (list []registry.CheckedRevision) {
	type partition struct {
		version uuid.UUID
		key     string
	}
	seen := map[partition]bool{}
	for i := len(checks) - 1; i >= 0 && len(list) < mostChecks; i-- {
		of := partition{checks[i].Version, checks[i].Key}
		if !seen[of] {
			seen[of] = true
			list = append(list, checks[i])
		}
	}
	return list
}
