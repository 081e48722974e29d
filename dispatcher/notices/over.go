package notices

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// OverEvery is how often a process looks for troubles that are over.
const OverEvery = 15 * time.Second

// openAtOnce is how many open topics are looked at in one transaction.
const openAtOnce = 100

// AnnounceOver looks for troubles that receivers were told of and that are over, in all orgs, and writes notices of it.
func (n *Notices) AnnounceOver(ctx context.Context, now time.Time) (more bool, err error) {
	after := struct {
		org   uuid.UUID
		topic string
	}{}
	for {
		var seen int
		err := pg.InTx(ctx, n.pool, func(ctx context.Context, tx pgx.Tx) error {
			seen = 0
			open, err := openTopics(ctx, tx, after.org, after.topic)
			if err != nil {
				return err
			}

			for _, o := range open {
				if err := o.close(ctx, tx, now); err != nil {
					return err
				}
				after.org, after.topic = o.org, o.topic
				seen++
			}
			return nil
		})
		if err != nil {
			return false, fmt.Errorf("look for troubles that are over: %w", err)
		}
		if seen < openAtOnce {
			return false, nil
		}
	}
}

// openTopic is a topic that a receiver was told of.
type openTopic struct {
	org   uuid.UUID
	topic string
	told  payload
}

// openTopics locks the next open topics; those that another process looks at are left out.
func openTopics(ctx context.Context, tx pgx.Tx, org uuid.UUID, topic string) ([]openTopic, error) {
	rows, err := tx.Query(ctx, `
		SELECT org_id, topic, payload FROM told_notices WHERE (org_id, topic) > ($1, $2)
		ORDER BY org_id, topic LIMIT $3 FOR UPDATE SKIP LOCKED`, org, topic, openAtOnce)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o openTopic, err error) {
		return o, row.Scan(&o.org, &o.topic, &o.told)
	})
}

// close forgets a topic whose trouble is over, and writes a notice of it if the DAG still names the receiver. Notices
// of the trouble that wait are moot.
func (o openTopic) close(ctx context.Context, tx pgx.Tx, now time.Time) error {
	over, err := o.over(ctx, tx)
	if err != nil || !over {
		return err
	}
	forgotten, err := o.forget(ctx, tx)
	if err != nil || !forgotten {
		return err
	}

	listener, err := registry.ListenerOfDAG(ctx, tx, o.org, o.told.Notice.Data.DAG, "")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(listener.Receivers, func(r registry.Receiver) bool { return r.Name() == o.told.Whom }) {
		return nil
	}
	p, data := o.told, o.told.Notice.Data
	p.Checks, p.Count = nil, 0
	p.Notice = newNotice(noticeOver, NoticeData{Org: data.Org, DAG: data.DAG, Job: data.Job, Version: data.Version,
		Dataset: data.Dataset, Over: o.told.Notice.Type}, now)
	return put(ctx, tx, o.org, p, now, now)
}

// forget removes a topic that is over, with the notices of it that wait. It reports false, and removes nothing, if
// there is new trouble of which one of those tells.
func (o openTopic) forget(ctx context.Context, tx pgx.Tx) (forgotten bool, err error) {
	part, err := tx.Begin(ctx)
	if err != nil {
		return false, err
	}
	for _, sql := range []string{
		`DELETE FROM told_notices WHERE org_id = $1 AND topic = $2`,
		`DELETE FROM outbox WHERE kind = 'notify' AND status = 'Pending' AND org_id = $1
			AND payload ->> 'topic' = $2 AND payload #>> '{notice,type}' <> 'over'`,
	} {
		if _, err := part.Exec(ctx, sql, o.org, o.topic); err != nil {
			return false, err
		}
	}

	still, err := o.over(ctx, part)
	if err != nil {
		return false, err
	}
	if !still {
		return false, part.Rollback(ctx)
	}
	return true, part.Commit(ctx)
}

// over reports whether the trouble of a topic is over.
func (o openTopic) over(ctx context.Context, tx pgx.Tx) (over bool, err error) {
	data := o.told.Notice.Data
	switch o.told.Notice.Type {
	case noticeDead:
		err = tx.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM waiting WHERE org_id = $1 AND origin_job_id = $2
			AND reason = 'dead')`, o.org, o.told.Origin).Scan(&over)
		return over, err
	case noticeLate:
		return registry.CaughtUp(ctx, tx, o.org, data.Dataset)
	case noticeFailedDeploy:
		return registry.DeployedSince(ctx, tx, o.org, data.DAG, data.Version)
	case noticeFailedCheck:
		return registry.ChecksPassedSince(ctx, tx, o.told.Checks)
	}
	return true, nil
}
