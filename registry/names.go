package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
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
