package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
)

// ReadableNames returns the names of those datasets that the caller may read.
func (r *Registry) ReadableNames(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	datasets []uuid.UUID) (map[uuid.UUID]string, error) {
	known, err := r.producers(ctx, tx, caller, datasets)
	if err != nil {
		return nil, err
	}
	names := map[uuid.UUID]string{}
	for id, p := range known {
		if p.readable != "" {
			names[id] = p.readable
		}
	}
	return names, nil
}

// RevisionRef names a revision of a partition.
type RevisionRef struct {
	Version  uuid.UUID // of the dataset
	Key      string
	Revision int64
}

// RevisionOrigin says where a revision comes from, and what has become of it.
type RevisionOrigin struct {
	DAGVersion int // the number of the version that its generation was made for
	Task       uuid.UUID
	State      string // Held, Published, Replaced, Rejected or Purged
	Newest     bool   // no later revision of the partition exists
}

// RevisionOrigins returns where revisions come from, of those that the caller may read. It relies on the primary key of
// partition_versions.
func (r *Registry) RevisionOrigins(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, refs []RevisionRef,
) (map[RevisionRef]RevisionOrigin, error) {
	versions, keys, numbers := make([]uuid.UUID, len(refs)), make([]string, len(refs)), make([]int64, len(refs))
	for i, ref := range refs {
		versions[i], keys[i], numbers[i] = ref.Version, ref.Key, ref.Revision
	}

	args := []any{caller.OrgID, versions, keys, numbers}
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_version, p.partition_key, p.revision, v.number, p.task_id, p.state,
			NOT EXISTS (SELECT FROM partition_versions n WHERE n.dataset_version = p.dataset_version
				AND n.partition_key = p.partition_key AND n.revision > p.revision)
		FROM unnest($2::uuid[], $3::text[], $4::bigint[]) AS w(version, key, revision)
		JOIN partition_versions p ON p.dataset_version = w.version AND p.partition_key = w.key
			AND p.revision = w.revision AND p.org_id = $1
		JOIN dataset_versions g ON g.id = p.dataset_version AND `+GenerationVisibleTo(caller, &args)+`
		JOIN dag_versions v ON v.id = g.created_by_dag_version`, args...)
	if err != nil {
		return nil, fmt.Errorf("origins of %d revisions: %w", len(refs), err)
	}

	origins := make(map[RevisionRef]RevisionOrigin, len(refs))
	var (
		ref RevisionRef
		o   RevisionOrigin
	)
	columns := []any{&ref.Version, &ref.Key, &ref.Revision, &o.DAGVersion, &o.Task, &o.State, &o.Newest}
	_, err = pgx.ForEachRow(rows, columns, func() error { origins[ref] = o; return nil })
	return origins, err
}

// DatasetByName finds one catalogue entry in the caller's transaction and marks it if it is late; see Dataset.
func (r *Registry) DatasetByName(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string,
	now time.Time) (Dataset, error) {
	found, err := r.FindDataset(ctx, tx, caller, name)
	if err != nil {
		return Dataset{}, err
	}
	one := []Dataset{found}
	err = MarkLate(ctx, tx, caller.OrgID, one, now)
	return one[0], err
}

// NamedInBuild returns the present name of the dataset that the newest version which does not serve yet publishes under
// a name; an empty text if there is none.
func NamedInBuild(ctx context.Context, tx pgx.Tx, org uuid.UUID, name string) (present string, err error) {
	err = tx.QueryRow(ctx, `
		SELECT d.name FROM dag_versions v
		JOIN dag_version_datasets p ON p.dag_version_id = v.id AND p.published_name = $2
		JOIN datasets d ON d.id = p.dataset_uuid AND d.deleted_at IS NULL
		WHERE v.org_id = $1 AND v.status IN ('Building', 'Ready', 'Failed')
		ORDER BY v.created_at DESC, v.id LIMIT 1`, org, name).Scan(&present)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("who is to publish %s: %w", name, err)
	}
	return present, nil
}

// NamesIn returns the number of a version, and what datasets are called while it serves: those that are not its own by
// their present names.
func NamesIn(ctx context.Context, tx pgx.Tx, org, version uuid.UUID, datasets []uuid.UUID) (
	number int, names map[uuid.UUID]string, err error) {
	err = tx.QueryRow(ctx, `SELECT number FROM dag_versions WHERE org_id = $1 AND id = $2`, org, version).Scan(&number)
	if err != nil {
		return 0, nil, fmt.Errorf("number of version %s: %w", version, err)
	}

	rows, err := tx.Query(ctx, `
		SELECT d.id, coalesce(p.name, d.name)
		FROM datasets d LEFT JOIN dag_version_datasets p ON p.dag_version_id = $2 AND p.dataset_uuid = d.id
		WHERE d.org_id = $1 AND d.id = ANY($3)`, org, version, datasets)
	if err != nil {
		return 0, nil, fmt.Errorf("names of %d datasets: %w", len(datasets), err)
	}
	names = make(map[uuid.UUID]string, len(datasets))
	var (
		id   uuid.UUID
		name string
	)
	if _, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error { names[id] = name; return nil }); err != nil {
		return 0, nil, fmt.Errorf("names of %d datasets: %w", len(datasets), err)
	}
	return number, names, nil
}

// NewName returns the name that a job of a DAG has now which had a name in a version that served; "" if it was not
// renamed.
func NewName(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, job string) (name string, err error) {
	names, err := NewNames(ctx, tx, org, []NameOfJob{{dagName, job}})
	return names[NameOfJob{dagName, job}], err
}

// NameOfJob names a job of an org.
type NameOfJob struct{ DAG, Job string }

// NewNames returns the names that jobs have now which had others in versions that served. Jobs that were not renamed
// are absent, and names that other jobs have by now. It relies on the key (dag_version_id, name) of jobs.
func NewNames(ctx context.Context, tx pgx.Tx, org uuid.UUID, had []NameOfJob) (map[NameOfJob]string, error) {
	names := map[NameOfJob]string{}
	if len(had) == 0 {
		return names, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (w.dag, w.job) w.dag, w.job, j.name FROM unnest($2::text[], $3::text[]) AS w(dag, job)
		JOIN dag_current_versions c ON c.org_id = $1 AND c.dag_name = w.dag
		JOIN dag_versions v ON v.org_id = $1 AND v.dag_name = w.dag AND v.activated_at IS NOT NULL
		JOIN jobs n ON n.dag_version_id = v.id AND n.name = w.job
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.identity = n.identity
		WHERE NOT EXISTS (SELECT FROM jobs k WHERE k.dag_version_id = c.dag_version_id AND k.name = w.job)
		ORDER BY w.dag, w.job, v.number DESC`, append([]any{org}, pg.Columns(had)...)...)
	if err != nil {
		return nil, fmt.Errorf("find renamed jobs: %w", err)
	}

	var (
		of  NameOfJob
		now string
	)
	_, err = pgx.ForEachRow(rows, []any{&of.DAG, &of.Job, &now}, func() error { names[of] = now; return nil })
	return names, fault.Wrap(err, "find renamed jobs")
}

// OldNames returns the other names that a job of the active version has had, in any version. It relies on
// idx_jobs_one_origin and idx_jobs_origin.
func OldNames(ctx context.Context, tx pgx.Tx, org uuid.UUID, of NameOfJob) ([]NameOfJob, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT n.dag_name, n.name FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $3
		JOIN jobs o ON o.org_id = $1 AND o.dag_name = $2 AND o.identity = j.identity AND o.id = o.origin_job_id
		JOIN jobs n ON n.origin_job_id = o.id AND n.name <> $3
		WHERE c.org_id = $1 AND c.dag_name = $2`, org, of.DAG, of.Job)
	if err != nil {
		return nil, fmt.Errorf("old names of %s/%s: %w", of.DAG, of.Job, err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowToStructByPos[NameOfJob])
	return names, fault.Wrap(err, "old names of "+of.DAG+"/"+of.Job)
}
