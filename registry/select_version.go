package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

// These values say which generation of a dataset to read: the one that readers see, or that of the version on its way
// (or of the latest version, if it failed). Other values are the number of a DAG version and the id of a generation.
// Only writers may read a generation that does not serve.
const (
	Live      = "live"
	Candidate = "candidate"
)

// CandidateVersion is the condition, on dag_versions v, for the version that is on its way, or that failed and is the
// latest.
const CandidateVersion = `(v.status IN ('Building', 'Ready') OR v.status = 'Failed' AND v.number =
	(SELECT max(l.number) FROM dag_versions l WHERE l.org_id = v.org_id AND l.dag_name = v.dag_name))`

// datasetAt finds a dataset and the generation to read, nil if none serves yet. A dataset that does not serve yet is
// also found by the name that it has in the candidate.
func (r *Registry) datasetAt(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	name, which string) (Dataset, *uuid.UUID, error) {
	d, err := r.FindDataset(ctx, tx, caller, name)
	if which == "" || which == Live {
		return d, d.Version, err
	}

	may := caller.MaySomewhere(authz.Inspect)
	if err == nil {
		may = caller.May(authz.Inspect, authz.OnDAG(d.DAG))
	}
	if !may {
		if err == nil {
			err = fault.New(fault.Forbidden, "only writers read what does not serve").
				WithHint("leave the version out to read what is served")
		}
		return Dataset{}, nil, err
	}

	if which == Candidate && fault.Is(err, fault.NotFound) {
		if d, err = r.coming(ctx, tx, caller, name); err != nil {
			return Dataset{}, nil, err
		}
	}
	if err != nil {
		return Dataset{}, nil, err
	}

	generation, err := generationAt(ctx, tx, d, which)
	if err != nil {
		return d, nil, err
	}
	args, visible := []any{generation}, false
	err = tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM dataset_versions g WHERE g.id = $1 AND `+
		GenerationVisibleTo(caller, &args)+`)`, args...).Scan(&visible)
	if err == nil && !visible {
		err = noDataset(name)
	}
	return d, &generation, err
}

// coming finds a dataset by the name that it will have.
func (r *Registry) coming(ctx context.Context, tx pgx.Tx, caller authz.Caller, name string) (Dataset, error) {
	var id uuid.UUID
	err := tx.QueryRow(ctx, `
		SELECT p.dataset_uuid FROM dag_version_datasets p JOIN dag_versions v ON v.id = p.dag_version_id
		WHERE p.org_id = $1 AND p.name = $2 AND `+CandidateVersion+`
		ORDER BY v.created_at DESC LIMIT 1`, caller.OrgID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Dataset{}, noDataset(name)
	}
	if err != nil {
		return Dataset{}, err
	}
	return r.FindDataset(ctx, tx, caller, id.String())
}

// VersionNumber reads the number of a DAG version, with or without a v before it, and reports whether which is one. A
// number beyond those that the database can hold is read as 0, which no version has.
func VersionNumber(which string) (number int, is bool) {
	n, err := strconv.ParseInt(strings.TrimPrefix(which, "v"), 10, 32)
	if errors.Is(err, strconv.ErrRange) {
		return 0, true
	}
	return int(n), err == nil
}

func generationAt(ctx context.Context, tx pgx.Tx, d Dataset, which string) (uuid.UUID, error) {
	var (
		generation uuid.UUID
		purged     bool
		err        error
	)

	number, isNumber := VersionNumber(which)
	id := idOf(which)
	switch {
	case which == Candidate:
		err = tx.QueryRow(ctx, `
			SELECT g.id, g.purged_at IS NOT NULL FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id AND `+CandidateVersion+`
			JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE p.dataset_uuid = $1
			ORDER BY v.status = 'Failed', v.number DESC LIMIT 1`, d.ID).Scan(&generation, &purged)
	case id != nil:
		err = tx.QueryRow(ctx, `SELECT id, purged_at IS NOT NULL FROM dataset_versions
			WHERE dataset_uuid = $1 AND id = $2`,
			d.ID, *id).Scan(&generation, &purged)
	case isNumber:
		err = tx.QueryRow(ctx, `
			SELECT g.id, g.purged_at IS NOT NULL FROM dag_version_datasets p
			JOIN dag_versions v ON v.id = p.dag_version_id AND v.dag_name = $2 AND v.number = $3
			JOIN dataset_versions g ON g.id = p.dataset_version
			WHERE p.dataset_uuid = $1`, d.ID, d.DAG, number).Scan(&generation, &purged)
	default:
		return uuid.Nil, fault.New(fault.Invalid, "%q is not a version of a dataset", which).
			WithHint("use live, candidate, the number of a DAG version such as v3, "+
				"or a dataset version from `dagctl datasets versions %s`", d.Name)
	}
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return uuid.Nil, fault.New(fault.NotFound, "dataset %s has no version %s", d.Name, which).
			WithHint("`dagctl datasets versions %s` lists its generations, `dagctl history %s` the versions of its DAG",
				d.Name, d.DAG)
	case err != nil:
		return uuid.Nil, fmt.Errorf("find version %s of dataset %s: %w", which, d.Name, err)
	case purged:
		return uuid.Nil, fault.New(fault.Conflict, "version %s of dataset %s was purged", which, d.Name)
	}
	return generation, nil
}

// ResolveVersion is ResolveForRead for any generation of a dataset; see Live. The dataset that it returns has the
// version and the columns of that generation.
func (r *Registry) ResolveVersion(ctx context.Context, tx pgx.Tx, caller authz.Caller,
	name, which string) (storage.Generation, []storage.Partition, Dataset, error) {
	d, version, err := r.datasetAt(ctx, tx, caller, name, which)
	if err != nil || version == nil {
		return storage.Generation{}, nil, d, err
	}

	g := storage.Generation{OrgID: caller.OrgID, Dataset: d.ID, Version: *version}
	var (
		kind       dag.Storage
		partitions []storage.Partition
		schema     []byte
	)
	err = tx.QueryRow(ctx, `
		SELECT org_slug(g.org_id), g.storage, coalesce(o.unique_key, '{}'), coalesce(g.schema, '[]'),
		       (SELECT coalesce(jsonb_agg(
		            jsonb_build_object('key', r.partition_key, 'revision', r.revision, 'files', r.files)
		                                  ORDER BY r.partition_key), '[]')
		        FROM partition_versions r WHERE r.dataset_version = g.id AND r.state = 'Published')
		FROM dataset_versions g
		JOIN jobs o ON o.org_id = g.org_id AND o.id = g.origin_job_id
		WHERE g.org_id = $1 AND g.id = $2`, caller.OrgID, *version).Scan(&g.OrgSlug, &kind, &g.UniqueKey, &schema,
		&partitions)
	if errors.Is(err, pgx.ErrNoRows) { // it was closed to the caller since it was found
		err = noDataset(name)
	}
	if err != nil {
		return storage.Generation{}, nil, Dataset{}, fmt.Errorf("pin dataset %s: %w", name, err)
	}

	g.Kind, g.Indexes = storage.Kind(kind.Kind), kind.Indexes
	if d.Version == nil || *d.Version != *version {
		var columns []storage.Column
		if err := json.Unmarshal(schema, &columns); err != nil {
			return storage.Generation{}, nil, Dataset{}, fmt.Errorf("schema of dataset %s: %w", name, err)
		}
		d.Version, d.Columns = version, []ColumnInfo{}
		for _, c := range columns {
			d.Columns = append(d.Columns, ColumnInfo{Name: c.Name, Type: c.Type})
		}
	}
	return g, partitions, d, nil
}

// RowsByPartition returns the number of rows of each published partition of a generation.
func RowsByPartition(ctx context.Context, tx pgx.Tx, generation uuid.UUID) (map[string]int64, error) {
	rows, err := tx.Query(ctx, `SELECT partition_key, row_count FROM partition_versions
		WHERE dataset_version = $1 AND state = 'Published'`, generation)
	if err != nil {
		return nil, fmt.Errorf("rows of generation %s: %w", generation, err)
	}
	counts := map[string]int64{}
	var (
		key string
		n   int64
	)
	_, err = pgx.ForEachRow(rows, []any{&key, &n}, func() error { counts[key] = n; return nil })
	return counts, err
}
