package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// addTexts fills in the texts of a tree. It makes them from the fields alone, so that a text cannot reveal what was
// left out of the fields.
func addTexts(reasons []Reason) {
	for i := range reasons {
		reasons[i].Text = sentence(reasons[i])
		addTexts(reasons[i].Because)
	}
}

// wording is how reasons of one code are put into words.
type wording struct {
	hidden string // names the subject where the caller may not see it; empty: the text names its own subject
	text   func(Reason) string
}

// sentence returns the text of a reason. It is pure.
func sentence(r Reason) string {
	for _, wordings := range []map[Code]wording{taskWordings, dataWordings, sourceWordings, buildWordings} {
		w, ok := wordings[r.Code]
		switch {
		case !ok:
			continue
		case w.hidden == "":
			return w.text(r)
		}
		return r.subject(w.hidden) + w.text(r)
	}
	return string(r.Code)
}

// subject returns the beginning of a text: the job and the partition, as far as the caller may know them.
func (r Reason) subject(hidden string) string {
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

// fixed is a text that does not depend on the fields of a reason.
func fixed(text string) func(Reason) string { return func(Reason) string { return text } }

// settingOf says in which setting of a server's config the orgs are that may use an operator.
var settingOf = map[string]string{"command": " (`operators.allow_command`)", "file_source": " (`file_roots`)",
	"parquet_export": " (`export_roots`)"}

var taskWordings = map[Code]wording{
	WhyQueued: {"a task", func(r Reason) string {
		return fmt.Sprintf("it is ready, with %s before it in its DAG", plural.Of(r.Count, "task"))
	}},
	WhyNoWorker: {"a task", noWorker},
	WhyStorageAway: {"a task", func(r Reason) string {
		return fmt.Sprintf("no server takes tasks of the runtime %s: %s", r.Runtime, r.Detail)
	}},
	WhyNotAllowed: {"a task", func(r Reason) string {
		return fmt.Sprintf("no live server may run it: an admin of the server lists the org where its config lets "+
			"orgs use the operator%s%s", named(r.Operator), settingOf[r.Operator])
	}},
	whyWorkersBusy: {"a task", func(r Reason) string {
		return fmt.Sprintf("all %d slots of the workers for %s are taken", r.Max, r.Runtime)
	}},
	WhySibling: {"a task", fixed("another task of the same output is running, and it waits for that one")},
	WhyLimit:   {"a task", limitSentence},
	WhyBackoff: {"a task", func(r Reason) string {
		return fmt.Sprintf("it failed %d of %d times and is retried%s%s", r.Count, r.Max, at(r.Until), saying(r.Error))
	}},
	WhyHandedBack: {"a task", func(r Reason) string {
		return fmt.Sprintf("it was handed back, which counts as no failure, and starts again%s%s", at(r.Until),
			saying(r.Detail))
	}},
	whyNotSent: {"a task", func(r Reason) string {
		return fmt.Sprintf("the queue of runtime %s did not take it (%s), and is asked again%s%s", r.Runtime,
			plural.Of(r.Count, "time"), at(r.Until), saying(r.Error))
	}},
	WhyRunAt: {"a task", func(r Reason) string { return "it is due to run" + at(r.Until) }},
	WhyHeldBack: {"a task", func(r Reason) string {
		return "it is held back for a moment, so that a build can catch up," + until(r.Until)
	}},
	WhyPaused: {"a task", func(r Reason) string {
		if r.Actor == "" {
			return "it was paused, and goes on by itself"
		}
		text := fmt.Sprintf("it is paused by %s%s%s", r.Actor, since(r.Since), saying(r.Detail))
		if r.Command != "" {
			text += "; it goes on after: " + r.Command
		}
		return text
	}},
	WhyNoAuthority: {"a task", func(r Reason) string {
		if r.Actor == "" {
			return "it was kept back until somebody answered for what it reads, and goes on by itself"
		}
		return registry.WhyLost(r.Version, r.Actor) +
			": whoever may read it can deploy or promote the version again"
	}},
	WhyUnknownKey: {"a task", func(r Reason) string {
		return "a server put it aside that does not know such a partition, as an older one may not; it is offered " +
			"again to all servers" + at(r.Until) + saying(r.Error)
	}},
	WhyDead: {"a task", func(r Reason) string {
		return fmt.Sprintf("it failed %s and is out of attempts: retry or skip it%s",
			plural.Of(r.Count, "time"), saying(r.Error))
	}},
	WhyRunning: {"a task", func(r Reason) string {
		return fmt.Sprintf("it has been running on %s%s, %d %% done%s", r.Worker, since(r.Since), r.Count,
			saying(r.Detail))
	}},
	WhySilent: {"a task", func(r Reason) string {
		return fmt.Sprintf("it runs on %s, which has not been heard of for a while; others take it over%s, unless it "+
			"is heard of again", r.Worker, stamp(" at ", r.Until))
	}},
	WhyLeaseLost: {"a task", func(r Reason) string {
		return fmt.Sprintf("%s sent no heartbeat in time, and the task is about to be taken back from it", r.Worker)
	}},
	WhyCanceling: {"a task", func(r Reason) string {
		return fmt.Sprintf("it was canceled, and ends at the next heartbeat of %s", r.Worker)
	}},
	whyMore:       {"a task", func(r Reason) string { return plural.Of(r.Count, "more open task") }},
	WhyCompleted:  {"a task", func(r Reason) string { return "it completed" + at(r.Since) }},
	WhyFailed:     {"a task", func(r Reason) string { return "it failed" + saying(r.Error) }},
	WhyCanceled:   {"a task", func(r Reason) string { return "it was canceled" + saying(r.Detail) }},
	WhySuperseded: {"a task", func(r Reason) string { return "it was no longer wanted" + saying(r.Detail) }},
	whySkipped:    {"a task", func(r Reason) string { return "somebody skipped it" + saying(r.Detail) }},
}

func noWorker(r Reason) string {
	text := fmt.Sprintf("no live worker serves the runtime %s", r.Runtime)
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

func limitSentence(r Reason) string {
	if r.Held < r.Max {
		return fmt.Sprintf("the limit%s has room again, and it is about to be let in", named(r.Limit))
	}
	return fmt.Sprintf("the limit%s is full, %d of %d, with %s before it",
		named(r.Limit), r.Held, r.Max, plural.Of(r.Count, "task"))
}

var dataWordings = map[Code]wording{
	whyPublished: {"something", func(r Reason) string { return "it has been published" + since(r.Since) }},
	whyFileGone:  {"something", goneSentence},
	whyFileUnseen: {"something", func(r Reason) string {
		return "whether its file is there could not be looked at" + saying(r.Detail)
	}},
	whyLate: {"something", func(r Reason) string { return "it is late: it was due" + at(r.Since) }},
	whyUpToDate: {"something", func(r Reason) string {
		if len(r.Because) > 0 {
			return "it is up to date with what its inputs have, and a task that would bring them more is dead"
		}
		if r.Command != "" {
			return "it has nothing to do: it acts on what its inputs get once it is deployed, and on what they had " +
				"before only when `" + r.Command + "` makes that newer"
		}
		return "it is up to date with its inputs"
	}},
	whyBadRows: {"something", func(r Reason) string {
		return fmt.Sprintf("of its files, %s did not fit and went to %s", plural.Of(r.Count, "row"), r.Dataset)
	}},
	whyChecksPending: {"something", func(r Reason) string {
		return "its newest revision has been waiting for its checks" + since(r.Since)
	}},
	whyRejected: {"something", func(r Reason) string {
		return "its checks rejected the newest revision" + saying(r.Error)
	}},
	whyPurged: {"something", purgedSentence},
	whyWaits: {"something", func(r Reason) string {
		if r.Trigger == "any" {
			return "it waits for any of its inputs" + saying(r.Detail)
		}
		return "it waits for all of its inputs"
	}},
	whyInputMet: {"", func(r Reason) string {
		return fmt.Sprintf("%s is there%s", r.input(), countedIn(r.Count))
	}},
	whyInputMissing: {"", func(r Reason) string {
		if r.Partition == "" {
			return r.input() + " has nothing that it needs" + saying(r.Detail)
		}
		return fmt.Sprintf("%s lacks %s%s", r.input(), r.Partition, others(r.Count-1))
	}},
	whyBlockedInput: {"", func(r Reason) string {
		if r.Detail == "" {
			return "an input of another DAG, which you may not see, cannot be mapped to the job's partitions any more"
		}
		return r.Detail
	}},
	whyUndecided: {"something", func(r Reason) string {
		if r.Count > 0 {
			return fmt.Sprintf("it is wanted, with %s still to be routed", plural.Of(r.Count, "event"))
		}
		return "it is wanted, and its task is about to be made"
	}},
	whyUnchanged: {"something", fixed("a task read its inputs as they are now, and published nothing")},
	whyNotFed:    {"something", fixed("no partition of its inputs feeds it")},
	whyNotExamined: {"", func(r Reason) string {
		return "not examined: " + plural.Of(r.Count, "more partition")
	}},
}

var sourceWordings = map[Code]wording{
	whySourceWaits: {"a source", func(r Reason) string {
		if r.Until == nil {
			return "the source is not scheduled to fire again"
		}
		return "the source fires next" + at(r.Until)
	}},
	whySourceManual: {"a source", fixed("the source runs when somebody asks for it")},
	whySourceIdle: {"a source", func(r Reason) string {
		if r.Detail == dag.SourceDeploy {
			return "its rows are those of the DAG's version, and change with a deploy"
		}
		return "the source waits for its " + r.Detail
	}},
	whySourceFailed: {"a source", func(r Reason) string { return "the source could not be read" + saying(r.Error) }},
	whySourceLacks: {"a source", func(r Reason) string {
		return fmt.Sprintf("the source was read%s, but this is not among its %s%s",
			at(r.Since), plural.Of(r.Count, "partition"), saying(r.Error))
	}},
	whySourceLeftOut: {"a source", func(r Reason) string {
		if r.Error == "" {
			return fmt.Sprintf("the source was read%s, and left out what it could not read", at(r.Since))
		}
		return fmt.Sprintf("the source was read%s%s", at(r.Since), saying(r.Error))
	}},
	whySourcePending: {"a source", func(r Reason) string {
		if r.Since == nil {
			return "the source has not been read yet"
		}
		return fmt.Sprintf("the source was read%s, %s, and is read again once the version serves", at(r.Since),
			plural.Of(r.Count, "partition"))
	}},
	whyBeforeFirst: {"a source", func(r Reason) string {
		return fmt.Sprintf("the source is asked for partitions from %s on: an earlier `first_partition` lets it be "+
			"asked for this one", r.Detail)
	}},
	whyNotEnded: {"a source", func(r Reason) string {
		return "the source is asked for a partition once it has ended, this one" + at(r.Until)
	}},
	whyAskedAgain: {"a source", func(r Reason) string {
		return fmt.Sprintf("the source is asked for it again%s, as its `lookback` is %d", at(r.Until), r.Max)
	}},
	whyNotAskedAgain: {"a source", func(r Reason) string {
		text := "the source was asked for it, and is not asked again"
		if r.Max > 0 {
			text += fmt.Sprintf(", as its `lookback` of %d does not go back so far", r.Max)
		}
		return text + askAgain(r)
	}},
	whyGaveNothing: {"a source", func(r Reason) string {
		return "the source was asked for it" + at(r.Since) + ", and published nothing" + askAgain(r)
	}},
	whyBackpressure: {"it", func(r Reason) string {
		return fmt.Sprintf("sources, backfills and builds have been waiting%s because too much is queued in all orgs "+
			"together: %s at the last count", since(r.Since), plural.Of(r.Count, "task"))
	}},
	whyQuota: {"it", func(r Reason) string { return "sources, backfills and builds wait" + saying(r.Detail) }},
}

// askAgain says how somebody asks a source for a partition again.
func askAgain(r Reason) string {
	if r.Command == "" {
		return ""
	}
	return "; ask for it: " + r.Command
}

var buildWordings = map[Code]wording{
	whyNoLiveVersion: {"", fixed("no version of the DAG serves yet")},
	whyNotInVersion:  {"a job", fixed("no version that serves or is being built has this job")},
	whyBuildFailed:   {"", func(r Reason) string { return r.version() + " failed" + saying(r.Error) }},
	whyGate:          {"", func(r Reason) string { return r.version() + " is not ready" }},
	whyGateDead: {"", func(r Reason) string {
		return "failed for good or canceled: " + plural.Of(r.Count, "task")
	}},
	whyGateRejected: {"", func(r Reason) string {
		return "its checks rejected " + plural.Of(r.Count, "partition")
	}},
	whyGateUnread: {"a source", fixed("its source has not been read in full since the build began")},
	whyGateOpen:   {"", func(r Reason) string { return "still to be done: " + plural.Of(r.Count, "task") }},
	whyGateStale:  {"", func(r Reason) string { return "still to be computed: " + plural.Of(r.Count, "partition") }},
	whyGateHeld:   {"", func(r Reason) string { return "still to be checked: " + plural.Of(r.Count, "partition") }},
	whyPromotion: {"", func(r Reason) string {
		return r.version() + " is ready, and waits to be promoted" + saying(r.Detail)
	}},
	whyCuttingOver: {"", func(r Reason) string {
		return r.version() + " is ready, and about to serve" + saying(r.Error)
	}},
}

func (r Reason) version() string { return fmt.Sprintf("v%d", r.Version) }

// input returns the name of what an input reads.
func (r Reason) input() string {
	switch {
	case r.Hidden:
		return "an input that you may not see"
	case r.Dataset != "":
		return r.Dataset
	}
	return r.Job
}

func countedIn(n int) string {
	if n < 2 {
		return ""
	}
	return ": " + plural.Of(n, "partition")
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
