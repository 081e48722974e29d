// Package attention lists what needs a person now: what is late, dead, withheld, paused, blocked, in error, or waits
// for a worker or a decision. It changes nothing and explains nothing: `why` does.
//
// Vocabulary: an item is one thing that somebody has to look at or decide on; its kind says what sort of thing. It owns
// no tables.
package attention

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// Kind is what sort of thing needs somebody.
type Kind string

// The kinds, the most urgent first.
const (
	Dead         Kind = "dead"         // tasks that are out of attempts
	BuildFailed  Kind = "build_failed" // a version that could not be built
	Blocked      Kind = "blocked"      // a job of which nothing can be made
	SourceError  Kind = "source_error" // a source that could not be read last
	ServerUnfit  Kind = "server_unfit" // a server that takes no tasks
	KeyMissing   Kind = "key_missing"  // a server that lacks the key of some secrets
	NoWorker     Kind = "no_worker"    // queued tasks that no live worker serves
	Late         Kind = "late"         // a dataset that lacks data which is due
	Withheld     Kind = "withheld"     // partitions that readers do not see
	BuildWaits   Kind = "build_waits"  // a build that cannot go on by itself, or a candidate that waits to be promoted
	Backpressure Kind = "backpressure" // new work is held back, because too much is queued
	Quota        Kind = "quota"        // the org is at a quota, or near to it
	Paused       Kind = "paused"       // somebody paused it
)

// kinds are the kinds in the order of their urgency.
var kinds = []Kind{Dead, BuildFailed, Blocked, SourceError, ServerUnfit, KeyMissing, NoWorker, Late, Withheld,
	BuildWaits, Backpressure, Quota, Paused}

// Item is one thing that needs a person.
type Item struct {
	Kind      Kind       `json:"kind" enum:"dead,build_failed,blocked,source_error,server_unfit,key_missing,no_worker,late,withheld,build_waits,backpressure,quota,paused"`
	DAG       string     `json:"dag,omitempty"`
	Job       string     `json:"job,omitempty"`
	Jobs      []string   `json:"jobs,omitempty" doc:"dead: DAG/JOB of each, at most ten, where they are several"`
	Version   int        `json:"version,omitempty" doc:"build_failed, build_waits: the version of the DAG"`
	Dataset   string     `json:"dataset,omitempty"`
	Partition string     `json:"partition,omitempty"`
	Runtime   string     `json:"runtime,omitempty"`
	Quota     string     `json:"quota,omitempty"`
	Server    string     `json:"server,omitempty" doc:"server_unfit, key_missing: its name among the workers"`
	Group     string     `json:"error_group,omitempty" doc:"dead: the tasks' errors have this in common"`
	Owner     string     `json:"owner,omitempty"`
	Count     int64      `json:"count,omitempty" doc:"Tasks, partitions or secrets; no_worker: of each need, 10,000 are counted at most"`
	Retryable int64      `json:"retryable,omitempty" doc:"dead: how many of the tasks a retry fits; the others are of definitions of their jobs that no version runs any more"`
	Since     *time.Time `json:"since,omitempty"`
	Text      string     `json:"text" doc:"What is wrong, for people"`
	Command   string     `json:"command" doc:"The command that helps, or says more"`
}

// What names what the item is about.
func (i Item) What() string {
	switch {
	case i.Dataset != "" && i.Partition != "":
		return i.Dataset + "@" + i.Partition
	case i.Dataset != "":
		return i.Dataset
	case i.Job != "":
		return i.DAG + "/" + i.Job
	case len(i.Jobs) > 0:
		return fmt.Sprintf("%s and %s", i.Jobs[0], plural.Or(int64(len(i.Jobs)-1), "other job", "other jobs"))
	case i.Version > 0:
		return fmt.Sprintf("%s v%d", i.DAG, i.Version)
	}
	return cmp.Or(i.DAG, i.Runtime, i.Quota, i.Server, "the org")
}

// seen is what was found, as its slices tell it to the caller.
type seen struct {
	dags     []views.DAGStatus
	dead     []views.ErrorGroup
	late     []registry.Dataset
	sources  []views.SourceStatus
	pauses   []tasks.Pause
	unserved []tasks.OrgQueue
	servers  []dispatcher.Troubled
	secrets  map[string]int64 // of the org, by the keys that servers lack, where the caller may know of them
	pressure pressure.Pressure
	usage    []authz.Usage
	made     registry.Products
}

// items lists what needs somebody, the most urgent kind first, and in each kind what has lasted longest. It is pure.
func items(s seen) []Item {
	list := slices.Concat(ofDAGs(s.dags, s.made), ofPauses(s.pauses))
	for _, g := range s.dead {
		list = append(list, ofDead(g))
	}
	list = append(list, ofSources(s.sources)...)

	list = slices.Concat(list, ofServers(s.servers, s.secrets), ofRuntimes(s.unserved))
	for _, d := range s.late {
		list = append(list, ofLate(d))
	}
	for _, q := range s.pressure.Runtimes {
		if q.On() {
			list = append(list, Item{Kind: Backpressure, Runtime: q.Runtime, Count: q.Queued, Since: q.Since,
				Text: "sources, backfills and builds wait: " +
					plural.Or(q.Queued, "task is queued", "tasks are queued"),
				Command: "dagctl tasks list --status Queued"})
		}
	}
	for _, u := range s.usage {
		if u.Holds() {
			list = append(list, Item{Kind: Quota, Quota: string(u.Quota), Text: u.Text, Command: "dagctl org usage"})
		}
	}

	for i := range list {
		list[i].Owner = cmp.Or(list[i].Owner, s.made.Owner(list[i].DAG, list[i].Job))
	}
	slices.SortStableFunc(list, func(a, b Item) int {
		return cmp.Or(cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)), oldest(a, b),
			cmp.Compare(a.What(), b.What()))
	})
	return list
}

// ofSources has an item for each source that could not be read, and for each whose tasks fail one after the other.
func ofSources(sources []views.SourceStatus) (list []Item) {
	for _, src := range sources {
		item := Item{Kind: SourceError, DAG: src.DAG, Job: src.Job, Since: src.LastFireAt,
			Text:    fault.Headline(cmp.Or(src.Error, src.LeftOut)),
			Command: fmt.Sprintf("dagctl why %s/%s", src.DAG, src.Job)}
		switch {
		case src.Error != "" && src.ErrorSince != nil:
			item.Since = src.ErrorSince
		case src.Error == "" && src.FailingSince != nil:
			item.Since = src.FailingSince
			item.Text = "its tasks fail, one after the other: " + fault.Headline(src.Failing)
		}
		if item.Text != "" {
			list = append(list, item)
		}
	}
	return list
}

// ofServers has an item for each server that takes no tasks, and for each key of the org's secrets that one lacks.
func ofServers(servers []dispatcher.Troubled, secrets map[string]int64) (list []Item) {
	for _, s := range servers {
		if s.Unfit != "" {
			list = append(list, Item{Kind: ServerUnfit, Server: s.ID, Text: "it takes no tasks: " + s.Unfit,
				Command: "dagctl workers list"})
		}
		for _, key := range s.Lacks {
			if n := secrets[key]; n > 0 {
				list = append(list, Item{Kind: KeyMissing, Server: s.ID, Count: n,
					Text: plural.Or(n, "secret is", "secrets are") + " under the key " + key + ", which it does not " +
						"have: webhooks and tasks that use them fail there",
					Command: "dagctl secrets list"})
			}
		}
	}
	return list
}

// ofRuntimes has one item for each runtime. What exactly its tasks need would tell the handlers of hidden jobs: `why`
// says it of one task, to those who may know.
func ofRuntimes(unserved []tasks.OrgQueue) (list []Item) {
	more := map[string]bool{}    // whether not all of a runtime's tasks were counted
	for _, u := range unserved { // in the order of their runtimes
		oldest := u.Oldest()
		more[u.Runtime] = more[u.Runtime] || u.Count >= mostQueued
		if n := len(list); n > 0 && list[n-1].Runtime == u.Runtime {
			list[n-1].Count += u.Count
			if oldest.Before(*list[n-1].Since) {
				list[n-1].Since = &oldest
			}
			continue
		}
		list = append(list, Item{Kind: NoWorker, Runtime: u.Runtime, Count: u.Count, Since: &oldest})
	}

	for i := range list {
		list[i].Text = plural.Or(list[i].Count, "queued task", "queued tasks") + " that no live worker can run"
		if more[list[i].Runtime] {
			list[i].Text = fmt.Sprintf("%d or more queued tasks that no live worker can run", list[i].Count)
		}
		list[i].Command = "dagctl workers list"
	}
	return list
}

// oldest compares since when two items are; one that does not tell comes last.
func oldest(a, b Item) int {
	switch {
	case a.Since == nil && b.Since == nil:
		return 0
	case a.Since == nil:
		return 1
	case b.Since == nil:
		return -1
	}
	return a.Since.Compare(*b.Since)
}

func ofDAGs(dags []views.DAGStatus, made registry.Products) (list []Item) {
	for _, d := range dags {
		if v := d.Failed; v != nil {
			list = append(list, Item{Kind: BuildFailed, DAG: d.Name, Version: v.Number, Since: &v.CreatedAt,
				Text: cmp.Or(v.Error, "it could not be built"), Command: "dagctl history " + d.Name})
		}
		if v := d.Building; v != nil && v.Status == registry.Ready {
			list = append(list, Item{Kind: BuildWaits, DAG: d.Name, Version: v.Number, Since: v.ReadyAt,
				Text: cmp.Or(v.Error, waits(v.HeldBecause)), Command: "dagctl promote " + d.Name})
		} else if v != nil && v.Error != "" {
			list = append(list, Item{Kind: BuildWaits, DAG: d.Name, Version: v.Number, Since: v.BuildingAt,
				Text: v.Error, Command: "dagctl status " + d.Name})
		}

		for _, b := range d.Blocked {
			list = append(list, Item{Kind: Blocked, DAG: d.Name, Job: b.Job, Text: b.Text,
				Command: fmt.Sprintf("dagctl why %s/%s", d.Name, b.Job)})
		}
		for _, job := range slices.Sorted(maps.Keys(d.WithheldJobs)) {
			list = append(list, ofWithheld(d.Name, job, made[d.Name][job].Dataset, d.WithheldJobs[job]))
		}
	}
	return list
}

// waits says that a version waits, and what holds it.
func waits(because string) string {
	if because == "" {
		return "it is ready, and waits to be promoted"
	}
	return "it is ready, and waits to be promoted: " + because
}

func ofWithheld(dag, job, dataset string, count int64) Item {
	item := Item{Kind: Withheld, DAG: dag, Job: job, Dataset: dataset, Count: count,
		Text:    plural.Or(count, "partition has", "partitions have") + " a newer revision that readers do not see",
		Command: "dagctl status " + dag}
	if dataset != "" {
		item.Command = fmt.Sprintf("dagctl datasets get %s", dataset)
	}
	return item
}

func ofPauses(pauses []tasks.Pause) (list []Item) {
	for _, p := range pauses {
		text := "paused by " + p.Actor
		if p.Reason != "" {
			text += ": " + p.Reason
		}
		list = append(list, Item{Kind: Paused, DAG: p.DAG, Job: p.Job, Since: &p.At, Text: text, Command: p.Resume()})
	}
	return list
}

func ofDead(g views.ErrorGroup) Item {
	item := Item{Kind: Dead, Group: g.Group, Count: g.Count, Since: &g.FirstSeen,
		Text:    plural.Or(g.Count, "task is", "tasks are") + " out of attempts: " + g.Error,
		Command: "dagctl tasks retry --dead --error-group " + g.Group, Retryable: g.Retryable}

	switch rest := g.Count - g.Retryable; {
	case g.Retryable == 0:
		item.Text += " (no version runs what they are of any more, so there is nothing to retry: skip them)"
		item.Command = "dagctl tasks skip --dead --error-group " + g.Group + " --reason REASON"
	case rest > 0:
		item.Text += fmt.Sprintf(" (%s of a definition that no version runs any more, and can only be skipped)",
			plural.Or(rest, "is", "are"))
	}

	if len(g.Jobs) == 1 {
		item.DAG, item.Job, _ = strings.Cut(g.Jobs[0], "/")
	} else {
		item.Jobs = g.Jobs
	}
	return item
}

func ofLate(d registry.Dataset) Item {
	item := Item{Kind: Late, DAG: d.DAG, Job: d.Job, Dataset: d.Name, Owner: d.Owner,
		Text: "it was to be updated by now", Command: "dagctl why " + d.Name}
	if d.Late == nil {
		return item
	}
	item.Partition, item.Since = d.Late.Partition, &d.Late.DueAt
	if item.Partition != "" {
		item.Text = "the partition is due, and missing"
		item.Command = fmt.Sprintf("dagctl why-not %s %s", d.Name, item.Partition)
	}
	return item
}
