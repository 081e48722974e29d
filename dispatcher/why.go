package dispatcher

import (
	"fmt"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// Why a task does not run, a partition is not there, a job does nothing: a tree of reasons. What is decided elsewhere is
// asked there (decide for what is wanted, gate for builds, the sets for tasks), so an explanation cannot differ from what
// happens. why_task.go explains tasks, why_data.go partitions by what they are made of, why_source.go sources,
// why_build.go versions on their way; why_read.go is what callers ask.

// Why answers for one task, job, dataset or partition.
type Why struct {
	Task      *uuid.UUID `json:"task,omitempty"`
	DAG       string     `json:"dag,omitempty"`
	Job       string     `json:"job,omitempty"`
	Dataset   string     `json:"dataset,omitempty"`
	Partition string     `json:"partition,omitempty"`
	State     string     `json:"state,omitempty" doc:"Of a task: its status"`
	At        time.Time  `json:"at" doc:"When this was so"`
	Reasons   []Reason   `json:"reasons" nullable:"false"`
}

// Reason is one cause, with what lies behind it. What the caller may not see is left out, and hidden says so.
type Reason struct {
	Code      Code       `json:"code"`
	Text      string     `json:"text" doc:"For people; programs look at the code"`
	Job       string     `json:"job,omitempty" doc:"DAG/JOB"`
	Dataset   string     `json:"dataset,omitempty"`
	Partition string     `json:"partition,omitempty"`
	Input     string     `json:"input,omitempty" doc:"The name under which the job reads it"`
	Trigger   string     `json:"trigger,omitempty" enum:"all,any" doc:"waits_for_inputs: how many of the inputs it takes"`
	Task      *uuid.UUID `json:"task,omitempty"`
	Version   int        `json:"version,omitempty" doc:"Of the DAG"`
	Worker    string     `json:"worker_id,omitempty"`
	Runtime   string     `json:"runtime,omitempty"`
	Operator  string     `json:"operator,omitempty" doc:"no_worker: that nobody runs there"`
	Handler   string     `json:"handler,omitempty" doc:"no_worker: that nobody has there"`
	Command   string     `json:"command,omitempty" doc:"What to run about it, in a shell; words in capitals stand for what the server does not know"`
	Limit     string     `json:"limit,omitempty" doc:"job:DAG/JOB, key:CONCURRENCY_KEY or output:DAG/JOB/PARTITION"`
	Held      int        `json:"held,omitempty" doc:"Of the limit"`
	Max       int        `json:"max,omitempty" doc:"Of the limit, of the attempts, or of the slots of workers"`
	Count     int        `json:"count,omitempty" doc:"How many: tasks before it, failures, or what the code counts"`
	Since     *time.Time `json:"since,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Actor     string     `json:"actor,omitempty"`
	Detail    string     `json:"detail,omitempty" doc:"What somebody gave as the reason, or a state said"`
	Error     string     `json:"error,omitempty"`
	Hidden    bool       `json:"hidden,omitempty" doc:"It is about something that the caller may not see"`
	Because   []Reason   `json:"because,omitempty" doc:"What lies behind it"`
}

// Code is a sort of reason, for programs. A code keeps its meaning for good.
type Code string

// The codes, by what they are about.
const (
	// Tasks that are open.
	whyQueued      Code = "queued"
	whyNoWorker    Code = "no_worker"
	whyWorkersBusy Code = "workers_busy"
	whySibling     Code = "sibling"
	whyLimit       Code = "limit"
	whyBackoff     Code = "backoff"
	whyRunAt       Code = "run_at"
	whyHeldBack    Code = "held_back"
	whyPaused      Code = "paused"
	whyDead        Code = "dead"
	whyRunning     Code = "running"
	whyLeaseLost   Code = "lease_lost"
	whyCanceling   Code = "canceling"
	whyMore        Code = "more_tasks"
	// Tasks that have ended.
	whyCompleted  Code = "completed"
	whyFailed     Code = "failed"
	whyCanceled   Code = "canceled"
	whySuperseded Code = "superseded"
	whySkipped    Code = "skipped"
	// Partitions.
	whyPublished     Code = "published"
	whyLate          Code = "late"
	whyUpToDate      Code = "up_to_date"
	whyChecksPending Code = "checks_pending"
	whyRejected      Code = "rejected"
	whyPurged        Code = "purged"
	whyWaits         Code = "waits_for_inputs"
	whyInputMet      Code = "input_met"
	whyInputMissing  Code = "input_missing"
	whyUndecided     Code = "undecided"
	whyUnchanged     Code = "unchanged"
	whyNotFed        Code = "no_input"
	whyNotExamined   Code = "more_partitions"
	// Sources.
	whySourceWaits   Code = "source_waits"
	whySourceManual  Code = "source_manual"
	whySourceIdle    Code = "source_idle"
	whySourceFailed  Code = "source_failed"
	whySourceLacks   Code = "source_lacks"
	whySourcePending Code = "source_pending"
	// Everything that brings more work.
	whyBackpressure Code = "backpressure"
	// Versions.
	whyNoLiveVersion Code = "no_live_version"
	whyNotInVersion  Code = "not_in_version"
	whyBuildFailed   Code = "build_failed"
	whyGate          Code = "gate"
	whyGateDead      Code = "gate_dead"
	whyGateRejected  Code = "gate_rejected"
	whyGateUnread    Code = "gate_unread"
	whyGateOpen      Code = "gate_open"
	whyGateStale     Code = "gate_stale"
	whyGateHeld      Code = "gate_held"
	whyPromotion     Code = "awaiting_promotion"
	whyCuttingOver   Code = "cutting_over"
)

// Codes lists every code there is.
var Codes = []Code{whyQueued, whyNoWorker, whyWorkersBusy, whySibling, whyLimit, whyBackoff, whyRunAt, whyHeldBack, whyPaused, whyDead,
	whyRunning, whyLeaseLost, whyCanceling, whyMore, whyCompleted, whyFailed, whyCanceled, whySuperseded, whySkipped,
	whyPublished, whyLate, whyUpToDate, whyChecksPending, whyRejected, whyPurged, whyWaits, whyInputMet, whyInputMissing, whyUndecided, whyUnchanged, whyNotFed, whyNotExamined,
	whySourceWaits, whySourceManual, whySourceIdle, whySourceFailed, whySourceLacks, whySourcePending, whyBackpressure,
	whyNoLiveVersion, whyNotInVersion, whyBuildFailed, whyGate, whyGateDead, whyGateRejected, whyGateUnread, whyGateOpen, whyGateStale, whyGateHeld, whyPromotion, whyCuttingOver}

// Schema lists the codes in the API's description.
func (Code) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "What sort of reason it is; docs/operations.md explains each"}
	for _, c := range Codes {
		s.Enum = append(s.Enum, string(c))
	}
	return s
}

// tell writes the texts of a tree. They are made of the fields alone, so a text cannot say what was left out of them.
func tell(reasons []Reason) {
	for i := range reasons {
		reasons[i].Text = sentence(reasons[i])
		tell(reasons[i].Because)
	}
}

// sentence says a reason in words. It is pure.
func sentence(r Reason) string {
	switch r.Code {
	case whyQueued, whyNoWorker, whyWorkersBusy, whySibling, whyLimit, whyBackoff, whyRunAt, whyHeldBack, whyPaused, whyDead,
		whyRunning, whyLeaseLost, whyCanceling, whyMore, whyCompleted, whyFailed, whyCanceled, whySuperseded, whySkipped:
		return r.what("a task") + taskSentence(r)
	case whySourceWaits, whySourceManual, whySourceIdle, whySourceFailed, whySourceLacks, whySourcePending:
		return sourceSentence(r)
	case whyNoLiveVersion, whyNotInVersion, whyBuildFailed, whyGate, whyGateDead, whyGateRejected, whyGateUnread, whyGateOpen, whyGateStale, whyGateHeld, whyPromotion, whyCuttingOver:
		return buildSentence(r)
	case whyBackpressure:
		return fmt.Sprintf("%ssources, backfills and builds wait%s, because too much is queued over all orgs: %s when it was last counted", r.what("it"), since(r.Since), counted(r.Count, "task"))
	}
	return dataSentence(r)
}

// what names what a reason is about: the job and the partition, as far as the caller may know of them.
func (r Reason) what(hidden string) string {
	switch {
	case r.Hidden:
		return hidden + " that you may not see: "
	case r.Job == "":
		return ""
	case r.Partition == "":
		return r.Job + ": "
	}
	return r.Job + " " + r.Partition + ": "
}

func taskSentence(r Reason) string {
	switch r.Code {
	case whyQueued:
		return fmt.Sprintf("it is ready, with %s before it in its org", counted(r.Count, "task"))
	case whyNoWorker:
		return noWorker(r)
	case whyWorkersBusy:
		return fmt.Sprintf("all %d slots of the workers for %s are taken", r.Max, r.Runtime)
	case whySibling:
		return "another task of the same output runs, and it goes on after that one"
	case whyLimit:
		if r.Held < r.Max {
			return fmt.Sprintf("the limit%s has room again, and it is about to be let in", named(r.Limit))
		}
		return fmt.Sprintf("the limit%s is full, %d of %d, with %s before it", named(r.Limit), r.Held, r.Max, counted(r.Count, "task"))
	case whyBackoff:
		return fmt.Sprintf("it failed %d of %d times and is tried again%s%s", r.Count, r.Max, at(r.Until), saying(r.Error))
	case whyRunAt:
		return "it is to run" + at(r.Until)
	case whyHeldBack:
		return "it is held back for a moment, so that a build can catch up," + until(r.Until)
	case whyPaused:
		if r.Actor == "" {
			return "it was paused, and goes on by itself"
		}
		return fmt.Sprintf("it is paused by %s%s%s", r.Actor, since(r.Since), saying(r.Detail))
	case whyDead:
		return fmt.Sprintf("it failed %s and is out of attempts: retry or skip it%s", counted(r.Count, "time"), saying(r.Error))
	case whyRunning:
		return fmt.Sprintf("it runs on %s%s, %d %% done", r.Worker, since(r.Since), r.Count)
	case whyLeaseLost:
		return fmt.Sprintf("%s was not heard of in time, and the task is about to be taken back from it", r.Worker)
	case whyCanceling:
		return fmt.Sprintf("it was canceled, and ends when %s hears of it", r.Worker)
	case whyMore:
		return fmt.Sprintf("%s more", counted(r.Count, "open task"))
	case whyCompleted:
		return "it is done" + since(r.Since)
	case whyFailed:
		return "it failed" + saying(r.Error)
	case whySkipped:
		return "somebody gave it up" + saying(r.Detail)
	case whySuperseded:
		return "it was not wanted any more" + saying(r.Detail)
	}
	return "it was canceled" + saying(r.Detail)
}

func noWorker(r Reason) string {
	text := fmt.Sprintf("no living worker serves the runtime %s", r.Runtime)
	switch {
	case r.Handler != "":
		text += " with the handler " + r.Handler
	case r.Operator != "":
		text += " with the operator " + r.Operator
	}
	if r.Command != "" {
		text += "; start one: " + r.Command
	}
	return text
}

func dataSentence(r Reason) string {
	what := r.what("something")
	switch r.Code {
	case whyPublished:
		return what + "it is published" + since(r.Since)
	case whyLate:
		return what + "it is late: it was to be there" + at(r.Since)
	case whyUpToDate:
		return what + "it is made from what its inputs have now"
	case whyChecksPending:
		return what + "its newest revision waits for its checks" + since(r.Since)
	case whyRejected:
		return what + "its checks rejected the newest revision" + saying(r.Error)
	case whyPurged:
		return what + "it was purged"
	case whyWaits:
		if r.Trigger == "any" {
			return what + "it waits for any of its inputs"
		}
		return what + "it waits for all of its inputs"
	case whyInputMet:
		return fmt.Sprintf("%s is there%s", r.input(), countedIn(r.Count))
	case whyInputMissing:
		if r.Partition == "" {
			return r.input() + " has nothing that it needs" + saying(r.Detail)
		}
		return fmt.Sprintf("%s lacks %s%s", r.input(), r.Partition, others(r.Count-1))
	case whyUndecided:
		if r.Count > 0 {
			return fmt.Sprintf("%sit is wanted, and %s wait to be routed", what, counted(r.Count, "event"))
		}
		return what + "it is wanted, and its task is about to be made"
	case whyUnchanged:
		return what + "a task has read what its inputs have now, and published nothing"
	case whyNotFed:
		return what + "no partition of its inputs feeds it"
	}
	return fmt.Sprintf("%s more were not looked at", counted(r.Count, "partition"))
}

func sourceSentence(r Reason) string {
	what := r.what("a source")
	switch r.Code {
	case whySourceWaits:
		if r.Until == nil {
			return what + "the source has no next time to fire"
		}
		return what + "the source fires next" + at(r.Until)
	case whySourceManual:
		return what + "the source runs when somebody asks for it"
	case whySourceIdle:
		return fmt.Sprintf("%sthe source brings a partition when its %s does", what, r.Detail)
	case whySourceFailed:
		return what + "the source could not be read" + saying(r.Error)
	case whySourceLacks:
		return fmt.Sprintf("%sthe source was read%s, and what is wanted was not among its %d partitions", what, at(r.Since), r.Count)
	}
	return what + "the source has not been read yet"
}

func buildSentence(r Reason) string {
	version := fmt.Sprintf("v%d", r.Version)
	switch r.Code {
	case whyNoLiveVersion:
		return "no version of the DAG serves yet"
	case whyNotInVersion:
		return r.what("a job") + "no version that serves or is on its way has this job"
	case whyBuildFailed:
		return version + " failed" + saying(r.Error)
	case whyGate:
		return version + " is not ready"
	case whyGateDead:
		return fmt.Sprintf("%s of it failed for good, or were canceled", counted(r.Count, "task"))
	case whyGateRejected:
		return fmt.Sprintf("%s of it were rejected by checks", counted(r.Count, "partition"))
	case whyGateUnread:
		return r.what("a source") + "its source was not read in full since the build began"
	case whyGateOpen:
		return fmt.Sprintf("%s of it are not done", counted(r.Count, "task"))
	case whyGateStale:
		return fmt.Sprintf("%s of it are yet to be computed", counted(r.Count, "partition"))
	case whyGateHeld:
		return fmt.Sprintf("%s of it wait for checks", counted(r.Count, "partition"))
	case whyPromotion:
		return version + " is ready, and serves when somebody promotes it"
	}
	return version + " is ready, and about to serve"
}

// input names what an input reads.
func (r Reason) input() string {
	switch {
	case r.Hidden:
		return "an input that you may not see"
	case r.Dataset != "":
		return r.Dataset
	}
	return r.Job
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func countedIn(n int) string {
	if n < 2 {
		return ""
	}
	return ": " + counted(n, "partition")
}

func others(n int) string {
	if n < 1 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

func named(name string) string {
	if name == "" {
		return ""
	}
	return " " + name
}

func saying(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return ": " + text
}

func at(t *time.Time) string    { return stamp(" at ", t) }
func since(t *time.Time) string { return stamp(" since ", t) }
func until(t *time.Time) string { return stamp(" until ", t) }

func stamp(word string, t *time.Time) string {
	if t == nil {
		return ""
	}
	return word + t.UTC().Format(time.RFC3339)
}
