// Package names looks at the names of a DAG file that stand for columns: whether the columns are there, and can be
// compared with what they are compared with. It follows the columns from job to job, and reports all that is at fault
// at once. Pure, but for the Binder that it is given.
//
// Vocabulary: a relation is open if nobody knows its columns, and a column is untyped if only its name is known. What
// is open or untyped takes every name and every type that could be meant, and leaves all else of a statement checked.
package names

import (
	"slices"

	"github.com/dagctl/dagctl/dag"
)

// mostTogether is how many jobs a Binder is asked about at once.
const mostTogether = 64

// Find looks at the names of a document.
func Find(of dag.Naming, binder Binder) (dag.Named, error) {
	f := &finder{Naming: of, binder: binder, batches: map[string]*batch{}, index: map[string]int{},
		found: dag.Named{Columns: make(map[string][][]dag.Column, len(of.Doc.Jobs))}}
	for i, job := range of.Doc.Jobs {
		if of.Sound(i) {
			f.index[job.Name] = i
		}
	}
	err := f.all()
	return f.found, err
}

// finder goes over the jobs of a document, each after those it reads.
type finder struct {
	dag.Naming

	binder  Binder
	index   map[string]int    // of the sound jobs
	next    *batch            // jobs to ask about; nil: none
	batches map[string]*batch // of jobs that were asked about, or are in next
	found   dag.Named
}

func (f *finder) all() error {
	seen := make([]bool, len(f.Doc.Jobs))
	for i := range f.Doc.Jobs {
		if err := f.visit(i, seen); err != nil {
			return err
		}
	}
	f.send()
	for i := range f.Doc.Jobs {
		if err := f.settle(f.Doc.Jobs[i].Name); err != nil {
			return err
		}
	}

	for i := range f.Doc.Jobs {
		if f.Sound(i) {
			f.look(i)
		}
	}
	f.publications()
	return nil
}

// visit goes over a job after those it reads. The document has no cycles.
func (f *finder) visit(i int, seen []bool) error {
	if seen[i] {
		return nil
	}
	seen[i] = true

	job := &f.Doc.Jobs[i]
	for _, in := range job.Inputs {
		if up, sound := f.index[in.Job]; sound && in.Job != "" {
			if err := f.visit(up, seen); err != nil {
				return err
			}
		}
	}
	if !f.Sound(i) {
		return nil
	}
	return f.job(i, job)
}

// job asks about a job, or works its columns out if nobody has to be asked.
func (f *finder) job(i int, job *dag.Job) error {
	spec := f.Catalog.Operators[job.Operator]
	var queries []dag.Query
	if spec.Queries != nil {
		queries = spec.Queries(job)
	}
	inputs, err := f.inputs(job, len(queries) > 0)
	if err != nil {
		return err
	}

	asked := Job{Inputs: inputs, Timeless: job.TasksBy().Kind != dag.ByTime}
	open := func(in Input) bool { return in.Columns == nil && in.Earlier == 0 }
	switch {
	case len(queries) == 0:
		if asked.Outputs, err = f.shape(i, job, spec, inputs); err != nil {
			return err
		}
	case slices.ContainsFunc(inputs, func(in Input) bool { return !open(in) }):
		for _, q := range queries {
			asked.Queries = append(asked.Queries, q.SQL)
		}
	default: // nothing but the texts of the queries says what they write
		for _, q := range queries {
			asked.Outputs = append(asked.Outputs, named(q.Names))
		}
	}

	checks := statements(job)
	for _, c := range checks {
		asked.Checks = append(asked.Checks, c.Check)
	}
	if asked.Queries == nil && len(checks) == 0 {
		f.found.Columns[job.Name] = asked.Outputs
		return nil
	}
	f.add(asked, question{i, queries, checks})
	return nil
}

// named returns columns without types; nil stays nil.
func named(names []string) []dag.Column {
	if names == nil {
		return nil
	}
	columns := make([]dag.Column, len(names))
	for i, name := range names {
		columns[i].Name = name
	}
	return columns
}

// inputs returns the relations of a job. Those that are asked about together with it may stand for themselves.
func (f *finder) inputs(job *dag.Job, together bool) ([]Input, error) {
	inputs := make([]Input, len(job.Inputs))
	for n, in := range job.Inputs {
		inputs[n] = Input{Name: in.As, Output: in.Output}
		if in.Job == "" {
			inputs[n].Columns = f.Columns[in.Dataset]
			continue
		}
		b := f.batches[in.Job]
		if b != nil && b == f.next && together {
			continue
		}
		if b != nil && b == f.next {
			f.send()
		}
		if err := f.settle(in.Job); err != nil {
			return nil, err
		}
		inputs[n].Columns = f.columns(in)
	}

	// Only now it is certain which jobs are still to be asked about.
	for n, in := range job.Inputs {
		if b := f.batches[in.Job]; in.Job != "" && b != nil && b == f.next {
			inputs[n].Earlier = b.place(f.index[in.Job]) + 1
		}
	}
	return inputs, nil
}

// columns returns the columns of an input whose job is settled; nil: they are not known.
func (f *finder) columns(in dag.Input) []dag.Column {
	if in.Job == "" {
		return f.Columns[in.Dataset]
	}
	if outputs := f.found.Columns[in.Job]; in.Output < len(outputs) {
		return outputs[in.Output]
	}
	return nil
}

// shape returns the columns of the outputs of a job without queries, as far as its operator tells them.
func (f *finder) shape(i int, job *dag.Job, spec dag.OperatorSpec, inputs []Input) ([][]dag.Column, error) {
	outputs := make([][]dag.Column, len(job.Outputs))
	if spec.Shape == nil {
		return outputs, nil
	}
	columns := make([][]dag.Column, len(inputs))
	for n, in := range inputs {
		if typed(in.Columns) {
			columns[n] = in.Columns
		}
	}

	shape, err := spec.Shape(job, columns)
	if err != nil {
		return nil, err
	}
	for _, refused := range shape.Refused {
		f.report(dag.NameFault{Job: i, Path: append([]string{"config", refused.Key}, refused.Within...),
			Message: refused.Message, Unknown: refused.Unknown, Known: refused.Known})
	}
	copy(outputs, shape.Writes)
	return outputs, nil
}

func typed(columns []dag.Column) bool {
	return !slices.ContainsFunc(columns, func(c dag.Column) bool { return c.Type == "" })
}

func (f *finder) report(fault dag.NameFault) { f.found.Faults = append(f.found.Faults, fault) }
