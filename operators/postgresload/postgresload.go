// Package postgresload has the operator postgres_load, which writes the rows of its input to a table of a PostgreSQL
// database of the user's.
//
// Vocabulary: the target is that table. A load is what one task writes, in one transaction. The ledger is a table in
// the target's schema with the revisions that the last load of each partition was made from, written in the load's
// transaction: it lets no older load overwrite a newer one, and no load append its rows twice. It owns no tables of the
// platform's database.
package postgresload

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/pgremote"
	"github.com/dagctl/dagctl/internal/remotedb"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

var configSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "additionalProperties": false,
  "required": ["host", "database", "user", "table", "mode"],
  "properties": {` + pgremote.Schema + `,
    "table": {"type": "string", "minLength": 1, "maxLength": 127,
      "description": "The table to write, as NAME or SCHEMA.NAME, just as PostgreSQL has them; schema public by default."},
    "mode": {"enum": ["upsert", "append", "replace", "replace_partition"],
      "description": "upsert: insert, or update the row with the same key. append: insert. replace: swap the whole table. replace_partition: replace the rows of the task's partition."},
    "key": {"type": "array", "minItems": 1, "uniqueItems": true, "items": {"type": "string", "minLength": 1},
      "description": "upsert: the columns that identify a row; the table needs a unique index on them."},
    "partition_column": {"type": "string", "minLength": 1,
      "description": "replace_partition: the column that says to which partition a row belongs."},
    "create": {"type": "boolean", "description": "Create the table if there is none; false by default."}
  }
}`

// The modes.
const (
	upsert           = "upsert"
	appending        = "append"
	replace          = "replace"
	replacePartition = "replace_partition"
)

type config struct {
	pgremote.Address
	Table           string   `json:"table"`
	Mode            string   `json:"mode"`
	Key             []string `json:"key"`
	PartitionColumn string   `json:"partition_column"`
	Create          bool     `json:"create"`
}

var tableForm = late.Pattern(`^(?:([^."\x00]{1,63})\.)?([^."\x00]{1,63})$`)

func parseConfig(given map[string]any) (c config, fault *dag.ConfigError) {
	if err := operators.DecodeConfig(given, &c); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}
	if err := c.Address.Check(); err != nil {
		return c, &dag.ConfigError{Message: err.Error()}
	}

	switch {
	case !tableForm.MatchString(c.Table):
		return c, &dag.ConfigError{Key: "table", Message: "it must be NAME or SCHEMA.NAME, of 63 characters " +
			"each, without quotes"}
	case c.name() == ledgerTable:
		return c, &dag.ConfigError{Key: "table", Message: ledgerTable + " has the loads of a schema: give the rows " +
			"another table"}
	case (c.Mode == upsert) != (len(c.Key) > 0):
		return c, &dag.ConfigError{Key: "mode", Message: "`key` and mode upsert need each other"}
	case (c.Mode == replacePartition) != (c.PartitionColumn != ""):
		return c, &dag.ConfigError{Key: "mode", Message: "`partition_column` and mode replace_partition need each " +
			"other"}
	}
	return c, nil
}

// schema returns the name of the target's schema.
func (c config) schema() string {
	if name := tableForm.FindStringSubmatch(c.Table)[1]; name != "" {
		return name
	}
	return "public"
}

func (c config) name() string { return tableForm.FindStringSubmatch(c.Table)[2] }

// in returns the quoted name of a table in the target's schema.
func (c config) in(table string) string {
	return sqltext.Quote(c.schema()) + "." + sqltext.Quote(table)
}

func (c config) target() string { return c.in(c.name()) }

type operator struct {
	options operators.Options
	dialer  *dial.Dialer
}

// New returns the operator.
func New(o operators.Options) (operators.Operator, error) {
	d, err := dial.New(dial.Config{Allowed: o.AllowedAddresses})
	return &operator{o, d}, err
}

func (*operator) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{
		Name: "postgres_load", Version: "1.0.0", Reactive: true, Effect: dag.EffectExternal,
		ConfigSchema: json.RawMessage(configSchema),
		Operational:  remotedb.Operational,
		CheckJob:     checkJob, CheckPartitions: checkPartitions, Targets: targets,
		SecretsTo: pgremote.SecretsTo,
		Canonical: func(given map[string]any) (any, *dag.ConfigError) {
			_, err := parseConfig(given)
			return given, err
		},
	}
}

const onePartition = "append needs an input of which each task reads one partition, its own, and that is none of a " +
	"cursor: otherwise rows would be appended again with those of another partition"

// checkJob refuses jobs with other inputs and outputs than a load has.
func checkJob(job *dag.Job) *dag.ConfigError {
	if _, fault := parseConfig(job.Config); fault != nil {
		return fault
	}
	switch {
	case len(job.Outputs) > 0:
		return &dag.ConfigError{Message: "postgres_load writes to its table only: give the job `outputs: 0`"}
	case len(job.Inputs) != 1:
		return &dag.ConfigError{Message: "postgres_load loads one input: give each table a job"}
	}
	return nil
}

// checkPartitions refuses jobs whose loads would undo each other.
func checkPartitions(job *dag.Job) *dag.ConfigError {
	c, fault := parseConfig(job.Config)
	if fault != nil {
		return fault
	}
	same := len(job.Inputs) == 1 && job.Inputs[0].Map.Kind == dag.MapSame
	cursor := job.PartitionBy.Kind == dag.ByCursor || slices.ContainsFunc(job.Inputs, func(in dag.Input) bool {
		return in.Upstream != nil && in.Upstream.Kind == dag.ByCursor
	})

	switch {
	case c.Mode == appending && (!same || cursor):
		return &dag.ConfigError{Key: "mode", Message: onePartition}
	case c.Mode == replace && job.PartitionBy.Kind != "":
		return &dag.ConfigError{Key: "mode", Message: "replace needs a job without partitions: each partition would " +
			"replace those of the others; use replace_partition"}
	case c.Mode == replacePartition && (job.PartitionBy.Kind == "" || job.PartitionBy.Kind == dag.ByCursor):
		return &dag.ConfigError{Key: "mode", Message: "replace_partition needs partitions of time, by key or of " +
			"ranges: give the job the `partition_by` of its input, such as `partition_by: { time: day }`"}
	}
	return nil
}

// targets returns the table that a job writes to. PostgreSQL cuts names off, and names without a schema are in public.
func targets(_ string, job *dag.Job) []dag.Target {
	c, fault := parseConfig(job.Config)
	if fault != nil {
		return nil
	}
	return []dag.Target{{
		Key: "table", Name: fmt.Sprintf("table %s.%s of %s at %s", c.schema(), c.name(), c.Database, c.Host),
		Path: []string{"postgres", strings.ToLower(c.URL().Host), cut(c.Database), cut(c.schema()), cut(c.name())},
		Harm: "each would undo what the other loads; give each a table of its own, or unite their inputs in a sql " +
			"job and load that",
		Adds: c.Mode == appending,
	}}
}

// cut returns a name as PostgreSQL keeps it: its first 63 bytes, as far as they are whole characters.
func cut(name string) string {
	for len(name) > 63 {
		_, size := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-size]
	}
	return name
}

// Run implements operators.Operator.
func (o *operator) Run(ctx context.Context, t *operators.Task) (operators.Result, error) {
	c, configFault := parseConfig(t.Config)
	if configFault != nil {
		return operators.Result{}, operators.Permanent(operators.ConfigError(configFault))
	}
	if err := ctx.Err(); err != nil {
		return operators.Result{}, err
	}
	if len(t.Inputs) != 1 {
		return operators.Result{}, fault.New(fault.Invalid, "postgres_load loads one input")
	}
	if in := t.Inputs[0]; c.Mode == appending && (len(in.Partitions) > 1 || in.PartitionBy.Kind == dag.ByCursor) {
		return operators.Result{}, fault.New(fault.Invalid, onePartition)
	}

	t.Progress(0, "reading the rows")
	files, columns, err := t.Rows(ctx, 0)
	if err != nil {
		return operators.Result{}, err
	}
	if err := c.check(columns); err != nil {
		return operators.Result{}, operators.Permanent(err)
	}

	l := &load{config: c, task: t, files: files, columns: columns, engines: o.options.Engines}
	done, err := l.run(ctx, o.dialer)
	if err != nil {
		if fault.Is(err, fault.Forbidden) || fault.Is(err, fault.Conflict) {
			err = operators.Permanent(err)
		}
		return operators.Result{}, err
	}
	text, err := json.Marshal(done)
	return operators.Result{Result: text}, err
}

// rowColumn is the column of the staged rows with their number.
const rowColumn = "_dagctl_row"

// check refuses columns that no table holds, and names of the config that are none of them.
func (c config) check(columns []storage.Column) error {
	var names []string
	for _, column := range columns {
		if _, err := pgcopy.TypeOf(column); err != nil {
			return err
		}
		if len(column.Name) > 63 || sqltext.Same(column.Name, rowColumn) {
			return fault.New(fault.Invalid, "column %q: PostgreSQL has names of up to 63 bytes, and %s is the "+
				"operator's own", column.Name, rowColumn).WithHint("rename it in a sql job")
		}
		names = append(names, column.Name)
	}
	if len(columns) == 0 {
		return fault.New(fault.Invalid, "the input has no columns yet")
	}

	needed := slices.Clone(c.Key)
	if c.PartitionColumn != "" {
		needed = append(needed, c.PartitionColumn)
	}
	for _, name := range needed {
		if !slices.Contains(names, name) {
			return fault.New(fault.Invalid, "the input has no column %q; it has %s", name,
				strings.Join(names[:min(30, len(names))], ", "))
		}
	}
	return nil
}

// loaded is what a run reports.
type loaded struct {
	Table string `json:"table"`
	Rows  int64  `json:"rows"` // of the input
	Skip  bool   `json:"already_loaded,omitempty"`
}

// jobOf returns the name by which the ledger knows the task's job.
func jobOf(t *operators.Task) string { return fmt.Sprintf("%s/%s/%s", t.OrgSlug, t.DAG, t.Job) }
