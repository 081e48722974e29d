package names

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/literal"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

func quote(name string) string { return sqltext.Quote(name) }

// look looks at the fields of a job that name columns.
func (f *finder) look(i int) {
	job := &f.Doc.Jobs[i]
	f.conditions(i, job)
	for _, check := range job.Checks {
		f.check(i, job, check)
	}

	outputs := f.found.Columns[job.Name]
	if len(outputs) == 1 && outputs[0] != nil {
		for n, column := range job.UniqueKey {
			f.stored(i, outputs[0], column, "unique_key", strconv.Itoa(n))
		}
		if job.PartitionBy.Kind == dag.ByCursor {
			f.stored(i, outputs[0], job.PartitionBy.Column, "partition_by", "cursor")
		}
		if job.Splits() {
			f.split(i, job, outputs[0])
		}
	}
	for o, columns := range outputs {
		if o >= len(job.Storage) || columns == nil {
			continue
		}
		for n, index := range job.Storage[o].Indexes {
			for c, column := range index {
				f.stored(i, columns, column, "storage", strconv.Itoa(o), "postgres", "indexes", strconv.Itoa(n),
					strconv.Itoa(c))
			}
		}
	}
}

// conditions looks at the columns of `where`. A task compares their names exactly.
func (f *finder) conditions(i int, job *dag.Job) {
	for n, in := range job.Inputs {
		columns := f.columns(in)
		if columns == nil {
			continue
		}
		for _, c := range in.Where {
			path := []string{"inputs", strconv.Itoa(n), "where", c.Column}
			column, there := find(columns, c.Column)
			if !there {
				f.report(ofRows(dag.NameFault{Job: i, Path: path, Key: true, Unknown: c.Column, Known: namesOf(columns),
					Message: fmt.Sprintf("`where`: %s has no column %q", in.Source(), c.Column)},
					"`map` says which partitions are read; the query may choose among them: WHERE _partition = '…'"))
				continue
			}
			f.literals(i, "`where` of input "+in.As, path, column, c.Values)
		}
	}
}

// ofRows is a fault, with a suggestion of its own where the name is that of the column that only SQL finds.
func ofRows(fault dag.NameFault, suggestion string) dag.NameFault {
	if fault.Unknown == relations.Partition {
		fault.Unknown, fault.Known, fault.Suggestion = "", nil, suggestion
	}
	return fault
}

// check looks at the columns that a check names. A task compares their names exactly.
func (f *finder) check(i int, job *dag.Job, check dag.Check) {
	path := []string{"checks", strconv.Itoa(check.Index), check.Kind}
	var columns []dag.Column
	if outputs := f.found.Columns[job.Name]; check.Output < len(outputs) {
		columns = outputs[check.Output]
	}
	list := slices.Contains([]string{"not_null", "unique"}, check.Kind)
	for n, name := range check.Columns {
		at := append(slices.Clone(path), "column")
		if list {
			at = append(slices.Clone(path), strconv.Itoa(n))
		}
		if columns == nil {
			continue
		}
		column, there := find(columns, name)
		if !there {
			f.report(ofRows(dag.NameFault{Job: i, Path: at, Unknown: name, Known: namesOf(columns),
				Message: fmt.Sprintf("check %s: the output has no column %q", check.Name, name)},
				"a check sees one partition, whose key is getvariable('partition') in `sql`"))
			continue
		}
		f.literals(i, "check "+check.Name, append(slices.Clone(path), "values"), column, check.Values)
		if check.Kind == "freshness" && column.Type != "" && !slices.Contains(instants, column.Type) {
			f.report(dag.NameFault{Job: i, Path: at, Suggestion: "cast it in the query",
				Message: fmt.Sprintf("check %s: column %q is %s, not a date or a timestamp", check.Name, name,
					column.Type)})
		}
	}

	if check.To != nil {
		f.related(i, job, check, append(path, "to", "column"))
	}
}

// related looks at the column of the other side of a relationships check.
func (f *finder) related(i int, job *dag.Job, check dag.Check, path []string) {
	for _, in := range job.Inputs {
		columns := f.columns(in)
		if in.As != check.To.Input || columns == nil {
			continue
		}
		if _, there := find(columns, check.To.Column); !there {
			f.report(dag.NameFault{Job: i, Path: path, Unknown: check.To.Column, Known: namesOf(columns),
				Message: fmt.Sprintf("check %s: input %q has no column %q", check.Name, in.As, check.To.Column)})
		}
	}
}

// instants are the types of columns that freshness can compare with the present.
var instants = []string{"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"}

// literals reports values that a column can never equal.
func (f *finder) literals(i int, where string, path []string, column dag.Column, values dag.Values) {
	if column.Type == "" {
		return
	}
	for n, v := range values {
		_, err := literal.Compare(column.Name, column.Type, v)
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			f.report(dag.NameFault{Job: i, Path: append(slices.Clone(path), strconv.Itoa(n)),
				Message: where + ": " + refused.Message, Suggestion: refused.Hint})
		}
	}
}

// stored reports a column that an output does not have. Case does not matter to what is stored.
func (f *finder) stored(i int, columns []dag.Column, column string, path ...string) {
	same := func(c dag.Column) bool { return strings.EqualFold(c.Name, column) }
	if column != "" && !slices.ContainsFunc(columns, same) {
		f.report(dag.NameFault{Job: i, Path: path, Unknown: column, Known: namesOf(columns),
			Message: fmt.Sprintf("`%s`: the output has no column %q", path[0], column)})
	}
}

// split looks at the column by which a job splits its rows. Its name is compared exactly where it is known so.
func (f *finder) split(i int, job *dag.Job, columns []dag.Column) {
	path := []string{"partition_by", "column"}
	column, there := find(columns, job.SplitBy)
	if !there {
		f.report(dag.NameFault{Job: i, Path: path, Unknown: job.SplitBy, Known: namesOf(columns),
			Message: fmt.Sprintf("`partition_by`: the output has no column %q", job.SplitBy)})
		return
	}
	if column.Type == "" {
		return
	}
	if mismatch := job.PartitionBy.SplitMismatch(column.Type); mismatch != "" {
		f.report(dag.NameFault{Job: i, Path: path, Message: fmt.Sprintf("`partition_by`: column %q is %s: %s",
			job.SplitBy, column.Type, mismatch)})
	}
}

// publications looks at the columns that publications describe.
func (f *finder) publications() {
	for _, p := range f.Doc.Publish {
		outputs := f.found.Columns[p.Job]
		if p.Output >= len(outputs) || outputs[p.Output] == nil {
			continue
		}
		for column := range p.Columns {
			same := func(c dag.Column) bool { return strings.EqualFold(c.Name, column) }
			if slices.ContainsFunc(outputs[p.Output], same) {
				continue
			}
			f.report(dag.NameFault{Publication: p.Name, Path: []string{"columns", column}, Key: true, Unknown: column,
				Known:   namesOf(outputs[p.Output]),
				Message: fmt.Sprintf("the output of job %q has no column %q", p.Job, column)})
		}
	}
}

// find returns the column of a name, in the same case where the case is certain.
func find(columns []dag.Column, name string) (dag.Column, bool) {
	for _, c := range columns {
		if c.Name == name || c.Type == "" && strings.EqualFold(c.Name, name) {
			return c, true
		}
	}
	return dag.Column{}, false
}

func namesOf(columns []dag.Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}
