package names

import (
	"fmt"
	"strconv"

	"github.com/dagctl/dagctl/dag"
)

// batch is some jobs that a Binder is asked about at once, while the next ones are gathered.
type batch struct {
	asked []Job
	of    []question
	at    map[int]int // places in asked, by index in the document

	answered chan struct{}
	bound    []Bound
	err      error
	settled  bool
}

// question is what stands behind a Job.
type question struct {
	index   int // in the document
	queries []dag.Query
	checks  []statement
}

// place returns the place of a job in the batch.
func (b *batch) place(index int) int { return b.at[index] }

// add adds a job to those to ask about.
func (f *finder) add(asked Job, of question) {
	if f.next == nil {
		f.next = &batch{at: map[int]int{}, answered: make(chan struct{})}
	}
	b := f.next
	b.at[of.index] = len(b.asked)
	b.asked, b.of = append(b.asked, asked), append(b.of, of)
	f.batches[f.Doc.Jobs[of.index].Name] = b
	if len(b.asked) == mostTogether {
		f.send()
	}
}

// send asks about the jobs that are gathered.
func (f *finder) send() {
	b := f.next
	if b == nil {
		return
	}
	f.next = nil
	go func() {
		defer close(b.answered)
		b.bound, b.err = f.binder.Bind(b.asked)
		if b.err == nil && len(b.bound) != len(b.asked) {
			b.err = fmt.Errorf("%d answers about %d jobs", len(b.bound), len(b.asked))
		}
	}()
}

// settle waits for the answer about a job, and takes it up.
func (f *finder) settle(job string) error {
	b := f.batches[job]
	if b == nil || b.settled {
		return nil
	}
	<-b.answered
	b.settled = true
	if b.err != nil {
		return b.err
	}

	for n, q := range b.of {
		job, bound := f.Doc.Jobs[q.index], b.bound[n]
		f.found.Columns[job.Name] = bound.Outputs
		for i, query := range q.queries {
			if i < len(bound.Queries) {
				for _, fault := range bound.Queries[i] {
					f.report(fault.at(q.index, append([]string{"config"}, query.Path...)))
				}
			}
		}
		for i, check := range q.checks {
			if i < len(bound.Checks) {
				f.checked(q.index, check, bound.Checks[i])
			}
		}
	}
	return nil
}

// at returns the fault of a text in the document.
func (f Fault) at(job int, path []string) dag.NameFault {
	return dag.NameFault{Job: job, Path: path, Text: true, Offset: f.Offset, Width: f.Width, Message: f.Message,
		Suggestion: f.Hint, Unknown: f.Unknown, Known: f.Known}
}

// statement is a check as a statement.
type statement struct {
	Check

	of   dag.Check
	made bool // it was made of a check of another kind
}

// statements returns the checks of a job that are statements, or that compare columns as one.
func statements(job *dag.Job) (list []statement) {
	for _, c := range job.Checks {
		switch {
		case c.Kind == "sql":
			list = append(list, statement{Check{c.SQL, c.Output}, c, false})
		case c.Kind == "relationships" && c.To != nil && len(c.Columns) == 1:
			sql := fmt.Sprintf("SELECT * FROM output WHERE %s NOT IN (SELECT %s FROM %s)", quote(c.Columns[0]),
				quote(c.To.Column), quote(c.To.Input))
			list = append(list, statement{Check{sql, c.Output}, c, true})
		}
	}
	return list
}

// checked reports what is at fault in a check.
func (f *finder) checked(job int, check statement, faults []Fault) {
	path := []string{"checks", strconv.Itoa(check.of.Index), check.of.Kind}
	for _, fault := range faults {
		switch {
		case !check.made:
			f.report(fault.at(job, path))
		case fault.Unknown == "": // columns that are not there are reported as those of the check
			f.report(dag.NameFault{Job: job, Path: append(path, "column"),
				Message: fmt.Sprintf("column %q of the output and %q of input %q cannot be compared: %s",
					check.of.Columns[0], check.of.To.Column, check.of.To.Input, fault.Message),
				Suggestion: "cast one of them in a query"})
		}
	}
}
