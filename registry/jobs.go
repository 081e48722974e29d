package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/storage"
)

// Consumer is a job of a version that the dispatcher works for, and that reads a given generation.
type Consumer struct {
	Job         *Job
	Input       int       // input index
	Generation  uuid.UUID // the dataset version it reads through that input
	PartitionBy dag.Partitioning
	Live        bool // its version serves readers; otherwise it is being built
}

// Acting is the job row by which an origin is run at this moment: the active version's, or, while only a build uses
// the origin, that version's.
type Acting struct {
	Job  *Job
	Live bool
}

// Jobs loads job rows by id. Rows never change, so they are kept while they are asked for. They are the same for every
// caller, so they come from outlines.
func (r *Registry) Jobs(ctx context.Context, tx pgx.Tx, ids []uuid.UUID) (map[uuid.UUID]*Job, error) {
	found := make(map[uuid.UUID]*Job, len(ids))
	var missing []uuid.UUID
	for _, id := range ids {
		if j, ok := r.jobs.Get(id); ok {
			found[id] = j
		} else {
			missing = append(missing, id)
		}
	}
	if len(missing) == 0 {
		return found, nil
	}

	if err := r.loadJobs(ctx, tx, missing, found); err != nil {
		return nil, fmt.Errorf("load %d jobs: %w", len(missing), err)
	}
	for _, id := range missing {
		j, ok := found[id]
		if !ok {
			return nil, fmt.Errorf("load job %s: no such row", id)
		}
		r.jobs.Put(id, j)
	}
	return found, nil
}

// KnownJobs returns jobs by their origins, each under the name that people know it by: the one that it has in the
// version that serves, also where it was renamed since.
func (r *Registry) KnownJobs(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID]*Job, error) {
	jobs, err := r.Jobs(ctx, tx, origins)
	if err != nil || len(jobs) == 0 {
		return jobs, err
	}

	rows, err := tx.Query(ctx, `SELECT id, known_as FROM jobs WHERE id = ANY($1) AND known_as IS NOT NULL`, origins)
	if err != nil {
		return nil, fmt.Errorf("names of %d jobs: %w", len(origins), err)
	}
	var (
		id   uuid.UUID
		name string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &name}, func() error {
		known := *jobs[id]
		known.Name, jobs[id] = name, &known
		return nil
	})
	return jobs, fault.Wrap(err, "names of jobs")
}

func (r *Registry) loadJobs(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, found map[uuid.UUID]*Job) error {
	rows, err := tx.Query(ctx, `
		SELECT j.id, j.org_id, org_slug(j.org_id), j.dag_name, j.name, j.dag_version_id, j.origin_job_id, j.definition
		FROM jobs j
		WHERE j.id = ANY($1)`, ids)
	if err != nil {
		return err
	}
	for rows.Next() {
		j := new(Job)
		var definition []byte
		if err := rows.Scan(&j.ID, &j.OrgID, &j.OrgSlug, &j.DAG, &j.Name, &j.VersionID, &j.Origin,
			&definition); err != nil {
			return err
		}
		if err := json.Unmarshal(definition, &j.Def); err != nil {
			return fmt.Errorf("definition of job %s: %w", j.ID, err)
		}
		found[j.ID] = j
	}
	if err := rows.Err(); err != nil {
		return err
	}

	if err := loadOutputs(ctx, tx, ids, found); err != nil {
		return err
	}
	return loadInputs(ctx, tx, ids, found)
}

func loadOutputs(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, found map[uuid.UUID]*Job) error {
	rows, err := tx.Query(ctx, `
		SELECT j.id, p.output_index, p.dataset_uuid, p.dataset_version
		FROM jobs j
		JOIN pointer_outlines p ON p.dag_version_id = j.dag_version_id AND p.job_name = j.name
		WHERE j.id = ANY($1)
		ORDER BY j.id, p.output_index`, ids)
	if err != nil {
		return err
	}

	var (
		id, dataset, version uuid.UUID
		index                int
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &index, &dataset, &version}, func() error {
		j := found[id]
		j.Outputs = append(j.Outputs, outputGeneration(j, index, dataset, version))
		return nil
	})
	return err
}

func outputGeneration(j *Job, index int, dataset, version uuid.UUID) OutputGeneration {
	g := storage.Generation{OrgID: j.OrgID, OrgSlug: j.OrgSlug, Dataset: dataset,
		Version: version, Kind: storage.Parquet}
	if index < len(j.Def.Storage) {
		g.Kind, g.Indexes = storage.Kind(j.Def.Storage[index].Kind), j.Def.Storage[index].Indexes
	}
	if j.Def.UpdateStrategy == dag.Append {
		g.UniqueKey = j.Def.UniqueKey
	}
	return OutputGeneration{Name: j.Def.Outputs[index], PartitionBy: j.Def.PartitionBy, Generation: g}
}

func loadInputs(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, found map[uuid.UUID]*Job) error {
	rows, err := tx.Query(ctx, `
		SELECT i.job_id, i.input_index, i.dataset_uuid, i.in_dag, i.partition_by, d.producer_dag_name || '/' || d.producer_job_name,
		       g.id, g.storage
		FROM job_inputs i
		JOIN dataset_outlines d ON d.org_id = i.org_id AND d.id = i.dataset_uuid
		JOIN jobs j ON j.id = i.job_id
		LEFT JOIN pointer_outlines p ON i.in_dag AND p.dag_version_id = j.dag_version_id AND p.dataset_uuid = i.dataset_uuid
		LEFT JOIN generation_outlines g ON g.id = p.dataset_version
		WHERE i.job_id = ANY($1)
		ORDER BY i.job_id, i.input_index`, ids)
	if err != nil {
		return err
	}

	var (
		id          uuid.UUID
		in          JobInput
		partitionBy []byte
		version     *uuid.UUID
		store       []byte
	)
	columns := []any{&id, &in.Index, &in.Dataset, &in.InDAG, &partitionBy, &in.Producer, &version, &store}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		j := found[id]
		in.Def, in.PartitionBy = j.Def.Inputs[in.Index], dag.Partitioning{}
		if err := json.Unmarshal(partitionBy, &in.PartitionBy); err != nil {
			return err
		}

		in.Generation = storage.Generation{OrgID: j.OrgID, OrgSlug: j.OrgSlug, Dataset: in.Dataset}
		if version != nil {
			if err := SetGeneration(&in.Generation, *version, store); err != nil {
				return err
			}
		}

		j.Inputs = append(j.Inputs, in)
		return nil
	})
	return err
}

// Consumers returns who reads the given generations: jobs of active versions and of those being built, through any
// input. Origins that several versions share come up once, by their acting row. It goes from the versions in work to
// their readers by idx_job_inputs_dataset (OFFSET keeps the planner from going the other way), so that its cost does
// not follow a DAG's history; those of the whole org matter only for what another DAG reads.
func (r *Registry) Consumers(b *pg.Batch, generations []uuid.UUID) *pg.Later[[]Consumer] {
	type edge struct {
		generation, job uuid.UUID
		input           int
		live            bool
		partitionBy     *dag.Partitioning // of the generation of another DAG
	}
	var (
		edges []edge
		e     edge
	)

	doing := fmt.Sprintf("find consumers of %d generations", len(generations))
	b.Query(doing, []any{&e.generation, &e.job, &e.input, &e.live, &e.partitionBy}, func() error {
		edges = append(edges, e)
		return nil
	}, `
		WITH made AS MATERIALIZED (
			SELECT g.id AS generation, g.org_id, g.dataset_uuid, g.partition_by, s.producer_dag_name AS dag_name,
				EXISTS (SELECT FROM job_inputs f WHERE f.dataset_uuid = g.dataset_uuid AND NOT f.in_dag) AS elsewhere
			FROM dataset_versions g JOIN datasets s ON s.id = g.dataset_uuid
			WHERE g.id = ANY($1)),
		read AS (
			SELECT m.generation, i.job_id, i.input_index, v.status = 'Active' AS live, NULL::jsonb AS partition_by
			FROM made m
			JOIN dag_versions v ON v.org_id = m.org_id AND v.dag_name = m.dag_name AND v.status IN ('Active', 'Building', 'Ready')
			CROSS JOIN LATERAL (SELECT * FROM job_inputs i WHERE i.dataset_uuid = m.dataset_uuid AND i.dag_version_id = v.id
			                    AND i.in_dag OFFSET 0) AS i
			WHERE EXISTS (SELECT FROM dag_version_datasets p WHERE p.dag_version_id = v.id
			              AND p.dataset_uuid = m.dataset_uuid AND p.dataset_version = m.generation)
			UNION ALL
			SELECT m.generation, i.job_id, i.input_index, v.status = 'Active', m.partition_by
			FROM made m
			JOIN dag_versions v ON v.org_id = m.org_id AND v.status IN ('Active', 'Building', 'Ready')
			CROSS JOIN LATERAL (SELECT * FROM job_inputs i WHERE i.dataset_uuid = m.dataset_uuid AND i.dag_version_id = v.id
			                    AND NOT i.in_dag OFFSET 0) AS i
			WHERE m.elsewhere AND EXISTS (SELECT FROM dataset_pointers p WHERE p.dataset_version = m.generation)),
		edges AS (
			SELECT r.generation, r.job_id, j.origin_job_id, r.input_index, r.live, j.created_at, r.partition_by
			FROM read r JOIN jobs j ON j.id = r.job_id
			WHERE r.live OR NOT EXISTS ( -- an origin that serves is run by the row that serves, which may read another generation
			          SELECT FROM dag_current_versions c JOIN jobs l ON l.dag_version_id = c.dag_version_id
			          WHERE c.org_id = j.org_id AND c.dag_name = j.dag_name AND l.origin_job_id = j.origin_job_id))
		SELECT DISTINCT ON (origin_job_id, input_index, generation) generation, job_id, input_index, live, partition_by
		FROM edges
		ORDER BY origin_job_id, input_index, generation, live DESC, created_at DESC`, generations)

	return pg.Then(pg.Answer(b, &edges), func(ctx context.Context, tx pgx.Tx, edges []edge) ([]Consumer, error) {
		ids := make([]uuid.UUID, len(edges))
		for i, e := range edges {
			ids[i] = e.job
		}
		jobs, err := r.Jobs(ctx, tx, ids)
		if err != nil {
			return nil, err
		}

		consumers := make([]Consumer, len(edges))
		for i, e := range edges {
			job := jobs[e.job]
			c := Consumer{Job: job, Input: e.input, Generation: e.generation, Live: e.live}
			if c.PartitionBy = job.Inputs[e.input].PartitionBy; e.partitionBy != nil {
				c.PartitionBy = *e.partitionBy
			}
			consumers[i] = c
		}
		return consumers, nil
	})
}

// ActingJobs returns the job row by which each origin is run now. An origin that no active, building or ready version
// uses is absent.
func (r *Registry) ActingJobs(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID]Acting, error) {
	return r.acting(new(pg.Batch), `j.origin_job_id = ANY($1)`, origins).Get(ctx, tx)
}

// ActingInstead returns, by origin, the rows by which jobs are run now whose given rows do not serve. Where a given row
// serves, which is nearly always so, it looks at that row and no other.
func (r *Registry) ActingInstead(b *pg.Batch, rows []uuid.UUID) *pg.Later[map[uuid.UUID]Acting] {
	return r.acting(b, `j.origin_job_id = ANY(ARRAY(
		SELECT g.origin_job_id FROM jobs g JOIN dag_versions o ON o.id = g.dag_version_id
		WHERE g.id = ANY($1) AND o.status <> 'Active'))`, rows)
}

// JobsInWork returns the acting rows of every origin of one version, or of all versions the dispatcher works for where
// version is nil.
func (r *Registry) JobsInWork(ctx context.Context, tx pgx.Tx, version *uuid.UUID) (map[uuid.UUID]Acting, error) {
	if version == nil {
		return r.acting(new(pg.Batch), `true`).Get(ctx, tx)
	}
	return r.acting(new(pg.Batch), `(v.org_id, v.dag_name) = (SELECT org_id, dag_name FROM dag_versions WHERE id = $1)
		AND j.origin_job_id IN (SELECT origin_job_id FROM jobs WHERE dag_version_id = $1)`, *version).Get(ctx, tx)
}

func (r *Registry) acting(b *pg.Batch, where string, args ...any) *pg.Later[map[uuid.UUID]Acting] {
	var (
		live   = map[uuid.UUID]bool{}
		id     uuid.UUID
		isLive bool
	)
	b.Query("find acting jobs", []any{&id, &isLive}, func() error {
		live[id] = isLive
		return nil
	}, `
		SELECT DISTINCT ON (j.origin_job_id) j.id, v.status = 'Active'
		FROM jobs j
		JOIN dag_versions v ON v.id = j.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE `+where+`
		ORDER BY j.origin_job_id, v.status = 'Active' DESC, j.created_at DESC`, args...)

	return pg.Then(pg.Answer(b, &live),
		func(ctx context.Context, tx pgx.Tx, live map[uuid.UUID]bool) (map[uuid.UUID]Acting, error) {
			jobs, err := r.Jobs(ctx, tx, slices.Collect(maps.Keys(live)))
			if err != nil {
				return nil, err
			}
			acting := make(map[uuid.UUID]Acting, len(jobs))
			for id, j := range jobs {
				acting[j.Origin] = Acting{Job: j, Live: live[id]}
			}
			return acting, nil
		})
}

// OriginsInWork returns those of some origins that an active version has, or one on its way.
func OriginsInWork(ctx context.Context, tx pgx.Tx, origins []uuid.UUID) (map[uuid.UUID]bool, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT j.origin_job_id FROM jobs j
		JOIN dag_versions v ON v.id = j.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE j.origin_job_id = ANY($1)`, origins)
	if err != nil {
		return nil, fmt.Errorf("jobs in work: %w", err)
	}

	inWork := map[uuid.UUID]bool{}
	var origin uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&origin}, func() error { inWork[origin] = true; return nil })
	return inWork, err
}

// WorkingOrigins is a query for all origins of an org, which is the argument of a statement, that an active version has
// or one on its way.
func WorkingOrigins(org string) string {
	return `SELECT DISTINCT j.origin_job_id FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id
		WHERE v.org_id = ` + org + ` AND v.status IN ('Active', 'Building', 'Ready')`
}

// FormerOrigins returns, by the names of a DAG's jobs, the other origins that these had in versions which were given up
// or replaced at since or later. It relies on the unique key (org_id, dag_name, number) of dag_versions.
func FormerOrigins(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, since time.Time,
) (map[string][]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		WITH working AS MATERIALIZED (
			SELECT j.origin_job_id FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id
			WHERE v.org_id = $1 AND v.dag_name = $2 AND v.status IN ('Active', 'Building', 'Ready')),
		former AS MATERIALIZED (
			SELECT DISTINCT j.name, j.origin_job_id FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id
			WHERE v.org_id = $1 AND v.dag_name = $2 AND v.ended_at >= $3
			  AND v.status NOT IN ('Active', 'Building', 'Ready')
			  AND NOT EXISTS (SELECT FROM working w WHERE w.origin_job_id = j.origin_job_id))
		SELECT DISTINCT coalesce(o.known_as, f.name), f.origin_job_id
		FROM former f JOIN jobs o ON o.id = f.origin_job_id`,
		org, dagName, since)
	if err != nil {
		return nil, fmt.Errorf("former origins of %s: %w", dagName, err)
	}

	former := map[string][]uuid.UUID{}
	var (
		name   string
		origin uuid.UUID
	)
	_, err = pgx.ForEachRow(rows, []any{&name, &origin}, func() error {
		former[name] = append(former[name], origin)
		return nil
	})
	return former, err
}

// InputGeneration is the generation that an input reads at a given moment, and how it is partitioned.
type InputGeneration struct {
	storage.Generation
	PartitionBy dag.Partitioning
}

// InputGenerations resolves the generation that each input of the jobs reads at this moment, by the id of the job's row
// and by input index. An input within the DAG reads what the job's version pins; one from another DAG what that DAG's
// readers see. A dataset that nobody serves (its DAG has no active version) has the version uuid.Nil, and the
// partitioning with which the job was deployed.
func (r *Registry) InputGenerations(
	ctx context.Context, tx pgx.Tx, jobs ...*Job,
) (map[uuid.UUID][]InputGeneration, error) {
	generations := make(map[uuid.UUID][]InputGeneration, len(jobs))
	var foreign []uuid.UUID
	for _, j := range jobs {
		if _, seen := generations[j.ID]; seen {
			continue
		}
		of, inDAG := make([]InputGeneration, len(j.Inputs)), true
		for i, in := range j.Inputs {
			of[i] = InputGeneration{in.Generation, in.PartitionBy}
			inDAG = inDAG && in.InDAG
		}
		if generations[j.ID] = of; !inDAG {
			foreign = append(foreign, j.ID)
		}
	}

	if len(foreign) == 0 {
		return generations, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT i.job_id, i.input_index, g.id, g.storage, g.partition_by
		FROM job_inputs i
		JOIN dataset_pointers p ON p.org_id = i.org_id AND p.dataset_uuid = i.dataset_uuid
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE i.job_id = ANY($1) AND NOT i.in_dag`, foreign)
	if err != nil {
		return nil, fmt.Errorf("resolve inputs of %d jobs: %w", len(foreign), err)
	}

	var (
		job, version uuid.UUID
		index        int
		store        []byte
		partitionBy  dag.Partitioning
	)
	_, err = pgx.ForEachRow(rows, []any{&job, &index, &version, &store, &partitionBy}, func() error {
		g := &generations[job][index]
		g.PartitionBy = partitionBy
		return SetGeneration(&g.Generation, version, store)
	})
	if err != nil {
		return nil, fmt.Errorf("resolve inputs of %d jobs: %w", len(foreign), err)
	}
	return generations, nil
}

func SetGeneration(g *storage.Generation, version uuid.UUID, store []byte) error {
	var s dag.Storage
	if err := json.Unmarshal(store, &s); err != nil {
		return err
	}
	g.Version, g.Kind, g.Indexes = version, storage.Kind(s.Kind), s.Indexes
	return nil
}

// DAGOf names a DAG of an org.
type DAGOf struct {
	Org  uuid.UUID
	Name string
}

// DAGsUsing returns the DAGs that serve or are built with jobs of some runtimes. An org and its runtime are at the same
// place.
func DAGsUsing(ctx context.Context, tx pgx.Tx, orgs []uuid.UUID, runtimes []string) ([]DAGOf, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT v.org_id, v.dag_name FROM dag_versions v
		JOIN jobs j ON j.dag_version_id = v.id
		JOIN unnest($1::uuid[], $2::text[]) AS p(org, runtime) ON p.org = v.org_id AND p.runtime = j.runtime
		WHERE v.status IN ('Active', 'Building', 'Ready')`, orgs, runtimes)
	if err != nil {
		return nil, fmt.Errorf("find the DAGs of runtimes: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[DAGOf])
}

// RuntimesOf returns the runtimes of jobs, by the ids of their rows.
func RuntimesOf(ctx context.Context, tx pgx.Tx, jobs []uuid.UUID) (map[uuid.UUID]string, error) {
	rows, err := tx.Query(ctx, `SELECT id, runtime FROM jobs WHERE id = ANY($1)`, jobs)
	if err != nil {
		return nil, fmt.Errorf("find the runtimes of jobs: %w", err)
	}
	runtimes := make(map[uuid.UUID]string, len(jobs))
	var (
		id      uuid.UUID
		runtime string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &runtime}, func() error { runtimes[id] = runtime; return nil })
	return runtimes, err
}
