package deploy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/spelling"
	"github.com/dagctl/dagctl/registry/contract"
)

// columnsAhead works out the columns of datasets that are not computed yet: those that a job of the same definition
// had, and those that its config says it writes, over the columns of its inputs.
type columnsAhead struct {
	d       *deploy
	catalog dag.Catalog
	next    map[outputRef]*contract.Dataset
	same    map[string][]dag.Column   // by dataset name, where the definition of its job is the live one
	foreign map[string]foreignDataset // by name
	done    map[string]bool           // by job name

	refused []fault.Problem // columns that no storage can hold, and those that inputs do not have
	unseen  error           // why nobody could look at a job
}

// workOutColumns adds to the contract of a version the columns that can be told ahead.
func (d *deploy) workOutColumns(
	ctx context.Context, tx pgx.Tx, was contract.Contract, next *contract.Contract, live []planned,
) error {
	w := columnsAhead{d: d, catalog: d.deployer.catalogFor(ctx, d.caller),
		next: map[outputRef]*contract.Dataset{}, same: map[string][]dag.Column{},
		done: map[string]bool{}}
	unknown := false
	for i := range next.Datasets {
		n := &next.Datasets[i]
		w.next[outputRef{n.Job, n.Output}] = n
		unknown = unknown || n.Columns == nil || w.goesOn(n.Job)
	}
	for _, job := range d.doc.Jobs {
		unknown = unknown || len(job.Outputs) == 0
	}
	if !unknown {
		return nil
	}

	columns := map[uuid.UUID][]dag.Column{}
	for _, d := range was.Datasets {
		columns[d.ID] = d.Columns
	}
	before := byDataset(live)
	for i := range next.Datasets {
		n := &next.Datasets[i]
		if l, serves := before[n.ID]; serves && d.definitions.Local(n.Job) == l.configHash {
			w.same[n.Name] = columns[n.ID]
		}
	}
	var err error
	if w.foreign, err = d.foreignDatasets(ctx, tx); err != nil {
		return err
	}
	for _, job := range d.doc.Jobs {
		w.job(job.Name)
	}
	if w.unseen != nil {
		return w.unseen
	}
	if len(w.refused) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "%s", w.refused[0].Message)
	e.Problems = w.refused
	return e
}

// goesOn reports whether a job goes on with what it has written although its definition may have changed: one that acts
// outside. What it says is looked at although the columns of its outputs are known.
func (w *columnsAhead) goesOn(name string) bool {
	job, ok := w.d.doc.Job(name)
	return ok && job.Effect == dag.EffectExternal
}

// job works out the columns of a job's outputs, after those of its inputs.
func (w *columnsAhead) job(name string) {
	if w.done[name] {
		return
	}
	w.done[name] = true
	job, ok := w.d.doc.Job(name)
	if !ok {
		return
	}

	inputs := make([][]dag.Column, len(job.Inputs))
	for i, in := range job.Inputs {
		if in.Job == "" {
			inputs[i] = w.foreign[in.Dataset].columns
			continue
		}
		w.job(in.Job)
		if up := w.next[outputRef{in.Job, in.Output}]; up != nil {
			inputs[i] = up.Columns
		}
	}

	if len(job.Outputs) == 0 { // what it does outside is at fault all the same
		w.look(job, inputs)
		return
	}
	var shape *dag.Shape
	looked := false
	for i := range job.Outputs {
		n := w.next[outputRef{name, i}]
		if n == nil || n.Columns != nil && !w.goesOn(name) {
			continue
		}
		if !looked {
			shape = w.look(job, inputs)
			looked = true
		}
		if w.unseen != nil {
			return
		}
		switch {
		case n.Columns != nil:
		case shape != nil && len(shape.Writes) > i:
			n.Columns = shape.Writes[i]
		case len(job.Inputs) == 0:
			n.Columns = w.same[n.Name]
		}
		if shape != nil && n.Columns == nil && i == 0 {
			n.Declared = shape.Types
		}
	}
}

// look returns what an operator says of the columns of a job, nil if it says nothing, and refuses what is at fault.
func (w *columnsAhead) look(job *dag.Job, inputs [][]dag.Column) *dag.Shape {
	w.conditions(job, inputs)
	spec := w.catalog.Operators[job.Operator]
	if spec.Shape == nil {
		return nil
	}
	shape, err := spec.Shape(job, inputs)
	if err != nil {
		w.unseen = err
		return nil
	}
	for _, r := range shape.Refused {
		w.refuse(job.Position, "job %s: config.%s: %s", job.Name, r.Key, r.Message)
	}
	return &shape
}

// conditions refuses conditions on columns that an input does not have. A task compares their names exactly.
func (w *columnsAhead) conditions(job *dag.Job, inputs [][]dag.Column) {
	for i, in := range job.Inputs {
		if inputs[i] == nil {
			continue
		}
		names := make([]string, len(inputs[i]))
		for n, c := range inputs[i] {
			names[n] = c.Name
		}
		for _, c := range in.Where {
			if slices.Contains(names, c.Column) {
				continue
			}
			meant := "; the columns are " + strings.Join(names[:min(len(names), 20)], ", ")
			if near := spelling.Nearest(c.Column, names); near != "" {
				meant = fmt.Sprintf("; did you mean %q?", near)
			}
			w.refuse(in.Position, "job %s: where of input %q: %s has no column %q%s", job.Name, in.As, in.Source(),
				c.Column, meant)
		}
	}
}

func (w *columnsAhead) refuse(at dag.Position, message string, args ...any) {
	w.refused = append(w.refused, fault.Problem{Location: at.String(), Code: string(dag.CodeConfig),
		Message: fmt.Sprintf(message, args...)})
}

// refuseLiterals refuses a document whose `where` or accepted_values compares a column with what can never equal it, as
// far as the columns are known.
func (d *deploy) refuseLiterals(ctx context.Context, tx pgx.Tx, next contract.Contract) error {
	foreign, err := d.foreignDatasets(ctx, tx)
	if err != nil {
		return err
	}
	known := make(map[outputRef][]dag.Column, len(next.Datasets))
	for _, n := range next.Datasets {
		known[outputRef{n.Job, n.Output}] = n.Columns
	}

	var problems dag.Problems
	for _, job := range d.doc.Jobs {
		for _, in := range job.Inputs {
			columns := known[outputRef{in.Job, in.Output}]
			if in.Job == "" {
				columns = foreign[in.Dataset].columns
			}
			for _, c := range in.Where {
				where := "`where` of input " + in.As
				problems = appendNeverEqual(problems, in.Position, where, c.Column, columns, c.Values)
			}
		}

		for _, check := range job.Checks {
			for _, column := range check.Columns {
				problems = appendNeverEqual(problems, job.Position, "check "+check.Name, column,
					known[outputRef{job.Name, check.Output}], check.Values)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return problems.Fault()
}

// appendNeverEqual adds a problem for each value that can never equal the column.
func appendNeverEqual(
	problems dag.Problems, at dag.Position, where, column string, columns []dag.Column, values dag.Values,
) dag.Problems {
	i := slices.IndexFunc(columns, func(c dag.Column) bool { return c.Name == column })
	if i < 0 || columns[i].Type == "" {
		return problems
	}
	for _, v := range values {
		_, err := literal.Compare(column, columns[i].Type, v)
		var refused *fault.Error
		if errors.As(err, &refused) {
			problems = append(problems, dag.Problem{Position: at, Code: dag.CodeValue,
				Message: where + ": " + refused.Message, Suggestion: refused.Hint})
		}
	}
	return problems
}
