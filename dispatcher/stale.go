package dispatcher

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// target is one output partition of a job that may want a task.
type target struct {
	job *registry.Job
	key string
}

// ref is the output partition by which a target's state is told; jobs that write nothing have none.
func (t target) ref() (registry.Ref, bool) {
	if len(t.job.Outputs) == 0 {
		return registry.Ref{}, false
	}
	return registry.Ref{Version: t.job.Outputs[0].Generation.Version, Key: t.key}, true
}

// verdict is what is to be done about a target.
type verdict int

const (
	incomplete verdict = iota // an input has not got what the target is made of
	current                   // what there is was made from what the inputs have
	stale                     // it was not: a task is wanted
)

// finding is the verdict on a target, with what a task of it would read.
type finding struct {
	target
	verdict verdict
	missing string         // incomplete: what is not there
	pins    []registry.Pin // stale: every revision to read
	dedupe  string         // stale: the same reading is the same task
	trace   string         // traceparent of what it is found for
}

// inputFacts is what an input offers a target.
type inputFacts struct {
	index      int
	def        dag.Input
	dataset    uuid.UUID
	generation uuid.UUID
	producer   string
	wanted     []string         // the partitions the target is made of, in order
	all        bool             // every one there is
	published  map[string]int64 // key → revision, at least of the wanted ones
	cursor     *followed        // of an input that the job follows as a cursor
	slice      *sliced          // of an input by cursor of which the target takes a range
}

// compared reports whether a newer revision of the input makes an output stale.
func (in inputFacts) compared() bool { return in.def.Triggers() || in.def.Refresh }

// pins lists what there is of what is wanted, in order.
func (in inputFacts) pins() []registry.Pin {
	keys := in.wanted
	if in.all {
		keys = make([]string, 0, len(in.published))
		for key := range in.published {
			keys = append(keys, key)
		}
		slices.Sort(keys)
	}
	var pins []registry.Pin
	for _, key := range keys {
		if revision, ok := in.published[key]; ok {
			p := registry.Pin{Input: in.index, Dataset: in.dataset, Version: in.generation, Key: key,
				Revision: revision, Compared: in.compared()}
			if in.cursor != nil {
				p.Epoch = in.cursor.Epoch
			}
			pins = append(pins, p)
		}
	}
	return pins
}

// satisfied reports whether the input has what a target needs of it.
func (in inputFacts) satisfied(found int) bool {
	if in.slice != nil {
		return in.slice.complete() && found > 0
	}
	complete := in.def.Map.Kind == dag.MapWindow && in.def.Map.Require != "available"
	if in.all || !in.def.Triggers() || !complete {
		return found > 0
	}
	return found == len(in.wanted)
}

// decide compares what a target is to be made of with what it was last made of. Nothing else decides whether a task is
// wanted: not the events, which may be lost or come twice, and not old task rows, which retention removes.
func decide(t target, inputs []inputFacts, made *registry.Made) finding {
	f := finding{target: t, verdict: incomplete}
	met := 0
	for _, in := range inputs {
		pins := in.pins()
		switch ok := in.satisfied(len(pins)); {
		case ok && in.def.Triggers():
			met++
		case !ok && (!in.def.Triggers() || t.job.Def.Trigger == dag.TriggerAll):
			f.missing = missing(in, pins)
			return f
		case !ok && f.missing == "":
			f.missing = missing(in, pins)
		}
		f.pins = append(f.pins, pins...)
	}
	if met == 0 {
		return f
	}
	f.missing = ""
	if readsNew(t.job) && made != nil {
		f.pins = unseen(beyond(f.pins, inputs), made.Pins)
	}
	wanted := comparedPins(f.pins)
	if made != nil && made.Inherited && !readsNew(t.job) && !moved(wanted, made.Pins) {
		f.verdict = current
		return f
	}
	if made != nil && (readsNew(t.job) && len(wanted) == 0 || !readsNew(t.job) && samePins(wanted, comparedPins(made.Pins))) {
		f.verdict = current
		return f
	}
	f.verdict, f.dedupe = stale, cmp.Or(cursorKey(wanted, inputs, made), dedupeKey(t.key, wanted))
	if made != nil && otherGenerations(wanted, made.Pins) {
		// The same revisions may have been read before, in between another generation of the producer was: that made
		// other data, so it is other work.
		f.dedupe += fmt.Sprintf("#%d", made.Revision)
	}
	return f
}

// moved reports whether something that an inherited revision was made from is another revision now. What the new definition
// reads beside that is no reason to make it anew: the deploy that took it over said that it stays.
func moved(wanted, made []registry.Pin) bool {
	was := map[pinKey]registry.Pin{}
	for _, p := range comparedPins(made) {
		was[pinKey{input: p.Input, key: p.Key}] = p
	}
	return slices.ContainsFunc(wanted, func(w registry.Pin) bool {
		p, ok := was[pinKey{input: w.Input, key: w.Key}]
		return ok && (p.Version != w.Version || p.Revision != w.Revision)
	})
}

// otherGenerations reports whether what was read came from a generation that is not read now.
func otherGenerations(wanted, read []registry.Pin) bool {
	return slices.ContainsFunc(read, func(r registry.Pin) bool {
		return r.Compared && !slices.ContainsFunc(wanted, func(w registry.Pin) bool { return w.Version == r.Version })
	})
}

// readsNew reports whether a task of the job reads only what earlier ones have not.
func readsNew(job *registry.Job) bool { return job.Def.ReadsNew() }

func missing(in inputFacts, have []registry.Pin) string {
	if in.slice != nil {
		return in.slice.missing(in.producer)
	}
	if in.all || len(in.wanted) == 0 {
		return fmt.Sprintf("%s has no published partition", in.producer)
	}
	for _, key := range in.wanted {
		if !slices.ContainsFunc(have, func(p registry.Pin) bool { return p.Key == key }) {
			return fmt.Sprintf("%s has no partition %s", in.producer, key)
		}
	}
	return ""
}

type pinKey struct {
	input   int
	version uuid.UUID
	key     string
}

func byPinKey(pins []registry.Pin) map[pinKey]int64 {
	m := make(map[pinKey]int64, len(pins))
	for _, p := range pins {
		k := pinKey{p.Input, p.Version, p.Key}
		m[k] = max(m[k], p.Revision)
	}
	return m
}

// unseen keeps the pins that are not compared and those whose revision was not read before.
func unseen(pins, seen []registry.Pin) []registry.Pin {
	read := byPinKey(seen)
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool {
		return p.Compared && read[pinKey{p.Input, p.Version, p.Key}] >= p.Revision
	})
}

func comparedPins(pins []registry.Pin) []registry.Pin {
	return slices.DeleteFunc(slices.Clone(pins), func(p registry.Pin) bool { return !p.Compared })
}

func samePins(a, b []registry.Pin) bool {
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

// overtaken reports whether what a revision was made from is newer, in any input, than what a task has pinned: then the
// task was slow, somebody else was faster, and publishing its work would put old data over new.
func overtaken(pinned, made []registry.Pin) bool {
	mine := byPinKey(pinned)
	for k, revision := range byPinKey(comparedPins(made)) {
		if r, ok := mine[k]; ok && r < revision {
			return true
		}
	}
	return false
}

// dedupeKey names the unit of work: one published revision where a single one decides, otherwise all that are compared.
func dedupeKey(key string, wanted []registry.Pin) string {
	if len(wanted) == 1 && wanted[0].Key == key {
		return revisionKey(wanted[0].Dataset, wanted[0].Version, key, wanted[0].Revision)
	}
	parts := make([]string, len(wanted))
	for i, p := range wanted {
		parts[i] = fmt.Sprintf("%d:%s:%s@%d", p.Input, p.Version, p.Key, p.Revision)
	}
	slices.Sort(parts)
	return fmt.Sprintf("inputs:%s:%x", key, sha256.Sum256([]byte(strings.Join(parts, "\n"))))
}

// revisionKey names the unit of work that one published revision decides over.
func revisionKey(dataset, version uuid.UUID, key string, revision int64) string {
	return fmt.Sprintf("partition:%s:%s:%s@%d", dataset, version, key, revision)
}

// outputKeys are the output partitions that all the published partitions of the triggering inputs feed.
func outputKeys(job *registry.Job, generations []storage.Generation, published map[uuid.UUID]map[string]int64) ([]string, error) {
	keys := map[string]bool{}
	for i, in := range job.Inputs {
		if !in.Def.Triggers() {
			continue
		}
		for key := range published[generations[i].Version] {
			fed, err := in.Def.Map.OutputKeys(in.PartitionBy, job.Def.PartitionBy, key)
			if err != nil {
				return nil, fmt.Errorf("map partition %q of %s: %w", key, in.Producer, err)
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
	return sorted, nil
}
