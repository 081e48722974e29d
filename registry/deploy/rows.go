package deploy

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
)

// The rows of a deploy are written a table at a time: the rows go over as one JSON array and become a set in
// jsonb_populate_recordset, so a DAG of a thousand jobs costs a handful of statements.

// insertDatasets gives every output an identity, and makes the datasets that are new.
func (d *deploy) insertDatasets(ctx context.Context, tx pgx.Tx) error {
	known, err := d.knownDatasets(ctx, tx)
	if err != nil {
		return err
	}
	d.datasets = assign(d.doc, known)

	type row struct {
		ID    uuid.UUID `json:"id"`
		Name  string    `json:"name"`
		Job   string    `json:"job"`
		Index int       `json:"index"`
	}
	var made []row
	for _, job := range d.doc.Jobs {
		for i, output := range job.Outputs {
			ref := outputRef{job.Name, i}
			if _, ok := d.datasets[ref]; ok {
				continue
			}
			id, name := uuid.Must(uuid.NewV7()), derivedName(d.doc.Name, job.Name, output)
			if known.names[name] { // until the cutover, another one has it
				name += "/" + id.String()
			}
			d.datasets[ref] = id
			made = append(made, row{id, name, job.Name, i})
		}
	}

	if len(made) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO datasets (id, org_id, name, producer_dag_name, producer_job_name, producer_output_index, read_roles)
		SELECT w.id, $1, w.name, $2, w.job, w.index, org_default_read_roles($1)
		FROM jsonb_to_recordset($3) AS w(id uuid, name text, job text, index int)`, d.caller.OrgID, d.doc.Name, made); err != nil {
		return fmt.Errorf("insert datasets: %w", err)
	}
	return nil
}

// knownOutputs are the datasets of a DAG by the output that fills them, or last filled them.
type knownOutputs struct {
	serving map[outputRef]uuid.UUID   // in the version that serves
	retired map[outputRef][]uuid.UUID // in none that serves, the newest first
	names   map[string]bool           // of all of them
}

// assign finds the dataset of each output that has one. A job of the version that serves keeps its datasets, also
// under a new name that says `renamed_from`; any other job gets those that a job of its name had last. It is pure.
func assign(doc *dag.Document, known knownOutputs) map[outputRef]uuid.UUID {
	found, taken := map[outputRef]uuid.UUID{}, map[uuid.UUID]bool{}
	give := func(was func(dag.Job) string, have func(outputRef) []uuid.UUID) {
		for _, job := range doc.Jobs {
			for i := range job.Outputs {
				ref := outputRef{job.Name, i}
				if _, ok := found[ref]; ok || was(job) == "" {
					continue
				}
				for _, id := range have(outputRef{was(job), i}) {
					if !taken[id] {
						found[ref], taken[id] = id, true
						break
					}
				}
			}
		}
	}
	serving := func(ref outputRef) []uuid.UUID {
		if id, ok := known.serving[ref]; ok {
			return []uuid.UUID{id}
		}
		return nil
	}
	retired := func(ref outputRef) []uuid.UUID { return known.retired[ref] }
	serves := func(name string) bool { _, ok := known.serving[outputRef{name, 0}]; return ok }

	// Renames come first: the job that serves under the old name is theirs, unless their own name serves already.
	give(func(job dag.Job) string {
		if serves(job.Name) {
			return ""
		}
		return job.RenamedFrom
	}, serving)
	own := func(job dag.Job) string { return job.Name }
	former := func(job dag.Job) string { return job.RenamedFrom }
	give(own, serving)
	give(own, retired)
	give(former, retired)
	return found
}

// knownDatasets returns all datasets that jobs of the DAG have ever filled.
func (d *deploy) knownDatasets(ctx context.Context, tx pgx.Tx) (knownOutputs, error) {
	known := knownOutputs{serving: map[outputRef]uuid.UUID{}, retired: map[outputRef][]uuid.UUID{},
		names: map[string]bool{}}
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.name, coalesce(p.job_name, d.producer_job_name), coalesce(p.output_index, d.producer_output_index),
		       p.dataset_uuid IS NOT NULL
		FROM datasets d
		LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		WHERE d.org_id = $1 AND d.producer_dag_name = $2
		ORDER BY d.id DESC`, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return known, fmt.Errorf("find datasets: %w", err)
	}

	var (
		id     uuid.UUID
		name   string
		ref    outputRef
		serves bool
	)
	if _, err := pgx.ForEachRow(rows, []any{&id, &name, &ref.job, &ref.index, &serves}, func() error {
		known.names[name] = true
		if serves {
			known.serving[ref] = id
		} else {
			known.retired[ref] = append(known.retired[ref], id)
		}
		return nil
	}); err != nil {
		return known, fmt.Errorf("find datasets: %w", err)
	}
	return known, nil
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
		INSERT INTO jobs (id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint, build_epoch, activation,
			runtime, operator, operator_version, source, bootstrap, execution_strategy, trigger, idle_timeout, config,
			config_hash, input_datasets, output_datasets, partition_by, update_strategy, unique_key, effect, udf, secrets,
			scaling, priority, concurrency_key, timeout_seconds, heartbeat_timeout_seconds, max_attempts, definition,
			by_column, created_at, updated_at)
		SELECT id, org_id, name, dag_name, dag_version_id, origin_job_id, fingerprint, base_fingerprint, build_epoch, activation,
			runtime, operator, operator_version, source, bootstrap, execution_strategy, trigger, idle_timeout, config,
			config_hash, input_datasets, output_datasets, partition_by, update_strategy, unique_key, effect, udf, secrets,
			scaling, priority, concurrency_key, timeout_seconds, heartbeat_timeout_seconds, max_attempts, definition,
			by_column, $2, $2
		FROM jsonb_populate_recordset(NULL::jobs, $1)`, rows, d.now)
	if err != nil {
		return fmt.Errorf("insert jobs: %w", err)
	}
	return nil
}

// findOrigins finds the job rows that introduced the document's definitions, by job name. It looks each of them up in
// idx_jobs_one_origin; a join reads all jobs for each where the planner's statistics are old.
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
		SELECT w.job, coalesce(
			(SELECT j.id FROM jobs j WHERE j.org_id = $1 AND j.dag_name = $2 AND j.name = w.job
			 AND j.fingerprint = w.fingerprint AND j.id = j.origin_job_id),
			(SELECT j.id FROM jobs j WHERE j.org_id = $1 AND j.dag_name = $2 AND j.name = w.was
			 AND j.fingerprint = w.fingerprint AND j.id = j.origin_job_id))
		FROM jsonb_to_recordset($3) AS w(job text, was text, fingerprint text)`, d.caller.OrgID, d.doc.Name, want)
	if err != nil {
		return nil, fmt.Errorf("find origins: %w", err)
	}

	origins := map[string]uuid.UUID{}
	var (
		job string
		id  *uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&job, &id}, func() error {
		if id != nil {
			origins[job] = *id
		}
		return nil
	})
	return origins, err
}

// jobRow returns the columns of a job's row in the version.
func (d *deploy) jobRow(job *dag.Job, id uuid.UUID) map[string]any {
	outputs := make([]uuid.UUID, len(job.Outputs))
	for i := range job.Outputs {
		outputs[i] = d.datasets[outputRef{job.Name, i}]
	}
	inputs := make([]uuid.UUID, len(job.Inputs))
	for i := range job.Inputs {
		inputs[i] = d.reads[inputRef{job.Name, i}].dataset
	}

	print := d.prints[job.Name]
	row := map[string]any{
		"id": id, "org_id": d.caller.OrgID, "name": job.Name, "dag_name": d.doc.Name, "dag_version_id": d.version,
		"origin_job_id": d.origins[job.Name], "fingerprint": print.Value,
		"base_fingerprint": print.Base, "build_epoch": d.epoch[job.Name],
		"activation": job.Activation, "runtime": job.Runtime, "operator": job.Operator,
		"operator_version":   job.OperatorVersion,
		"execution_strategy": orNull(string(job.ExecutionStrategy)), "trigger": orNull(string(job.Trigger)),
		"idle_timeout": orNull(job.IdleTimeout), "config": object(job.Config),
		"config_hash":    d.definitions.Local(job.Name),
		"input_datasets": inputs, "output_datasets": outputs, "partition_by": job.PartitionBy,
		"update_strategy": job.UpdateStrategy,
		"unique_key":      job.UniqueKey, "effect": job.Effect, "secrets": list(job.Secrets), "priority": job.Priority,
		"concurrency_key": orNull(job.ConcurrencyKey), "timeout_seconds": int(job.Timeout.Seconds()),
		"heartbeat_timeout_seconds": int(job.HeartbeatTimeout.Seconds()), "max_attempts": job.MaxAttempts,
		"definition": job, "by_column": d.definitions.ByColumn(job.Name),
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
	if err := d.findGenerations(ctx, tx); err != nil {
		return err
	}

	type row struct {
		ID          uuid.UUID        `json:"id"`
		Dataset     uuid.UUID        `json:"dataset"`
		Origin      uuid.UUID        `json:"origin"`
		ConfigHash  string           `json:"config_hash"`
		Location    string           `json:"location"`
		Storage     dag.Storage      `json:"storage"`
		PartitionBy dag.Partitioning `json:"partition_by"`
		Continues   *uuid.UUID       `json:"continues"`
	}

	var made []row
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			ref := outputRef{job.Name, i}
			if _, known := d.generations[ref]; known {
				continue
			}

			id := uuid.Must(uuid.NewV7())
			d.generations[ref] = generationRef{id: id}
			made = append(made, row{ID: id, Dataset: d.datasets[ref], Origin: d.origins[job.Name],
				ConfigHash: d.prints[job.Name].ConfigHash(i),
				Location:   fmt.Sprintf("%s/%s/%s/", d.caller.OrgSlug, d.datasets[ref], id),
				Storage:    job.Storage[i], PartitionBy: job.PartitionBy, Continues: d.continues(ref)})
		}
	}

	if len(made) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO dataset_versions (id, org_id, dataset_uuid, origin_job_id, storage_location, storage, partition_by, config_hash, continues, created_by_dag_version)
		SELECT w.id, $1, w.dataset, w.origin, w.location, w.storage, w.partition_by, w.config_hash, w.continues, $3
		FROM jsonb_to_recordset($2) AS w(id uuid, dataset uuid, origin uuid, config_hash text, location text, storage jsonb, partition_by jsonb, continues uuid)`,
		d.caller.OrgID, made, d.version); err != nil {
		return fmt.Errorf("insert generations: %w", err)
	}
	return nil
}

// findGenerations finds the generations that the document's outputs had before. It relies on
// idx_dataset_versions_config: a job of another DAG may have the same hash, so what is found is matched with the
// dataset here.
func (d *deploy) findGenerations(ctx context.Context, tx pgx.Tx) error {
	type key struct {
		dataset uuid.UUID
		hash    string
	}
	refs, hashes := make(map[key]outputRef, len(d.datasets)), make([]string, 0, len(d.datasets))
	for ref, dataset := range d.datasets {
		hash := d.prints[ref.job].ConfigHash(ref.index)
		refs[key{dataset, hash}] = ref
		hashes = append(hashes, hash)
	}

	rows, err := tx.Query(ctx, `
		SELECT g.dataset_uuid, g.config_hash, g.id, EXISTS (SELECT FROM partition_versions r WHERE r.dataset_version = g.id AND r.state = 'Published')
		FROM dataset_versions g
		WHERE g.org_id = $1 AND g.config_hash = ANY($2) AND g.purged_at IS NULL`, d.caller.OrgID, hashes)
	if err != nil {
		return fmt.Errorf("find generations: %w", err)
	}

	d.generations = make(map[outputRef]generationRef, len(d.datasets))
	var (
		k key
		g generationRef
	)
	if _, err := pgx.ForEachRow(rows, []any{&k.dataset, &k.hash, &g.id, &g.filled}, func() error {
		if ref, ok := refs[k]; ok {
			d.generations[ref] = g
		}
		return nil
	}); err != nil {
		return fmt.Errorf("find generations: %w", err)
	}
	return nil
}

// insertPointers writes the version's pointer set.
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
		r := row{Dataset: dataset, Generation: d.generations[ref].id, Job: ref.job, Index: ref.index,
			Name: d.datasetName(ref)}
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
