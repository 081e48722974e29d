package deploy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// Filling is a build's progress with one of its datasets.
type Filling struct {
	Job      *registry.Job
	Output   int
	Name     string // of the dataset, where the caller may read it
	Action   string // Create, Rebuild or SwapOnly
	Upstream []string
	Total    *int // partitions it will have; nil until its source has been read
	Done     int  // of those, how many are published
	Recent   int  // of those, how many were published since the time asked about
}

// Fillings returns the progress of a version that is being built, in the order of its document. What its sources will
// read is known from what serves, and from the dispatcher: enumerated are the job rows whose sources have been read
// since the build began, and open the partitions, by origin, for which tasks are open.
func (dp *Deployer) Fillings(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID,
	enumerated map[uuid.UUID]bool, open map[uuid.UUID][]string, since time.Time) ([]Filling, error) {
	building, err := dp.registry.BuildJobs(ctx, tx, version)
	if err != nil {
		return nil, err
	}
	all, err := dp.versionJobs(ctx, tx, version)
	if err != nil {
		return nil, err
	}
	published, f, err := dp.buildForecast(ctx, tx, version, building, all, enumerated, open)
	if err != nil {
		return nil, err
	}
	made, err := madeFor(ctx, tx, caller, version, since)
	if err != nil {
		return nil, err
	}

	var fillings []Filling
	for _, job := range building {
		if dp.registry.ForwardOnly(job) {
			continue
		}
		for i, o := range job.Outputs {
			m := made[o.Generation.Version]
			fill := Filling{Job: job, Output: i, Name: m.name, Action: m.action, Recent: m.recent,
				Done: len(published[o.Generation.Version])}
			fill.Upstream = upstreamOf(&job.Def)
			if p := f.of(job.Name); !p.unknown {
				total := max(len(p.keys), fill.Done)
				fill.Total = &total
			}
			fillings = append(fillings, fill)
		}
	}
	return fillings, nil
}

// buildForecast returns the published revisions and the forecast of a build that has begun: what is not there yet, its
// sources are about to read.
func (dp *Deployer) buildForecast(ctx context.Context, tx pgx.Tx, version uuid.UUID, building, all []*registry.Job,
	enumerated map[uuid.UUID]bool, open map[uuid.UUID][]string) (map[uuid.UUID]map[string]int64, *forecast, error) {
	pairs, err := registry.Counterparts(ctx, tx, version)
	if err != nil {
		return nil, nil, err
	}
	live := map[uuid.UUID]uuid.UUID{}
	var generations []uuid.UUID
	for _, c := range pairs {
		live[c.Candidate] = c.Live
		generations = append(generations, c.Live)
	}

	resolved, err := dp.registry.InputGenerations(ctx, tx, all...)
	if err != nil {
		return nil, nil, err
	}

	f := &forecast{doc: &dag.Document{}, sources: map[string]partitions{}, foreign: map[string]partitions{},
		shapes: map[string]dag.Partitioning{}, kept: map[string][]string{}, done: map[string]partitions{}}
	read := map[string]uuid.UUID{} // foreign dataset → generation
	for _, job := range all {
		f.doc.Jobs = append(f.doc.Jobs, job.Def)
		for _, o := range job.Outputs {
			generations = append(generations, o.Generation.Version)
		}
		for i, in := range job.Inputs {
			if g := resolved[job.ID][i]; !in.InDAG {
				read[in.Def.Dataset], f.shapes[in.Def.Dataset] = g.Version, g.PartitionBy
				generations = append(generations, g.Version)
			}
		}
	}
	published, err := registry.Published(new(pg.Batch), generations).Get(ctx, tx)
	if err != nil {
		return nil, nil, err
	}
	for name, generation := range read {
		f.foreign[name] = partitions{keys: sortedKeys(published[generation])}
	}

	for _, job := range all {
		if len(job.Outputs) == 0 {
			continue
		}
		own := job.Outputs[0].Generation.Version
		builds := slices.ContainsFunc(building, func(b *registry.Job) bool { return b.ID == job.ID })
		switch {
		case !builds:
			f.kept[job.Name] = sortedKeys(published[own])
			f.sources[job.Name] = partitions{keys: f.kept[job.Name]}
		case job.Def.Splits():
			if hasSplit(job, all, published, open) {
				f.kept[job.Name] = sortedKeys(published[own])
			}
		case job.Def.Source != nil:
			other, serves := live[own]
			keys := union(sortedKeys(published[own]), sortedKeys(published[other]), open[job.Origin])
			f.sources[job.Name] = partitions{keys: keys, unknown: !serves && !enumerated[job.ID]}
		}
	}
	return published, f, nil
}

// hasSplit reports whether a job of a build has split its rows, so that its partitions are known: it has some, and
// neither it nor a job whose outputs it reads has open tasks, or nothing yet.
func hasSplit(
	job *registry.Job, all []*registry.Job, published map[uuid.UUID]map[string]int64, open map[uuid.UUID][]string,
) bool {
	reads := upstreamOf(&job.Def)
	for _, j := range all {
		if j.ID != job.ID && !slices.Contains(reads, j.Name) {
			continue
		}
		if len(open[j.Origin]) > 0 || len(j.Outputs) > 0 && len(published[j.Outputs[0].Generation.Version]) == 0 {
			return false
		}
	}
	return true
}

// versionJobs returns all jobs of a version, in the order of its document.
func (dp *Deployer) versionJobs(ctx context.Context, tx pgx.Tx, version uuid.UUID) ([]*registry.Job, error) {
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE dag_version_id = $1 ORDER BY id`, version)
	if err != nil {
		return nil, fmt.Errorf("jobs of version %s: %w", version, err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("jobs of version %s: %w", version, err)
	}
	return dp.registry.JobsInOrder(ctx, tx, ids)
}

// madeGeneration is what a version does to one of its datasets.
type madeGeneration struct {
	name   string // where the caller may read it
	action string
	recent int
}

// madeFor returns, by generation, what a version that does not serve yet does to its datasets.
func madeFor(ctx context.Context, tx pgx.Tx, caller authz.Caller, version uuid.UUID,
	since time.Time) (map[uuid.UUID]madeGeneration, error) {
	args := []any{version, since, Create, Rebuild, SwapOnly}
	visible := registry.VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_version, CASE WHEN `+visible+` THEN p.name ELSE '' END,
		       CASE WHEN g.created_by_dag_version <> p.dag_version_id THEN $5
		            WHEN EXISTS (SELECT FROM dataset_pointers l
		                WHERE l.org_id = p.org_id AND l.dataset_uuid = p.dataset_uuid) THEN $4
		            ELSE $3 END,
		       (SELECT count(*) FROM partition_versions r
		           WHERE r.dataset_version = p.dataset_version AND r.state = 'Published' AND r.materialized_at >= $2)
		FROM dag_version_datasets p
		JOIN datasets d ON d.id = p.dataset_uuid
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE p.dag_version_id = $1`, args...)
	if err != nil {
		return nil, fmt.Errorf("datasets of version %s: %w", version, err)
	}

	made := map[uuid.UUID]madeGeneration{}
	var (
		id uuid.UUID
		m  madeGeneration
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &m.name, &m.action, &m.recent}, func() error { made[id] = m; return nil })
	return made, err
}
