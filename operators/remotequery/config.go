package remotequery

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/textfile"
)

// Config is what a config says of a query, beside where the database is.
type Config struct {
	Query    string            `json:"query"`
	Types    map[string]string `json:"types"`
	Columns  []string          `json:"columns"`
	MaxBytes int64             `json:"max_bytes"`
}

const defaultMaxBytes = 16 << 30

// schema returns a config schema with an address.
func schema(address string) string {
	return `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["host", "database", "user", "query"],
  "properties": {` + address + `,
    "query": {"type": "string", "minLength": 1,
      "description": "One SELECT. {partition}, {start} and {end} are values: the task's partition and its half-open range."},
    "types": {"type": "object", "additionalProperties": {"type": "string", "minLength": 1, "maxLength": 1000},
      "description": "DuckDB types of columns; by default those that hold all values of the columns' types."},
    "columns": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "The columns to keep, in this order; all by default."},
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 1099511627776,
      "description": "The most bytes of rows to accept; 16 GiB by default."}
  }
}`
}

// Check reads the query of a config and looks at its types. database is the name of the kind.
func (c Config) Check(d Dialect, database string) (s Statement, refused *dag.ConfigError) {
	s, err := d.Parse(c.Query)
	if err != nil {
		return s, &dag.ConfigError{Key: "query", Message: err.Error()}
	}
	for _, column := range slices.Sorted(maps.Keys(c.Types)) {
		if t, err := textfile.ParseType(c.Types[column]); err != nil || strings.Contains(t.String(), "?") {
			return s, &dag.ConfigError{Key: "types", Message: fmt.Sprintf("%s: %q is not the name of a DuckDB type "+
				"that a column of %s can be read as", column, c.Types[column], database)}
		}
	}
	return s, nil
}

// declared returns the type that the config gives to a column; empty: none.
func (c Config) declared(column string) string {
	for name, text := range c.Types {
		if strings.EqualFold(name, column) {
			t, _ := textfile.ParseType(text) // Check has looked at it
			return t.String()
		}
	}
	return ""
}

// TooLarge returns an error if more bytes of rows were written than the config accepts.
func (c Config) TooLarge(written int64) error {
	limit := c.MaxBytes
	if limit == 0 {
		limit = defaultMaxBytes
	}
	if written <= limit {
		return nil
	}
	return operators.Permanent(fault.New(fault.TooLarge, "the rows have more than %d bytes", limit).
		WithHint("select less, or raise config.max_bytes"))
}

// Choice is a column to write.
type Choice struct {
	Name string
	From int    // its place in the result
	Type string // the DuckDB type that it has to have; empty: the one of its type in the database
}

// Choose returns the columns to write of those that the query has. standing are those that stand; nil: the config and
// the query decide.
func (c Config) Choose(names []string, standing []textfile.Column) ([]Choice, error) {
	if len(names) == 0 {
		return nil, fault.New(fault.Invalid, "the query has no columns")
	}
	for i, name := range names {
		if slices.ContainsFunc(names[:i], func(n string) bool { return sqltext.Same(n, name) }) {
			return nil, fault.New(fault.Invalid, "the query has two columns %q", name).
				WithHint("give one of them another name: expression AS name")
		}
	}
	at := func(name string) int {
		return slices.IndexFunc(names, func(n string) bool { return sqltext.Same(n, name) })
	}
	for _, declared := range slices.Sorted(maps.Keys(c.Types)) {
		if at(declared) < 0 {
			return nil, fault.New(fault.Invalid, "`types` names column %q, which the query does not have", declared)
		}
	}

	keep := names
	if len(c.Columns) > 0 {
		keep = c.Columns
	}
	if err := stands(keep, standing); err != nil {
		return nil, err
	}

	chosen := make([]Choice, len(keep))
	for i, name := range keep {
		chosen[i] = Choice{Name: name, From: at(name), Type: c.declared(name)}
		if chosen[i].From < 0 {
			return nil, fault.New(fault.Invalid, "`columns` names %q; the query has %s", name,
				strings.Join(names[:min(30, len(names))], ", "))
		}
		if standing != nil {
			chosen[i].Type = standing[i].Type
		}
	}
	return chosen, nil
}

// stands refuses columns that are not those that stand.
func stands(names []string, standing []textfile.Column) error {
	if standing == nil {
		return nil
	}
	was := make([]string, len(standing))
	for i, c := range standing {
		was[i] = c.Name
	}
	if slices.Equal(names, was) {
		return nil
	}
	return fault.New(fault.Invalid, "the query has the columns %s; the dataset has %s",
		strings.Join(names[:min(30, len(names))], ", "), strings.Join(was[:min(30, len(was))], ", ")).
		WithHint("list the columns to keep as `columns`; or give the output another name, which begins anew")
}
