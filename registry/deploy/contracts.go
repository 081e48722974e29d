package deploy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// Judge compares a version with the one that serves, under the lock of a swap, and refuses what readers would miss and
// nobody agreed to. Lost are the partitions that they would lose; back says that a person goes back to the version. It
// returns the contract of the version. It locks the graph of DAGs, so that what it relies on in other DAGs stays until
// the swap is committed.
func (dp *Deployer) Judge(
	ctx context.Context, tx pgx.Tx, b registry.Build, lost []registry.Removal, back bool,
) (contract.Contract, error) {
	if err := LockGraph(ctx, tx, b.OrgID); err != nil {
		return contract.Contract{}, err
	}
	next, findings, err := dp.compare(ctx, tx, b, lost, back)
	if err != nil {
		return next, err
	}
	return next, contract.Refusal(findings, b.Consents)
}

// compare compares a version with the one that serves, as Judge says, and returns the version's contract and what
// readers would find.
func (dp *Deployer) compare(
	ctx context.Context, tx pgx.Tx, b registry.Build, lost []registry.Removal, back bool,
) (next contract.Contract, findings []contract.Finding, err error) {
	var serves uuid.UUID
	err = tx.QueryRow(ctx, `SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2`,
		b.OrgID, b.DAG).Scan(&serves)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return next, nil, fmt.Errorf("version of %s that serves: %w", b.DAG, err)
	}

	live, err := dp.promises(ctx, tx, b.OrgID, serves, true)
	if err != nil {
		return next, nil, err
	}
	if next, err = dp.promises(ctx, tx, b.OrgID, b.ID, false); err != nil {
		return next, nil, err
	}
	if back && len(next.Inputs) > 0 {
		if err := refuseCycleBack(ctx, tx, b); err != nil {
			return next, nil, err
		}
	}
	if cutsAnew(live, next) {
		emptied, err := registry.EmptiedBy(ctx, tx, b.ID)
		if err != nil {
			return next, nil, err
		}
		lost = slices.Concat(lost, emptied)
	}
	facts, err := dp.facts(ctx, tx, b, live, next, lost)
	if err != nil {
		return next, nil, err
	}
	facts.Back = back
	if err := dp.noteSources(ctx, tx, b, &next, &facts); err != nil {
		return next, nil, err
	}
	return next, contract.Compare(live, next, facts), nil
}

// cutsAnew reports whether a dataset of live is cut into other partitions in next.
func cutsAnew(live, next contract.Contract) bool {
	by := map[uuid.UUID]dag.Partitioning{}
	for _, d := range live.Datasets {
		by[d.ID] = d.PartitionBy
	}
	return slices.ContainsFunc(next.Datasets, func(d contract.Dataset) bool {
		was, serves := by[d.ID]
		return serves && !reflect.DeepEqual(was, d.PartitionBy)
	})
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
	published := `p.published_name IS NOT NULL`
	if serves {
		published = `(p.published_name, p.dataset_uuid) IN (
			SELECT o.name, o.dataset_uuid FROM dag_versions v
			JOIN dataset_name_owners o ON o.org_id = v.org_id AND o.dag_name = v.dag_name
			WHERE v.org_id = $1 AND v.id = $2)`
	}
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_uuid, p.job_name, p.output_index, p.name, coalesce(`+published+`, false),
		       coalesce(p.publication ->> 'owner', ''), coalesce(p.publication ->> 'takes_over', ''), p.dataset_version,
		       g.partition_by, coalesce(g.storage ->> 'kind', ''), g.schema, s.read_roles
		FROM dag_version_datasets p
		JOIN datasets s ON s.id = p.dataset_uuid
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE p.org_id = $1 AND p.dag_version_id = $2
		ORDER BY p.name`, org, version)
	if err != nil {
		return nil, fmt.Errorf("contract of version %s: %w", version, err)
	}

	var (
		by, schema    []byte
		partitionings = decoded[dag.Partitioning]{}
		schemas       = decoded[[]dag.Column]{}
	)
	datasets, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d contract.Dataset, err error) {
		if err := row.Scan(&d.ID, &d.Job, &d.Output, &d.Name, &d.Published, &d.Owner, &d.TakesOver, &d.Generation,
			&by, &d.Storage, &schema, &d.ReadRoles); err != nil {
			return d, err
		}
		if d.PartitionBy, err = partitionings.of(by); err != nil {
			return d, err
		}
		d.Columns, err = schemas.of(schema)
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

// decoded holds values by their JSON text: the datasets of a DAG have few different partitionings and schemas, and
// decoding them was most of what a contract cost.
type decoded[T any] map[string]T

func (d decoded[T]) of(text []byte) (v T, err error) {
	if v, ok := d[string(text)]; ok || text == nil {
		return v, nil
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, err
	}
	d[string(text)] = v
	return v, nil
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
	if err := d.refuseLiterals(ctx, tx, next); err != nil {
		return nil, err
	}

	var lost []registry.Removal
	for _, c := range changes {
		if c.Removes != nil {
			lost = append(lost, *c.Removes)
		}
	}
	b := registry.Build{ID: version, OrgID: d.caller.OrgID, DAG: d.doc.Name}
	facts, err := d.deployer.facts(ctx, tx, b, was, next, lost)
	if err != nil {
		return nil, err
	}
	facts.Forced = d.req.Force != nil
	for _, u := range d.unfit {
		u.Hint += orElse
		facts.Unfit = append(facts.Unfit, u)
	}
	if facts.Views, err = d.viewsAhead(ctx, was, next); err != nil {
		return nil, err
	}
	if version == d.serves {
		if facts.Elsewhere, err = elsewhere(ctx, tx, b); err != nil {
			return nil, err
		}
	}
	if err := d.noteConsumers(ctx, tx, changes, facts.Consumers); err != nil {
		return nil, err
	}
	forgotten, err := d.forgotten(ctx, tx)
	return slices.Concat(contract.Compare(was, next, facts), forgotten, d.inVain), err
}

// forgotten says which jobs would begin without the memory of what they have delivered.
func (d *deploy) forgotten(ctx context.Context, tx pgx.Tx) ([]contract.Finding, error) {
	if d.serves == uuid.Nil {
		return nil, nil
	}
	jobs, err := d.deployer.registry.VersionJobs(ctx, tx, d.serves)
	if err != nil {
		return nil, err
	}

	live, next := make([]*dag.Job, len(jobs)), make([]*dag.Job, len(d.doc.Jobs))
	for i, job := range jobs {
		live[i] = &job.Def
	}
	for i := range d.doc.Jobs {
		next[i] = &d.doc.Jobs[i]
	}
	return contract.Forgotten(live, next, func(operator string) bool {
		return d.deployer.catalog.Operators[operator].Delivers
	}), nil
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
