// Package flow says which datasets and jobs are around a dataset: what makes it and what reads it, over all DAGs, as it
// is now and as it was at any deploy; and which revisions a revision was made from.
//
// Vocabulary: a Serving is the pointer set of a moment, one version of each DAG. It reads the registry's tables, and
// decides what a caller may see of a dataset and of a job.
package flow

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/registry"
)

// Job is a job of a version in a pointer set, with the datasets that it reads and makes.
type Job struct {
	ID       uuid.UUID
	DAG      string
	Name     string
	Source   string      // kind of the source; empty: the job is reactive
	Hidden   bool        // the caller may not look into it
	Reads    []uuid.UUID // datasets, each once
	Makes    []uuid.UUID // datasets, by output index
	Operator string
}

// Dataset is a dataset as a pointer set has it. What is not Readable must not be shown: the names are empty then.
type Dataset struct {
	ID         uuid.UUID
	Name       string // while that version serves
	Now        string // its name now; empty: it was deleted
	DAG, Job   string
	Output     int
	DAGVersion int        // whose pointer it is; 0: its DAG serves nothing
	Generation *uuid.UUID // that the pointer names; nil: there is none
	Served     bool       // readers see the generation, or saw it at that moment
	Published  bool
	Owner      string
	Late       *registry.Late
	Readable   bool
}

// Into returns the jobs that make some datasets. It relies on the primary key of dag_version_datasets.
func Into(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving, datasets []uuid.UUID) ([]Job, error) {
	return jobs(ctx, tx, caller, s, datasets, `
		SELECT DISTINCT j.id
		FROM dataset_outlines d
		JOIN `+served+` ON s.dag_name = d.producer_dag_name
		JOIN pointer_outlines p ON p.dag_version_id = s.id AND p.dataset_uuid = d.id
		JOIN jobs j ON j.dag_version_id = s.id AND j.name = p.job_name
		WHERE d.org_id = $1 AND d.id = ANY($5)`)
}

// From returns the jobs that read some datasets, of all DAGs. It relies on idx_job_inputs_dataset.
func From(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving, datasets []uuid.UUID) ([]Job, error) {
	return jobs(ctx, tx, caller, s, datasets, `
		SELECT DISTINCT i.job_id
		FROM job_inputs i JOIN `+served+` ON s.id = i.dag_version_id
		WHERE i.org_id = $1 AND i.dataset_uuid = ANY($5)`)
}

// Abroad returns those jobs that read some datasets in DAGs which do not make them. It relies on
// idx_job_inputs_foreign.
func Abroad(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving, datasets []uuid.UUID) ([]Job, error) {
	return jobs(ctx, tx, caller, s, datasets, `
		SELECT DISTINCT i.job_id
		FROM job_inputs i JOIN `+served+` ON s.id = i.dag_version_id
		WHERE i.org_id = $1 AND i.dataset_uuid = ANY($5) AND NOT i.in_dag`)
}

func jobs(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving, datasets []uuid.UUID,
	which string) ([]Job, error) {
	args := s.args(caller.OrgID, datasets)
	hidden := registry.HiddenMaker(caller, "o.published IS NOT TRUE", &args)
	rows, err := tx.Query(ctx, `
		SELECT j.id, j.dag_name, j.name, coalesce(j.source ->> 'kind', ''), `+hidden+`,
		       ARRAY(SELECT DISTINCT i.dataset_uuid FROM job_inputs i WHERE i.job_id = j.id), coalesce(o.ids, '{}'),
		       j.operator
		FROM jobs j CROSS JOIN LATERAL (
			SELECT array_agg(p.dataset_uuid ORDER BY p.output_index) AS ids, bool_and(d.published) AS published
			FROM pointer_outlines p LEFT JOIN dataset_outlines d ON d.id = p.dataset_uuid
			WHERE p.dag_version_id = j.dag_version_id AND p.job_name = j.name) AS o
		WHERE j.org_id = $1 AND j.id IN (`+which+`)
		ORDER BY j.dag_name, j.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs around %d datasets: %w", len(datasets), err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Job])
	if err != nil {
		return nil, fmt.Errorf("jobs around %d datasets: %w", len(datasets), err)
	}
	return found, nil
}

// Whole is a job of a DAG whose jobs were all read, with what leads from it to other DAGs.
type Whole struct {
	Job
	Version   uuid.UUID   // of its DAG
	Moved     []uuid.UUID // those of the datasets that it makes which another DAG makes now
	Elsewhere []uuid.UUID // other versions of the pointer set that read what it makes
}

// WholeDAGs returns all jobs of those versions of a pointer set that make or read some datasets, and of other versions
// of it, except some: one statement for each of many steps takes longer. It relies on the primary keys of job_inputs
// and dag_version_datasets, the unique key of jobs by version, idx_job_inputs_dataset and idx_job_inputs_foreign.
func WholeDAGs(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving,
	datasets, versions, except []uuid.UUID) ([]Whole, error) {
	args := s.args(caller.OrgID, datasets, versions, except)
	hidden := registry.HiddenMaker(caller, "m.published IS NOT TRUE", &args)
	rows, err := tx.Query(ctx, `
		WITH served AS MATERIALIZED (SELECT * FROM `+served+`),
		whole AS MATERIALIZED (
			SELECT w.id FROM (
				SELECT s.id FROM dataset_outlines d JOIN served s ON s.dag_name = d.producer_dag_name
				WHERE d.org_id = $1 AND d.id = ANY($5)
				UNION
				SELECT s.id FROM job_inputs i JOIN served s ON s.id = i.dag_version_id
				WHERE i.org_id = $1 AND i.dataset_uuid = ANY($5)
				UNION
				SELECT s.id FROM served s WHERE s.id = ANY($6)) AS w
			WHERE w.id <> ALL(coalesce($7::uuid[], '{}'))),
		made AS MATERIALIZED (
			SELECT p.dag_version_id, p.job_name, array_agg(p.dataset_uuid ORDER BY p.output_index) AS ids,
				array_agg(p.dataset_uuid) FILTER (WHERE d.producer_dag_name <> s.dag_name) AS moved,
				bool_and(d.published) AS published
			FROM pointer_outlines p LEFT JOIN dataset_outlines d ON d.id = p.dataset_uuid
			JOIN served s ON s.id = p.dag_version_id
			WHERE p.dag_version_id = ANY(ARRAY(SELECT id FROM whole))
			GROUP BY 1, 2)
		SELECT j.id, j.dag_name, j.name, coalesce(j.source ->> 'kind', ''), `+hidden+`,
		       ARRAY(SELECT DISTINCT i.dataset_uuid FROM job_inputs i WHERE i.job_id = j.id), coalesce(m.ids, '{}'),
		       j.operator, j.dag_version_id, coalesce(m.moved, '{}'),
		       ARRAY(SELECT DISTINCT s.id FROM unnest(m.ids) AS x(id)
		             JOIN job_inputs i ON i.dataset_uuid = x.id AND NOT i.in_dag
		             JOIN served s ON s.id = i.dag_version_id)
		FROM jobs j LEFT JOIN made m ON m.dag_version_id = j.dag_version_id AND m.job_name = j.name
		WHERE j.org_id = $1 AND j.dag_version_id = ANY(ARRAY(SELECT id FROM whole))
		ORDER BY j.dag_name, j.name`, args...)
	if err != nil {
		return nil, fmt.Errorf("jobs of DAGs around %d datasets: %w", len(datasets), err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Whole])
	if err != nil {
		return nil, fmt.Errorf("jobs of DAGs around %d datasets: %w", len(datasets), err)
	}
	return found, nil
}

// Closed returns which datasets of the org are closed to the caller in a pointer set: by read roles, their own or those
// of what they are made from.
func Closed(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving) (map[uuid.UUID]bool, error) {
	closed := map[uuid.UUID]bool{}
	if caller.ReadsAll() {
		return closed, nil
	}

	args := s.args(caller.OrgID)
	from := registry.HiddenFrom(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT o.id FROM dataset_outlines o JOIN hidden_datasets(`+from+`) AS h ON h = o.id WHERE o.org_id = $1
		UNION
		SELECT q.dataset_uuid
		FROM `+served+`
		JOIN pointer_outlines q ON q.dag_version_id = s.id
		JOIN dataset_outlines o ON o.id = q.dataset_uuid AND o.producer_dag_name = s.dag_name
		WHERE `+registry.HiddenVersion("q.dataset_version", from), args...)
	if err != nil {
		return nil, fmt.Errorf("closed datasets: %w", err)
	}

	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("closed datasets: %w", err)
	}
	for _, id := range ids {
		closed[id] = true
	}
	return closed, nil
}

// Datasets returns datasets by id, as a pointer set has them and as the caller may see them.
func Datasets(ctx context.Context, tx pgx.Tx, caller authz.Caller, s Serving,
	ids []uuid.UUID) (map[uuid.UUID]Dataset, error) {
	args := s.args(caller.OrgID, ids)
	visible, readable := registry.VisibleTo(caller, &args), registry.GenerationVisibleTo(caller, &args)

	// Outlines are there for everybody; names come from rows that the second wall guards.
	rows, err := tx.Query(ctx, `
		SELECT o.id, d.id IS NOT NULL AND (q.dataset_version IS NULL OR g.id IS NOT NULL) AND `+readable+`,
		       coalesce(p.name, d.name, ''), CASE WHEN d.deleted_at IS NULL THEN coalesce(d.name, '') ELSE '' END,
		       o.producer_dag_name, coalesce(p.job_name, o.producer_job_name),
		       coalesce(p.output_index, o.producer_output_index), coalesce(s.number, 0), g.id,
		       coalesce(d.published, false), coalesce(p.publication ->> 'owner', d.owner, ''), g.partition_by,
		       (SELECT r.materialized_at FROM partition_versions r
		        WHERE d.due_within_seconds > 0 AND r.dataset_version = g.id AND r.state = 'Published'
		          AND r.materialized_at IS NOT NULL
		        ORDER BY r.materialized_at DESC LIMIT 1)
		FROM dataset_outlines o
		LEFT JOIN `+served+` ON s.dag_name = o.producer_dag_name
		LEFT JOIN pointer_outlines q ON q.dag_version_id = s.id AND q.dataset_uuid = o.id
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = s.id AND p.dataset_uuid = o.id
		LEFT JOIN dataset_versions g ON g.id = p.dataset_version
		LEFT JOIN datasets d ON d.id = o.id AND `+visible+`
		WHERE o.org_id = $1 AND o.id = ANY($5)`, args...)
	if err != nil {
		return nil, fmt.Errorf("%d datasets of a graph: %w", len(ids), err)
	}

	found := make(map[uuid.UUID]Dataset, len(ids))
	var current []registry.Dataset // those that may be late
	var (
		d           Dataset
		partitionBy []byte
		updated     *time.Time
	)
	_, err = pgx.ForEachRow(rows, []any{&d.ID, &d.Readable, &d.Name, &d.Now, &d.DAG, &d.Job, &d.Output, &d.DAGVersion,
		&d.Generation, &d.Published, &d.Owner, &partitionBy, &updated}, func() error {
		d.Served = d.Generation != nil && !(s.Never && d.DAG == s.DAG)
		if d.Served {
			current = append(current, registry.Dataset{ID: d.ID, Name: d.Name, Version: d.Generation,
				PartitionBy: json.RawMessage(partitionBy), UpdatedAt: updated})
		}
		if !d.Readable { // the generation stays: lineage of columns goes through it
			d = Dataset{ID: d.ID, Generation: d.Generation}
		}
		found[d.ID] = d
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%d datasets of a graph: %w", len(ids), err)
	}

	if s.At != nil { // what was late then is not kept
		return found, nil
	}
	if err := registry.MarkLate(ctx, tx, caller.OrgID, current, clock.Now()); err != nil {
		return nil, err
	}
	for _, late := range current {
		if d := found[late.ID]; d.Readable {
			d.Late = late.Late
			found[late.ID] = d
		}
	}
	return found, nil
}
