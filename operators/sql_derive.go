package operators

import (
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// derive returns how the queries of a job compute its outputs.
func (s *statements) derive(job *dag.Job, inputs [][]string) (derivation dag.Derivation, sure bool, err error) {
	queries, err := queriesFor(job.Config, job.Outputs)
	if err != nil {
		return derivation, false, nil
	}

	columns, index := map[string][]string{}, map[string]int{}
	for i, in := range job.Inputs {
		columns[in.As], index[sqltext.Lower(in.As)] = inputs[i], i
	}
	derivation.Reads = make([][]string, len(job.Inputs))
	for _, query := range queries {
		if relations.NamesPartition(query) { // which no columns decide
			return derivation, false, nil
		}
		derived, err := s.derived(query, columns)
		if err != nil || !derived.Sure {
			return derivation, false, err
		}

		output := dag.DerivedOutput{Rows: partOf(derived.Rows, index)}
		if derived.Columns != nil {
			output.Columns = map[string]dag.Derived{}
			for _, c := range derived.Columns {
				output.Columns[c.Name] = partOf(c.Part, index)
			}
		}
		derivation.Outputs = append(derivation.Outputs, output)
		for _, r := range derived.Reads {
			derivation.Reads[index[r.Relation]] = append(derivation.Reads[index[r.Relation]], r.Column)
		}
	}

	for i, in := range job.Inputs {
		if inputs[i] == nil {
			continue
		}
		checked, sure, err := s.checked(job, in.As, inputs[i])
		if err != nil {
			return derivation, false, err
		}
		if !sure {
			derivation.Reads[i] = nil
			continue
		}
		derivation.Reads[i] = append(append([]string{}, derivation.Reads[i]...), checked...)
		slices.Sort(derivation.Reads[i])
	}
	return derivation, true, nil
}

// checked returns the columns of an input by which the job's checks decide what is published. It returns false where
// that may be all of them, or where one is missing.
func (s *statements) checked(job *dag.Job, as string, columns []string) (reads []string, sure bool, err error) {
	for _, check := range job.Checks {
		if check.Severity != "error" {
			continue
		}
		if check.To != nil && check.To.Input == as {
			column := sqltext.Lower(check.To.Column)
			if !slices.Contains(columns, column) {
				return nil, false, nil
			}
			reads = append(reads, column)
		}
		if relations.NamesPartition(check.SQL) {
			return nil, false, nil
		}
		if check.SQL != "" {
			named, sure, err := s.counted(check.SQL, as, columns)
			if err != nil || !sure {
				return nil, false, err
			}
			reads = append(reads, named...)
		}
	}
	return reads, true, nil
}

// partOf returns a part of a query's result with inputs in place of relations. The rows of inputs are left out: an
// output depends on those of all inputs in any case.
func partOf(p relations.Part, index map[string]int) dag.Derived {
	part := dag.Derived{Form: p.Form}
	for _, r := range p.Reads {
		if r.Column != "" {
			part.Reads = append(part.Reads, dag.ColumnRead{Input: index[r.Relation], Column: r.Column})
		}
	}
	return part
}

// derived returns what a query is derived from. What cannot be parsed is not sure.
func (s *statements) derived(query string, columns map[string][]string) (d engine.Derived, err error) {
	err = s.found.recall(&d, []any{"derive", query, columns}, func() error {
		return s.ask(engine.Derive{SQL: query, Relations: columns}, &d)
	})
	if err != nil {
		return engine.Derived{}, unseen(err)
	}
	return d, nil
}

// counted returns the columns of a relation that decide whether a check finds any row; false if that may be all.
func (s *statements) counted(check, relation string, columns []string) (names []string, sure bool, err error) {
	var c engine.CountedColumns
	err = s.found.recall(&c, []any{"count", check, relation, columns}, func() error {
		return s.ask(engine.Counted{SQL: check, Relation: relation, Columns: columns}, &c)
	})
	return c.Names, err == nil && c.Sure, unseen(err)
}
