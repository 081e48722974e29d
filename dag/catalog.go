package dag

import (
	"encoding/json"
	"errors"
)

// Handler is the operator of jobs that run a function of a worker, which `config: {handler: NAME}` names.
const Handler = "handler"

// OwnCode is the operator of jobs that run code sent with the deploy, which `udf` names.
const OwnCode = "udf"

// Seed is the operator of jobs whose output is a small table beside the DAG file. Such a job states neither a source
// nor inputs.
const Seed = "seed"

// OperatorSpec describes an operator, as far as DAG files depend on it.
type OperatorSpec struct {
	Name    string
	Version string // semantic version of what it computes; a change of it makes outputs stale

	Source   bool // may be a source
	Reactive bool // may have inputs

	// Replayable sources can enumerate all that they can read, so a changed definition is rebuilt from it.
	// Others are forward-only: a change of their definition applies from cutover on.
	Replayable bool
	Effect     Effect   // default for jobs that use it; one that is external never has an internal job
	Runtimes   []string // runtimes it may run on; nil: any
	Delivers   bool     // what a job of it has delivered is remembered by the job's first name
	NoFiles    bool     // it reads no input and writes no output, so its tasks get no folders
	Splits     bool     // the rows that a task writes may be split into partitions by a column
	Folders    bool     // it reads folders of the server, which its config gives to orgs

	ConfigSchema json.RawMessage // JSON Schema 2020-12 of `config`
	Operational  []string        // config keys that cannot change an output

	// SecretsTo returns where the secrets of a config go: the URL of a request, or ToProgram. If it is nil, the
	// operator itself checks where they may go.
	SecretsTo func(config map[string]any) string

	// SecretTo returns the URLs that one secret of a config goes to, where they differ from secret to secret. It is
	// asked instead of SecretsTo.
	SecretTo func(config map[string]any, name string) []string

	// Canonical returns a form of the output-affecting config that is equal exactly if the meaning is equal (for SQL,
	// its parsed form). If it is nil, the config itself is that form. An error is a fault of the config, at Key.
	Canonical func(config map[string]any) (any, *ConfigError)

	// CheckFields checks the fields of a config that stand for themselves. It is asked where the schema has faults,
	// for a config without the fields at fault; Canonical, which is asked where it has none, refuses the same. If it is
	// nil, nothing is known before the schema fits.
	CheckFields func(config map[string]any) *ConfigError

	// CheckJob checks what depends on more of a job than its config. If it is nil, everything goes.
	CheckJob func(job *Job) *ConfigError

	// CheckPartitions checks what depends on how a job is partitioned. It is asked once that is settled, which CheckJob
	// comes too early for: a job may inherit it. Where it follows from a dataset that is not known, nobody is asked
	// until the file is parsed for a server. If it is nil, everything goes.
	CheckPartitions func(job *Job) *ConfigError

	// Targets returns the places outside of the platform that a job writes to: two jobs of a DAG must not write to one.
	// It is asked when CheckPartitions is. If it is nil, none is known.
	Targets func(dag string, job *Job) []Target

	// Extent returns the positions that a config is to read, half-open, where it has a fixed range of them. It is
	// dataset_versions.range_start and range_end. If it is nil, there is none.
	Extent func(config map[string]any) (start, end int64)

	// Reading returns what a config says of how the files of a source are read; nil if it reads none. What it does
	// not say is inferred from the first file and stands from then on. If it is nil, nothing is inferred.
	Reading func(config map[string]any) any

	// Shape returns which columns a job reads and writes, as far as its config says it. If it is nil, nothing is known.
	// An error says that nobody could look.
	Shape func(job *Job, inputs [][]Column) (Shape, error)

	// Queries returns the SELECT of each output, by its index, of a job whose outputs are the results of SELECTs over
	// its inputs. If it is nil, jobs have none.
	Queries func(job *Job) []Query

	// SQL returns the paths of a config that lead to statements, in which macros may be called. If it is nil, it has
	// none.
	SQL func(config map[string]any) [][]string

	// Derive returns how a job's outputs are computed from the columns of its inputs. It takes the names of those
	// columns in lower case; nil stands for columns that are not known. It returns false where it is not sure, and an
	// error where nobody could look. If it is nil, jobs depend on the whole definitions of their inputs.
	Derive func(job *Job, inputs [][]string) (Derivation, bool, error)
}

// Column is a column of a dataset, with DuckDB's name of its type.
type Column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// Shape is what is known of the columns of a job. Nil stands for whatever is not known.
type Shape struct {
	Reads  [][]string // by input index: the columns that it reads by name; nil also where it reads whatever there is
	Writes [][]Column // by output index, as they are stored
	// Types are those columns of the first output whose types are declared, where Writes does not have it: it may have
	// others, too.
	Types []Column

	Refused []ConfigError // columns that no storage can hold, and those that it reads of inputs that do not have them
}

// ToProgram is the destination of secrets that a program gets: it may send them anywhere.
const ToProgram = "*"

// ConfigError is a fault that an operator finds in its config.
type ConfigError struct {
	Key     string // the config key at fault: "query"
	Message string
	// Within leads from the value of Key to the place at fault: names of fields and indexes of lists; nil: Key itself
	Within []string
	// More are further faults of the same config
	More []*ConfigError
	// Unknown is the name at fault and Known are those there are, one of which was probably meant; empty: none was
	Unknown string
	Known   []string
	// Unseen is why nobody could look at the config, which then is not at fault; nil: somebody did
	Unseen error
}

// Trusted reports whether a job of this operator may get secrets on this runtime. Code that users upload never may, and
// nothing may on the runtime for such code.
func Trusted(runtime, operator string) bool {
	return runtime != "ecs_udf" && operator != "udf"
}

// Catalog lists the operators and runtimes that a DAG file may name.
type Catalog struct {
	Operators map[string]OperatorSpec
	Runtimes  []string // mapped runtime names; nil: not checked
	// Statement returns what is wrong with the SQL of a check of a job; nil: not checked.
	Statement func(job *Job, sql string) *ConfigError
	// Expand writes out the macros of files that statements call; nil: nobody here can, and statements stay as they
	// are. An error says that nobody could look.
	Expand func(files, statements []string) (Expanded, error)
	// Names looks at the names that a document gives to columns; nil: not checked.
	Names func(of Naming) (Named, error)
	// Folders returns an error if the jobs of a DAG may not read a path of the server; nil: not checked.
	Folders func(dag, path string) error
	// ForOrg returns the catalog whose functions work for an org, apart from all others; nil: they do so anyway.
	ForOrg func(c Catalog, org Org) Catalog
}

// Org is an org as operators know it.
type Org struct {
	ID   string
	Slug string // empty: not known here
}

// For returns the catalog whose functions work for an org.
func (c Catalog) For(org Org) Catalog {
	if c.ForOrg == nil {
		return c
	}
	return c.ForOrg(c, org)
}

// While returns a catalog whose operators look at no more configs and jobs once going says no, however many are left:
// what comes of a document then is of no use.
func (c Catalog) While(going func() bool) Catalog {
	all := c.Operators
	c.Operators = make(map[string]OperatorSpec, len(all))
	for name, op := range all {
		if canonical := op.Canonical; canonical != nil {
			op.Canonical = func(config map[string]any) (any, *ConfigError) {
				if !going() {
					return config, nil
				}
				return canonical(config)
			}
		}

		if shape := op.Shape; shape != nil {
			op.Shape = func(job *Job, inputs [][]Column) (s Shape, err error) {
				if !going() {
					return s, errors.New("the time for it is over")
				}
				return shape(job, inputs)
			}
		}
		c.Operators[name] = op
	}
	return c
}

// ErrorChecks returns the checks that hold the revisions of an output back.
func (j *Job) ErrorChecks(output int) (checks []Check) {
	for _, c := range j.Checks {
		if c.Output == output && c.Severity == "error" {
			checks = append(checks, c)
		}
	}
	return checks
}
