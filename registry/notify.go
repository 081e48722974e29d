package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Listener says whom a DAG notifies of one kind of trouble.
type Listener struct {
	Org     string // slug
	DAG     string
	Job     string   // set by ListenersOfJobs
	Secrets []string // names of the secrets that hold the webhooks' URLs; empty: nobody is notified
}

// speaking joins the version v whose `notify` counts for a DAG, the serving one or else the newest, to d, which has
// org_id and dag_name.
const speaking = `
	JOIN LATERAL (
		SELECT v.notify FROM dag_versions v
		LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name AND c.dag_version_id = v.id
		WHERE v.org_id = d.org_id AND v.dag_name = d.dag_name
		ORDER BY c.dag_version_id IS NOT NULL DESC, v.number DESC LIMIT 1) v ON true`

// secretsFor selects the secrets of v.notify for the kind $1.
const secretsFor = `(SELECT coalesce(array_agg(DISTINCT n ->> 'webhook_secret'), '{}')
	    FROM jsonb_array_elements(v.notify) n WHERE n -> 'on' ? $1)`

// ListenersOfJobs returns, by job, who is notified. Jobs for which nobody is notified are left out.
func ListenersOfJobs(ctx context.Context, tx pgx.Tx, jobs []uuid.UUID, on string) (map[uuid.UUID]Listener, error) {
	rows, err := tx.Query(ctx, `
		SELECT d.id, org_slug(d.org_id), d.dag_name, d.name, `+secretsFor+`
		FROM jobs d `+speaking+` WHERE d.id = ANY($2)`, on, jobs)
	if err != nil {
		return nil, fmt.Errorf("find the listeners for %s: %w", on, err)
	}

	found := map[uuid.UUID]Listener{}
	var (
		id uuid.UUID
		l  Listener
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &l.Org, &l.DAG, &l.Job, &l.Secrets}, func() error {
		if len(l.Secrets) > 0 {
			found[id] = l
		}
		l.Secrets = nil
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find the listeners for %s: %w", on, err)
	}
	return found, nil
}

// ListenerOfDAG returns whom the serving version notifies.
func ListenerOfDAG(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, on string) (Listener, error) {
	return listener(ctx, tx, on, `
		SELECT org_slug(d.org_id), d.dag_name, `+secretsFor+`
		FROM (SELECT $2::uuid AS org_id, $3::text AS dag_name) d `+speaking, on, org, dagName)
}

// ListenerOfVersion returns whom a version notifies, whether or not it serves.
func ListenerOfVersion(ctx context.Context, tx pgx.Tx, org, version uuid.UUID, on string) (Listener, error) {
	return listener(ctx, tx, on, `SELECT org_slug(v.org_id), v.dag_name, `+secretsFor+` FROM dag_versions v
		WHERE v.org_id = $2 AND v.id = $3`,
		on, org, version)
}

func listener(ctx context.Context, tx pgx.Tx, on, sql string, args ...any) (l Listener, err error) {
	err = tx.QueryRow(ctx, sql, args...).Scan(&l.Org, &l.DAG, &l.Secrets)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return l, fmt.Errorf("find the listeners for %s: %w", on, err)
	}
	return l, nil
}

// LateDataset is a published dataset that has become late.
type LateDataset struct {
	Dataset  string
	DAG, Job string
	Late     Late
}

// OrgsWithDue lists the orgs that have datasets with `due`.
func OrgsWithDue(ctx context.Context, pool *pgxpool.Pool) ([]uuid.UUID, error) {
	rows, err := pool.Query(ctx, `SELECT DISTINCT org_id FROM datasets
		WHERE due_within_seconds > 0 AND published AND deleted_at IS NULL ORDER BY org_id`)
	if err != nil {
		return nil, fmt.Errorf("find orgs with due datasets: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// Noted is the lateness that was last announced for a dataset. It does not depend on the generation, so a cutover or a
// rollback does not cause the same lateness to be announced again.
type Noted struct {
	Partition string    `json:"partition,omitempty"`
	DueAt     time.Time `json:"due_at"`
	Over      bool      `json:"over,omitempty"` // the dataset has caught up since
}

// After returns what to note when a dataset is found late, or not late (nil), and whether to announce it. A partition
// is announced once. A dataset without partitions in time is announced once, and again only after it has caught up and
// if it was due later than announced before, because a rollback brings back older data. It is pure.
func (n *Noted) After(late *Late) (next *Noted, news bool) {
	switch {
	case late == nil:
		if n == nil || n.Over {
			return n, false
		}
		return &Noted{n.Partition, n.DueAt, true}, false
	case n != nil && !late.DueAt.After(n.DueAt),
		n != nil && late.Partition != "" && late.Partition == n.Partition,
		n != nil && late.Partition == "" && n.Partition == "" && !n.Over:
		return n, false
	}

	return &Noted{Partition: late.Partition, DueAt: late.DueAt}, true
}

// TakeLate returns an org's datasets that are late and not yet announced, and notes in the caller's transaction that
// they are announced now. While another process does this, it returns nothing.
func TakeLate(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) ([]LateDataset, error) {
	var mine bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('late ' || $1::text, 2))`,
		org.String()).Scan(&mine); err != nil || !mine {
		return nil, err
	}

	// Finding the last publication reads the whole generation, so only datasets whose lateness depends on it ask for
	// it.
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.name, d.producer_dag_name, d.producer_job_name, g.id, g.partition_by, d.late_noted,
			CASE WHEN g.partition_by ->> 'kind' IS DISTINCT FROM 'time' THEN
				(SELECT max(r.materialized_at) FROM partition_versions r
				    WHERE r.dataset_version = g.id AND r.state = 'Published') END
		FROM datasets d
		JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.org_id = $1 AND d.due_within_seconds > 0 AND d.published AND d.deleted_at IS NULL
		ORDER BY d.id`, org)
	if err != nil {
		return nil, fmt.Errorf("find due datasets: %w", err)
	}

	var before []*Noted
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Dataset, err error) {
		var n *Noted
		var by []byte
		err = row.Scan(&d.ID, &d.Name, &d.DAG, &d.Job, &d.Version, &by, &n, &d.UpdatedAt)
		d.PartitionBy, before = by, append(before, n)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("find due datasets: %w", err)
	}

	if err := MarkLate(ctx, tx, org, found, now); err != nil {
		return nil, err
	}

	var late []LateDataset
	for i, d := range found {
		next, news := before[i].After(d.Late)
		if news {
			late = append(late, LateDataset{d.Name, d.DAG, d.Job, *d.Late})
		}
		if next == before[i] {
			continue
		}
		if _, err := tx.Exec(ctx, `UPDATE datasets SET late_noted = $3 WHERE org_id = $1 AND id = $2`, org, d.ID,
			next); err != nil {
			return nil, fmt.Errorf("note lateness of %s: %w", d.Name, err)
		}
	}
	return late, nil
}
