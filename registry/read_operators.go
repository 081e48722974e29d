package registry

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/dagctl/dagctl/dag"
)

// OperatorCatalog is dag.Catalog as clients get it.
type OperatorCatalog struct {
	Operators []OperatorView `json:"operators" nullable:"false"`
	Runtimes  []string       `json:"runtimes" nullable:"false" doc:"Names that this server has mapped"`
}

// OperatorView is what a DAG file needs to know about an operator.
type OperatorView struct {
	Name         string          `json:"name"`
	Version      string          `json:"version" doc:"Version of what it computes; a change makes outputs stale"`
	Source       bool            `json:"source"`
	Reactive     bool            `json:"reactive"`
	Replayable   bool            `json:"replayable"`
	Splits       bool            `json:"splits" doc:"The rows of a task may be split into partitions by a column"`
	Effect       string          `json:"effect" enum:"internal,external"`
	Runtimes     []string        `json:"runtimes,omitempty" doc:"It may run on these only"`
	ConfigSchema json.RawMessage `json:"config_schema,omitempty" doc:"JSON Schema of its config"`
	Operational  []string        `json:"operational,omitempty" doc:"Config keys that cannot change an output"`
}

// NewOperatorCatalog converts a catalog for clients.
func NewOperatorCatalog(c dag.Catalog) OperatorCatalog {
	view := OperatorCatalog{Operators: []OperatorView{}, Runtimes: append([]string{}, c.Runtimes...)}
	for _, name := range slices.Sorted(maps.Keys(c.Operators)) {
		s := c.Operators[name]
		view.Operators = append(view.Operators, OperatorView{
			Name: s.Name, Version: s.Version, Source: s.Source, Reactive: s.Reactive, Replayable: s.Replayable,
			Splits: s.Splits, Effect: string(s.Effect), Runtimes: s.Runtimes, ConfigSchema: s.ConfigSchema,
			Operational: s.Operational,
		})
	}
	return view
}

// Catalog converts back. It has no canonical forms: only the server computes the hashes that count.
func (c OperatorCatalog) Catalog() dag.Catalog {
	catalog := dag.Catalog{Operators: make(map[string]dag.OperatorSpec, len(c.Operators)), Runtimes: c.Runtimes}
	for _, v := range c.Operators {
		catalog.Operators[v.Name] = dag.OperatorSpec{
			Name: v.Name, Version: v.Version, Source: v.Source, Reactive: v.Reactive, Replayable: v.Replayable,
			Splits: v.Splits, Effect: dag.Effect(v.Effect), Runtimes: v.Runtimes, ConfigSchema: v.ConfigSchema,
			Operational: v.Operational,
		}
	}
	return catalog
}
