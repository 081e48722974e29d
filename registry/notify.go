package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/dag"
)

// Listener says whom a DAG notifies of one kind of trouble.
type Listener struct {
	Org       string // slug
	DAG       string
	Job       string     // set by ListenersOfJobs
	Receivers []Receiver // empty: nobody is notified
}

// Receiver is one that a DAG notifies. Its fields have the names that they have in dag_versions.notify.
type Receiver struct {
	Secret string   `json:"webhook_secret"`   // name of the secret that holds the address, bound to the DAG
	Format string   `json:"format,omitempty"` // empty: webhook
	To     []string `json:"to,omitempty"`     // of an e-mail
	From   string   `json:"from,omitempty"`   // of an e-mail
}

// Name returns a text that differs for each two receivers of a DAG.
func (r Receiver) Name() string {
	return strings.Join(append([]string{cmp.Or(r.Format, dag.NotifyWebhook), r.Secret, r.From}, r.To...), " ")
}

// CompareReceivers orders receivers by their names.
func CompareReceivers(a, b Receiver) int { return strings.Compare(a.Name(), b.Name()) }

// speaking joins the version v whose `notify` counts for a DAG, the serving one or else the newest, to d, which has
// org_id and dag_name.
const speaking = `
	JOIN LATERAL (
		SELECT v.notify FROM dag_versions v
		LEFT JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name AND c.dag_version_id = v.id
		WHERE v.org_id = d.org_id AND v.dag_name = d.dag_name
		ORDER BY c.dag_version_id IS NOT NULL DESC, v.number DESC LIMIT 1) v ON true`

// receiversFor selects the receivers of v.notify for the kind $1, or for any, where that is empty.
const receiversFor = `(SELECT coalesce(jsonb_agg(DISTINCT n - 'on'), '[]')
	    FROM jsonb_array_elements(v.notify) n WHERE n -> 'on' ? $1 OR $1 = '')`

// ListenersOfJobs returns, by job, who is notified. Jobs for which nobody is notified are left out.
func ListenersOfJobs(ctx context.Context, tx pgx.Tx, jobs []uuid.UUID, on string) (map[uuid.UUID]Listener, error) {
	rows, err := tx.Query(ctx, `
		SELECT d.id, org_slug(d.org_id), d.dag_name, d.name, `+receiversFor+`
		FROM jobs d `+speaking+` WHERE d.id = ANY($2)`, on, jobs)
	if err != nil {
		return nil, fmt.Errorf("find the listeners for %s: %w", on, err)
	}

	found := map[uuid.UUID]Listener{}
	var (
		id uuid.UUID
		l  Listener
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &l.Org, &l.DAG, &l.Job, &l.Receivers}, func() error {
		if len(l.Receivers) > 0 {
			found[id] = l
		}
		l.Receivers = nil
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
		SELECT org_slug(d.org_id), d.dag_name, `+receiversFor+`
		FROM (SELECT $2::uuid AS org_id, $3::text AS dag_name) d `+speaking, on, org, dagName)
}

// ListenerOfVersion returns whom a version notifies, whether or not it serves.
func ListenerOfVersion(ctx context.Context, tx pgx.Tx, org, version uuid.UUID, on string) (Listener, error) {
	return listener(ctx, tx, on, `SELECT org_slug(v.org_id), v.dag_name, `+receiversFor+` FROM dag_versions v
		WHERE v.org_id = $2 AND v.id = $3`,
		on, org, version)
}

func listener(ctx context.Context, tx pgx.Tx, on, sql string, args ...any) (l Listener, err error) {
	err = tx.QueryRow(ctx, sql, args...).Scan(&l.Org, &l.DAG, &l.Receivers)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return l, fmt.Errorf("find the listeners for %s: %w", on, err)
	}
	return l, nil
}

// Restricted reports whether a job, or some job of a DAG where none is named, works with data that not everybody in the
// org may read: its errors may contain it.
func Restricted(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, job string) (restricted bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM jobs j WHERE j.org_id = $1 AND j.dag_name = $2 AND ($3 = '' OR j.name = $3)
			AND j.id IN (SELECT hidden_jobs($1, '{}')))`, org, dagName, job).Scan(&restricted)
	if err != nil {
		return false, fmt.Errorf("look whether %s/%s works with restricted data: %w", dagName, job, err)
	}
	return restricted, nil
}

// FailureOf returns why a version failed; empty, if it is not there any more.
func FailureOf(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, number int) (text string, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(error, '') FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND number = $3`, org, dagName, number).Scan(&text)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read why %s v%d failed: %w", dagName, number, err)
	}
	return text, nil
}

// DeployedSince reports whether a deploy of a DAG has come to something after the version of a number failed, or the
// DAG is not there any more.
func DeployedSince(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, number int) (over bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2)
			OR EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND number > $3
				AND status NOT IN ('Staged', 'Building', 'Failed'))`, org, dagName, number).Scan(&over)
	if err != nil {
		return false, fmt.Errorf("look for deploys of %s after v%d: %w", dagName, number, err)
	}
	return over, nil
}

// CaughtUp reports whether a dataset that was announced as late is not late any more.
func CaughtUp(ctx context.Context, tx pgx.Tx, org uuid.UUID, dataset string) (over bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM datasets WHERE org_id = $1 AND name = $2 AND published AND deleted_at IS NULL
			AND due_within_seconds > 0 AND late_noted ->> 'over' IS DISTINCT FROM 'true')`, org, dataset).Scan(&over)
	if err != nil {
		return false, fmt.Errorf("look whether %s has caught up: %w", dataset, err)
	}
	return over, nil
}

// CheckedRevision is a revision of a partition that has failed checks.
type CheckedRevision struct {
	Version  uuid.UUID `json:"version"`
	Key      string    `json:"key"`
	Revision int64     `json:"revision"`
}

// ChecksPassedSince reports whether all partitions of some failed checks have passed them with a later revision, or are
// not those of a version any more that serves or is to.
func ChecksPassedSince(ctx context.Context, tx pgx.Tx, failed []CheckedRevision) (over bool, err error) {
	err = tx.QueryRow(ctx, `
		SELECT NOT EXISTS (
			SELECT FROM jsonb_to_recordset($1) AS f(version uuid, key text)
			WHERE EXISTS (
				SELECT FROM check_results c
				WHERE c.dataset_version = f.version AND c.partition_key = f.key AND c.outcome <> 'pass'
				  AND c.revision = (SELECT max(m.revision) FROM check_results m
				      WHERE m.dataset_version = f.version AND m.partition_key = f.key))
			  AND EXISTS (
				SELECT FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id
				WHERE p.dataset_version = f.version AND v.status IN ('Building', 'Ready', 'Active')))`, failed).Scan(&over)
	if err != nil {
		return false, fmt.Errorf("look whether failed checks have passed since: %w", err)
	}
	return over, nil
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
