// Package footprint says what jobs have left: their names beyond their versions, what attempts wrote, what datasets
// hold, and when datasets are due; and which of the names a caller may see. It reads the registry's tables.
package footprint

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry"
)

// JobName is the name of a job, which survives its versions.
type JobName struct {
	Org      uuid.UUID
	DAG, Job string
}

// JobNames returns the names of origins: those that they have now, where they were renamed. Rows that are gone are
// absent.
func JobNames(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]JobName, error) {
	rows, err := tx.Query(ctx, `SELECT id, org_id, dag_name, coalesce(known_as, name) FROM jobs WHERE id = ANY($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("names of %d jobs: %w", len(ids), err)
	}
	names := make(map[uuid.UUID]JobName, len(ids))
	var (
		id uuid.UUID
		n  JobName
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &n.Org, &n.DAG, &n.Job}, func() error { names[id] = n; return nil })
	if err != nil {
		return nil, fmt.Errorf("names of %d jobs: %w", len(ids), err)
	}
	return names, nil
}

// Attempt names one attempt of a task.
type Attempt struct {
	Task   uuid.UUID
	Number int
}

// Written is what an attempt wrote of one output.
type Written struct {
	Output      int
	Rows, Bytes int64
	Late        bool // written after the attempt had ended for the platform, which took its lease for lost
}

// WrittenBy returns what attempts of tasks wrote. ended has the time, in microseconds since 1970, at which each attempt
// ended; what was written later is told apart. It relies on idx_partition_versions_task. What a generation took over
// from another was not written.
func WrittenBy(ctx context.Context, tx pgx.Tx, ended map[Attempt]int64) (map[Attempt][]Written, error) {
	ids, numbers, micros := make([]uuid.UUID, 0, len(ended)), []int{}, []int64{}
	for a, at := range ended {
		ids, numbers, micros = append(ids, a.Task), append(numbers, a.Number), append(micros, at)
	}
	rows, err := tx.Query(ctx, `
		SELECT r.task_id, r.attempt, r.output, r.row_count, r.bytes, r.late
		FROM unnest($1::uuid[], $2::int[], $3::bigint[]) AS a(task_id, attempt, ended)
		CROSS JOIN LATERAL (
			SELECT v.task_id, v.attempt, d.producer_output_index AS output, v.row_count, v.bytes,
				(extract(epoch FROM v.materialized_at) * 1000000)::bigint > a.ended AS late
			FROM partition_versions v JOIN datasets d ON d.id = v.dataset_uuid
			WHERE v.task_id = a.task_id AND v.attempt = a.attempt AND v.inherited_from IS NULL OFFSET 0) AS r`,
		ids, numbers, micros)
	if err != nil {
		return nil, fmt.Errorf("what %d attempts wrote: %w", len(ended), err)
	}

	written := map[Attempt][]Written{}
	var (
		a Attempt
		w Written
	)
	_, err = pgx.ForEachRow(rows, []any{&a.Task, &a.Number, &w.Output, &w.Rows, &w.Bytes, &w.Late}, func() error {
		written[a] = append(written[a], w)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("what %d attempts wrote: %w", len(ended), err)
	}
	return written, nil
}

// Holding is how much the published partitions of a dataset hold.
type Holding struct {
	Dataset uuid.UUID
	Org     uuid.UUID
	DAG     string
	Job     string
	Output  int
	Bytes   int64
}

// Holdings returns what datasets that readers see hold, in the order of their ids from the first after a given one. It
// relies on idx_partition_versions_published.
func Holdings(ctx context.Context, tx pgx.Tx, after uuid.UUID, limit int) ([]Holding, error) {
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.org_id, d.producer_dag_name, d.producer_job_name, d.producer_output_index, coalesce((
			SELECT sum(r.bytes) FROM partition_versions r
			JOIN dag_version_datasets p ON p.dataset_version = r.dataset_version
			JOIN dag_current_versions c ON c.dag_version_id = p.dag_version_id
			WHERE p.dataset_uuid = d.id AND r.state = 'Published'), 0)::bigint
		FROM datasets d WHERE d.id > $1 AND d.deleted_at IS NULL ORDER BY d.id LIMIT $2`, after, limit)
	if err != nil {
		return nil, fmt.Errorf("measure datasets: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Holding])
	if err != nil {
		return nil, fmt.Errorf("measure datasets: %w", err)
	}
	return found, nil
}

// JobOutline is a job of an active version, and what it makes.
type JobOutline struct {
	DAG, Job string
	Outputs  int  // at least 1, also of a job that makes nothing
	Hidden   bool // from the caller: see registry.ReadableJobs
}

// JobOutlines lists the jobs of the active versions of an org, or of one of its DAGs.
func JobOutlines(ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string) ([]JobOutline, error) {
	args := []any{caller.OrgID, dagName}
	hidden := registry.HiddenMaker(caller, "m.published IS NOT TRUE", &args)
	made := `
			SELECT p.dag_version_id, p.job_name, count(*) AS outputs, bool_and(d.published) AS published
			FROM pointer_outlines p JOIN dataset_outlines d ON d.id = p.dataset_uuid
			WHERE p.dag_version_id = ANY (ARRAY(
				SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND ($2 = '' OR dag_name = $2)))
			GROUP BY 1, 2`
	if caller.ReadsAll() {
		// Nothing depends on what is published, and few jobs have a second output: the key finds them.
		made = `
			SELECT p.dag_version_id, p.job_name, 1 + count(*) AS outputs
			FROM pointer_outlines p
			WHERE p.dag_version_id = ANY (ARRAY(
				SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND ($2 = '' OR dag_name = $2)))
			  AND p.output_index > 0
			GROUP BY 1, 2`
	}
	rows, err := tx.Query(ctx, `
		WITH made AS MATERIALIZED (`+made+`)
		SELECT j.dag_name, j.name, coalesce(m.outputs, 1)::int, `+hidden+`
		FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
		LEFT JOIN made m ON m.dag_version_id = j.dag_version_id AND m.job_name = j.name
		WHERE c.org_id = $1 AND ($2 = '' OR c.dag_name = $2)`, args...)
	if err != nil {
		return nil, fmt.Errorf("outlines of jobs: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[JobOutline])
	if err != nil {
		return nil, fmt.Errorf("outlines of jobs: %w", err)
	}
	return found, nil
}

// DatasetName is a dataset that the caller may see, with the output that makes it.
type DatasetName struct {
	Name, Owner string
	DAG, Job    string
	Output      int
	Published   bool
}

// DatasetNames lists the datasets of an org, or of one of its DAGs, that the caller may see, by name.
func DatasetNames(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string,
) ([]DatasetName, error) {
	args := []any{caller.OrgID, dagName}
	visible := registry.VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT d.name, coalesce(d.owner, ''), d.producer_dag_name, d.producer_job_name, d.producer_output_index, d.published
		FROM datasets d
		WHERE d.org_id = $1 AND ($2 = '' OR d.producer_dag_name = $2) AND d.deleted_at IS NULL AND `+visible+`
		ORDER BY d.published DESC, d.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("names of datasets: %w", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[DatasetName])
	if err != nil {
		return nil, fmt.Errorf("names of datasets: %w", err)
	}
	return found, nil
}

// DAGs counts the DAGs of an org that serve.
func DAGs(ctx context.Context, tx pgx.Tx, org uuid.UUID) (n int64, err error) {
	err = tx.QueryRow(ctx, `SELECT count(*) FROM dag_current_versions WHERE org_id = $1`, org).Scan(&n)
	return n, err
}
