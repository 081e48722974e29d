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

// Listener is whom a DAG has told of some kind of trouble.
type Listener struct {
	Org     string // slug
	DAG     string
	Job     string   // where it was asked for by job
	Secrets []string // each the name of one that holds a webhook's URL; none: nobody is told
}

// speaking is the version whose `notify` counts for a DAG: the one that serves, or else the newest. It joins v to d, which
// has org_id and dag_name.
const speaking = `
	JOIN LATERAL (
		SELECT v.notify FROM dag_versions v
		LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name AND c.dag_version_id = v.id
		WHERE v.org_id = d.org_id AND v.dag_name = d.dag_name
		ORDER BY c.dag_version_id IS NOT NULL DESC, v.number DESC LIMIT 1) v ON true`

// secretsFor are the secrets of v.notify that are for the kind $1.
const secretsFor = `(SELECT coalesce(array_agg(DISTINCT n ->> 'webhook_secret'), '{}') FROM jsonb_array_elements(v.notify) n WHERE n -> 'on' ? $1)`

// ListenersOfJobs tells, by job, who is told; jobs of which nobody is are left out.
func ListenersOfJobs(ctx context.Context, tx pgx.Tx, jobs []uuid.UUID, on string) (map[uuid.UUID]Listener, error) {
	rows, err := tx.Query(ctx, `
		SELECT d.id, org_slug(d.org_id), d.dag_name, d.name, `+secretsFor+`
		FROM jobs d `+speaking+` WHERE d.id = ANY($2)`, on, jobs)
	if err != nil {
		return nil, fmt.Errorf("find who is told of %s: %w", on, err)
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
		return nil, fmt.Errorf("find who is told of %s: %w", on, err)
	}
	return found, nil
}

// ListenerOfDAG tells who is told by the version that serves.
func ListenerOfDAG(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, on string) (Listener, error) {
	return listener(ctx, tx, on, `
		SELECT org_slug(d.org_id), d.dag_name, `+secretsFor+`
		FROM (SELECT $2::uuid AS org_id, $3::text AS dag_name) d `+speaking, on, org, dagName)
}

// ListenerOfVersion tells who is told by a version, whether or not it serves.
func ListenerOfVersion(ctx context.Context, tx pgx.Tx, org, version uuid.UUID, on string) (Listener, error) {
	return listener(ctx, tx, on, `SELECT org_slug(v.org_id), v.dag_name, `+secretsFor+` FROM dag_versions v WHERE v.org_id = $2 AND v.id = $3`,
		on, org, version)
}

func listener(ctx context.Context, tx pgx.Tx, on, sql string, args ...any) (l Listener, err error) {
	err = tx.QueryRow(ctx, sql, args...).Scan(&l.Org, &l.DAG, &l.Secrets)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return l, fmt.Errorf("find who is told of %s: %w", on, err)
	}
	return l, nil
}

// LateDataset is a published dataset that has come to be late.
type LateDataset struct {
	Dataset  string
	DAG, Job string
	Late     Late
}

// OrgsWithDue lists the orgs that have datasets with `due`.
func OrgsWithDue(ctx context.Context, pool *pgxpool.Pool) ([]uuid.UUID, error) {
	rows, err := pool.Query(ctx, `SELECT DISTINCT org_id FROM datasets WHERE due_within_seconds > 0 AND published AND deleted_at IS NULL ORDER BY org_id`)
	if err != nil {
		return nil, fmt.Errorf("find orgs with due datasets: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// noted is the lateness that a dataset was last announced with. It says nothing of generations: what was announced is not
// announced again because a cutover or a rollback has readers see another one.
type noted struct {
	Partition string    `json:"partition,omitempty"`
	DueAt     time.Time `json:"due_at"`
	Over      bool      `json:"over,omitempty"` // it was not late any more, after that
}

// after is what is noted once a dataset was found late, or not late (nil), and whether it is news. A partition is
// announced once. What has no partitions in time is announced once until it is not late any more; and then only if
// it was due later than what was announced, which what a rollback brings back was not. It is pure.
func (n *noted) after(late *Late) (next *noted, news bool) {
	switch {
	case late == nil:
		if n == nil || n.Over {
			return n, false
		}
		return &noted{n.Partition, n.DueAt, true}, false
	case n != nil && !late.DueAt.After(n.DueAt),
		n != nil && late.Partition != "" && late.Partition == n.Partition,
		n != nil && late.Partition == "" && n.Partition == "" && !n.Over:
		return n, false
	}
	return &noted{Partition: late.Partition, DueAt: late.DueAt}, true
}

// TakeLate lists an org's datasets that are late and were not announced as that, and notes in the caller's transaction
// that they are now. While another does it, there is nothing to be taken.
func TakeLate(ctx context.Context, tx pgx.Tx, org uuid.UUID, now time.Time) ([]LateDataset, error) {
	var mine bool
	if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('late ' || $1::text, 2))`, org.String()).Scan(&mine); err != nil || !mine {
		return nil, err
	}
	// The time of the last publication, which has the whole generation looked at, is for those that go by it.
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.name, d.producer_dag_name, d.producer_job_name, g.id, g.partition_by, d.late_noted,
			CASE WHEN g.partition_by ->> 'kind' IS DISTINCT FROM 'time' THEN
				(SELECT max(r.materialized_at) FROM partition_versions r WHERE r.dataset_version = g.id AND r.state = 'Published') END
		FROM datasets d
		JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.org_id = $1 AND d.due_within_seconds > 0 AND d.published AND d.deleted_at IS NULL
		ORDER BY d.id`, org)
	if err != nil {
		return nil, fmt.Errorf("find due datasets: %w", err)
	}
	var before []*noted
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Dataset, err error) {
		var n *noted
		var by []byte
		err = row.Scan(&d.ID, &d.Name, &d.DAG, &d.Job, &d.Version, &by, &n, &d.UpdatedAt)
		d.PartitionBy, before = by, append(before, n)
		return d, err
	})
	if err != nil {
		return nil, fmt.Errorf("find due datasets: %w", err)
	}
	if err := markLate(ctx, tx, org, found, now); err != nil {
		return nil, err
	}
	var late []LateDataset
	for i, d := range found {
		next, news := before[i].after(d.Late)
		if news {
			late = append(late, LateDataset{d.Name, d.DAG, d.Job, *d.Late})
		}
		if next == before[i] {
			continue
		}
		if _, err := tx.Exec(ctx, `UPDATE datasets SET late_noted = $3 WHERE org_id = $1 AND id = $2`, org, d.ID, next); err != nil {
			return nil, fmt.Errorf("note lateness of %s: %w", d.Name, err)
		}
	}
	return late, nil
}
