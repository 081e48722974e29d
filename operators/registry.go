package operators

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/relations"
)

// Registry is a set of operators by name.
type Registry struct {
	operators map[string]Operator
	engines   *engine.Engines
	limits    relations.Limits // of each engine
}

// NewRegistry returns a registry of operators, each of which must have a name of its own. Their runs use the engines.
func NewRegistry(engines *engine.Engines, ops ...Operator) (*Registry, error) {
	if engines == nil {
		return nil, errors.New("operators need engines")
	}
	r := &Registry{engines: engines, operators: make(map[string]Operator, len(ops))}
	for _, op := range ops {
		name := op.Spec().Name
		if name == "" {
			return nil, fmt.Errorf("operator %T has no name", op)
		}
		if _, ok := r.operators[name]; ok {
			return nil, fmt.Errorf("there are two operators %q", name)
		}
		r.operators[name] = op
	}
	return r, nil
}

// Options configure the built-in operators.
type Options struct {
	Engines *engine.Engines // required
	Command CommandOptions  // which programs run, and what they may reach; by default none run
	// Prefixes (CIDR) that operators of HTTP may reach though they are private, link-local or loopback
	AllowedAddresses []string
	MemoryLimit      int64 // bytes for each DuckDB session; 0: 1 GiB
	Threads          int   // for each DuckDB session; 0: as many as the machine has
	UDF              UDFOptions
	ExportRoots      map[string][]string // org slug → folders that its exports may write
	// ReuseByColumn makes a sql job depend only on the columns that it reads by name, where that is certain.
	ReuseByColumn bool
}

// Builtin returns the registry of the built-in operators of this package and of more; package standard has all.
func Builtin(o Options, more ...Operator) (*Registry, error) {
	web, err := newHTTPSource(o)
	if err != nil {
		return nil, err
	}
	here := []Operator{newSQL(o), newFileSource(o), web, &commandOperator{o}, &udfOperator{o}, handlerOperator{}}
	r, err := NewRegistry(o.Engines, append(here, more...)...)
	if err != nil {
		return nil, err
	}
	r.limits = o.limits()
	return r, nil
}

func (o Options) limits() relations.Limits {
	return relations.Limits{Memory: o.MemoryLimit, Threads: o.Threads}
}

// Get returns the named operator.
func (r *Registry) Get(name string) (Operator, bool) {
	op, ok := r.operators[name]
	return op, ok
}

// Names lists the operators, sorted.
func (r *Registry) Names() []string { return sortedKeys(r.operators) }

// Catalog returns what DAG files are validated against. A nil list of runtimes is not checked.
func (r *Registry) Catalog(runtimes []string) dag.Catalog {
	c := dag.Catalog{Operators: make(map[string]dag.OperatorSpec, len(r.operators)), Runtimes: slices.Clone(runtimes)}
	for name, op := range r.operators {
		c.Operators[name] = op.Spec()
	}
	if sql, ok := r.operators["sql"].(*sqlOperator); ok {
		c.Statement, c.Names, c.Expand = sql.statements.check, sql.statements.names, sql.statements.expand
	}
	c.ForOrg = r.forOrg
	return c
}

// PerOrg is an operator that looks at configs for each org apart.
type PerOrg interface {
	// ForOrg returns the catalog whose functions for the operator work for an org.
	ForOrg(c dag.Catalog, org dag.Org) dag.Catalog
}

// forOrg returns the catalog whose operators look at configs for an org.
func (r *Registry) forOrg(c dag.Catalog, org dag.Org) dag.Catalog {
	for _, name := range r.Names() {
		if op, ok := r.operators[name].(PerOrg); ok {
			c = op.ForOrg(c, org)
		}
	}
	return c
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
