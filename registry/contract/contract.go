// Package contract compares what two versions of a DAG promise to those who read its datasets. Plan, deploy, the gate
// of a build, promote and rollback all ask Compare, so they say the same in the same words.
package contract

import (
	"slices"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Contract is what a version promises.
type Contract struct {
	Datasets []Dataset `json:"datasets"`
	Inputs   []Input   `json:"inputs,omitempty"`
}

// Dataset is an output of a version, as its readers see it.
type Dataset struct {
	ID          uuid.UUID        `json:"id"`
	Job         string           `json:"job"`
	Output      int              `json:"output"`
	Name        string           `json:"name"` // the published name, or dag/job/output
	Published   bool             `json:"published,omitempty"`
	Owner       string           `json:"owner,omitempty"`
	ReadRoles   []string         `json:"-"`                    // of the dataset now; an admin sets them, not the document
	TakesOver   string           `json:"takes_over,omitempty"` // the DAG that the name is taken from
	Generation  uuid.UUID        `json:"generation"`
	PartitionBy dag.Partitioning `json:"partition_by"`
	Storage     string           `json:"storage"` // its kind
	Columns     []dag.Column     `json:"columns"` // nil: not known yet; a type that is not known is empty
	Checks      []Check          `json:"checks,omitempty"`
	UniqueKey   []string         `json:"unique_key,omitempty"`

	// Declared are columns whose types are declared, where Columns are not known.
	Declared []dag.Column `json:"-"`
}

// Check is a check of a dataset. Two checks with one hash look for the same.
type Check struct {
	Hash     string `json:"hash"`
	Name     string `json:"name"`
	Severity string `json:"severity"`
}

// Input is what a job of a version reads from another DAG.
type Input struct {
	Job      string           `json:"job"`
	As       string           `json:"as"`
	Dataset  uuid.UUID        `json:"dataset"` // that the name meant when the version was deployed
	Name     string           `json:"name"`
	Producer string           `json:"producer"` // DAG/JOB that makes it
	By       dag.Partitioning `json:"partition_by"`
	Map      dag.Mapping      `json:"map"`
	Columns  []string         `json:"columns"` // nil: not known, or all of them
}

// Consumer is a job of another DAG, in a version that is active or on its way, that reads a dataset.
type Consumer struct {
	DAG string
	Input
	Fixed bool // it stores its rows in PostgreSQL, in a table whose columns cannot change

	Version uuid.UUID // the job's
	Serves  bool      // that version is active
	Origin  uuid.UUID // of the job
	Def     *dag.Job
}

// Address returns DAG/JOB.
func (c Consumer) Address() string { return c.DAG + "/" + c.Job }

// reads reports whether the consumer names a column.
func (c Consumer) reads(column string) bool {
	return slices.ContainsFunc(c.Columns, func(s string) bool { return sqltext.Same(s, column) })
}

// Loss is what readers of a dataset would lose: partitions that are served and that the next version does not have.
type Loss struct {
	Dataset    string
	Partitions int
	Text       string
	Purged     bool // the version has a generation from which they were purged
}

// View is what becomes of a stable view over a dataset whose columns change.
type View struct {
	Dataset uuid.UUID
	Name    string   // of the view
	Becomes []string // what becomes of columns that it has
	Carried []string // users' views that are defined over it again
	Refused string   // why users' objects keep it from changing; "" if they do not
}

// Unfit is a job of another DAG that could not go on with the partitions that a dataset would have.
type Unfit struct {
	Dataset  uuid.UUID
	Name     string // of the dataset
	Consumer string // DAG/JOB
	Text     string // why
	Hint     string
}

// Kept is what is known of the partitions that a forward-only version takes over of a dataset. Its readers get them in
// the version's columns.
type Kept struct {
	Partitions int
	Looked     int     // in how many of them all values fit the columns that change
	Misfit     *Misfit // the first value that does not
}

// Misfit is a value of a kept partition that does not fit its column.
type Misfit struct {
	Partition, Column, Type string
	Value                   string // its text, cut
}

// Facts is what Compare knows beside the two contracts.
type Facts struct {
	Lost      []Loss
	Consumers map[uuid.UUID][]Consumer // by dataset
	Returns   map[string]string        // name → the DAG that gets it back when this one gives it up
	Taken     map[string]Dataset       // name → what another DAG serves under it, which the next version takes over
	Elsewhere map[string]string        // name → the DAG that owns it by now, although the serving version has it
	Kept      map[uuid.UUID]Kept       // by dataset: where its columns change
	Unfit     []Unfit
	Views     []View               // of the datasets whose columns change
	Sources   map[uuid.UUID]Source // what other DAGs serve of the next version's inputs; nil: not asked
	Back      bool                 // the next version is an earlier one, which a person goes back to
	Forced    bool                 // the next version computes anew what serves, from the same definition
}

// Source is a dataset of another DAG, as it is served now.
type Source struct {
	Columns []dag.Column // nil: not known yet
}

// Level is what a finding means for the transition.
type Level string

const (
	Says    Level = "says"
	Asks    Level = "asks" // it needs a person's consent
	Refuses Level = "refuses"
)

// Consent is what the person who deploys a version, or rolls back to one, has agreed to, by the name of the flag that
// asks for it.
type Consent string

const (
	CancelTasks   Consent = "cancel-tasks"   // what waits for queues that go may be canceled
	AllowRemovals Consent = "allow-removals" // partitions that are served may go
	AllowMoves    Consent = "allow-moves"    // a published name may move to another dataset or DAG
	AllowBreaking Consent = "allow-breaking" // columns that others may read may go or change
)

// Agreed says for each consent whether a person has given it, as requests and flags do.
type Agreed struct{ CancelTasks, AllowRemovals, AllowMoves, AllowBreaking bool }

// Consents lists those that were given.
func (a Agreed) Consents() (given []Consent) {
	for _, c := range []struct {
		given bool
		Consent
	}{{a.CancelTasks, CancelTasks}, {a.AllowRemovals, AllowRemovals}, {a.AllowMoves, AllowMoves},
		{a.AllowBreaking, AllowBreaking}} {
		if c.given {
			given = append(given, c.Consent)
		}
	}
	return given
}

// Kind is what a finding is about.
type Kind string

const (
	DatasetRemoved      Kind = "dataset_removed"
	DatasetUnpublished  Kind = "dataset_unpublished"
	DatasetRenamed      Kind = "dataset_renamed"
	NameMoved           Kind = "name_moved"
	NameTakenOver       Kind = "name_taken_over"
	NameElsewhere       Kind = "name_elsewhere"
	InputRebound        Kind = "input_rebound"
	InputGone           Kind = "input_gone"
	InputColumnsGone    Kind = "input_columns_gone"
	StorageMoved        Kind = "storage_moved"
	PartitioningChanged Kind = "partitioning_changed"
	PartitionsRemoved   Kind = "partitions_removed"
	ColumnsRemoved      Kind = "columns_removed"
	ColumnsNarrowed     Kind = "columns_narrowed"
	ColumnsAdded        Kind = "columns_added"
	ColumnsWidened      Kind = "columns_widened"
	KeptValues          Kind = "kept_values"
	ViewRemade          Kind = "view_remade"
	ViewInUse           Kind = "view_in_use"
	OwnerChanged        Kind = "owner_changed"
	ReadRolesChanged    Kind = "read_roles_changed"
	UniqueKeyChanged    Kind = "unique_key_changed"
	ChecksAdded         Kind = "checks_added"
	ChecksRemoved       Kind = "checks_removed"
	DeliveriesForgotten Kind = "deliveries_forgotten"
	RenamesNothing      Kind = "renames_nothing"
)

// Finding is one difference that somebody who reads the DAG's datasets may care about.
type Finding struct {
	Kind       Kind     `json:"kind"`
	Level      Level    `json:"level" enum:"says,asks,refuses"`
	Consent    Consent  `json:"consent,omitempty" doc:"What a deploy has to agree to, if the level is asks: the name of its flag"`
	Dataset    string   `json:"dataset"`
	Text       string   `json:"text" doc:"The whole finding, for people"`
	Hint       string   `json:"hint,omitempty" doc:"How to mend or avoid it"`
	Breaking   bool     `json:"breaking,omitempty" doc:"Whoever reads the dataset may fail by it"`
	Columns    []string `json:"columns,omitempty"`
	Partitions int      `json:"partitions,omitempty"`
	Consumers  []string `json:"consumers,omitempty" doc:"Jobs of other DAGs that it concerns"`
}
