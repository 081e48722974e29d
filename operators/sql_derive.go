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

	for _, reads := range derivation.Reads {
		slices.Sort(reads)
	}
	return derivation, true
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
	known map[string]derivation // by query and relations
	bytes int
}

type derivation struct {
	duck.Derivation

	sure bool
}

func (c *derivationCache) of(
	ctx context.Context, parser *duck.Shared, query string, relations map[string][]string,
) (duck.Derivation, bool) {
	text, err := json.Marshal([]any{query, relations})
	if err != nil {
		return duck.Derivation{}, false
	}
	key := string(text)

	c.mu.Lock()
	d, ok := c.known[key]
	c.mu.Unlock()
	if ok {
		return d.Derivation, d.sure
	}

	session, err := parser.Get(ctx)
	if err != nil {
		return duck.Derivation{}, false
	}
	q, err := session.Parse(ctx, query)
	if err != nil {
		return duck.Derivation{}, false
	}
	d.Derivation, d.sure = q.Derive(relations)

	// A form and what it reads take about ten times the space of a short query.
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes += 10 * len(key); c.known == nil || c.bytes > maxForms {
		c.known, c.bytes = map[string]derivation{}, 10*len(key)
	}
	c.known[key] = d
	return d.Derivation, d.sure
}
