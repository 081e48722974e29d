package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Build is a version that is being built, or that is ready and waits.
type Build struct {
	ID        uuid.UUID
	OrgID     uuid.UUID
	DAG       string
	Number    int
	Status    Status
	Activate  bool
	CreatedBy string
	Started   time.Time // when it was last taken to Building
	Consents  []Consent
}

// Allows reports whether the person who deployed the version has agreed to something.
func (b Build) Allows(c Consent) bool { return slices.Contains(b.Consents, c) }

// LockKey names the DAG for LockDAGsShared.
func (b Build) LockKey() string { return DagKey(b.OrgID, b.DAG) }

// BuildJobs returns the jobs whose outputs a build of the version has to fill: those whose origin the active version
// does not use. The other jobs are live, and the dispatcher runs them anyway.
func (r *Registry) BuildJobs(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]*Job, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id FROM jobs j
		WHERE j.dag_version_id = $1 AND j.origin_job_id NOT IN (
			SELECT l.origin_job_id FROM dag_versions v
			JOIN dag_current_versions c ON c.org_id = v.org_id AND c.dag_name = v.dag_name
			JOIN jobs l ON l.dag_version_id = c.dag_version_id
			WHERE v.id = $1)
		ORDER BY j.id`, version)
	if err != nil {
		return nil, fmt.Errorf("jobs to build of version %s: %w", version, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("jobs to build of version %s: %w", version, err)
	}
	return r.JobsInOrder(ctx, tx, ids)
}

// VersionJobs returns all jobs of one version, in the order of its document.
func (r *Registry) VersionJobs(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]*Job, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE dag_version_id = $1 ORDER BY id`, version)
	if err != nil {
		return nil, fmt.Errorf("jobs of version %s: %w", version, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("jobs of version %s: %w", version, err)
	}
	return r.JobsInOrder(ctx, tx, ids)
}

// ServingJobs returns the jobs of the version of a DAG that serves, none if no version does.
func (r *Registry) ServingJobs(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) ([]*Job, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2 ORDER BY j.id`, org, dagName)
	if err != nil {
		return nil, fmt.Errorf("jobs of %s that serve: %w", dagName, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("jobs of %s that serve: %w", dagName, err)
	}
	return r.JobsInOrder(ctx, tx, ids)
}

func (r *Registry) JobsInOrder(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) ([]*Job, error) {
	found, err := r.Jobs(ctx, tx, ids)
	if err != nil {
		return nil, err
	}
	jobs := make([]*Job, len(ids))
	for i, id := range ids {
		jobs[i] = found[id]
	}
	return jobs, nil
}

// ActiveNumber returns the number of a DAG's version that serves; nil: none does.
func ActiveNumber(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string) (number *int, err error) {
	err = tx.QueryRow(ctx, `
		SELECT max(v.number) FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2`, org, dagName).Scan(&number)
	if err != nil {
		return nil, fmt.Errorf("version of %s that serves: %w", dagName, err)
	}
	return number, nil
}

// Makers returns the job that introduced each generation, by the generation.
func (r *Registry) Makers(ctx context.Context, tx pgx.Tx, generations []uuid.UUID) (map[uuid.UUID]*Job, error) {
	rows, err := tx.Query(ctx, `SELECT id, origin_job_id FROM dataset_versions WHERE id = ANY($1)`, generations)
	if err != nil {
		return nil, fmt.Errorf("jobs of %d generations: %w", len(generations), err)
	}
	var (
		origins    = map[uuid.UUID]uuid.UUID{}
		id, origin uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &origin}, func() error { origins[id] = origin; return nil })
	if err != nil {
		return nil, fmt.Errorf("jobs of %d generations: %w", len(generations), err)
	}

	jobs, err := r.Jobs(ctx, tx, slices.Collect(maps.Values(origins)))
	if err != nil {
		return nil, err
	}
	makers := make(map[uuid.UUID]*Job, len(origins))
	for generation, origin := range origins {
		makers[generation] = jobs[origin]
	}
	return makers, nil
}

// ActiveJob returns the named job of the DAG's active version.
func (r *Registry) ActiveJob(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, name string) (*Job, error) {
	var id uuid.UUID
	err := tx.QueryRow(ctx, `
		SELECT j.id FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		WHERE c.org_id = $1 AND c.dag_name = $2 AND j.name = $3`, org, dagName, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, NoJob(dagName, name)
	}
	if err != nil {
		return nil, fmt.Errorf("find job %s/%s: %w", dagName, name, err)
	}
	jobs, err := r.Jobs(ctx, tx, []uuid.UUID{id})
	return jobs[id], err
}

// AnyBuilding reports whether a version of the org is on its way to serving.
func (r *Registry) AnyBuilding(ctx context.Context, org uuid.UUID) (bool, error) {
	var building bool
	err := r.Pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND (status = 'Building' OR status = 'Ready' AND activate))`, org).Scan(&building)
	if err != nil {
		return false, fmt.Errorf("look for builds: %w", err)
	}
	return building, nil
}
