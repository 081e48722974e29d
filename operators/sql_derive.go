package operators

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
)

// derive returns how the queries of a job compute its outputs.
func (o *sqlOperator) derive(job *dag.Job, inputs [][]string) (dag.Derivation, bool) {
	queries, err := queriesFor(job.Config, job.Outputs)
	if err != nil {
		return dag.Derivation{}, false
	}

	relations, index := map[string][]string{}, map[string]int{}
	for i, in := range job.Inputs {
		relations[in.As], index[duck.Lower(in.As)] = inputs[i], i
	}
	derivation := dag.Derivation{Reads: make([][]string, len(job.Inputs))}
	for _, query := range queries {
		derived, sure := o.derived.of(context.Background(), o.parser, query, relations)
		if !sure {
			return dag.Derivation{}, false
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
		checked, sure := o.checked(job, in.As, inputs[i])
		if !sure {
			derivation.Reads[i] = nil
			continue
		}
		derivation.Reads[i] = append(append([]string{}, derivation.Reads[i]...), checked...)
		slices.Sort(derivation.Reads[i])
	}
	return derivation, true
}

// checked returns the columns of an input by which the job's checks decide what is published. It returns false where
// that may be all of them, or where one is missing.
func (o *sqlOperator) checked(job *dag.Job, as string, columns []string) (reads []string, sure bool) {
	for _, check := range job.Checks {
		if check.Severity != "error" {
			continue
		}
		if check.To != nil && check.To.Input == as {
			column := duck.Lower(check.To.Column)
			if !slices.Contains(columns, column) {
				return nil, false
			}
			reads = append(reads, column)
		}
		if check.SQL != "" {
			named, sure := o.derived.counted(context.Background(), o.parser, check.SQL, as, columns)
			if !sure {
				return nil, false
			}
			reads = append(reads, named...)
		}
	}
	return reads, true
}

// partOf returns a part of a query's result with inputs in place of relations. The rows of inputs are left out: an
// output depends on those of all inputs in any case.
func partOf(p duck.Part, index map[string]int) dag.Derived {
	part := dag.Derived{Form: p.Form}
	for _, r := range p.Reads {
		if r.Column != "" {
			part.Reads = append(part.Reads, dag.ColumnRead{Input: index[r.Relation], Column: r.Column})
		}
	}
	return part
}

// derivationCache remembers what queries are derived from: most were in the last deploy, too.
type derivationCache struct {
	mu    sync.Mutex
	found map[string]derivation // by query and relations
	bytes int
}

type derivation struct {
	duck.Derivation

	sure bool
}

// of returns what a query is derived from.
func (c *derivationCache) of(
	ctx context.Context, parser *duck.Shared, query string, relations map[string][]string,
) (duck.Derivation, bool) {
	d := c.known([]any{query, relations}, func() (derivation, error) {
		q, err := parse(ctx, parser, query)
		if err != nil {
			return derivation{}, err
		}
		d, sure := q.Derive(relations)
		return derivation{d, sure}, nil
	})
	return d.Derivation, d.sure
}

// counted returns the columns of a relation that decide whether a check finds any row; false if that may be all.
func (c *derivationCache) counted(
	ctx context.Context, parser *duck.Shared, check, relation string, columns []string,
) (names []string, sure bool) {
	d := c.known([]any{"check", check, relation, columns}, func() (derivation, error) {
		q, err := parse(ctx, parser, check)
		if err != nil {
			return derivation{}, err
		}
		known := make([]duck.Column, len(columns))
		for i, name := range columns {
			known[i].Name = name
		}
		named, sure := q.CountedColumns(map[string][]duck.Column{relation: known})
		var d derivation
		for _, name := range named[relation] {
			d.Reads = append(d.Reads, duck.ColumnOf{Relation: relation, Column: name})
		}
		d.sure = sure || !q.Reads(relation)
		return d, nil
	})
	for _, r := range d.Reads {
		names = append(names, r.Column)
	}
	return names, d.sure
}

func parse(ctx context.Context, parser *duck.Shared, query string) (*duck.Select, error) {
	session, err := parser.Get(ctx)
	if err != nil {
		return nil, err
	}
	return session.Parse(ctx, query)
}

// known returns what is remembered under a key, or finds it. What cannot be parsed is not sure.
func (c *derivationCache) known(of []any, find func() (derivation, error)) derivation {
	text, err := json.Marshal(of)
	if err != nil {
		return derivation{}
	}
	key := string(text)

	c.mu.Lock()
	d, ok := c.found[key]
	c.mu.Unlock()
	if ok {
		return d
	}
	if d, err = find(); err != nil {
		return derivation{}
	}

	// A form and what it reads take about ten times the space of a short query.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += 10 * len(key); c.found == nil || c.bytes > maxForms {
		c.found, c.bytes = map[string]derivation{}, 10*len(key)
	}
	c.found[key] = d
	return d
}
