package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// facts returns what a comparison has to know beside the two contracts.
func (dp *Deployer) facts(ctx context.Context, tx pgx.Tx, b registry.Build, live, next contract.Contract,
	lost []registry.Removal) (f contract.Facts, err error) {
	f.Lost = losses(lost)
	if f.Returns, err = returns(ctx, tx, b, live, next); err != nil {
		return f, err
	}
	if f.Taken, err = taken(ctx, tx, b, next); err != nil {
		return f, err
	}
	if f.Kept, err = dp.keptFacts(ctx, tx, b, live, next); err != nil {
		return f, err
	}
	f.Consumers, err = dp.consumers(ctx, tx, b.OrgID, b.DAG, live)
	return f, err
}

// taken returns what other DAGs serve under the names that a version takes over.
func taken(
	ctx context.Context, tx pgx.Tx, b registry.Build, next contract.Contract,
) (map[string]contract.Dataset, error) {
	var names []string
	for _, d := range next.Datasets {
		if d.Published && d.TakesOver != "" {
			names = append(names, d.Name)
		}
	}
	if len(names) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT o.name, o.dataset_uuid, g.partition_by, coalesce(g.storage ->> 'kind', ''), g.schema
		FROM dataset_name_owners o
		JOIN dataset_pointers p ON p.org_id = o.org_id AND p.dataset_uuid = o.dataset_uuid
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE o.org_id = $1 AND o.name = ANY($2) AND o.dag_name <> $3`, b.OrgID, names, b.DAG)
	if err != nil {
		return nil, fmt.Errorf("names that are taken over: %w", err)
	}

	served := map[string]contract.Dataset{}
	_, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d contract.Dataset, err error) {
		err = row.Scan(&d.Name, &d.ID, &d.PartitionBy, &d.Storage, &d.Columns)
		served[d.Name] = d
		return d, err
	})
	return served, err
}

// noteSources sets the columns that the version's jobs read of other DAGs' datasets. Whether these still have them is
// asked where a person goes back: a build has just read them.
func (dp *Deployer) noteSources(
	ctx context.Context, tx pgx.Tx, b registry.Build, next *contract.Contract, facts *contract.Facts,
) error {
	if len(next.Inputs) == 0 {
		return nil
	}
	served, err := serves(ctx, tx, b.OrgID, next.Inputs)
	if err != nil {
		return err
	}
	if facts.Back {
		kept, err := dp.keptContract(ctx, tx, b.OrgID, b.ID)
		next.Inputs, facts.Sources = kept.Inputs, served
		return err
	}

	jobs, err := dp.registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return err
	}
	for i := range next.Inputs {
		in := &next.Inputs[i]
		for _, job := range jobs {
			input := slices.IndexFunc(job.Def.Inputs, func(def dag.Input) bool { return def.As == in.As })
			if job.Name == in.Job && input >= 0 {
				in.Columns, err = dp.reads(b.OrgID, &job.Def, input, served[in.Dataset].Columns)
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// serves returns those datasets of inputs that their DAGs serve.
func serves(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, inputs []contract.Input,
) (map[uuid.UUID]contract.Source, error) {
	ids := make([]uuid.UUID, len(inputs))
	for i, in := range inputs {
		ids[i] = in.Dataset
	}
	rows, err := tx.Query(ctx, `
		SELECT p.dataset_uuid, g.schema FROM dataset_pointers p JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE p.org_id = $1 AND p.dataset_uuid = ANY($2)`, org, ids)
	if err != nil {
		return nil, fmt.Errorf("what other DAGs serve: %w", err)
	}

	served := map[uuid.UUID]contract.Source{}
	var id uuid.UUID
	var columns []dag.Column
	_, err = pgx.ForEachRow(rows, []any{&id, &columns}, func() error {
		served[id], columns = contract.Source{Columns: columns}, nil
		return nil
	})
	return served, err
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
		lost[i] = contract.Loss{Dataset: r.Dataset, Partitions: r.Partitions, Text: r.String(),
			Purged: r.Why == registry.Purged}
	}
	return lost
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
		       i.dataset_uuid, i.input_index, i.partition_by, j.dag_name, v.id, v.status = 'Active', j.origin_job_id,
		       j.definition
		FROM job_inputs i
		JOIN jobs j ON j.id = i.job_id
		JOIN dag_versions v ON v.id = i.dag_version_id AND v.status IN ('Active', 'Building', 'Ready')
		WHERE i.org_id = $1 AND i.dataset_uuid = ANY($2) AND NOT i.in_dag AND j.dag_name <> $3
		ORDER BY j.dag_name, j.name, i.input_index, i.dataset_uuid, j.origin_job_id, v.status = 'Active' DESC`,
		org, ids, dagName)
	if err != nil {
		return nil, fmt.Errorf("find consumers in other DAGs: %w", err)
	}

	found := map[uuid.UUID][]contract.Consumer{}
	var (
		index int
		text  []byte
		c     contract.Consumer
	)
	scan := []any{&c.Dataset, &index, &c.By, &c.DAG, &c.Version, &c.Serves, &c.Origin, &text}
	_, err = pgx.ForEachRow(rows, scan, func() error {
		job := new(dag.Job)
		if err := json.Unmarshal(text, job); err != nil {
			return err
		}
		in := job.Inputs[index]
		c.Def, c.Job, c.As, c.Name, c.Map = job, job.Name, in.As, in.Dataset, in.Map
		c.Fixed = slices.ContainsFunc(job.Storage, func(s dag.Storage) bool { return s.Kind == "postgres" })
		var err error
		c.Columns, err = dp.reads(org, job, index, columns[c.Dataset])
		found[c.Dataset] = append(found[c.Dataset], c)
		c = contract.Consumer{}
		return err
	})
	return found, err
}

// reads returns the columns that a job reads of one of its inputs by name; nil if that is not known.
func (dp *Deployer) reads(org uuid.UUID, job *dag.Job, input int, columns []dag.Column) ([]string, error) {
	spec := dp.catalog.For(dag.Org{ID: org.String()}).Operators[job.Operator]
	if spec.Shape == nil || columns == nil {
		return nil, nil
	}
	inputs := make([][]dag.Column, len(job.Inputs))
	inputs[input] = columns
	shape, err := spec.Shape(job, inputs)
	if err != nil || len(shape.Reads) <= input {
		return nil, err
	}
	return shape.Reads[input], nil
}
