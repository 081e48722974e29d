package operators

import (
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dag/names"
	"github.com/dagctl/dagctl/engine"
)

// names looks at the names of a document, in an engine.
func (s *statements) names(of dag.Naming) (dag.Named, error) { return names.Find(of, s) }

// Bind implements names.Binder. A statement that ends its engine leaves its job's columns unknown, and no other's.
func (s *statements) Bind(jobs []names.Job) ([]names.Bound, error) {
	var bound engine.Bound
	q := engine.Bind{Jobs: jobs}
	err := s.found.recall(&bound, []any{"bind", q}, func() error { return s.ask(q, &bound) })
	if err == nil || unseen(err) != nil {
		return bound.Jobs, unseen(err)
	}
	if len(jobs) == 1 {
		for _, query := range jobs[0].Queries {
			var ends bool
			_ = s.found.recall(&ends, []any{"ends", query}, func() error { ends = true; return nil })
		}
		return []names.Bound{{Outputs: make([][]dag.Column, max(len(jobs[0].Queries), len(jobs[0].Outputs)))}}, nil
	}

	bound.Jobs = make([]names.Bound, 0, len(jobs))
	for _, job := range jobs {
		job.Inputs = slices.Clone(job.Inputs)
		for n, in := range job.Inputs {
			if in.Earlier == 0 {
				continue
			}
			job.Inputs[n].Earlier = 0
			if outputs := bound.Jobs[in.Earlier-1].Outputs; in.Output < len(outputs) {
				job.Inputs[n].Columns = outputs[in.Output]
			}
		}
		alone, err := s.Bind([]names.Job{job})
		if err != nil {
			return nil, err
		}
		bound.Jobs = append(bound.Jobs, alone[0])
	}
	return bound.Jobs, nil
}

// queries returns the SELECT of each output of a job.
func (s *statements) queries(job *dag.Job) []dag.Query {
	texts, err := queriesFor(job.Config, job.Outputs)
	if err != nil {
		return nil
	}
	list := make([]dag.Query, len(texts))
	for i, text := range texts {
		list[i] = dag.Query{SQL: text, Path: []string{"query"}}
		if _, one := job.Config["query"]; !one {
			list[i].Path = []string{"queries", job.Outputs[i]}
		}
		if form, err := s.form(text); err == nil {
			list[i].Names = form.Names
		}
	}
	return list
}
