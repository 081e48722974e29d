package registry

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/search"
	"github.com/dagctl/dagctl/storage"
)

// Status is the state of a DAG version.
type Status string

// The states of a DAG version; docs/state_machines.md draws the transitions.
const (
	Staged     Status = "Staged"
	Building   Status = "Building"
	Ready      Status = "Ready"
	Active     Status = "Active"
	Superseded Status = "Superseded"
	Failed     Status = "Failed"
	Abandoned  Status = "Abandoned"
)

// Version is one immutable definition of a DAG.
type Version struct {
	ID          uuid.UUID       `json:"id"`
	DAG         string          `json:"dag"`
	Number      int             `json:"version" doc:"Counts the versions of this DAG from 1"`
	Hash        string          `json:"yaml_hash"`
	SourceHash  string          `json:"source_hash"`
	Status      Status          `json:"status"`
	CreatedBy   string          `json:"created_by"`
	Authority   authz.Authority `json:"authority,omitempty" doc:"Whose rights count for what its jobs read: who deployed it, or made it serve since"`
	SourceRef   string          `json:"source_ref,omitempty"`
	CreatedAt   time.Time       `json:"created_at"`
	BuildingAt  *time.Time      `json:"building_at,omitempty" doc:"When its build last began or resumed"`
	ReadyAt     *time.Time      `json:"ready_at,omitempty"`
	ActivatedAt *time.Time      `json:"activated_at,omitempty"`
	Error       string          `json:"error,omitempty"`
	HeldBecause string          `json:"held_because,omitempty" doc:"Why it waits for a promotion although its deploy did not ask for that: the DAG was rolled back while it was built"`
	ForwardOnly bool            `json:"forward_only,omitempty" doc:"What it rebuilt keeps the partitions served before"`
	ForwardFrom string          `json:"forward_from,omitempty" doc:"First partition computed anew; absent: only later ones"`
	Consents    []Consent       `json:"consents,omitempty" enum:"cancel-tasks,allow-removals" doc:"What its deploy agreed to, by the flags of the command"`
	ShrunkAt    *time.Time      `json:"shrunk_at,omitempty" doc:"When it was shrunk to a record, past the version retention: it cannot be rolled back to, but its document can be deployed again"`
}

// DeployRequest is a DAG file with everything that it refers to.
type DeployRequest struct {
	YAML        string            `json:"yaml" doc:"At most 2 MiB"`
	Files       map[string][]byte `json:"files,omitempty" doc:"Files that the document names, by path; base64"`
	Vars        map[string]string `json:"vars,omitempty"`
	SourceRef   string            `json:"source_ref,omitempty" maxLength:"200" doc:"For people: the file's git commit"`
	Activate    *bool             `json:"activate,omitempty" doc:"Cut over as soon as it is ready (default true)"`
	Supersede   bool              `json:"supersede,omitempty" doc:"Abandon a running build, and keep what it built"`
	CancelTasks bool              `json:"cancel_tasks,omitempty" doc:"Cancel the open tasks of manual, timer and webhook jobs that are removed, or whose partitions the new definition does not have; without it, a deploy with such tasks is refused with 409"`
	// Each is the consent of that name to findings of the plan.
	AllowMoves    bool `json:"allow_moves,omitempty" doc:"Let published names move to other datasets; without it, a deploy that moves one is refused with 409"`
	AllowBreaking bool `json:"allow_breaking,omitempty" doc:"Let columns go or change that jobs of other DAGs may read; without it, a deploy or build that would is refused with 409 or fails"`
	AllowRemovals bool `json:"allow_removals,omitempty" doc:"Let partitions go that are served and that the version does not have; without it, a deploy or build that would lose some is refused with 409 or fails"`

	Resume bool `json:"resume,omitempty" doc:"Only build a failed or abandoned version of this document again; refused with 409 if there is none"`
	// ForwardOnly and ForwardFrom limit what is rebuilt.
	ForwardOnly bool   `json:"forward_only,omitempty" doc:"Rebuilt datasets keep their existing partitions unchanged, for good, and compute later ones; refused if nothing rebuilt has partitions"`
	ForwardFrom string `json:"forward_from,omitempty" maxLength:"200" doc:"With forward_only: compute this partition and those after it, too"`

	Base *int `json:"base_version,omitempty" minimum:"0" maximum:"2147483647" doc:"The active version that the deploy was planned against (0: none); refused with 409 if another is active now"`

	Beside map[string]dag.Offer `json:"beside,omitempty" doc:"For a plan: datasets that DAG files deployed before this one publish, by name. Where one of them is not served like that yet, the document is checked with it, and the plan has no changes"`

	Force []string `json:"-"` // jobs to compute anew, even if their outputs exist
}

// Consents returns what the request agrees to.
func (r DeployRequest) Consents() []Consent {
	return contract.Agreed{CancelTasks: r.CancelTasks, AllowRemovals: r.AllowRemovals, AllowMoves: r.AllowMoves,
		AllowBreaking: r.AllowBreaking}.Consents()
}

// Deployment is the answer to a deploy: the version, what it changes, and whether it is new.
type Deployment struct {
	Version Version  `json:"version"`
	Created bool     `json:"created" doc:"False if this very document was deployed before"`
	Changes []Change `json:"changes"`
	Meets   *Meeting `json:"meets,omitempty" doc:"A build of the same DAG that was running"`

	Findings []contract.Finding `json:"findings,omitempty" doc:"What readers of the datasets have to know"`
	Cancels  []CanceledQueue    `json:"cancels,omitempty" doc:"Tasks of manual, timer and webhook jobs that it cancels"`

	Was Status `json:"-"` // what a version that is built again was before; empty where none is
}

// Change says what a deploy does to one dataset, and why.
type Change struct {
	Job     string `json:"job"`
	Output  int    `json:"output"`
	Dataset string `json:"dataset"`
	Action  string `json:"action" enum:"create,rebuild,forward-only,reuse,swap-only,remove"`
	Reason  string `json:"reason"`

	Partitions *int     `json:"partitions,omitempty" doc:"How many to compute; absent if only the source can tell"`
	Kept       int      `json:"kept,omitempty" doc:"How many are taken over unchanged (forward-only)"`
	Bytes      int64    `json:"estimated_bytes,omitempty" doc:"From what the live generation holds"`
	Seconds    float64  `json:"estimated_seconds,omitempty" doc:"From past tasks of the job, at its own concurrency"`
	Consumers  []string `json:"consumers,omitempty" doc:"Jobs of other DAGs that read the dataset"`

	ConsumerCosts []ConsumerCost `json:"consumer_costs,omitempty" doc:"What the change costs each of the consumers"`

	Removes *Removal `json:"removes,omitempty" doc:"Partitions that readers would lose: the deploy needs allow_removals"`

	Skipped int64 `json:"skipped,omitempty" doc:"Partitions given up by a person: the build continues without them"`

	Keys     []string  `json:"-"` // the partitions to compute, sorted
	Moved    []string  `json:"-"` // those of which readers get another revision, if Partitions are known
	ReadBy   []string  `json:"-"` // Consumers, with those that are hidden from the caller
	Origin   uuid.UUID `json:"-"` // of the job that computes it
	Upstream []string  `json:"-"` // the jobs of the DAG that its job reads
	ID       uuid.UUID `json:"-"` // of the dataset
}

// ConsumerCost is what a change costs a job of another DAG, which follows by itself after the cutover.
type ConsumerCost struct {
	Job        string   `json:"job" doc:"DAG/JOB"`
	Columns    []string `json:"columns" nullable:"false" doc:"Those that it reads of the dataset; * where that is not known"`
	Partitions *int     `json:"partitions,omitempty" doc:"How many of its partitions it computes again; absent if only the source can tell, or there are too many to look at"`
	Bytes      int64    `json:"estimated_bytes,omitempty" doc:"What these partitions hold now"`
	Seconds    float64  `json:"estimated_seconds,omitempty" doc:"From past tasks of the job"`

	Origin uuid.UUID `json:"-"` // of the job
}

// Plan is what a deploy of a document would do now. Plan and deploy come from one function, so they agree.
type Plan struct {
	DAG     string   `json:"dag"`
	Base    *int     `json:"base_version,omitempty" doc:"The active version that it was made against"`
	Version int      `json:"version" doc:"The number that the document has, or would get"`
	Hash    string   `json:"yaml_hash"`
	Status  Status   `json:"status,omitempty" doc:"Of the version, if the document was deployed before"`
	Changes []Change `json:"changes"`
	Meets   *Meeting `json:"meets,omitempty" doc:"A running build of the same DAG"`

	Findings []contract.Finding `json:"findings,omitempty" doc:"What readers of the datasets have to know; a deploy has to agree to what asks, and is refused by what refuses"`

	Cancels []CanceledQueue `json:"cancels,omitempty" doc:"Tasks of manual, timer and webhook jobs that the cutover would cancel: the deploy needs cancel_tasks"`

	CriticalPath    []string `json:"critical_path,omitempty" doc:"The chain of jobs that decides how long the deploy takes, upstream first"`
	CriticalSeconds float64  `json:"critical_path_seconds,omitempty" doc:"Its estimated duration, from past tasks"`
}

// Job is one job of one DAG version, as the engine runs it. Rows never change, so a Job may be kept.
type Job struct {
	ID        uuid.UUID // the version's own row
	OrgID     uuid.UUID
	OrgSlug   string
	DAG       string
	Name      string
	VersionID uuid.UUID
	Origin    uuid.UUID // the row that introduced this definition; tasks refer to it
	Def       dag.Job
	Inputs    []JobInput         // resolved, by input index
	Outputs   []OutputGeneration // by output index: the generation this version pins
}

// SecretUser returns the job as the vault knows it.
func (j *Job) SecretUser() authz.SecretUser {
	u := authz.SecretUser{Name: j.Address()}
	if j.Def.RunsProgram() {
		u.Program = j.Def.Program()
	}
	return u
}

// JobInput is an input resolved to a dataset.
type JobInput struct {
	Index       int
	Dataset     uuid.UUID
	InDAG       bool
	Def         dag.Input
	PartitionBy dag.Partitioning // of the upstream output, when the job was deployed; see InputGenerations
	// Generation is the one that the job's version pins, if the input is InDAG. Otherwise its Version is uuid.Nil; see
	// InputGenerations.
	Generation storage.Generation
	Producer   string // DAG/JOB that makes it, for people
}

// OutputGeneration is one output of a job at the generation a version pins.
type OutputGeneration struct {
	Name        string
	PartitionBy dag.Partitioning
	Generation  storage.Generation
}

// Revision is one revision of one partition of a generation.
type Revision struct {
	Dataset       uuid.UUID        `json:"-"`
	Version       uuid.UUID        `json:"-"`
	Key           string           `json:"key"`
	RangeStart    *int64           `json:"range_start,omitempty" doc:"Of a range or a segment of a cursor: its first position"`
	RangeEnd      *int64           `json:"range_end,omitempty" doc:"Of a range or a segment of a cursor: the position behind its last one"`
	Revision      int64            `json:"revision"`
	State         string           `json:"state"`
	Materialized  time.Time        `json:"materialized_at"`
	Rows          int64            `json:"rows"`
	Bytes         int64            `json:"bytes"`
	SourceVersion string           `json:"source_version,omitempty"`
	TaskID        uuid.UUID        `json:"task_id"`
	Attempt       int              `json:"attempt"`
	Manifest      storage.Manifest `json:"-"`
}

// Dataset is one entry of the catalogue.
type Dataset struct {
	ID          uuid.UUID       `json:"id"`
	Name        string          `json:"name"`
	Published   bool            `json:"published"`
	DAG         string          `json:"dag"`
	Job         string          `json:"job"`
	Output      int             `json:"output"`
	Description string          `json:"description,omitempty"`
	Owner       string          `json:"owner,omitempty"`
	Tags        []string        `json:"tags"`
	Columns     []ColumnInfo    `json:"columns"`
	Storage     string          `json:"storage"`
	PartitionBy json.RawMessage `json:"partition_by,omitempty"`
	ReadRoles   []string        `json:"read_roles"`
	Version     *uuid.UUID      `json:"dataset_version,omitempty" doc:"The generation that readers see"`
	Partitions  int64           `json:"partitions"`
	Rows        int64           `json:"rows"`
	Bytes       int64           `json:"bytes"`
	UpdatedAt   *time.Time      `json:"updated_at,omitempty" doc:"When its newest partition was published"`
	Late        *Late           `json:"late,omitempty" doc:"Present if the dataset lacks data that is due by now"`
	Matched     *search.Match   `json:"matched,omitempty" doc:"Of a search: why it was found"`
	Hit         Hit             `json:"-"` // of a search: its place in the answer
	Checks      []CheckResult   `json:"checks,omitempty"`
	Reading     *FileReading    `json:"reading,omitempty" doc:"How the text files of its source are read"`
	BadRows     *BadRows        `json:"bad_rows,omitempty" doc:"What does not fit, where the source keeps that apart"`
	Withheld    []Withheld      `json:"withheld,omitempty" doc:"Partitions with a newer revision that readers do not see; for writers"`
}

// ColumnInfo is one column of a dataset.
type ColumnInfo struct {
	Name        string `json:"name"`
	Type        string `json:"type"`
	Description string `json:"description,omitempty"`
}

// BadRows counts the rows of a source's files that do not fit and went to a quarantine.
type BadRows struct {
	Dataset    string `json:"dataset" doc:"The quarantine"`
	Rows       int64  `json:"rows"`
	Partitions int64  `json:"partitions" doc:"Those with such rows"`
	Newest     string `json:"newest,omitempty" doc:"The last of those partitions"`
}

// String says how many rows there are, and where, for people.
func (b BadRows) String() string {
	if b.Rows == 0 {
		return "none; they would go to " + b.Dataset
	}
	return fmt.Sprintf("%d, in partitions: %d, the last being %s; see %s", b.Rows, b.Partitions, b.Newest, b.Dataset)
}

// FileReading is how the text files of a source are read; see operators/textfile.
type FileReading struct {
	Format       string `json:"format"`
	Delimiter    string `json:"delimiter,omitempty"`
	Quote        string `json:"quote,omitempty"`
	Header       bool   `json:"header,omitempty" doc:"The first line names the columns"`
	Encoding     string `json:"encoding,omitempty"`
	InferredFrom string `json:"inferred_from,omitempty" doc:"The file that showed what is not declared"`
}

// String says how the files are read, for people.
func (r FileReading) String() string {
	text := r.Format
	if r.Delimiter != "" {
		names := "columns without names"
		if r.Header {
			names = "names in the first line"
		}
		text += fmt.Sprintf(", %q between values, %s", r.Delimiter, names)
	}
	if r.Encoding != "" {
		text += ", " + r.Encoding
	}
	if r.InferredFrom != "" {
		text += "; as in " + r.InferredFrom
	}
	return text
}

// CheckResult is the result of one check on one revision.
type CheckResult struct {
	Partition string          `json:"partition"`
	Revision  int64           `json:"revision"`
	Name      string          `json:"name"`
	Severity  string          `json:"severity"`
	Outcome   string          `json:"outcome" enum:"pass,fail,error"`
	Failures  int64           `json:"failures"`
	Sample    json.RawMessage `json:"sample,omitempty"`
	Error     string          `json:"error,omitempty"`
	At        time.Time       `json:"at"`

	Hash string `json:"-"` // of the check
}

// Failed says for people what one of some checks found that did not pass: counts, never rows. A check of the whole
// revision found one fault, not one row.
func (r CheckResult) Failed(among []dag.Check) string {
	var check dag.Check
	if at := slices.IndexFunc(among, func(c dag.Check) bool { return c.Name == r.Name }); at >= 0 {
		check = among[at]
	}

	switch {
	case r.Error != "":
		return r.Error
	case check.Kind == "row_count":
		return r.wrongCount(check)
	case check.Kind == "freshness":
		return fmt.Sprintf("nothing in the %s before the check", check.Within)
	}
	return plural.Of(r.Failures, "row")
}

// wrongCount says how many rows there are, which the sample of a check of kind row_count has, and what was wanted.
func (r CheckResult) wrongCount(check dag.Check) string {
	var counted struct {
		Rows [][]int64 `json:"rows"`
	}
	text := "another number"
	if err := json.Unmarshal(r.Sample, &counted); err == nil && len(counted.Rows) == 1 && len(counted.Rows[0]) == 1 {
		text = plural.Of(counted.Rows[0][0], "row")
	}

	switch {
	case check.Min != nil && check.Max != nil:
		return fmt.Sprintf("%s, not between %d and %d", text, *check.Min, *check.Max)
	case check.Max != nil:
		return fmt.Sprintf("%s, more than %d", text, *check.Max)
	case check.Min != nil:
		return fmt.Sprintf("%s, fewer than %d", text, *check.Min)
	}
	return text
}

// CanceledQueue says how many open tasks of a job a cutover cancels.
type CanceledQueue struct {
	Job    string `json:"job"`
	Tasks  int64  `json:"tasks"`
	Reason string `json:"reason"`
}

// Meeting says what happens to a running build when the same DAG is deployed.
type Meeting struct {
	Version int    `json:"version" doc:"The version that is being built, or is ready and waits"`
	Status  Status `json:"status"`
	Outcome string `json:"outcome" enum:"passed,superseded,blocks" doc:"passed: it continues, based on this one; superseded: it is abandoned; blocks (in a plan): this one is refused until it ends, unless it supersedes it"`
}
