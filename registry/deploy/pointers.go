package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// InWork reports whether a version that was listed as a build still is one. While the caller holds the DAG's lock, the
// answer stays true.
func InWork(ctx context.Context, tx pgx.Tx, b registry.Build) (is bool, err error) {
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND id = $2 AND (status = 'Building' OR status = 'Ready' AND activate))`,
		b.OrgID, b.ID).Scan(&is)
	if err != nil {
		return false, fmt.Errorf("version %d of %s: %w", b.Number, b.DAG, err)
	}
	return is, nil
}

// ServesByItself reports whether a build is cut over to once it is ready; the answer stays true while the caller holds
// the DAG's lock.
func ServesByItself(ctx context.Context, tx pgx.Tx, b registry.Build) (does bool, err error) {
	err = tx.QueryRow(ctx, `SELECT activate FROM dag_versions WHERE org_id = $1 AND id = $2`, b.OrgID, b.ID).Scan(&does)
	if err != nil {
		return false, fmt.Errorf("version %d of %s: %w", b.Number, b.DAG, err)
	}
	return does, nil
}

// Builds lists the versions that are to become active: those being built, and ready ones that do not wait for a
// promotion.
func Builds(ctx context.Context, tx pgx.Tx) ([]registry.Build, error) {
	rows, err := tx.Query(ctx, `
		SELECT id, org_id, dag_name, number, status, activate, created_by, building_at, consents
		FROM dag_versions WHERE status = 'Building' OR status = 'Ready' AND activate
		ORDER BY building_at`)
	if err != nil {
		return nil, fmt.Errorf("list builds: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[registry.Build])
}

// Undecided is a partition whose newest revision readers do not see.
type Undecided struct {
	registry.Ref
	Revision int64
	Held     bool       // its checks are pending; otherwise they rejected it
	Decided  *time.Time // when the checks decided
}

// Unsettled lists the partitions of generations whose newest revision is held or rejected.
func Unsettled(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) ([]Undecided, error) {
	return unsettled(ctx, tx, `
		SELECT DISTINCT ON (dataset_version, partition_key) dataset_version, partition_key, revision, state
		FROM partition_versions WHERE dataset_version = ANY($1)
		ORDER BY dataset_version, partition_key, revision DESC`, generations)
}

// UnsettledAmong lists those of some partitions whose newest revision is held or rejected.
func UnsettledAmong(ctx context.Context, tx pgx.Tx, some []registry.Ref) ([]Undecided, error) {
	if len(some) == 0 {
		return nil, nil
	}
	generations, keys := make([]uuid.UUID, len(some)), make([]string, len(some))
	for i, r := range some {
		generations[i], keys[i] = r.Version, r.Key
	}
	return unsettled(ctx, tx, `
		SELECT n.* FROM (SELECT DISTINCT version, key FROM unnest($1::uuid[], $2::text[]) AS w(version, key)) AS w
		CROSS JOIN LATERAL (SELECT p.dataset_version, p.partition_key, p.revision, p.state FROM partition_versions p
			WHERE p.dataset_version = w.version AND p.partition_key = w.key ORDER BY p.revision DESC LIMIT 1) AS n`,
		generations, keys)
}

// unsettled lists those of the newest revisions that a statement selects which are held or rejected.
func unsettled(ctx context.Context, tx pgx.Tx, newest string, args ...any) ([]Undecided, error) {
	rows, err := tx.Query(ctx, `
		SELECT n.dataset_version, n.partition_key, n.revision, n.state = 'Held',
		       (SELECT max(c.at) FROM check_results c WHERE c.dataset_version = n.dataset_version
		          AND c.partition_key = n.partition_key AND c.revision = n.revision)
		FROM (`+newest+`) AS n
		WHERE n.state IN ('Held', 'Rejected')
		ORDER BY 1, 2`, args...)
	if err != nil {
		return nil, fmt.Errorf("unsettled partitions: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (u Undecided, err error) {
		return u, row.Scan(&u.Version, &u.Key, &u.Revision, &u.Held, &u.Decided)
	})
}

// HoldAgain holds a rejected revision for another check, because the checks may have changed.
func HoldAgain(ctx context.Context, tx pgx.Tx, ref registry.Ref, revision int64) error {
	return HoldAllAgain(ctx, tx, []registry.Ref{ref}, []int64{revision})
}

// HoldAllAgain is HoldAgain for many revisions: the one of each partition.
func HoldAllAgain(ctx context.Context, tx pgx.Tx, partitions []registry.Ref, revisions []int64) error {
	versions, keys := make([]uuid.UUID, len(partitions)), make([]string, len(partitions))
	for i, p := range partitions {
		versions[i], keys[i] = p.Version, p.Key
	}
	_, err := tx.Exec(ctx, `
		UPDATE partition_versions p SET state = 'Held', ended_at = NULL
		FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS w(version, key, revision)
		WHERE p.dataset_version = w.version AND p.partition_key = w.key AND p.revision = w.revision
		  AND p.state = 'Rejected' AND p.purged_at IS NULL`, versions, keys, revisions)
	if err != nil {
		return fmt.Errorf("hold %d revisions again: %w", len(partitions), err)
	}
	return nil
}

// FailedChecks describes for people which of a job's checks keep a revision of one of its outputs from being published:
// counts, never rows. What other versions of the job checked does not count.
func FailedChecks(
	ctx context.Context, tx pgx.Tx, job *registry.Job, output int, ref registry.Ref, revision int64,
) (string, error) {
	var names []string
	for _, c := range job.Def.Checks {
		if c.Output == output && c.Severity == "error" {
			names = append(names, c.Name)
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT name, failures, coalesce(sample, 'null'), coalesce(error, '')
		FROM check_results WHERE dataset_version = $1 AND partition_key = $2 AND revision = $3
		AND severity = 'error' AND outcome <> 'pass' AND name = ANY($4) ORDER BY name`,
		ref.Version, ref.Key, revision, names)
	if err != nil {
		return "", fmt.Errorf("failed checks: %w", err)
	}
	var (
		texts []string
		r     registry.CheckResult
	)
	_, err = pgx.ForEachRow(rows, []any{&r.Name, &r.Failures, &r.Sample, &r.Error}, func() error {
		texts = append(texts, r.Name+": "+r.Failed(job.Def.Checks))
		return nil
	})
	return strings.Join(texts, "; "), err
}

// MarkReady takes a version from Building to Ready, with its contract, which is complete now, and reports whether it
// was still building. A version that is built again keeps the contract that it has.
func MarkReady(
	ctx context.Context, tx pgx.Tx, b registry.Build, c contract.Contract, now time.Time,
) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Ready', ready_at = $3, contract = coalesce(contract, $4) WHERE org_id = $1 AND id = $2 AND status = 'Building'`,
		b.OrgID, b.ID, now, c)
	return tag.RowsAffected() == 1, err
}

// MarkFailed takes a version from Building or Ready to Failed, and reports whether it did. What the version built
// stays, so that deploying it again continues from there.
func MarkFailed(ctx context.Context, tx pgx.Tx, b registry.Build, reason string) (bool, error) {
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Failed', error = $3, ended_at = now() WHERE org_id = $1 AND id = $2 AND status IN ('Building', 'Ready')`,
		b.OrgID, b.ID, reason)
	return tag.RowsAffected() == 1, err
}

// NoteDelay records what keeps a version that is ready from being cut over to; "" takes it back. It is the version's
// error until the cutover, which removes it.
func NoteDelay(ctx context.Context, tx pgx.Tx, b registry.Build, text string) error {
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET error = NULLIF($3, '') WHERE org_id = $1 AND id = $2
		AND status IN ('Building', 'Ready') AND error IS DISTINCT FROM NULLIF($3, '')`, b.OrgID, b.ID, text)
	if err != nil {
		return fmt.Errorf("note what delays %s v%d: %w", b.DAG, b.Number, err)
	}
	return nil
}

// The reasons of an activation.
const (
	ByDeploy   = "deploy"
	ByPromote  = "promote"
	ByRollback = "rollback"
)

// Cutover moves every pointer of the DAG to another version, in the caller's transaction, which holds the DAG's lock:
// forward to one that is ready, or back to one that served before. Names and catalogue entries follow the pointers. It
// returns false if the version is no longer in that state, or one of its generations was purged. It refuses what
// RefuseMisfits refuses.
func Cutover(ctx context.Context, tx pgx.Tx, b registry.Build, reason, actor string, now time.Time) (bool, error) {
	from := []registry.Status{registry.Ready}
	if reason == ByRollback {
		from = ended
	}
	tag, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Active', activated_at = $3, error = NULL WHERE org_id = $1 AND id = $2 AND status = ANY($4)
		AND NOT EXISTS (SELECT FROM dag_version_datasets p JOIN dataset_versions g ON g.id = p.dataset_version
		                WHERE p.dag_version_id = $2 AND g.purged_at IS NOT NULL)`, b.OrgID, b.ID, now, from)
	if err != nil || tag.RowsAffected() == 0 {
		return false, err
	}
	if err := RefuseMisfits(ctx, tx, b); err != nil {
		return false, err
	}

	previous, err := movePointer(ctx, tx, b, reason == ByRollback, now)
	if err != nil {
		return false, fmt.Errorf("cut over to %s v%d: %w", b.DAG, b.Number, err)
	}

	activation := uuid.Must(uuid.NewV7())
	if _, err := tx.Exec(ctx, `
		INSERT INTO dag_activations (id, org_id, dag_name, dag_version_id, from_version_id, reason, actor, at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		activation, b.OrgID, b.DAG, b.ID, previous, reason, actor, now); err != nil {
		return false, fmt.Errorf("record activation: %w", err)
	}
	if err := keepEpochs(ctx, tx, b); err != nil {
		return false, err
	}
	return true, moveNames(ctx, tx, b, activation, now)
}

// movePointer makes a version the DAG's current one, and returns the version that it replaces.
func movePointer(ctx context.Context, tx pgx.Tx, b registry.Build, back bool,
	now time.Time) (previous *uuid.UUID, err error) {
	err = tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2 FOR UPDATE`,
		b.OrgID, b.DAG).Scan(&previous)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	if !back {
		if err := checkServing(ctx, tx, b, previous); err != nil {
			return nil, err
		}
	}

	if previous != nil {
		if _, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Superseded', ended_at = $3 WHERE org_id = $1 AND id = $2 AND status = 'Active'`,
			b.OrgID, *previous, now); err != nil {
			return nil, err
		}
	}

	_, err = tx.Exec(ctx, `
		INSERT INTO dag_current_versions (org_id, dag_name, dag_version_id, updated_at) VALUES ($1, $2, $3, $4)
		ON CONFLICT (org_id, dag_name) DO UPDATE SET previous_version_id = dag_current_versions.dag_version_id,
			dag_version_id = EXCLUDED.dag_version_id, rollback_until = $5, updated_at = EXCLUDED.updated_at`,
		b.OrgID, b.DAG, b.ID, now, now.Add(registry.RollbackWindow))
	if err != nil {
		return nil, err
	}
	return previous, rebase(ctx, tx, b)
}

// EndTasks returns the origins whose tasks the DAG wants no longer: those of versions that ended since it was last
// called, unless the active version or one being built uses them too. The caller cancels their tasks. Its cost follows
// what has ended, not the DAG's history: it relies on idx_dag_versions_tasks and idx_dag_versions_open.
func EndTasks(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		WITH over AS (
			UPDATE dag_versions SET tasks_ended_at = ended_at
			WHERE org_id = $1 AND dag_name = $2 AND tasks_end AND status = ANY($3)
			RETURNING id)
		SELECT j.origin_job_id FROM over o JOIN jobs j ON j.dag_version_id = o.id
		EXCEPT
		SELECT u.origin_job_id FROM dag_versions v JOIN jobs u ON u.dag_version_id = v.id
		WHERE v.org_id = $1 AND v.dag_name = $2 AND v.status IN ('Building', 'Ready', 'Active')`,
		org, dagName, ended)
	if err != nil {
		return nil, fmt.Errorf("unused origins of %s: %w", dagName, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// Unwanted returns those of some origins that are a DAG's and neither in a version in work nor in the one that is kept.
func Unwanted(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, among []uuid.UUID, kept uuid.UUID,
) ([]uuid.UUID, error) {
	if len(among) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT j.origin_job_id FROM jobs j JOIN dag_versions v ON v.id = j.dag_version_id
		WHERE j.origin_job_id = ANY($3) AND v.org_id = $1 AND v.dag_name = $2
		GROUP BY 1 HAVING NOT bool_or(v.status IN ('Building', 'Ready', 'Active') OR v.id = $4)`,
		org, dagName, among, kept)
	if err != nil {
		return nil, fmt.Errorf("unwanted origins of %s: %w", dagName, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}
