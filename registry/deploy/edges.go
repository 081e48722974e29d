package deploy

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

type inputRef struct {
	job   string
	index int
}

// edge is the dataset that an input of a job reads, and its partitioning.
type edge struct {
	dataset     uuid.UUID
	partitionBy dag.Partitioning
}

// resolveInputs finds the dataset that every input reads. An input from another DAG is bound to the dataset's identity
// now. The caller must be allowed to read it: a dataset that is hidden from them counts as absent.
func (d *deploy) resolveInputs(ctx context.Context, tx pgx.Tx) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}

	if err := refuseUnknown(d.doc, func(name string) bool { _, ok := foreign[name]; return ok }); err != nil {
		return err
	}

	d.reads = map[inputRef]edge{}
	for _, job := range d.doc.Jobs {
		for i, in := range job.Inputs {
			if in.Job != "" {
				upstream, _ := d.doc.Job(in.Job)
				d.reads[inputRef{job.Name, i}] = edge{d.datasets[outputRef{in.Job, in.Output}], upstream.PartitionBy}
			} else {
				f := foreign[in.Dataset]
				d.reads[inputRef{job.Name, i}] = edge{f.id, f.partitionBy}
			}
		}
	}
	return nil
}

// refuseUnknown refuses inputs that read datasets of other DAGs which are not known.
func refuseUnknown(doc *dag.Document, known func(name string) bool) error {
	var problems []fault.Problem
	for _, job := range doc.Jobs {
		for _, in := range job.Inputs {
			if in.Job == "" && !known(in.Dataset) {
				problems = append(problems, fault.Problem{Location: in.Position.String(), Code: "unknown_dataset",
					Message: fmt.Sprintf("job %s reads dataset %q, which no DAG publishes", job.Name, in.Dataset)})
			}
		}
	}

	if len(problems) > 0 {
		e := fault.New(fault.Invalid, "%s", problems[0].Message).
			WithHint("see `dagctl datasets list`; deploy the producing DAG first")
		e.Problems = problems
		return e
	}
	return nil
}

// bind makes what the names of other DAGs' datasets mean now part of the version: an unchanged file whose input means
// another dataset than before is another version.
func (d *deploy) bind(ctx context.Context, tx pgx.Tx) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}
	d.bindings = map[string]string{}
	for name, f := range foreign {
		d.bindings[name] = f.id.String()
	}
	d.definitions.Bind(d.bindings)
	return nil
}

// insertInputs writes the edges into the version's job rows.
func (d *deploy) insertInputs(ctx context.Context, tx pgx.Tx) error {
	rows := newColumns(len(d.reads), "job_id uuid", "input_index int", "dataset_uuid uuid", "in_dag boolean",
		"triggers boolean", "partition_by jsonb")
	for _, job := range d.doc.Jobs {
		for i, in := range job.Inputs {
			e := d.reads[inputRef{job.Name, i}]
			rows.add(d.rows[job.Name], i, e.dataset, in.Job != "", in.Triggers(), e.partitionBy)
		}
	}

	from, args := rows.from(d.caller.OrgID, d.version)
	if rows.err == nil {
		_, rows.err = tx.Exec(ctx, `INSERT INTO job_inputs (org_id, dag_version_id, `+rows.list()+`)
			SELECT $1, $2, `+rows.typed()+` FROM `+from, args...)
	}
	if rows.err != nil {
		return fmt.Errorf("insert edges: %w", rows.err)
	}
	if _, err := tx.Exec(ctx, `SELECT note_generation_inputs($1)`, d.version); err != nil {
		return fmt.Errorf("note what generations are computed from: %w", err)
	}
	return nil
}

type foreignDataset struct {
	id          uuid.UUID
	generation  uuid.UUID // that readers see
	partitionBy dag.Partitioning
	columns     []dag.Column // nil: not known yet
}

// errReadsChanged reports that datasets of other DAGs are partitioned otherwise than when the document was parsed.
var errReadsChanged = fault.New(fault.Conflict, "datasets of other DAGs that the document reads are being changed").
	WithHint("wait for the deploys of those DAGs, and try again")

// readsUnchanged returns errReadsChanged where an input from another DAG is partitioned otherwise than the document was
// parsed with. The caller holds the lock of cycleOver, under which no cutover changes that any more.
func (d *deploy) readsUnchanged(ctx context.Context, tx pgx.Tx) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}
	for _, job := range d.doc.Jobs {
		for _, in := range job.Inputs {
			if in.Job == "" && (in.PartitionBy == nil || *in.PartitionBy != foreign[in.Dataset].partitionBy) {
				return errReadsChanged
			}
		}
	}
	return nil
}

// readDatasets returns how datasets of other DAGs that the caller may read are partitioned and the columns that they
// have, by name, as far as those are known.
func (dp *Deployer) readDatasets(
	ctx context.Context, caller authz.Caller, names []string,
) (by map[string]dag.Partitioning, columns map[string][]dag.Column, err error) {
	by, columns = map[string]dag.Partitioning{}, map[string][]dag.Column{}
	if len(names) == 0 {
		return by, columns, nil
	}
	err = pg.InOrgTx(ctx, dp.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		found, err := servedDatasets(ctx, tx, caller, names)
		for name, f := range found {
			by[name] = f.partitionBy
			if len(f.columns) > 0 {
				columns[name] = f.columns
			}
		}
		return err
	})
	return by, columns, err
}

// foreignDatasets returns, by name, the published datasets of other DAGs that the document reads and the caller may
// read.
func (d *deploy) foreignDatasets(ctx context.Context, tx pgx.Tx) (map[string]foreignDataset, error) {
	var names []string
	for _, job := range d.doc.Jobs {
		for _, in := range job.Inputs {
			if in.Dataset != "" {
				names = append(names, in.Dataset)
			}
		}
	}
	return servedDatasets(ctx, tx, d.caller, names)
}

// servedDatasets returns, by name, those of the published datasets that serve and that the caller may read.
func servedDatasets(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, names []string,
) (map[string]foreignDataset, error) {
	found := map[string]foreignDataset{}
	if len(names) == 0 {
		return found, nil
	}

	args := []any{caller.OrgID, names}
	visible := registry.VisibleTo(caller, &args)
	rows, err := tx.Query(ctx, `
		SELECT d.name, d.id, g.id, g.partition_by, g.schema
		FROM datasets d
		JOIN dataset_pointers p ON p.org_id = d.org_id AND p.dataset_uuid = d.id
		JOIN dataset_versions g ON g.id = p.dataset_version
		WHERE d.org_id = $1 AND d.name = ANY($2) AND d.published AND `+visible, args...)
	if err != nil {
		return nil, fmt.Errorf("find datasets of other DAGs: %w", err)
	}

	var (
		name string
		f    foreignDataset
	)
	columns := []any{&name, &f.id, &f.generation, &f.partitionBy, &f.columns}
	_, err = pgx.ForEachRow(rows, columns, func() error {
		found[name] = f
		f = foreignDataset{} // the next row must not be decoded into what this one has
		return nil
	})
	return found, err
}
