package deploy

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// The rows of a deploy are written a table at a time, so a DAG of a thousand jobs costs a handful of statements. Where
// there may be many, they go over as columns; where there are few, as one JSON array.

// insertDatasets gives every output an identity, and makes the datasets that are new.
func (d *deploy) insertDatasets(ctx context.Context, tx pgx.Tx) error {
	type row struct {
		ID    uuid.UUID `json:"id"`
		Name  string    `json:"name"`
		Job   string    `json:"job"`
		Index int       `json:"index"`

		Published string `json:"published"`
	}
	published := map[outputRef]string{}
	for _, p := range d.doc.Publish {
		published[outputRef{p.Job, p.Output}] = p.Name
	}
	var made []row
	for _, job := range d.doc.Jobs {
		for i, output := range job.Outputs {
			ref := outputRef{job.Name, i}
			if _, ok := d.datasets[ref]; ok {
				continue
			}
			id, name := uuid.Must(uuid.NewV7()), derivedName(d.doc.Name, job.Name, output)
			if d.named[name] { // until the cutover, another one has it
				name += "/" + id.String()
			}
			d.datasets[ref] = id
			made = append(made, row{id, name, job.Name, i, published[ref]})
		}
	}

	if len(made) == 0 {
		return nil
	}

	// What is to take a name over is as closed as what has it, also while it is built.
	if _, err := tx.Exec(ctx, `
		INSERT INTO datasets (id, org_id, name, producer_dag_name, producer_job_name, producer_output_index, read_roles)
		SELECT w.id, $1, w.name, $2, w.job, w.index, coalesce(
			(SELECT h.read_roles FROM dataset_name_owners o JOIN datasets h ON h.id = o.dataset_uuid
			 WHERE o.org_id = $1 AND o.name = w.published),
			read_roles_of_pattern($1, w.published), read_roles_of_pattern($1, w.name), org_default_read_roles($1))
		FROM jsonb_to_recordset($3) AS w(id uuid, name text, job text, index int, published text)`, d.caller.OrgID, d.doc.Name, made); err != nil {
		return fmt.Errorf("insert datasets: %w", err)
	}
	return nil
}

// findDatasets finds the dataset of each output that has one: those that a job fills, or has filled last, belong to its
// identity. It also finds the names of all datasets of the DAG.
func (d *deploy) findDatasets(ctx context.Context, tx pgx.Tx) error {
	type output struct {
		identity string
		index    int
	}
	wanted := map[output]outputRef{}
	for _, job := range d.doc.Jobs {
		for i := range job.Outputs {
			wanted[output{job.Identity(), i}] = outputRef{job.Name, i}
		}
	}

	// Those that serve come first, and then the newest ones.
	rows, err := tx.Query(ctx, `
		SELECT d.id, d.name, coalesce(j.identity, made.identity, d.producer_job_name),
		       coalesce(p.output_index, d.producer_output_index)
		FROM datasets d
		LEFT JOIN dag_current_versions c ON c.org_id = d.org_id AND c.dag_name = d.producer_dag_name
		LEFT JOIN dag_version_datasets p ON p.dag_version_id = c.dag_version_id AND p.dataset_uuid = d.id
		LEFT JOIN jobs j ON j.dag_version_id = p.dag_version_id AND j.name = p.job_name
		LEFT JOIN LATERAL (
			SELECT o.identity FROM dataset_versions g JOIN jobs o ON o.id = g.origin_job_id
			WHERE g.dataset_uuid = d.id ORDER BY g.id DESC LIMIT 1) AS made ON j.id IS NULL
		WHERE d.org_id = $1 AND d.producer_dag_name = $2
		ORDER BY j.id IS NULL, d.id DESC`, d.caller.OrgID, d.doc.Name)
	if err != nil {
		return fmt.Errorf("find datasets: %w", err)
	}

	var (
		id   uuid.UUID
		name string
		o    output
	)
	d.datasets, d.named = map[outputRef]uuid.UUID{}, map[string]bool{}
	_, err = pgx.ForEachRow(rows, []any{&id, &name, &o.identity, &o.index}, func() error {
		d.named[name] = true
		ref, ok := wanted[o]
		if _, found := d.datasets[ref]; ok && !found {
			d.datasets[ref] = id
		}
		return nil
	})
	return fault.Wrap(err, "find datasets")
}

// insertJobs writes the version's job rows, each pointing at the origin of its definition, which may be itself.
func (d *deploy) insertJobs(ctx context.Context, tx pgx.Tx) error {
	origins, err := d.findOrigins(ctx, tx)
	if err != nil {
		return err
	}

	d.origins, d.rows = origins, make(map[string]uuid.UUID, len(d.doc.Jobs))
	rows := newColumns(len(d.doc.Jobs), jobColumns...)
	for i := range d.doc.Jobs {
		job := &d.doc.Jobs[i]
		id := uuid.Must(uuid.NewV7())
		if _, known := origins[job.Name]; !known {
			origins[job.Name] = id
		}
		d.rows[job.Name] = id
		rows.add(d.jobRow(job, id)...)
	}

	from, args := rows.from(d.caller.OrgID, d.doc.Name, d.version, d.now)
	if rows.err == nil {
		_, rows.err = tx.Exec(ctx, `
			INSERT INTO jobs (org_id, dag_name, dag_version_id, created_at, updated_at, `+rows.list()+`)
			SELECT $1, $2, $3, $4, $4, `+rows.typed()+` FROM `+from, args...)
	}
	if rows.err != nil {
		return fmt.Errorf("insert jobs: %w", rows.err)
	}
	return nil
}

// findOrigins finds the job rows that introduced the document's definitions, by job name. It looks each of them up in
// idx_jobs_one_origin; a join reads all jobs for each where the planner's statistics are old.
func (d *deploy) findOrigins(ctx context.Context, tx pgx.Tx) (map[string]uuid.UUID, error) {
	type wanted struct {
		Job         string `json:"job"`
		Identity    string `json:"identity"`
		Fingerprint string `json:"fingerprint"`
	}
	var want []wanted
	for _, job := range d.doc.Jobs {
		want = append(want, wanted{job.Name, job.Identity(), d.prints[job.Name].Value})
	}

	rows, err := tx.Query(ctx, `
		SELECT w.job, (
			SELECT j.id FROM jobs j WHERE j.org_id = $1 AND j.dag_name = $2 AND j.identity = w.identity
			AND j.fingerprint = w.fingerprint AND j.id = j.origin_job_id
			ORDER BY j.name = w.job DESC, j.id DESC LIMIT 1)
		FROM jsonb_to_recordset($3) AS w(job text, identity text, fingerprint text)`, d.caller.OrgID, d.doc.Name, want)
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

// jobColumns are the columns of a job that jobRow returns, in its order.
var jobColumns = []string{"id uuid", "name text", "origin_job_id uuid", "fingerprint text", "base_fingerprint text",
	"build_epoch int", "activation text", "runtime text", "operator text", "operator_version text",
	"execution_strategy text", "trigger text", "idle_timeout text", "config jsonb", "config_hash text",
	"input_datasets text[]", "output_datasets text[]", "partition_by jsonb", "update_strategy text",
	"unique_key text[]", "effect text", "secrets text[]", "priority int", "concurrency_key text",
	"timeout_seconds int", "heartbeat_timeout_seconds int", "max_attempts int", "definition jsonb",
	"by_column boolean", "source jsonb", "bootstrap jsonb", "udf jsonb", "scaling jsonb"}

// jobRow returns the columns of a job's row in the version.
func (d *deploy) jobRow(job *dag.Job, id uuid.UUID) []any {
	outputs := make([]uuid.UUID, len(job.Outputs))
	for i := range job.Outputs {
		outputs[i] = d.datasets[outputRef{job.Name, i}]
	}
	inputs := make([]uuid.UUID, len(job.Inputs))
	for i := range job.Inputs {
		inputs[i] = d.reads[inputRef{job.Name, i}].dataset
	}

	var source, bootstrap, udf, scaling any // a nil pointer would be the JSON value null, and not SQL's NULL
	if job.Source != nil {
		source = job.Source
	}
	if job.Bootstrap != nil {
		bootstrap = job.Bootstrap
	}
	if job.UDF != nil {
		udf = job.UDF
	}
	if job.MaxConcurrency > 0 {
		scaling = map[string]any{"max_concurrency": job.MaxConcurrency}
	}

	print := d.prints[job.Name]
	return []any{id, job.Name, d.origins[job.Name], print.Value, print.Base,
		d.epoch[job.Name], string(job.Activation), job.Runtime, job.Operator, job.OperatorVersion,
		orNull(string(job.ExecutionStrategy)), orNull(string(job.Trigger)), orNull(job.IdleTimeout),
		object(job.Config), d.definitions.Local(job.Name),
		inputs, outputs, job.PartitionBy, string(job.UpdateStrategy),
		job.UniqueKey, string(job.Effect), list(job.Secrets), job.Priority, orNull(job.ConcurrencyKey),
		int(job.Timeout.Seconds()), int(job.HeartbeatTimeout.Seconds()), job.MaxAttempts, job,
		d.definitions.ByColumn(job.Name), source, bootstrap, udf, scaling}
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
		RangeStart  *int64           `json:"range_start"`
		RangeEnd    *int64           `json:"range_end"`
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
			start, end := d.extent(job)
			made = append(made, row{RangeStart: start, RangeEnd: end,
				ID: id, Dataset: d.datasets[ref], Origin: d.origins[job.Name],
				ConfigHash: d.prints[job.Name].ConfigHash(i),
				Location:   fmt.Sprintf("%s/%s/%s/", d.caller.OrgSlug, d.datasets[ref], id),
				Storage:    job.Storage[i], PartitionBy: job.PartitionBy, Continues: d.continues(ref)})
		}
	}

	if len(made) == 0 {
		return nil
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO dataset_versions (id, org_id, dataset_uuid, origin_job_id, storage_location, storage, partition_by, config_hash, continues, created_by_dag_version,
			range_start, range_end)
		SELECT w.id, $1, w.dataset, w.origin, w.location, w.storage, w.partition_by, w.config_hash, w.continues, $3,
			w.range_start, w.range_end
		FROM jsonb_to_recordset($2) AS w(id uuid, dataset uuid, origin uuid, config_hash text, location text, storage jsonb, partition_by jsonb, continues uuid,
			range_start bigint, range_end bigint)`,
		d.caller.OrgID, made, d.version); err != nil {
		return fmt.Errorf("insert generations: %w", err)
	}
	return nil
}

// extent returns the positions that a job reads, where its config has a fixed range of them. The range is part of the
// config hash, so it distinguishes no generations that were one before.
func (d *deploy) extent(job dag.Job) (start, end *int64) {
	read := d.deployer.catalog.Operators[job.Operator].Extent
	if read == nil {
		return nil, nil
	}
	from, to := read(job.Config)
	return &from, &to
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
	published := map[outputRef]*dag.Publication{}
	for i := range d.doc.Publish {
		p := &d.doc.Publish[i]
		published[outputRef{p.Job, p.Output}] = p
	}

	rows := newColumns(len(d.datasets), "dataset_uuid uuid", "dataset_version uuid", "job_name text",
		"output_index int", "name text", "published_name text", "publication jsonb")
	for ref, dataset := range d.datasets {
		var name, publication any
		if p := published[ref]; p != nil {
			name, publication = p.Name, p
		}
		rows.add(dataset, d.generations[ref].id, ref.job, ref.index, d.datasetName(ref), name, publication)
	}

	from, args := rows.from(d.caller.OrgID, d.version)
	if rows.err == nil {
		_, rows.err = tx.Exec(ctx, `INSERT INTO dag_version_datasets (org_id, dag_version_id, `+rows.list()+`)
			SELECT $1, $2, `+rows.typed()+` FROM `+from, args...)
	}
	if rows.err != nil {
		return fmt.Errorf("insert pointer set: %w", rows.err)
	}
	return nil
}
