package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// ended are the statuses in which a version that has served can be rolled back to: a build of the same document that
// failed or was abandoned since takes nothing away from it.
var ended = []registry.Status{registry.Superseded, registry.Failed, registry.Abandoned}

// RollbackTarget finds the version to roll back to: the one that served before the active one, or the one numbered to.
// It must have served, and all of its generations must still exist.
func RollbackTarget(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, to *int) (registry.Build, error) {
	var (
		b      registry.Build
		served bool
		purged []string
		shrunk *time.Time
	)
	err := tx.QueryRow(ctx, `
		SELECT v.id, v.org_id, v.dag_name, v.number, v.status, v.activate, v.created_by, v.building_at,
		    v.activated_at IS NOT NULL,
		       array(SELECT p.name FROM dag_version_datasets p JOIN dataset_versions g ON g.id = p.dataset_version
		             WHERE p.dag_version_id = v.id AND g.purged_at IS NOT NULL ORDER BY p.name), v.shrunk_at
		FROM dag_versions v
		WHERE v.org_id = $1 AND v.dag_name = $2 AND CASE WHEN $3::int IS NULL
			THEN v.id = (SELECT previous_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2)
			ELSE v.number = $3 END`, org, dagName, to).
		Scan(&b.ID, &b.OrgID, &b.DAG, &b.Number, &b.Status, &b.Activate, &b.CreatedBy, &b.Started, &served, &purged,
			&shrunk)
	switch {
	case errors.Is(err, pgx.ErrNoRows) && to == nil:
		return b, orAbandon(ctx, tx, org, dagName,
			fault.New(fault.Conflict, "no version of %s served before the active one", dagName))
	case errors.Is(err, pgx.ErrNoRows):
		return b, fault.New(fault.NotFound, "%s has no version %d", dagName, *to).
			WithHint("`dagctl history %s` lists its versions", dagName)
	case err != nil:
		return b, fmt.Errorf("find version to roll back to: %w", err)
	case b.Status == registry.Active:
		return b, orAbandon(ctx, tx, org, dagName,
			fault.New(fault.Conflict, "version %d of %s is already active: it serves", b.Number, dagName))
	case !served:
		return b,
			fault.New(fault.Conflict, "version %d of %s is %s: only a version that has served can be rolled back to",
				b.Number, dagName, b.Status).
				WithHint("deploy its document instead")
	case !slices.Contains(ended, b.Status):
		return b, fault.New(fault.Conflict, "version %d of %s is being built again", b.Number, dagName).
			WithHint("wait for it, or `dagctl abandon %s` and try again", dagName)
	case shrunk != nil:
		return b, fault.New(fault.Conflict, "version %d of %s is a record only since %s: it is older than the "+
			"version retention, and its data is gone", b.Number, dagName, shrunk.UTC().Format(time.DateOnly)).
			WithHint("deploy its document again: that makes a new version of it, and computes what is missing")
	case len(purged) > 0:
		return b, registry.PurgedFrom(purged, dagName, b.Number)
	}

	return b, nil
}

// orAbandon adds to the error of a rollback that goes nowhere how to give up what is being built: who tries that often
// wants to get rid of it.
func orAbandon(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, refused *fault.Error) error {
	var building int
	err := tx.QueryRow(ctx, `
		SELECT number FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND status IN ('Building', 'Ready')`,
		org, dagName).Scan(&building)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return refused.WithHint("`dagctl history %s` lists its versions", dagName)
	case err != nil:
		return fmt.Errorf("find the build of %s: %w", dagName, err)
	}
	return refused.WithHint("`dagctl abandon %s` gives up version %d, which does not serve yet", dagName, building)
}

// waited is the SQL of the building_at of a version that may be cut over to from a time on, which is an argument of the
// statement: one that has waited for that resumes its build then.
func waited(now string) string {
	return `CASE WHEN status = 'Ready' AND NOT activate THEN ` + now + `::timestamptz ELSE building_at END`
}

// Waiting returns a version that is ready and waits for its promotion; nil for any other.
func Waiting(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, number int) (*registry.Build, error) {
	b := registry.Build{OrgID: org, DAG: dagName, Number: number, Status: registry.Ready}
	err := tx.QueryRow(ctx, `
		SELECT id, created_by, coalesce(building_at, created_at), consents FROM dag_versions
		WHERE org_id = $1 AND dag_name = $2 AND number = $3 AND status = 'Ready' AND NOT activate`,
		org, dagName, number).Scan(&b.ID, &b.CreatedBy, &b.Started, &b.Consents)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find version %d of %s: %w", number, dagName, err)
	}
	return &b, nil
}

// Activate lets a version be cut over to as soon as it is ready, and adds to what was agreed to.
func Activate(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, number int, given []registry.Consent, now time.Time,
) (b registry.Build, err error) {
	b = registry.Build{OrgID: org, DAG: dagName, Number: number, Activate: true}
	err = tx.QueryRow(ctx, `
		UPDATE dag_versions SET activate = activate OR status IN ('Building', 'Ready'), held_because = NULL,
			building_at = `+waited("$5")+`,
			consents = ARRAY(SELECT DISTINCT unnest(consents || $4::text[]))
		WHERE org_id = $1 AND dag_name = $2 AND number = $3 RETURNING id, status, consents, created_by, coalesce(building_at, created_at)`,
		org, dagName, number, append([]registry.Consent{}, given...), now).
		Scan(&b.ID, &b.Status, &b.Consents, &b.CreatedBy, &b.Started)

	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return b, fault.New(fault.NotFound, "%s has no version %d", dagName, number).
			WithHint("`dagctl history %s` lists its versions", dagName)
	case err != nil:
		return b, fmt.Errorf("activate version %d: %w", number, err)
	case b.Status == registry.Superseded:
		return b, fault.New(fault.Conflict, "version %d of %s has been replaced", number, dagName).
			WithHint("`dagctl rollback %s --to %d` goes back to it", dagName, number)
	case b.Status == registry.Failed || b.Status == registry.Abandoned || b.Status == registry.Staged:
		return b, fault.New(fault.Conflict, "version %d of %s is %s", number, dagName, b.Status).
			WithHint("deploy its document again")
	}

	return b, nil
}

// HoldBuilds keeps the versions of a DAG that are on their way from serving by themselves, because somebody rolled back
// meanwhile: they are built, and wait for a promotion or another deploy.
func HoldBuilds(ctx context.Context, tx pgx.Tx, b registry.Build, actor string) error {
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET activate = false, held_because = $3
		WHERE org_id = $1 AND dag_name = $2 AND status IN ('Building', 'Ready') AND activate`, b.OrgID, b.DAG,
		fmt.Sprintf("%s rolled back to version %d while it was being built", actor, b.Number))
	if err != nil {
		return fmt.Errorf("hold what is built of %s: %w", b.DAG, err)
	}
	return nil
}

// AbandonBuild abandons the version that is being built, or is ready and waits, and returns its id and number.
func AbandonBuild(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, reason string,
) (id uuid.UUID, number int, err error) {
	err = tx.QueryRow(ctx, `
		UPDATE dag_versions SET status = 'Abandoned', error = $3, ended_at = now()
		WHERE org_id = $1 AND dag_name = $2 AND status IN ('Building', 'Ready')
		RETURNING id, number`, org, dagName, reason).Scan(&id, &number)
	if errors.Is(err, pgx.ErrNoRows) {
		return uuid.Nil, 0, fault.New(fault.Conflict, "no version of %s is being built", dagName)
	}
	if err != nil {
		return uuid.Nil, 0, fmt.Errorf("abandon build: %w", err)
	}
	return id, number, nil
}

// giveUpFailed abandons the versions after the one that serves which failed: whoever deploys what serves wants none of
// them. Their errors stay in the history.
func giveUpFailed(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, serving int) error {
	_, err := tx.Exec(ctx, `UPDATE dag_versions SET status = 'Abandoned', ended_at = now()
		WHERE org_id = $1 AND dag_name = $2 AND number > $3 AND status = 'Failed'`, org, dagName, serving)
	return fault.Wrap(err, "give up failed versions of "+dagName)
}

// GivenUp lists the DAGs that build nothing and have tasks left of versions that ended, each with the last version that
// failed, if one did. It relies on idx_dag_versions_tasks.
func GivenUp(ctx context.Context, tx pgx.Tx) ([]registry.Build, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT v.org_id, v.dag_name, (SELECT f.id FROM dag_versions f
			WHERE f.org_id = v.org_id AND f.dag_name = v.dag_name AND f.status = 'Failed'
			ORDER BY f.number DESC LIMIT 1)
		FROM dag_versions v
		WHERE v.tasks_end AND v.status = ANY($1) AND NOT EXISTS (SELECT FROM dag_versions b WHERE b.org_id = v.org_id
			AND b.dag_name = v.dag_name AND b.status IN ('Building', 'Ready'))`, ended)
	if err != nil {
		return nil, fmt.Errorf("versions that were given up: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b registry.Build, err error) {
		var failed *uuid.UUID
		if err = row.Scan(&b.OrgID, &b.DAG, &failed); failed != nil {
			b.ID = *failed
		}
		return b, err
	})
}

// OriginsByJob returns, by job name, the three newest origins of each job of a DAG, the newest first.
func OriginsByJob(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) (map[string][]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT coalesce(known_as, name), (array_agg(id ORDER BY id DESC))[1:3] FROM jobs
		WHERE org_id = $1 AND dag_name = $2 AND id = origin_job_id GROUP BY 1`, org, dagName)
	if err != nil {
		return nil, fmt.Errorf("origins of %s: %w", dagName, err)
	}

	origins := map[string][]uuid.UUID{}
	var (
		name string
		ids  []uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &ids}, func() error { origins[name] = ids; return nil })
	return origins, err
}

// ReadElsewhere returns the generations of a version that jobs of other DAGs read, in versions that are active, being
// built or ready.
func ReadElsewhere(ctx context.Context, tx pgx.Tx, b registry.Build) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT p.dataset_version
		FROM dag_version_datasets p
		JOIN job_inputs i ON i.dataset_uuid = p.dataset_uuid AND NOT i.in_dag
		JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE p.org_id = $1 AND p.dag_version_id = $2`, b.OrgID, b.ID)
	if err != nil {
		return nil, fmt.Errorf("generations of %s v%d read elsewhere: %w", b.DAG, b.Number, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// PointerMove is a dataset whose readers a cutover moves to another generation.
type PointerMove struct{ Dataset, From, To uuid.UUID }

// PointersToMove lists the served datasets whose generation changes when a version is cut over to.
func PointersToMove(ctx context.Context, tx pgx.Tx, b registry.Build) ([]PointerMove, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_uuid, s.dataset_version, p.dataset_version
		FROM dag_version_datasets p
		JOIN dataset_pointers s ON s.org_id = p.org_id AND s.dag_name = $3 AND s.dataset_uuid = p.dataset_uuid
		  AND s.dataset_version <> p.dataset_version
		WHERE p.org_id = $1 AND p.dag_version_id = $2`, b.OrgID, b.ID, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("pointers of %s v%d: %w", b.DAG, b.Number, err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[PointerMove])
}
