package dag

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
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

	// Macros are the names of the macros that statements may call, sorted.
	Macros []string `json:"-"`

	unclear map[string]bool // jobs whose partitioning is not known, since it follows from what is not known here
	byName  map[string]*Job // the elements of Jobs; nil for a document that Parse did not make
}

// Job is one node of the DAG.
type Job struct {
	Name        string `json:"name"`
	RenamedFrom string `json:"renamed_from,omitempty"`
	// GivenIdentity is the job's identity where that is neither of its names: what served before says so.
	GivenIdentity string `json:"identity,omitempty"`

	Description string     `json:"description,omitempty"`
	Activation  Activation `json:"activation,omitempty"`
	Runtime     string     `json:"runtime,omitempty"`
	Operator    string     `json:"operator"`
	// OperatorVersion is the operator's semantic version at the time of parsing, from the Catalog.
	OperatorVersion string `json:"operator_version,omitempty"`
	CodeVersion     string `json:"code_version,omitempty"`

	Outputs     []string     `json:"outputs"` // names by output index; empty for a job that writes no dataset
	PartitionBy Partitioning `json:"partition_by"`
	SplitBy     string       `json:"split_by,omitempty"` // column by which one task splits its rows into partitions
	Storage     []Storage    `json:"storage,omitempty"`  // one per output

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
	Unit     TimeUnit      `json:"unit,omitempty"`     // time: one of TimeUnits
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

	// Upstream is the partitioning of what is read while operators are asked for partitions; nil: it is not known.
	Upstream *Partitioning `json:"-"`
	Position Position      `json:"-"`
}

// Asked reports whether the job is a source that is asked for each partition since the first one that it can make.
func (j *Job) Asked() bool { return j.Source != nil && j.Source.FirstPartition != "" }

// RefuseAsking returns why a source that is asked for its partitions is not asked for one of them now; nil: it is.
func (j *Job) RefuseAsking(key string, now time.Time) error {
	if !j.Asked() {
		return nil
	}
	by, first := j.PartitionBy, j.Source.FirstPartition
	start, end, err := by.Bounds(key)
	if err != nil {
		return err
	}
	from, _, err := by.Bounds(first)

	switch {
	case err != nil:
		return err
	case start.Before(from):
		return fault.New(fault.Invalid, "%s is before %s, the first partition that job %s can make", key, first,
			j.Name).WithHint("an earlier `first_partition` lets it be asked for")
	case end.After(now):
		return fault.New(fault.Invalid, "%s has not ended yet: job %s is asked for it then", key, j.Name).
			WithHint("the last one that has ended is %s", by.LastComplete(now))
	}
	return nil
}

// Source returns what the input is read from, for people.
func (in Input) Source() string {
	if in.Dataset != "" {
		return "dataset " + in.Dataset
	}
	return "the output of job " + in.Job
}

// Triggers reports whether a change of the input creates tasks.
func (in Input) Triggers() bool {
	return in.Map.Kind == MapSame || in.Map.Kind == MapWindow || in.Map.Kind == MapWithin
}

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
	MapWithin MapKind = "within" // the wider partition that the output's lies in
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

// SourceDeploy is the kind of the source of a seed, which only deploys change. DAG files do not name it.
const SourceDeploy = "deploy"

// Source is what creates the tasks of a source job.
type Source struct {
	Kind     string        `json:"kind"`               // cron, poll, webhook, manual, timer, always_on or deploy
	Schedule string        `json:"schedule,omitempty"` // cron: five fields or @daily, @hourly, ...
	Timezone string        `json:"timezone,omitempty"` // cron: IANA name; "UTC" by default
	Start    string        `json:"start,omitempty"`    // cron: first instant, RFC 3339 or date
	Catchup  bool          `json:"catchup,omitempty"`  // cron: create tasks for the windows that were missed
	Every    time.Duration `json:"every,omitempty"`    // poll
	Path     string        `json:"path,omitempty"`     // webhook
	Secret   string        `json:"secret,omitempty"`   // webhook: name of the HMAC secret
	OnDeploy bool          `json:"on_deploy"`          // enumerate at deploy; true by default for poll
	// FirstPartition is the first partition of time that the source can make when it is asked for it; empty: it is not
	// asked for any.
	FirstPartition string `json:"first_partition,omitempty"`
	// Lookback is how many partitions before the newest one the source is asked for again at each of its times.
	Lookback int `json:"lookback,omitempty"`
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

// Offers returns what other DAGs may know of the datasets that the document publishes, by name: how they are
// partitioned and the columns that they have, as far as the file tells it. The document may have problems.
func (d *Document) Offers() (by map[string]Partitioning, columns map[string][]Column) {
	by, columns = map[string]Partitioning{}, map[string][]Column{}
	for _, p := range d.Publish {
		job, ok := d.Job(p.Job)
		if !ok || p.Output >= len(job.Outputs) {
			continue
		}
		if !d.unclear[job.Name] && !job.PartitionBy.Unit.misspelled() {
			by[p.Name] = job.PartitionBy
		}
		if outputs := d.Columns[job.Name]; p.Output < len(outputs) && outputs[p.Output] != nil {
			columns[p.Name] = outputs[p.Output]
		}
	}
	return by, columns
}

// Offer is what is known of a dataset that another DAG publishes.
type Offer struct {
	PartitionBy *Partitioning   `json:"partition_by,omitempty" doc:"Absent where it is not known"`
	Columns     []OfferedColumn `json:"columns,omitempty" doc:"Absent where they are not known"`
}

// OfferedColumn is a column of an offered dataset.
type OfferedColumn struct {
	Name string `json:"name"`
	Type string `json:"type,omitempty" doc:"Absent where it is not known"`
}

// NewOffer returns an offer; nil stands for what is not known.
func NewOffer(by *Partitioning, columns []Column) Offer {
	o := Offer{PartitionBy: by}
	for _, c := range columns {
		o.Columns = append(o.Columns, OfferedColumn(c))
	}
	return o
}

// Known returns the columns; nil if they are not known.
func (o Offer) Known() (columns []Column) {
	for _, c := range o.Columns {
		columns = append(columns, Column(c))
	}
	return columns
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
