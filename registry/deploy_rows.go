package registry

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// The rows of a deploy are written a table at a time: the rows go over as one JSON array and become a set in
// jsonb_populate_recordset, so a DAG of a thousand jobs costs a handful of statements.

// insertDatasets gives every output an identity. A dataset is found by its producer, under the producer's former name
// where the job was renamed, and made where there is none.
func (d *deploy) insertDatasets(ctx context.Context, tx pgx.Tx) error {
	type row struct {
		ID    uuid.UUID `json:"id"`
		Name  string    `json:"name"`
		Job   string    `json:"job"`
		Was   string    `json:"was"`
		Index int       `json:"index"`
	}
	var wanted []row
	for _, job := range d.doc.Jobs {
		for i, output := range job.Outputs {
			wanted = append(wanted, row{uuid.Must(uuid.NewV7()), derivedName(d.doc.Name, job.Name, output), job.Name, job.RenamedFrom, i})
		}
	}
	rows, err := tx.Query(ctx, `
		WITH wanted AS (SELECT * FROM jsonb_to_recordset($3) AS w(id uuid, name text, job text, was text, index int)),
		known AS (
			SELECT DISTINCT ON (w.job, w.index) d.id, w.job, w.index
			FROM wanted w
			JOIN datasets d ON d.org_id = $1 AND d.producer_dag_name = $2 AND d.producer_output_index = w.index
			     AND d.producer_job_name IN (w.job, NULLIF(w.was, ''))
			ORDER BY w.job, w.index, d.producer_job_name = w.job DESC),
		made AS (
			INSERT INTO datasets (id, org_id, name, producer_dag_name, producer_job_name, producer_output_index, read_roles)
			SELECT w.id, $1, w.name, $2, w.job, w.index, org_default_read_roles($1)
			FROM wanted w
			WHERE NOT EXISTS (SELECT FROM known k WHERE k.job = w.job AND k.index = w.index)
			RETURNING id, producer_job_name, producer_output_index)
		SELECT id, job, index FROM known UNION ALL SELECT id, producer_job_name, producer_output_index FROM made`,
		d.caller.OrgID, d.doc.Name, wanted)
	if err != nil {
		return fmt.Errorf("insert datasets: %w", err)
	}
	d.datasets = make(map[outputRef]uuid.UUID, len(wanted))
	var (
		id  uuid.UUID
		ref outputRef
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &ref.job, &ref.index}, func() error {
		d.datasets[ref] = id
		return nil
	}); err != nil {
		return fmt.Errorf("insert datasets: %w", err)
	}
	return nil
}

// insertJobs writes the version's job rows, each pointing at the origin of its definition, which may be itself.
func (d *deploy) insertJobs(ctx context.Context, tx pgx.Tx) error {
	origins, err := d.findOrigins(ctx, tx)
	if err != nil {
		return err
	}
	d.origins, d.rows = origins, make(map[string]uuid.UUID, len(d.doc.Jobs))
	rows := make([]map[string]any, len(d.doc.Jobs))
	for i := range d.doc.Jobs {
		job := &d.doc.Jobs[i]
		id := uuid.Must(uuid.NewV7())
		if _, known := origins[job.Name]; !known {
			origins[job.Name] = id
		}
		d.rows[job.Name] = id
		rows[i] = d.jobRow(job, id)
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, build_epoch, activation,
			runtime, operator, operator_version, source, bootstrap, execution_strategy, trigger, idle_timeout, config,
			config_hash, input_datasets, output_datasets, partition_by, update_strategy, unique_key, effect, udf, secrets,
			scaling, priority, concurrency_key, timeout_seconds, heartbeat_timeout_seconds, max_attempts, definition,
			created_at, updated_at)
		SELECT id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, build_epoch, activation,
			runtime, operator, operator_version, source, bootstrap, execution_strategy, trigger, idle_timeout, config,
			config_hash, '{}', output_datasets, partition_by, update_strategy, unique_key, effect, udf, secrets,
			scaling, priority, concurrency_key, timeout_seconds, heartbeat_timeout_seconds, max_attempts, definition,
			$2, $2
		FROM jsonb_populate_recordset(NULL::jobs, $1)`, rows, d.now)
	if err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	return nil
}

// findOrigins finds the job rows that introduced the document's definitions, by job name.
func (d *deploy) findOrigins(ctx context.Context, tx pgx.Tx) (map[string]uuid.UUID, error) {
	type wanted struct {
		Job         string `json:"job"`
		Was         string `json:"was"`
		Fingerprint string `json:"fingerprint"`
	}
	var want []wanted
	for _, job := range d.doc.Jobs {
		want = append(want, wanted{job.Name, job.RenamedFrom, d.prints[job.Name].Value})
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (w.job) w.job, j.id
		FROM jsonb_to_recordset($3) AS w(job text, was text, fingerprint text)
		JOIN jobs j ON j.org_id = $1 AND j.dag_name = $2 AND j.name IN (w.job, NULLIF(w.was, ''))
		     AND j.fingerprint = w.fingerprint AND j.id = j.origin_job_id
		ORDER BY w.job, j.name = w.job DESC`, d.caller.OrgID, d.doc.Name, want)
	if err != nil {
		return nil, fmt.Errorf("find origins: %w", err)
	}
	origins := map[string]uuid.UUID{}
	var (
		job string
		id  uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&job, &id}, func() error {
		origins[job] = id
		return nil
	})
	return origins, err
}

func (d *deploy) jobRow(job *dag.Job, id uuid.UUID) map[string]any {
	outputs := make([]uuid.UUID, len(job.Outputs))
	for i := range job.Outputs {
		outputs[i] = d.datasets[outputRef{job.Name, i}]
	}
	print := d.prints[job.Name]
	row := map[string]any{
		"id": id, "org_id": d.caller.OrgID, "name": job.Name, "dag_name": d.doc.Name, "dag_version_id": d.version,
		"origin_job_id": d.origins[job.Name], "fingerprint": print.Value, "build_epoch": d.epoch[job.Name],
		"activation": job.Activation, "runtime": job.Runtime, "operator": job.Operator, "operator_version": job.OperatorVersion,
		"execution_strategy": orNull(string(job.ExecutionStrategy)), "trigger": orNull(string(job.Trigger)),
		"idle_timeout": orNull(job.IdleTimeout), "config": object(job.Config), "config_hash": d.local[job.Name],
		"output_datasets": outputs, "partition_by": job.PartitionBy, "update_strategy": job.UpdateStrategy,
		"unique_key": job.UniqueKey, "effect": job.Effect, "secrets": list(job.Secrets), "priority": job.Priority,
		"concurrency_key": orNull(job.ConcurrencyKey), "timeout_seconds": int(job.Timeout.Seconds()),
		"heartbeat_timeout_seconds": int(job.HeartbeatTimeout.Seconds()), "max_attempts": job.MaxAttempts, "definition": job,
	}
	// A nil pointer in the row would be the JSON value null in a JSONB column, and not SQL's NULL.
	if job.Source != nil {
		row["source"] = job.Source
	}
	if job.Bootstrap != nil {
		row["bootstrap"] = job.Bootstrap
	}
	if job.UDF != nil {
		row["udf"] = job.UDF
	}
	if job.MaxConcurrency > 0 {
		row["scaling"] = map[string]any{"max_concurrency": job.MaxConcurrency}
	}
	return row
}

func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func object(m map[string]any) map[string]any {
	if m == nil {
		return map[string]any{}
	}
	return m
}

func list(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// insertGenerations finds or makes the dataset version of every output: the same config hash is the same generation.
func (d *deploy) insertGenerations(ctx context.Context, tx pgx.Tx) error {
	type row struct {
		ID          uuid.UUID        `json:"id"`
		Dataset     uuid.UUID        `json:"dataset"`
		Origin      uuid.UUID        `json:"origin"`
		ConfigHash  string           `json:"config_hash"`
		Location    string           `json:"location"`
		Storage     dag.Storage      `json:"storage"`
		PartitionBy dag.Partitioning `json:"partition_by"`
	}
	var wanted []row
	refs := map[uuid.UUID]outputRef{}
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			ref := outputRef{job.Name, i}
			id := uuid.Must(uuid.NewV7())
			refs[d.datasets[ref]] = ref
			wanted = append(wanted, row{ID: id, Dataset: d.datasets[ref], Origin: d.origins[job.Name],
				ConfigHash: d.prints[job.Name].ConfigHash(i), Location: fmt.Sprintf("%s/%s/%s/", d.caller.OrgSlug, d.datasets[ref], id),
				Storage: job.Storage[i], PartitionBy: job.PartitionBy})
		}
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO dataset_versions (id, org_id, dataset_uuid, origin_job_id, storage_location, storage, partition_by, config_hash, created_by_dag_version)
		SELECT w.id, $1, w.dataset, w.origin, w.location, w.storage, w.partition_by, w.config_hash, $3
		FROM jsonb_to_recordset($2) AS w(id uuid, dataset uuid, origin uuid, config_hash text, location text, storage jsonb, partition_by jsonb)
		ON CONFLICT DO NOTHING`, d.caller.OrgID, wanted, d.version); err != nil {
		return fmt.Errorf("insert generations: %w", err)
	}
	rows, err := tx.Query(ctx, `
		SELECT g.dataset_uuid, g.id, EXISTS (SELECT FROM partition_versions r WHERE r.dataset_version = g.id AND r.state = 'Published')
		FROM jsonb_to_recordset($2) AS w(dataset uuid, config_hash text)
		JOIN dataset_versions g ON g.org_id = $1 AND g.dataset_uuid = w.dataset AND g.config_hash = w.config_hash AND g.purged_at IS NULL`,
		d.caller.OrgID, wanted)
	if err != nil {
		return fmt.Errorf("find generations: %w", err)
	}
	d.generations = make(map[outputRef]generationRef, len(wanted))
	var (
		dataset uuid.UUID
		g       generationRef
	)
	_, err = pgx.ForEachRow(rows, []any{&dataset, &g.id, &g.filled}, func() error {
		d.generations[refs[dataset]] = g
		return nil
	})
	if err != nil {
		return fmt.Errorf("find generations: %w", err)
	}
	return nil
}

func (d *deploy) insertPointers(ctx context.Context, tx pgx.Tx) error {
	type row struct {
		Dataset     uuid.UUID        `json:"dataset"`
		Generation  uuid.UUID        `json:"generation"`
		Job         string           `json:"job"`
		Index       int              `json:"index"`
		Name        string           `json:"name"`
		Published   *string          `json:"published"`
		Publication *dag.Publication `json:"publication"`
	}
	published := map[outputRef]*dag.Publication{}
	for i := range d.doc.Publish {
		p := &d.doc.Publish[i]
		published[outputRef{p.Job, p.Output}] = p
	}
	rows := make([]row, 0, len(d.datasets))
	for ref, dataset := range d.datasets {
		r := row{Dataset: dataset, Generation: d.generations[ref].id, Job: ref.job, Index: ref.index, Name: d.datasetName(ref)}
		if p := published[ref]; p != nil {
			r.Published, r.Publication = &p.Name, p
		}
		rows = append(rows, r)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO dag_version_datasets (org_id, dag_version_id, dataset_uuid, dataset_version, job_name, output_index, name, published_name, publication)
		SELECT $1, $2, w.dataset, w.generation, w.job, w.index, w.name, w.published, NULLIF(w.publication, 'null')
		FROM jsonb_to_recordset($3) AS w(dataset uuid, generation uuid, job text, index int, name text, published text, publication jsonb)`,
		d.caller.OrgID, d.version, rows)
	if err != nil {
		return fmt.Errorf("insert pointer set: %w", err)
	}
	return nil
}

// insertInputs writes the edges. An input from another DAG is bound to the dataset's identity now; the caller must be
// allowed to read it, and a dataset that is hidden from them is absent.
func (d *deploy) insertInputs(ctx context.Context, tx pgx.Tx) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}
	type row struct {
		Job         uuid.UUID        `json:"job"`
		Index       int              `json:"index"`
		Dataset     uuid.UUID        `json:"dataset"`
		InDAG       bool             `json:"in_dag"`
		Triggers    bool             `json:"triggers"`
		PartitionBy dag.Partitioning `json:"partition_by"`
	}
	var (
		rows     []row
		problems []fault.Problem
	)
	for _, job := range d.doc.Jobs {
		for i, in := range job.Inputs {
			r := row{Job: d.rows[job.Name], Index: i, InDAG: in.Job != "", Triggers: in.Triggers()}
			if in.Job != "" {
				upstream, _ := d.doc.Job(in.Job)
				r.Dataset, r.PartitionBy = d.datasets[outputRef{in.Job, in.Output}], upstream.PartitionBy
			} else if f, ok := foreign[in.Dataset]; ok {
				r.Dataset, r.PartitionBy = f.id, f.partitionBy
			} else {
				problems = append(problems, fault.Problem{Location: in.Position.String(), Code: "unknown_dataset",
					Message: fmt.Sprintf("job %s reads dataset %q, which no DAG publishes", job.Name, in.Dataset)})
			}
			rows = append(rows, r)
		}
	}
	if len(problems) > 0 {
		e := fault.New(fault.Invalid, "%s", problems[0].Message).WithHint("see dagctl datasets list; deploy the producing DAG first")
		e.Problems = problems
		return e
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO job_inputs (org_id, job_id, input_index, dataset_uuid, in_dag, triggers, partition_by)
		SELECT $1, w.job, w.index, w.dataset, w.in_dag, w.triggers, w.partition_by
		FROM jsonb_to_recordset($2) AS w(job uuid, index int, dataset uuid, in_dag boolean, triggers boolean, partition_by jsonb)`,
		d.caller.OrgID, rows); err != nil {
		return fmt.Errorf("insert edges: %w", err)
	}
	_, err = tx.Exec(ctx, `
		UPDATE jobs j SET input_datasets = e.datasets
		FROM (SELECT i.job_id, array_agg(i.dataset_uuid::text ORDER BY i.input_index) AS datasets
		      FROM job_inputs i JOIN jobs j ON j.id = i.job_id
		      WHERE i.org_id = $1 AND j.dag_version_id = $2 GROUP BY i.job_id) AS e
		WHERE j.org_id = $1 AND j.id = e.job_id`, d.caller.OrgID, d.version)
	if err != nil {
		return fmt.Errorf("insert edges: %w", err)
	}
	return nil
}

type foreignDataset struct {
	id          uuid.UUID
	generation  uuid.UUID // that readers see
	partitionBy dag.Partitioning
}

// foreignDatasets resolves the published datasets of other DAGs that the document reads, of those the caller may read.
func (d *deploy) foreignDatasets(ctx context.Context, tx pgx.Tx) (map[string]foreignDataset, error) {
	var names []string
	for _, job := range d.doc.Jobs {
		for _, in := range job.Inputs {
			if in.Dataset != "" {
				names = append(names, in.Dataset)
			}
		}
	}
	found := map[string]foreignDataset{}
	if len(names) == 0 {
		return found, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT d.name, d.id, g.id, d.read_roles, d.published, g.partition_by
		FROM datasets d
		JOIN dataset_pointers p ON p.org_id = d.org_id AND p.dataset_uuid = d.id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.org_id = $1 AND d.name = ANY($2) AND d.published`, d.caller.OrgID, names)
	if err != nil {
		return nil, fmt.Errorf("find datasets of other DAGs: %w", err)
	}
	var (
		name        string
		f           foreignDataset
		roles       []string
		published   bool
		partitionBy []byte
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &f.id, &f.generation, &roles, &published, &partitionBy}, func() error {
		if !d.caller.CanRead(roles, published) {
			return nil
		}
		f.partitionBy = dag.Partitioning{}
		if err := json.Unmarshal(partitionBy, &f.partitionBy); err != nil {
			return err
		}
		found[name] = f
		return nil
	})
	return found, err
}
