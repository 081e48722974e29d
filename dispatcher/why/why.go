package why

import (
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/google/uuid"
)

// An explanation of why a task does not run, a partition is missing or a job does nothing is a tree of reasons. It asks
// the code that decides (decide for what is wanted, gate for builds, the sets for tasks), so it cannot differ from what
// happens. task.go explains tasks, data.go and inputs.go partitions by what they are made from, purged.go those that
// were purged, lost.go those whose files are gone, firing.go sources, unfinished.go versions that are being built;
// read.go has the questions that callers ask, and wording.go the texts of the answers.

// Why is the explanation of one task, job, dataset or partition.
type Why struct {
	Task      *uuid.UUID `json:"task,omitempty"`
	DAG       string     `json:"dag,omitempty"`
	Job       string     `json:"job,omitempty"`
	Dataset   string     `json:"dataset,omitempty"`
	Partition string     `json:"partition,omitempty"`
	State     string     `json:"state,omitempty" doc:"A task's status"`
	At        time.Time  `json:"at" doc:"The moment that is explained"`
	Reasons   []Reason   `json:"reasons" nullable:"false"`
}

// Reason is one cause, with the causes behind it. It leaves out what the caller may not see, and is then hidden.
type Reason struct {
	Code      Code       `json:"code"`
	Text      string     `json:"text" doc:"For people; programs look at the code"`
	Job       string     `json:"job,omitempty" doc:"DAG/JOB"`
	Dataset   string     `json:"dataset,omitempty"`
	Partition string     `json:"partition,omitempty"`
	Input     string     `json:"input,omitempty" doc:"The name by which the job reads it"`
	Trigger   string     `json:"trigger,omitempty" enum:"all,any" doc:"waits_for_inputs: all inputs, or any one"`
	Task      *uuid.UUID `json:"task,omitempty"`
	Version   int        `json:"version,omitempty" doc:"The DAG's version number"`
	Worker    string     `json:"worker_id,omitempty"`
	Runtime   string     `json:"runtime,omitempty"`
	Operator  string     `json:"operator,omitempty" doc:"no_worker: the operator that no worker there runs"`
	Handler   string     `json:"handler,omitempty" doc:"no_worker: the handler that no worker there has"`
	Command   string     `json:"command,omitempty" doc:"A shell command that helps; replace the words in capitals"`
	Limit     string     `json:"limit,omitempty" doc:"job:DAG/JOB, key:CONCURRENCY_KEY or output:DAG/JOB/PARTITION; the name of a quota"`
	Held      int        `json:"held,omitempty" doc:"Tasks that hold the limit"`
	Max       int        `json:"max,omitempty" doc:"The size of the limit, the attempts allowed, or the workers' slots"`
	Count     int        `json:"count,omitempty" doc:"Tasks before it, failures, or what the code counts"`
	Since     *time.Time `json:"since,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Actor     string     `json:"actor,omitempty"`
	Detail    string     `json:"detail,omitempty" doc:"The reason that somebody gave, or the text of a state"`
	Error     string     `json:"error,omitempty"`
	Hidden    bool       `json:"hidden,omitempty" doc:"The reason is about something that the caller may not see"`
	Because   []Reason   `json:"because,omitempty" doc:"The reasons behind it"`
}

// Code identifies a kind of reason, for programs. A code never changes its meaning.
type Code string

// The codes, by subject.
const (
	// Tasks that are open.
	WhyQueued      Code = "queued"
	WhyNoWorker    Code = "no_worker"
	WhyStorageAway Code = "storage_away"
	WhyNotAllowed  Code = "not_allowed"
	whyWorkersBusy Code = "workers_busy"
	whyNotSent     Code = "not_sent"
	WhySibling     Code = "sibling"
	WhyLimit       Code = "limit"
	WhyBackoff     Code = "backoff"
	WhyHandedBack  Code = "handed_back"
	WhyRunAt       Code = "run_at"
	WhyHeldBack    Code = "held_back"
	WhyPaused      Code = "paused"
	WhyNoAuthority Code = "no_authority"
	WhyUnknownKey  Code = "unknown_partition"
	WhyDead        Code = "dead"
	WhyRunning     Code = "running"
	WhyLeaseLost   Code = "lease_lost"
	WhySilent      Code = "worker_silent"
	WhyCanceling   Code = "canceling"
	whyMore        Code = "more_tasks"
	// Tasks that have ended.
	WhyCompleted  Code = "completed"
	WhyFailed     Code = "failed"
	WhyCanceled   Code = "canceled"
	WhySuperseded Code = "superseded"
	whySkipped    Code = "skipped"
	// Partitions.
	whyPublished     Code = "published"
	whyFileGone      Code = "file_gone"
	whyFileUnseen    Code = "file_unseen"
	whyLate          Code = "late"
	whyUpToDate      Code = "up_to_date"
	whyBadRows       Code = "bad_rows"
	whyChecksPending Code = "checks_pending"
	whyRejected      Code = "rejected"
	whyPurged        Code = "purged"
	whyWaits         Code = "waits_for_inputs"
	whyInputMet      Code = "input_met"
	whyInputMissing  Code = "input_missing"
	whyBlockedInput  Code = "blocked_input"
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
	whySourceLeftOut Code = "source_left_out"
	whySourcePending Code = "source_pending"
	whyBeforeFirst   Code = "source_before_first"
	whyNotEnded      Code = "source_not_ended"
	whyAskedAgain    Code = "source_asks_again"
	whyNotAskedAgain Code = "source_asks_no_more"
	whyGaveNothing   Code = "source_gave_nothing"
	// Everything that brings more work.
	whyBackpressure Code = "backpressure"
	whyQuota        Code = "quota"
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

// Codes lists every code.
var Codes = []Code{
	WhyQueued, WhyNoWorker, WhyStorageAway, WhyNotAllowed, whyWorkersBusy, whyNotSent, WhySibling, WhyLimit, WhyBackoff,
	WhyHandedBack, WhyRunAt, WhyHeldBack, WhyPaused, WhyNoAuthority, WhyUnknownKey, WhyDead, WhyRunning, WhyLeaseLost,
	WhySilent, WhyCanceling, whyMore,
	WhyCompleted, WhyFailed, WhyCanceled, WhySuperseded, whySkipped,
	whyPublished, whyFileGone, whyFileUnseen, whyLate, whyUpToDate, whyBadRows, whyChecksPending, whyRejected,
	whyPurged, whyWaits, whyInputMet, whyInputMissing,
	whyBlockedInput, whyUndecided, whyUnchanged, whyNotFed, whyNotExamined,
	whySourceWaits, whySourceManual, whySourceIdle, whySourceFailed, whySourceLacks, whySourceLeftOut,
	whySourcePending, whyBeforeFirst, whyNotEnded, whyAskedAgain, whyNotAskedAgain, whyGaveNothing,
	whyBackpressure, whyQuota,
	whyNoLiveVersion, whyNotInVersion, whyBuildFailed, whyGate, whyGateDead, whyGateRejected, whyGateUnread,
	whyGateOpen, whyGateStale, whyGateHeld, whyPromotion, whyCuttingOver,
}

// Schema lists the codes in the API's description.
func (Code) Schema(huma.Registry) *huma.Schema {
	s := &huma.Schema{Type: huma.TypeString, Description: "The kind of reason; docs/operations.md explains each"}
	for _, c := range Codes {
		s.Enum = append(s.Enum, string(c))
	}
	return s
}
