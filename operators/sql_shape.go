package operators

import (
	"errors"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/spelling"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// shape returns the columns that the queries of a job read and write.
func (s *statements) shape(job *dag.Job, inputs [][]dag.Column) (shape dag.Shape, err error) {
	queries, err := queriesFor(job.Config, job.Outputs)
	if err != nil {
		return shape, nil
	}
	known, complete := relationsOf(job, inputs)
	q := engine.Shape{Queries: queries, Bind: make([]bool, len(queries)), Relations: known}
	for i, query := range queries {
		// Of a partition without times, start and end are NULL, whose type only a run knows.
		timeless := job.TasksBy().Kind != dag.ByTime && strings.Contains(strings.ToLower(query), "getvariable")
		q.Bind[i] = complete && !timeless && !s.ends(query)
	}
	for _, check := range job.Checks {
		if check.SQL != "" {
			q.Checks = append(q.Checks, check.SQL)
		}
	}

	found, err := s.shaped(q)
	if err != nil && unseen(err) == nil { // binding may have ended the engine: what a statement names is known without
		q.Bind = make([]bool, len(queries))
		found, err = s.shaped(q)
	}
	if err != nil {
		return shape, unseen(err)
	}
	for i := range queries {
		if failed := found.Failed[i]; failed != nil {
			shape.Refused = append(shape.Refused, refused(job, i, failed.Err()))
		}
		if lack := found.Lacks[i]; lack != nil {
			if err := lacking(job, inputs, *lack); err != nil {
				shape.Refused = append(shape.Refused, refused(job, i, err))
			}
		}
		shape.Writes = append(shape.Writes, columnsOf(found.Writes[i]))
	}

	checked := checkReads(job, found.Checks)
	shape.Reads = make([][]string, len(job.Inputs))
	for i, in := range job.Inputs {
		if found.Named && inputs[i] != nil {
			shape.Reads[i] = readOf(in, append(found.Read[in.As], checked[in.As]...))
		}
	}
	return shape, nil
}

// ends reports whether binding a query has ended an engine: another one would only end as well.
func (s *statements) ends(query string) (ends bool) {
	unknown := errors.New("nobody knows")
	return s.found.recall(&ends, []any{"ends", query}, func() error { return unknown }) == nil && ends
}

func (s *statements) shaped(q engine.Shape) (found engine.Shaped, err error) {
	err = s.found.recall(&found, []any{"shape", q}, func() error { return s.ask(q, &found) })
	return found, err
}

// lacking returns an error if what a query names and DuckDB does not find is a column of an input that has no such
// column. All inputs are known. Names may also be those of subqueries, which DuckDB alone understands.
func lacking(job *dag.Job, inputs [][]dag.Column, lack relations.Lack) error {
	var from []string
	var candidates []string
	for i, in := range job.Inputs {
		if lack.Table != "" && !sqltext.Same(lack.Table, in.As) {
			continue
		}
		for _, c := range inputs[i] {
			if sqltext.Same(c.Name, lack.Column) {
				return nil
			}
			candidates = append(candidates, c.Name)
		}
		from = append(from, in.Source())
	}
	if len(from) == 0 {
		return nil // the table is a subquery, or has another name in the statement
	}

	where := ""
	if lack.Line != "" {
		where = " (line " + lack.Line + ")"
	}
	err := fault.New(fault.Invalid, "it names the column %q%s, which is not in %s", lack.Column, where,
		strings.Join(from, " or "))
	if near := spelling.Nearest(lack.Column, candidates); near != "" {
		return err.WithHint("did you mean %q?", near)
	}
	return err.WithHint("the columns are %s", strings.Join(candidates[:min(len(candidates), 20)], ", "))
}

// refused returns the fault of the query of an output.
func refused(job *dag.Job, output int, err error) dag.ConfigError {
	if _, one := job.Config["query"]; one {
		return dag.ConfigError{Key: "query", Message: fault.Text(err)}
	}
	return dag.ConfigError{Key: "queries", Message: job.Outputs[output] + ": " + fault.Text(err)}
}

// checkReads returns the columns of inputs that the job's checks name. What else a check selects, it only counts.
func checkReads(job *dag.Job, named []map[string][]string) map[string][]string {
	read := map[string][]string{}
	for _, check := range job.Checks {
		if check.To != nil {
			read[check.To.Input] = append(read[check.To.Input], check.To.Column)
		}
	}
	for _, columns := range named {
		for relation, names := range columns {
			read[relation] = append(read[relation], names...)
		}
	}
	return read
}

// readOf returns the columns that a query names, and those that select the rows of its input.
func readOf(in dag.Input, named []string) []string {
	read := append([]string{}, named...)
	for _, c := range in.Where {
		read = append(read, c.Column)
	}
	slices.Sort(read)
	return slices.Compact(read)
}

// relationsOf returns the inputs of a job whose columns are known, by the names that queries use, and whether that is
// all of them.
func relationsOf(job *dag.Job, inputs [][]dag.Column) (known map[string][]relations.Column, complete bool) {
	known, complete = map[string][]relations.Column{}, true
	for i, in := range job.Inputs {
		if inputs[i] == nil {
			complete = false
			continue
		}
		columns := make([]relations.Column, len(inputs[i]))
		for n, c := range inputs[i] {
			columns[n] = relations.Column(c)
		}
		known[in.As] = columns
	}
	return known, complete
}

// columnsOf returns columns as documents have them; nil stays nil.
func columnsOf(columns []relations.Column) []dag.Column {
	if columns == nil {
		return nil
	}
	list := make([]dag.Column, len(columns))
	for i, c := range columns {
		list[i] = dag.Column(c)
	}
	return list
}
