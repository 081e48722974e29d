package dag

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Column-level fingerprints. A job that reads columns of another one by name depends on those columns and on which rows
// there are, and on nothing else of the other job's definition. So each output has a key for its rows and one for each
// of its columns, as far as they are known. The key of the rows covers all that decides which rows there are, including
// everything in the job's definition but its query; the key of a column covers that of the rows and the column's
// expression. In both, a column of an input stands as its own key, down to inputs whose columns are not known: those
// stand as the fingerprint of their job.

// Derivation is what an operator knows of how a job's outputs are computed from its inputs.
type Derivation struct {
	Outputs []DerivedOutput
	// Reads are, by input index, the columns that the job and its checks name, sorted and in lower case. Of an input
	// that the job depends on as a whole they are nil.
	Reads [][]string
}

// DerivedOutput is what decides an output, apart from the order of its rows.
type DerivedOutput struct {
	Rows    Derived            // which rows there are, and how often each
	Columns map[string]Derived // by name, in lower case; nil where the names are not known
}

// Derived is a part of an output. It is the same as another one if their forms are equal, and if the columns that they
// read are.
type Derived struct {
	Form  string
	Reads []ColumnRead
}

// ColumnRead is a column of an input, in lower case.
type ColumnRead struct {
	Input  int
	Column string
}

// columnReader is a job of which is known how its outputs are computed.
type columnReader struct {
	Derivation // its Reads are nil for inputs of which the job depends on the whole

	frame string // a hash of the job's definition without its query
}

// upstream is an input from a job of the same document.
type upstream struct {
	index  int // of the input
	job    string
	output int
}

// derive adds to the definitions how each job's outputs are computed, as far as that is known.
func (d *Definitions) derive(doc *Document, cat Catalog, contents map[string]map[string]any) error {
	jobs := make(map[string]*Job, len(doc.Jobs))
	for i := range doc.Jobs {
		jobs[doc.Jobs[i].Name] = &doc.Jobs[i]
	}

	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		job := jobs[name]
		if seen[name] || job == nil {
			return nil
		}
		seen[name] = true
		for _, in := range job.Inputs {
			if err := visit(in.Job); err != nil {
				return err
			}
		}

		op := cat.Operators[job.Operator]
		if op.Derive == nil || !job.derivable(op) {
			return nil
		}
		names := d.columnsOfInputs(job, jobs)
		derivation, sure, err := op.Derive(job, names)
		if err != nil {
			return err
		}
		if !sure || !derivation.addConditions(job, names) {
			return nil
		}
		frame := maps.Clone(contents[name])
		delete(frame, "config")
		text, err := canonicalJSON(frame)
		if err != nil {
			return fmt.Errorf("hash of job %s without its query: %w", name, err)
		}
		d.columns[name] = &columnReader{derivation, sha256Hex(text)}
		return nil
	}

	for _, job := range doc.Jobs {
		if err := visit(job.Name); err != nil {
			return err
		}
	}
	return nil
}

// derivable reports whether each revision of the job's outputs is computed from the present revisions of its inputs
// alone.
func (j *Job) derivable(op OperatorSpec) bool {
	return j.Source == nil && j.UDF == nil && j.Bootstrap == nil && j.UpdateStrategy == Replace &&
		!j.ForwardOnly(op) && !j.Splits() && j.PartitionBy.Kind != ByCursor &&
		!slices.ContainsFunc(j.Inputs, func(in Input) bool { return in.Map.Kind == MapSlice })
}

// columnsOfInputs returns the names of the columns of each input that a job may depend on column by column; nil for the
// others. An input whose newer revisions do not make an output stale is one of those: what was made from it once cannot
// be compared with what it holds now.
func (d *Definitions) columnsOfInputs(job *Job, jobs map[string]*Job) [][]string {
	names := make([][]string, len(job.Inputs))
	for i, in := range job.Inputs {
		up := d.columns[in.Job]
		if up == nil || in.Output >= len(up.Outputs) || !in.Triggers() && !in.Refresh {
			continue
		}
		if columns := up.Outputs[in.Output].Columns; columns != nil {
			names[i] = slices.Sorted(maps.Keys(columns))
		}
	}
	return names
}

// addConditions adds the columns that select the rows of inputs, and removes what is read of inputs whose columns are
// not known. It reports whether all the columns exist.
func (d *Derivation) addConditions(job *Job, names [][]string) bool {
	for i, in := range job.Inputs {
		if names[i] == nil || d.Reads[i] == nil {
			d.Reads[i] = nil
			continue
		}

		reads := append([]string{}, d.Reads[i]...)
		for _, c := range in.Where {
			column := strings.ToLower(c.Column)
			if !slices.Contains(names[i], column) {
				return false
			}
			reads = append(reads, column)
			for o := range d.Outputs {
				rows := &d.Outputs[o].Rows
				rows.Reads = append(rows.Reads, ColumnRead{i, column})
			}
		}
		slices.Sort(reads)
		d.Reads[i] = slices.Compact(reads)
	}
	return true
}

// ByColumn reports whether it is known how a job computes its outputs from the columns of its inputs.
func (d *Definitions) ByColumn(job string) bool { return d.columns[job] != nil }

// ColumnsRead returns, by input index, the columns that a job depends on by name. An input that it depends on as a
// whole has nil; if that is all of them, the result is nil.
func (d *Definitions) ColumnsRead(job string) [][]string {
	c := d.columns[job]
	if c == nil || !slices.ContainsFunc(c.Reads, func(reads []string) bool { return reads != nil }) {
		return nil
	}
	return c.Reads
}

// columnKeys are the keys of an output.
type columnKeys struct {
	rows    string
	columns map[string]string // nil: not known
}

// keyed returns the keys of a job's outputs. own is what its fingerprint covers besides its definition and its inputs
// in the document; inputs are the hashes of those, by input index, and keys the keys of their outputs.
func (c *columnReader) keyed(own string, ups []upstream, whole map[int]string, keys map[int]columnKeys) []columnKeys {
	outputs := make([]columnKeys, len(c.Outputs))
	for o, out := range c.Outputs {
		rows := fmt.Appendf(nil, "rows/%s/%s/%d", c.frame, own, o)
		for _, up := range ups {
			if c.Reads[up.index] == nil {
				rows = fmt.Appendf(rows, "/%s", whole[up.index])
			} else {
				rows = fmt.Appendf(rows, "/%s", keys[up.index].rows)
			}
		}
		outputs[o].rows = sha256Hex(out.Rows.appendTo(rows, keys))

		if out.Columns != nil {
			outputs[o].columns = make(map[string]string, len(out.Columns))
			for name, column := range out.Columns {
				text := fmt.Appendf(nil, "column/%s", outputs[o].rows)
				outputs[o].columns[name] = sha256Hex(column.appendTo(text, keys))
			}
		}
	}
	return outputs
}

// appendTo appends the form, and the keys of the columns that are read.
func (p Derived) appendTo(text []byte, keys map[int]columnKeys) []byte {
	text = fmt.Appendf(text, "/%s", p.Form)
	for _, r := range p.Reads {
		text = fmt.Appendf(text, "/%d.%q=%s", r.Input, r.Column, keys[r.Input].columns[r.Column])
	}
	return text
}

// of returns a hash of an output's rows and some of its columns.
func (k columnKeys) of(columns []string) string {
	text := fmt.Appendf(nil, "reads/%s", k.rows)
	for _, name := range columns {
		text = fmt.Appendf(text, "/%q=%s", name, k.columns[name])
	}
	return sha256Hex(text)
}
