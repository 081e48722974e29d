package dag

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"
)

// Document is one DAG file, decoded and validated, with every default and variable applied. Nothing changes it after
// Parse returned it.
type Document struct {
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Vars        map[string]string `json:"vars,omitempty"`    // every declared variable with its value
	Jobs        []Job             `json:"jobs,omitempty"`    // in the order of the file
	Publish     []Publication     `json:"publish,omitempty"` // in the order of the file
	Notify      []Notification    `json:"notify,omitempty"`

	// Files holds every file that the document names, by its clean path below the DAG file. Contents that can change
	// an output are in the jobs too.
	Files map[string][]byte `json:"-"`

	// Columns are those of the outputs of jobs, by job and output index, as far as the file tells them; nil: it does
	// not. The type of a column is empty where only its name is known.
	Columns map[string][][]Column `json:"-"`

	byName map[string]*Job // the elements of Jobs; nil for a document that Parse did not make
}

// Job is one node of the DAG.
type Job struct {
	Name        string     `json:"name"`
	RenamedFrom string     `json:"renamed_from,omitempty"`
	Description string     `json:"description,omitempty"`
	Activation  Activation `json:"activation,omitempty"`
	Runtime     string     `json:"runtime,omitempty"`
	Operator    string     `json:"operator"`
	// OperatorVersion is the operator's semantic version at the time of parsing, from the Catalog.
	OperatorVersion string `json:"operator_version,omitempty"`
	CodeVersion     string `json:"code_version,omitempty"`

	Outputs     []string     `json:"outputs"` // names by output index; empty for a job that writes no dataset
	PartitionBy Partitioning `json:"partition_by"`
	Storage     []Storage    `json:"storage,omitempty"` // one per output

	Inputs            []Input           `json:"inputs,omitempty"`
	Trigger           Trigger           `json:"trigger,omitempty"`            // empty for sources
	ExecutionStrategy ExecutionStrategy `json:"execution_strategy,omitempty"` // empty for sources
	UpdateStrategy    UpdateStrategy    `json:"update_strategy,omitempty"`
	UniqueKey         []string          `json:"unique_key,omitempty"`

	Source    *Source    `json:"source,omitempty"`
	Bootstrap *Bootstrap `json:"bootstrap,omitempty"`

	PayloadSchema json.RawMessage `json:"payload_schema,omitempty"` // JSON Schema, inlined from payload_schema_file
	Dedupe        []string        `json:"dedupe,omitempty"`         // payload fields that make the input hash
	Enqueues      []string        `json:"enqueues,omitempty"`       // jobs that its tasks may enqueue
	TaskRetention time.Duration   `json:"task_retention,omitempty"` // 0: the server's default

	Effect         Effect   `json:"effect,omitempty"`
	Config         Config   `json:"config,omitempty"`  // *_file fields are inlined: query_file becomes query
	Secrets        []string `json:"secrets,omitempty"` // names of the secrets that config refers to, sorted
	Checks         []Check  `json:"checks,omitempty"`
	UDF            *UDF     `json:"udf,omitempty"`
	MaxConcurrency int      `json:"max_concurrency,omitempty"` // 0: unlimited
	Priority       int      `json:"priority,omitempty"`
	ConcurrencyKey string   `json:"concurrency_key,omitempty"` // template; empty: none
	StateKey       string   `json:"state_key,omitempty"`       // template; empty: all runs share one operator state

	Timeout          time.Duration `json:"timeout,omitempty"`
	HeartbeatTimeout time.Duration `json:"heartbeat_timeout,omitempty"` // the length of a lease
	MaxAttempts      int           `json:"max_attempts,omitempty"`
	Retry            Retry         `json:"retry"`
	IdleTimeout      string        `json:"idle_timeout,omitempty"` // "never", "0" or a Go duration; empty for sources

	Position Position `json:"-"`
}

// Activation is what creates a job's tasks: a source or its inputs.
type Activation string

// The activations.
const (
	ActivationSource   Activation = "source"
	ActivationReactive Activation = "reactive"
)

// Trigger is how many triggering inputs must have changed before a task is created.
type Trigger string

// The triggers.
const (
	TriggerAll Trigger = "all"
	TriggerAny Trigger = "any"
)

// ExecutionStrategy is what one task of a reactive job computes: an update or a whole partition.
type ExecutionStrategy string

// The execution strategies. Parse refuses Bulk and suggests range_aggregator.
const (
	PerUpdate    ExecutionStrategy = "PerUpdate"
	PerPartition ExecutionStrategy = "PerPartition"
)

// UpdateStrategy is whether a new revision replaces the earlier ones or adds to them.
type UpdateStrategy string

// The update strategies.
const (
	Replace UpdateStrategy = "replace"
	Append  UpdateStrategy = "append"
)

// Effect is whether a job changes anything outside the platform.
type Effect string

// The effects.
const (
	EffectInternal Effect = "internal"
	EffectExternal Effect = "external"
)

// Partitioning is how a job's outputs are cut into partitions. The zero value means that they are not: the output has a
// single partition, with the key WholeKey.
type Partitioning struct {
	Kind     PartitionKind `json:"kind,omitempty"`
	Unit     TimeUnit      `json:"unit,omitempty"`     // time: hour, day, week or month
	Timezone string        `json:"timezone,omitempty"` // time: IANA name; "UTC" by default
	Size     int64         `json:"size,omitempty"`     // range: rows of Column per partition
	Column   string        `json:"column,omitempty"`   // range and cursor
}

// PartitionKind is the kind of a Partitioning.
type PartitionKind string

// The kinds of partitioning.
const (
	Unpartitioned PartitionKind = ""
	ByKey         PartitionKind = "key"
	ByTime        PartitionKind = "time"
	ByRange       PartitionKind = "range"
	ByCursor      PartitionKind = "cursor"
)

// TimeUnit is the width of a time partition.
type TimeUnit string

// The time units.
const (
	Hour  TimeUnit = "hour"
	Day   TimeUnit = "day"
	Week  TimeUnit = "week"
	Month TimeUnit = "month"
)

// WholeKey is the partition key of unpartitioned outputs.
const WholeKey = "all"

// Storage is where the bytes of an output live.
type Storage struct {
	Kind    StorageKind `json:"kind"`
	Indexes [][]string  `json:"indexes,omitempty"` // postgres: column lists
}

// StorageKind is the kind of a Storage.
type StorageKind string

// The storage kinds.
const (
	StorageParquet  StorageKind = "parquet"
	StoragePostgres StorageKind = "postgres"
)

// Input is one edge into a job.
type Input struct {
	Job     string      `json:"job,omitempty"`     // upstream job of this DAG, or empty
	Output  int         `json:"output"`            // its output index
	Dataset string      `json:"dataset,omitempty"` // published dataset of another DAG, where Job is empty
	As      string      `json:"as,omitempty"`      // relation name in SQL
	Where   []Condition `json:"where,omitempty"`
	Map     Mapping     `json:"map"`
	Refresh bool        `json:"refresh,omitempty"` // map latest: a change of this input makes outputs stale
	Read    ReadMode    `json:"read,omitempty"`
	// PartitionBy is the partitioning of Dataset, where it is known. So a file that reads a dataset whose partitioning
	// has changed has another hash.
	PartitionBy *Partitioning `json:"partition_by,omitempty"`

	Position Position `json:"-"`
}

// Source returns what the input is read from, for people.
func (in Input) Source() string {
	if in.Dataset != "" {
		return "dataset " + in.Dataset
	}
	return "the output of job " + in.Job
}

// Triggers reports whether a change of the input creates tasks.
func (in Input) Triggers() bool { return in.Map.Kind == MapSame || in.Map.Kind == MapWindow }

// ReadsNew reports whether a task of the job reads only what earlier tasks did not read.
func (j *Job) ReadsNew() bool {
	readsNew := func(in Input) bool { return in.Triggers() && in.Read != ReadAll }
	return j.UpdateStrategy == Append && slices.ContainsFunc(j.Inputs, readsNew)
}

// Condition keeps the rows whose Column is one of Values.
type Condition struct {
	Column string `json:"column"`
	Values Values `json:"values"`
}

// Mapping determines the partitions of an input that an output partition is made of.
type Mapping struct {
	Kind    MapKind  `json:"kind"`
	Window  TimeUnit `json:"window,omitempty"`  // window: the output's unit of time
	Last    int      `json:"last,omitempty"`    // window: the last n input partitions, the output's own included
	Require string   `json:"require,omitempty"` // window: "complete" (default) or "available"
}

// MapKind is the kind of a Mapping.
type MapKind string

// The mappings.
const (
	MapSame   MapKind = "same"
	MapLatest MapKind = "latest"
	MapSlice  MapKind = "slice"
	MapWindow MapKind = "window"
)

// ReadMode is whether a task reads only what its job has not read yet, or everything.
type ReadMode string

// The read modes.
const (
	ReadNew ReadMode = "new"
	ReadAll ReadMode = "all"
)

// SourceAlwaysOn is the kind of a source with a single task that runs until it is drained.
const SourceAlwaysOn = "always_on"

// Source is what creates the tasks of a source job.
type Source struct {
	Kind     string        `json:"kind"`               // cron, poll, webhook, manual, timer or always_on
	Schedule string        `json:"schedule,omitempty"` // cron: five fields or @daily, @hourly, ...
	Timezone string        `json:"timezone,omitempty"` // cron: IANA name; "UTC" by default
	Start    string        `json:"start,omitempty"`    // cron: first instant, RFC 3339 or date
	Catchup  bool          `json:"catchup,omitempty"`  // cron: create tasks for the windows that were missed
	Every    time.Duration `json:"every,omitempty"`    // poll
	Path     string        `json:"path,omitempty"`     // webhook
	Secret   string        `json:"secret,omitempty"`   // webhook: name of the HMAC secret
	OnDeploy bool          `json:"on_deploy"`          // enumerate at deploy; true by default for poll
}

// Bootstrap is what a source does once when a new version is activated.
type Bootstrap struct {
	ResetOutputs bool `json:"reset_outputs"`
}

// UDF is a user's own code: a local folder, or a bundle on the server.
type UDF struct {
	Folder     string `json:"folder,omitempty"`
	Bundle     string `json:"bundle,omitempty"`
	Entrypoint string `json:"entrypoint"`
	Hash       string `json:"hash,omitempty"` // of the folder's content
}

// Check is one expectation on an output. Every revision is checked before readers see it.
type Check struct {
	Name     string         `json:"name"` // stated, or derived: "not_null(iata)"
	Kind     string         `json:"kind"` // not_null, unique, accepted_values, row_count, freshness, relationships, sql
	Output   int            `json:"output"`
	Severity string         `json:"severity"` // error (keeps the revision from readers) or warn
	Columns  []string       `json:"columns,omitempty"`
	Values   Values         `json:"values,omitempty"` // accepted_values
	Min      *int64         `json:"min,omitempty"`    // row_count
	Max      *int64         `json:"max,omitempty"`    // row_count
	Within   time.Duration  `json:"within,omitempty"` // freshness
	To       *CheckRelation `json:"to,omitempty"`     // relationships
	SQL      string         `json:"sql,omitempty"`    // rows are failures; the output is the relation "output"

	Index int `json:"-"` // among the checks of its job in the file
}

// Hash identifies what a check demands of a revision, whatever its name and its severity are.
func (c Check) Hash() string {
	c.Name, c.Severity, c.Output = "", "", 0 // Index is no part of its JSON
	text, err := json.Marshal(c)
	if err != nil {
		panic(err) // all of it was decoded from a document
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// CheckRelation is the other side of a relationships check.
type CheckRelation struct {
	Input  string `json:"input"` // an input of the job, by its `as` name
	Column string `json:"column"`
}

// Retry is a job's back-off: min(max, initial*multiplier^n), jittered by half.
type Retry struct {
	Initial    time.Duration `json:"initial"`
	Max        time.Duration `json:"max"`
	Multiplier float64       `json:"multiplier"`
}

// Publication gives an output a name in the catalogue. It is metadata: it never rebuilds anything.
type Publication struct {
	Name        string            `json:"name"`
	Job         string            `json:"job"`
	Output      int               `json:"output"`
	Description string            `json:"description,omitempty"`
	Owner       string            `json:"owner,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
	Columns     map[string]string `json:"columns,omitempty"`
	DueWithin   time.Duration     `json:"due_within,omitempty"`
	Retention   time.Duration     `json:"retention,omitempty"`
	TakesOver   string            `json:"takes_over,omitempty"`

	Position Position `json:"-"`
}

// Notification sends the named kinds of problem to a receiver.
type Notification struct {
	On     []string `json:"on"`             // dead, late, failed_deploy, failed_check
	Secret string   `json:"webhook_secret"` // its address; the field's name is from when there were only webhooks
	Format string   `json:"format,omitempty"`
	To     []string `json:"to,omitempty"`   // of an e-mail
	From   string   `json:"from,omitempty"` // of an e-mail
}

// The formats of notifications, as DAG files name them. In a Notification, webhook is an empty text.
const (
	NotifyWebhook   = "webhook"
	NotifySlack     = "slack"
	NotifyTeams     = "teams"
	NotifyPagerDuty = "pagerduty"
	NotifyEmail     = "email"
)

// NotifyFormats lists them.
var NotifyFormats = []string{NotifyWebhook, NotifySlack, NotifyTeams, NotifyPagerDuty, NotifyEmail}

// Position is a place in a file. Line and Column count from 1.
type Position struct {
	File   string
	Line   int
	Column int
}

// Job returns the named job, and reports whether it exists.
func (d *Document) Job(name string) (*Job, bool) {
	if d.byName != nil {
		job, ok := d.byName[name]
		return job, ok
	}
	for i := range d.Jobs {
		if d.Jobs[i].Name == name {
			return &d.Jobs[i], true
		}
	}
	return nil, false
}

// Handler is the operator of jobs that run a function of a worker, which `config: {handler: NAME}` names.
const Handler = "handler"

// OwnCode is the operator of jobs that run code sent with the deploy, which `udf` names.
const OwnCode = "udf"

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

// ErrorChecks returns the checks that hold the revisions of an output back.
func (j *Job) ErrorChecks(output int) (checks []Check) {
	for _, c := range j.Checks {
		if c.Output == output && c.Severity == "error" {
			checks = append(checks, c)
		}
	}
	return checks
}
