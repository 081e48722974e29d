package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// Judge compares a version with the one that serves, under the lock of a swap, and refuses what readers would miss and
// nobody agreed to. Lost are the partitions that they would lose; back says that a person goes back to the version. It
// returns the contract of the version.
func (dp *Deployer) Judge(
	ctx context.Context, tx pgx.Tx, b registry.Build, lost []registry.Removal, back bool,
) (next contract.Contract, err error) {
	var serves uuid.UUID
	err = tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2`,
		b.OrgID, b.DAG).Scan(&serves)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return next, fmt.Errorf("version of %s that serves: %w", b.DAG, err)
	}

	live, err := dp.promises(ctx, tx, b.OrgID, serves, true)
	if err != nil {
		return next, err
	}
	if next, err = dp.promises(ctx, tx, b.OrgID, b.ID, false); err != nil {
		return next, err
	}
	facts := contract.Facts{Lost: losses(lost), Back: back}
	if facts.Returns, err = returns(ctx, tx, b, live, next); err != nil {
		return next, err
	}
	if facts.Consumers, err = dp.consumers(ctx, tx, b.OrgID, b.DAG, live); err != nil {
		return next, err
	}
	return next, contract.Refusal(contract.Compare(live, next, facts), b.Consents)
}

// returns finds the DAGs that get names back which a cutover from live to a version gives up, by name.
func returns(
	ctx context.Context, tx pgx.Tx, b registry.Build, live, next contract.Contract,
) (map[string]string, error) {
	kept := map[string]bool{}
	for _, d := range next.Datasets {
		kept[d.Name] = kept[d.Name] || d.Published
	}
	gone := func(d contract.Dataset) bool { return d.Published && !kept[d.Name] }
	if !slices.ContainsFunc(live.Datasets, gone) {
		return nil, nil
	}

	moves, err := Handovers(ctx, tx, b)
	if err != nil {
		return nil, err
	}
	back := map[string]string{}
	for _, m := range moves {
		if m.From == b.DAG {
			back[m.Name] = m.To
		}
	}
	return back, nil
}

func losses(removals []registry.Removal) []contract.Loss {
	lost := make([]contract.Loss, len(removals))
	for i, r := range removals {
		lost[i] = contract.Loss{Dataset: r.Dataset, Partitions: r.Partitions, Text: r.String()}
	}
	return lost
}

// promises returns the contract of a version that is committed. Its jobs are kept in memory, since they never change;
// everything else may have changed since the version was built.
func (dp *Deployer) promises(
	ctx context.Context, tx pgx.Tx, org, version uuid.UUID, serves bool,
) (c contract.Contract, err error) {
	if version == uuid.Nil {
		return c, nil
	}
	jobs, err := dp.registry.VersionJobs(ctx, tx, version)
	if err != nil {
		return c, err
	}
	defs, elsewhere := make(map[string]*dag.Job, len(jobs)), false
	for _, job := range jobs {
		defs[job.Name] = &job.Def
		elsewhere = elsewhere || slices.ContainsFunc(job.Inputs, func(in registry.JobInput) bool { return !in.InDAG })
	}

	if c.Datasets, err = promised(ctx, tx, org, version, serves, defs); err != nil || !elsewhere {
		return c, err
	}
	c.Inputs, err = readElsewhere(ctx, tx, org, version)
	return c, err
}

// promised returns what a version promises, whose jobs are those of defs. The columns are those of each generation's
// newest revision. Of the version that serves, a name counts only where its DAG still owns it.
func promised(
	ctx context.Context, tx pgx.Tx, org, version uuid.UUID, serves bool, defs map[string]*dag.Job,
) ([]contract.Dataset, error) {
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_uuid, p.job_name, p.output_index, p.name, p.published_name IS NOT NULL AND (NOT $3 OR o.name IS NOT NULL),
		       coalesce(p.publication ->> 'owner', ''), coalesce(p.publication ->> 'takes_over', ''), p.dataset_version,
		       g.partition_by, coalesce(g.storage ->> 'kind', ''), g.schema
		FROM dag_version_datasets p
		JOIN dataset_versions g ON g.id = p.dataset_version
		LEFT JOIN dataset_name_owners o ON $3 AND o.org_id = p.org_id AND o.name = p.published_name AND o.dataset_uuid = p.dataset_uuid
		WHERE p.org_id = $1 AND p.dag_version_id = $2
		ORDER BY p.name`, org, version, serves)
	if err != nil {
		return nil, fmt.Errorf("contract of version %s: %w", version, err)
	}

	datasets, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d contract.Dataset, err error) {
		err = row.Scan(&d.ID, &d.Job, &d.Output, &d.Name, &d.Published, &d.Owner, &d.TakesOver, &d.Generation,
			&d.PartitionBy, &d.Storage, &d.Columns)
		def := defs[d.Job]
		if err != nil || def == nil {
			return d, err
		}
		d.UniqueKey = def.UniqueKey
		for _, check := range def.Checks {
			if check.Output == d.Output {
				c := contract.Check{Hash: check.Hash(), Name: check.Name, Severity: check.Severity}
				d.Checks = append(d.Checks, c)
			}
		}
		return d, nil
	})
	if err != nil {
		return nil, fmt.Errorf("contract of version %s: %w", version, err)
	}
	return datasets, nil
}

// keptContract returns what a version promised when it was built. One that was never complete promises what its rows
// say.
func (dp *Deployer) keptContract(
	ctx context.Context, tx pgx.Tx, org, version uuid.UUID,
) (contract.Contract, error) {
	var c *contract.Contract
	err := tx.QueryRow(ctx, `SELECT contract FROM dag_versions WHERE org_id = $1 AND id = $2`, org, version).Scan(&c)
	if err != nil {
		return contract.Contract{}, fmt.Errorf("contract of version %s: %w", version, err)
	}
	if c == nil {
		return dp.promises(ctx, tx, org, version, false)
	}
	return *c, nil
}

// readElsewhere returns what the jobs of a version read from other DAGs.
func readElsewhere(ctx context.Context, tx pgx.Tx, org, version uuid.UUID) ([]contract.Input, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.name, i.input_index, i.dataset_uuid, i.partition_by, s.producer_dag_name || '/' || s.producer_job_name, j.definition
		FROM jobs j
		JOIN job_inputs i ON i.job_id = j.id AND NOT i.in_dag
		JOIN datasets s ON s.id = i.dataset_uuid
		WHERE j.org_id = $1 AND j.dag_version_id = $2
		ORDER BY j.name, i.input_index`, org, version)
	if err != nil {
		return nil, fmt.Errorf("inputs of version %s from other DAGs: %w", version, err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (in contract.Input, err error) {
		var (
			index int
			job   dag.Job
		)
		err = row.Scan(&in.Job, &index, &in.Dataset, &in.By, &in.Producer, &job)
		if err == nil && index < len(job.Inputs) {
			def := job.Inputs[index]
			in.As, in.Name, in.Map = def.As, def.Dataset, def.Map
		}
		return in, err
	})
}

// consumers returns, by dataset, the jobs of other DAGs that read what a version promises, in versions that are active
// or on their way.
func (dp *Deployer) consumers(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, live contract.Contract,
) (map[uuid.UUID][]contract.Consumer, error) {
	ids, columns := make([]uuid.UUID, len(live.Datasets)), map[uuid.UUID][]dag.Column{}
	for i, d := range live.Datasets {
		ids[i], columns[d.ID] = d.ID, d.Columns
	}
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (j.dag_name, j.name, i.input_index, i.dataset_uuid, j.origin_job_id)
		       i.dataset_uuid, i.input_index, i.partition_by, j.dag_name, j.definition
		FROM job_inputs i
		JOIN jobs j ON j.id = i.job_id
		JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE i.org_id = $1 AND i.dataset_uuid = ANY($2) AND NOT i.in_dag AND j.dag_name <> $3
		ORDER BY j.dag_name, j.name, i.input_index, i.dataset_uuid, j.origin_job_id`, org, ids, dagName)
	if err != nil {
		return nil, fmt.Errorf("find consumers in other DAGs: %w", err)
	}

	found := map[uuid.UUID][]contract.Consumer{}
	var (
		index int
		job   dag.Job
		c     contract.Consumer
	)
	_, err = pgx.ForEachRow(rows, []any{&c.Dataset, &index, &c.By, &c.DAG, &job}, func() error {
		in := job.Inputs[index]
		c.Job, c.As, c.Name, c.Map = job.Name, in.As, in.Dataset, in.Map
		c.Fixed = slices.ContainsFunc(job.Storage, func(s dag.Storage) bool { return s.Kind == "postgres" })
		c.Columns = dp.reads(&job, index, columns[c.Dataset])
		found[c.Dataset] = append(found[c.Dataset], c)
		c, job = contract.Consumer{}, dag.Job{}
		return nil
	})
	return found, err
}

// reads returns the columns that a job reads of one of its inputs by name; nil if that is not known.
func (dp *Deployer) reads(job *dag.Job, input int, columns []dag.Column) []string {
	spec := dp.catalog.Operators[job.Operator]
	if spec.Shape == nil || columns == nil {
		return nil
	}
	inputs := make([][]dag.Column, len(job.Inputs))
	inputs[input] = columns
	if shape := spec.Shape(job, inputs); len(shape.Reads) > input {
		return shape.Reads[input]
	}
	return nil
}

// verdict compares the version of a deploy with the one that serves. Columns that are not computed yet are worked out
// from what the jobs say.
func (d *deploy) verdict(
	ctx context.Context, tx pgx.Tx, live []planned, changes []registry.Change, version uuid.UUID,
) ([]contract.Finding, error) {
	was, err := d.deployer.promises(ctx, tx, d.caller.OrgID, d.serves, true)
	if err != nil {
		return nil, err
	}
	next, err := d.contract(ctx, tx, version)
	if err != nil {
		return nil, err
	}
	if version == d.serves {
		next = was // nothing is cut over, so no name moves
	}
	if err := d.workOutColumns(ctx, tx, was, &next, live); err != nil {
		return nil, err
	}

	var lost []registry.Removal
	for _, c := range changes {
		if c.Removes != nil {
			lost = append(lost, *c.Removes)
		}
	}
	facts := contract.Facts{Lost: losses(lost), Forced: d.req.Force != nil}
	b := registry.Build{ID: version, OrgID: d.caller.OrgID, DAG: d.doc.Name}
	if facts.Returns, err = returns(ctx, tx, b, was, next); err != nil {
		return nil, err
	}
	if facts.Consumers, err = d.deployer.consumers(ctx, tx, d.caller.OrgID, d.doc.Name, was); err != nil {
		return nil, err
	}
	for i := range changes {
		for _, c := range facts.Consumers[changes[i].ID] {
			if at := c.Address(); !slices.Contains(changes[i].Consumers, at) {
				changes[i].Consumers = append(changes[i].Consumers, at)
			}
		}
	}
	return contract.Compare(was, next, facts), nil
}

// contract returns the contract of the deploy's own version, which may not be committed yet.
func (d *deploy) contract(ctx context.Context, tx pgx.Tx, version uuid.UUID) (c contract.Contract, err error) {
	defs, elsewhere := make(map[string]*dag.Job, len(d.doc.Jobs)), false
	for i := range d.doc.Jobs {
		job := &d.doc.Jobs[i]
		defs[job.Name] = job
		elsewhere = elsewhere || slices.ContainsFunc(job.Inputs, func(in dag.Input) bool { return in.Job == "" })
	}
	if c.Datasets, err = promised(ctx, tx, d.caller.OrgID, version, false, defs); err != nil || !elsewhere {
		return c, err
	}
	c.Inputs, err = readElsewhere(ctx, tx, d.caller.OrgID, version)
	return c, err
}
