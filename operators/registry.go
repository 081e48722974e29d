package operators

import (
	"fmt"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/dag"
)

// Registry is a set of operators by name.
type Registry struct {
	operators map[string]Operator
}

// NewRegistry makes a registry. Names must be given and differ.
func NewRegistry(ops ...Operator) (*Registry, error) {
	r := &Registry{operators: make(map[string]Operator, len(ops))}
	for _, op := range ops {
		name := op.Spec().Name
		if name == "" {
			return nil, fmt.Errorf("operator %T has no name", op)
		}
		if _, ok := r.operators[name]; ok {
			return nil, fmt.Errorf("operator %q is given twice", name)
		}
		r.operators[name] = op
	}
	return r, nil
}

// Options say what the built-in operators may do and use.
type Options struct {
	AllowCommand     bool     // command runs any program with this process's rights; off unless the config says so
	AllowedAddresses []string // prefixes (CIDR) that http_source may reach though they are private, link-local or loopback
	MemoryLimit      int64    // bytes for each DuckDB session; 0: 1 GiB
	Threads          int      // for each DuckDB session; 0: as many as the machine has
	UDF              UDFOptions
}

// Builtin is the registry of the operators that come with the platform.
func Builtin(o Options) (*Registry, error) {
	web, err := newHTTPSource(o)
	if err != nil {
		return nil, err
	}
	return NewRegistry(newSQL(o), newFileSource(o), web, &commandOperator{o}, &udfOperator{o}, handlerOperator{})
}

// Get returns the named operator.
func (r *Registry) Get(name string) (Operator, bool) {
	op, ok := r.operators[name]
	return op, ok
}

// Names lists the operators, sorted.
func (r *Registry) Names() []string { return sortedKeys(r.operators) }

// Catalog is what DAG files are validated against. A nil list of runtimes is not checked.
func (r *Registry) Catalog(runtimes []string) dag.Catalog {
	c := dag.Catalog{Operators: make(map[string]dag.OperatorSpec, len(r.operators)), Runtimes: slices.Clone(runtimes)}
	for name, op := range r.operators {
		c.Operators[name] = op.Spec()
	}
	return c
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
