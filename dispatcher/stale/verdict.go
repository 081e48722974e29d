package stale

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// Target is one output partition of a job that may want a task.
type Target struct {
	Job *registry.Job
	Key string
}

// Ref returns the output partition that stands for the target's state; jobs that write nothing have none.
func (t Target) Ref() (registry.Ref, bool) {
	if len(t.Job.Outputs) == 0 {
		return registry.Ref{}, false
	}
	return registry.Ref{Version: t.Job.Outputs[0].Generation.Version, Key: t.Key}, true
}

// Verdict says what a target needs.
type Verdict int

const (
	Incomplete Verdict = iota // nothing yet: an input lacks a partition that the target is made from
	Current                   // nothing: it was made from the revisions that the inputs have now
	Stale                     // a task: it was made from other revisions, or never
	Blocked                   // nothing that could be made: an input of another DAG cannot be mapped any more
)

// Finding is the verdict on a target, with the revisions that a task of it would read.
type Finding struct {
	Target
	Verdict Verdict
	Missing string         // incomplete and blocked: what is missing or wrong, for people
	Awaits  uuid.UUID      // incomplete: the generation whose first revision a later event brings; see NoteAwaited
	Pins    []registry.Pin // stale: every revision to read
	Dedupe  string         // stale: names the work, so that the same reading is the same task
	Trace   string         // traceparent of the event that led to it
}

// InputFacts holds what an input offers to a target.
type InputFacts struct {
	Index      int
	Def        dag.Input
	Dataset    uuid.UUID
	Generation uuid.UUID
	Producer   string
	Wanted     []string         // the partitions that the target is made from, in order
	All        bool             // the target is made from every published partition
	Published  map[string]int64 // key → revision, at least of the wanted ones
	cursor     *CursorRow       // set if the job follows the input as a cursor
	Slice      *sliced          // set if the target takes a range of an input partitioned by cursor
	Unknown    bool             // nothing of it was ever published, and the job's statement needs its columns
	Unmapped   string           // why the input cannot be mapped to the target, and what to do; empty: it can be
}

// compared reports whether a newer revision of the input makes an output stale.
func (in InputFacts) compared() bool { return in.Def.Triggers() || in.Def.Refresh }

// Pins lists the published revisions of the wanted partitions, in order.
func (in InputFacts) Pins() []registry.Pin {
	keys := in.Wanted
	if in.All {
		keys = make([]string, 0, len(in.Published))
		for key := range in.Published {
			keys = append(keys, key)
		}
		slices.Sort(keys)
	}

	var pins []registry.Pin
	for _, key := range keys {
		if revision, ok := in.Published[key]; ok {
			p := registry.Pin{Input: in.Index, Dataset: in.Dataset, Version: in.Generation, Key: key,
				Revision: revision, Compared: in.compared()}
			if in.cursor != nil {
				p.Epoch = in.cursor.Epoch
			}
			pins = append(pins, p)
		}
	}
	return pins
}

// Satisfied reports whether the input has what a target needs, where found of the wanted partitions are published.
func (in InputFacts) Satisfied(found int) bool {
	if in.Slice != nil {
		return in.Slice.complete() && found > 0
	}
	complete := in.Def.Map.Kind == dag.MapWindow && in.Def.Map.Require != "available"
	if in.All || !in.Def.Triggers() || !complete {
		return found > 0
	}
	return found == len(in.Wanted)
}

// decide compares what a target would be made from with what it was last made from. Nothing else decides whether a task
// is wanted: not the events, which may be lost or come twice, and not old task rows, which retention removes.
func decide(t Target, inputs []InputFacts, made *registry.Made) Finding {
	f := Finding{Target: t, Verdict: Incomplete}
	for _, in := range inputs {
		if in.Unmapped != "" {
			f.Verdict, f.Missing = Blocked, in.Unmapped
			return f
		}
	}

	var (
		complete bool
		lacks    *InputFacts
	)
	if f.Pins, lacks, complete = gather(t, inputs); !complete {
		if lacks != nil {
			f.Missing = missing(*lacks, lacks.Pins())
			f.Awaits = awaits(*lacks)
		}
		return f
	}

	if made != nil && beginsAnew(t.Job, f.Pins, inputs, *made) {
		again := *made
		again.Pins, again.Refused = nil, nil
		name := nameWork(t, ComparedPins(f.Pins), inputs, &again)
		f.Verdict, f.Dedupe = Stale, fmt.Sprintf("%s#%d", name, made.Revision)
		return f
	}
	if ReadsNew(t.Job) && made != nil {
		f.Pins = toAppend(unread(f.Pins, inputs), *made)
	}
	wanted := ComparedPins(f.Pins)
	if made != nil && upToDate(t.Job, wanted, *made) {
		f.Verdict = Current
		return f
	}

	f.Verdict, f.Dedupe = Stale, nameWork(t, wanted, inputs, made)
	return f
}

// toAppend returns the pins that the next task of an appended partition reads: those that no revision has, and only if
// there are such, also those that only rejected ones have. So rejected rows come back together with what is new, and
// wait with it, until a check passes them or a correction takes their place.
func toAppend(pins []registry.Pin, made registry.Made) []registry.Pin {
	news := unseen(pins, made.Pins)
	if len(ComparedPins(news)) == 0 {
		return news
	}
	kept := slices.DeleteFunc(slices.Clone(made.Pins), func(p registry.Pin) bool { return p.Refused })
	return unseen(pins, kept)
}

// beginsAnew reports whether an appended partition that was purged reads all that is left of its inputs: something that
// it was made of is gone, too, so that it is not what a person wanted gone, but what remains without that.
func beginsAnew(job *registry.Job, pins []registry.Pin, inputs []InputFacts, made registry.Made) bool {
	follows := func(in InputFacts) bool { return in.cursor != nil }
	return ReadsNew(job) && made.State == "Purged" && !slices.ContainsFunc(inputs, follows) &&
		lacksSome(pins, made.Purged)
}

// gather lists the revisions that a task of the target would read, and reports whether the inputs suffice to make it.
// Where they do not, lacks is the first input that does not have what is needed.
func gather(t Target, inputs []InputFacts) (pins []registry.Pin, lacks *InputFacts, complete bool) {
	takesAll := t.Job.Def.Trigger == dag.TriggerAll
	for i, in := range inputs {
		found := in.Pins()
		switch satisfied := in.Satisfied(len(found)); {
		case satisfied:
			complete = complete || in.Def.Triggers()
		case takesAll || !in.Def.Triggers() || in.Unknown:
			return pins, &inputs[i], false
		case lacks == nil:
			lacks = &inputs[i]
		}
		pins = append(pins, found...)
	}
	return pins, lacks, complete // any triggering input is enough
}

// awaits returns the generation of an input that is lacking if its first revision makes the difference.
func awaits(in InputFacts) uuid.UUID {
	if in.Unknown || awaitsFirst(in.Def) {
		return in.Generation
	}
	return uuid.Nil
}

// upToDate reports whether the last revision of a target already holds what a task would make.
func upToDate(job *registry.Job, wanted []registry.Pin, made registry.Made) bool {
	switch {
	case ReadsNew(job):
		return len(wanted) == 0
	case made.Inherited && !moved(wanted, made.Pins):
		return true
	}
	return SamePins(wanted, ComparedPins(made.Pins))
}

// nameWork returns the dedupe key of the task that a stale target wants.
func nameWork(t Target, wanted []registry.Pin, inputs []InputFacts, made *registry.Made) string {
	follows := cursorKey(wanted, inputs, made)
	name := cmp.Or(follows, dedupeKey(t.Key, wanted))
	if made == nil {
		return name
	}
	// The same revisions may have been read before, and after that more, which is gone since, or those of another
	// generation of the producer: that made other data, so this is other work. Likewise where a rejected revision read
	// some of it, and other rows have been appended since: it is tried again on top of those.
	refused := made.State != "Rejected" && len(unseen(wanted, made.Refused)) < len(wanted)
	fewer := follows == "" && !ReadsNew(t.Job) && lacksSome(wanted, made.Pins)
	if refused || fewer || otherGenerations(wanted, made.Pins) {
		name += fmt.Sprintf("#%d", made.Revision)
	}
	return name
}

// moved reports whether something that an inherited revision was made from has another revision now. Inputs that only
// the new definition reads are no reason to make it again: the deploy that inherited it said that it stays.
func moved(wanted, made []registry.Pin) bool {
	was := map[pinKey]registry.Pin{}
	for _, p := range ComparedPins(made) {
		was[pinKey{input: p.Input, key: p.Key}] = p
	}
	return slices.ContainsFunc(wanted, func(w registry.Pin) bool {
		p, ok := was[pinKey{input: w.Input, key: w.Key}]
		return ok && (p.Version != w.Version || p.Revision != w.Revision)
	})
}

// lacksSome reports whether a revision was made from a partition that is not there to be read any more.
func lacksSome(wanted, read []registry.Pin) bool {
	return slices.ContainsFunc(read, func(r registry.Pin) bool {
		return r.Compared && !slices.ContainsFunc(wanted, func(w registry.Pin) bool {
			return w.Input == r.Input && w.Key == r.Key
		})
	})
}

// otherGenerations reports whether a revision was made from a generation that is not read now.
func otherGenerations(wanted, read []registry.Pin) bool {
	return slices.ContainsFunc(read, func(r registry.Pin) bool {
		return r.Compared && !slices.ContainsFunc(wanted, func(w registry.Pin) bool { return w.Version == r.Version })
	})
}

// ReadsNew reports whether a task of the job reads only what earlier ones have not.
func ReadsNew(job *registry.Job) bool { return job.Def.ReadsNew() }

// missing names the first thing that an input lacks.
func missing(in InputFacts, have []registry.Pin) string {
	if in.Slice != nil {
		return in.Slice.Missing(in.Producer)
	}
	if in.All || len(in.Wanted) == 0 || in.Unknown {
		return fmt.Sprintf("%s has no published partition", in.Producer)
	}
	for _, key := range in.Wanted {
		if !slices.ContainsFunc(have, func(p registry.Pin) bool { return p.Key == key }) {
			return fmt.Sprintf("%s has no partition %s", in.Producer, key)
		}
	}
	return ""
}

// pinKey identifies the partition that a pin refers to.
type pinKey struct {
	input   int
	version uuid.UUID
	key     string
}

// byPinKey returns the highest revision pinned of each partition.
func byPinKey(pins []registry.Pin) map[pinKey]int64 {
	m := make(map[pinKey]int64, len(pins))
	for _, p := range pins {
		k := pinKey{p.Input, p.Version, p.Key}
		m[k] = max(m[k], p.Revision)
	}
	return m
}

// unseen returns the pins that are not compared and those whose revision was not read before.
func unseen(pins, seen []registry.Pin) []registry.Pin {
	read := byPinKey(seen)
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool {
		return p.Compared && read[pinKey{p.Input, p.Version, p.Key}] >= p.Revision
	})
}

// ComparedPins returns the pins of inputs whose newer revisions make an output stale.
func ComparedPins(pins []registry.Pin) []registry.Pin {
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool { return !p.Compared })
}

// SamePins reports whether two lists pin the same revisions, in any order.
func SamePins(a, b []registry.Pin) bool {
	x, y := byPinKey(a), byPinKey(b)
	if len(x) != len(y) {
		return false
	}
	for k, revision := range x {
		if y[k] != revision {
			return false
		}
	}
	return true
}

// Overtaken reports whether a revision was made from newer inputs than a task has pinned, in any input: then another
// task was faster, and publishing this one's work would put old data over new.
func Overtaken(pinned, made []registry.Pin) bool {
	mine := byPinKey(pinned)
	for k, revision := range byPinKey(ComparedPins(made)) {
		if r, ok := mine[k]; ok && r < revision {
			return true
		}
	}
	return false
}

// dedupeKey names the unit of work: by the published revision where a single one decides, otherwise by all that are
// compared.
func dedupeKey(key string, wanted []registry.Pin) string {
	if len(wanted) == 1 && wanted[0].Key == key {
		return RevisionKey(wanted[0].Dataset, wanted[0].Version, key, wanted[0].Revision)
	}
	parts := make([]string, len(wanted))
	for i, p := range wanted {
		parts[i] = fmt.Sprintf("%d:%s:%s@%d", p.Input, p.Version, p.Key, p.Revision)
	}
	slices.Sort(parts)
	return fmt.Sprintf("inputs:%s:%x", key, sha256.Sum256([]byte(strings.Join(parts, "\n"))))
}

// RevisionKey names the unit of work that a single published revision decides.
func RevisionKey(dataset, version uuid.UUID, key string, revision int64) string {
	return "partition:" + dataset.String() + ":" + version.String() + ":" + key + "@" + strconv.FormatInt(revision, 10)
}

// outputKeys lists the output partitions that the published partitions of the triggering inputs feed, sorted. Inputs
// that cannot be mapped feed none.
func outputKeys(
	job *registry.Job, generations []registry.InputGeneration, published map[uuid.UUID]map[string]int64,
) []string {
	keys := map[string]bool{}
	for i, in := range job.Inputs {
		if !in.Def.Triggers() {
			continue
		}
		for key := range published[generations[i].Version] {
			fed, unmapped := OutputKeys(job, in, generations[i].PartitionBy, key)
			if unmapped != "" {
				break
			}
			for _, k := range fed {
				keys[k] = true
			}
		}
	}

	sorted := make([]string, 0, len(keys))
	for key := range keys {
		sorted = append(sorted, key)
	}
	slices.Sort(sorted)
	return sorted
}
