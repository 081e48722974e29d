package tasks

import (
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dag"
)

// Class is what a task is for, as far as its share of the slots goes.
type Class int16

// The classes of tasks.
const (
	ClassLive     Class = iota // new data, schedules, deliveries, what somebody asked for
	ClassBuild                 // a version that does not serve yet fills its datasets
	ClassBackfill              // somebody wants partitions computed again
	ClassBranch                // the work of a branch
)

// Weights are the shares of the classes, by class.
type Weights [ClassBranch + 1]int

// DefaultWeights are the shares of servers whose config names none.
var DefaultWeights = Weights{ClassLive: 8, ClassBuild: 2, ClassBackfill: 1, ClassBranch: 1}

// of returns the weight of a class. A class that only a newer binary knows has the least.
func (w Weights) of(c Class) float64 {
	if c < 0 || int(c) >= len(w) || w[c] < 1 {
		return 1
	}
	return float64(w[c])
}

// PriorityWorth is how much earlier a task counts as queued for each unit of its priority.
const PriorityWorth = time.Hour

// rankOf returns the place of a task in the order of its DAG, lowest first: the time when it was queued, in
// milliseconds, less an hour for each unit of its priority. A task that has waited longer than that goes before a
// preferred one that came later, so that none waits for ever.
func rankOf(priority int, queued time.Time) int64 {
	priority = min(max(priority, -dag.MaxPriority), dag.MaxPriority)
	return queued.UnixMilli() - int64(priority)*PriorityWorth.Milliseconds()
}

// lane holds the tasks of a DAG that are of one class: they are claimed in the order of their ranks.
type lane struct {
	org   uuid.UUID
	class Class
	dag   string
}

// path returns whose turns a lane takes: those of its org, of a class of the org, of a DAG in the class.
func (l lane) path() [3]any { return [3]any{l.org, l.class, l.dag} }

// turns remembers how much orgs, their classes and the DAGs in those have had. Whoever has had the least is next, where
// a task counts the less the greater the weight of its class, as in stride scheduling. One who comes anew, or had
// nothing queued for a while, begins at the level of the others: nobody saves up turns.
type turns struct {
	had   float64
	level float64        // the least that one below had who had work
	below map[any]*turns // by org, then by class, then by DAG
}

// contender is one who may have the next turn, or all those in one org or class.
type contender struct {
	key    any
	had    float64
	weight float64
	org    bool
	held   int // of an org: the slots that it holds; orgs that hold the fewest come first
	lane   int // of a DAG: the index of its lane
	below  []*contender
}

// share returns how many of the next n tasks each lane is to have, in the order of the lanes, which are sorted by their
// paths. held is how many slots orgs hold. It is pure: see charge.
func (t *turns) share(lanes []lane, weights Weights, held map[uuid.UUID]int, n int) []int {
	shares := make([]int, len(lanes))
	if len(lanes) == 1 {
		shares[0] = n
		return shares
	}
	root, _ := t.contend(lanes, weights, held)
	for range n {
		c := root
		for len(c.below) > 0 {
			c = c.next()
			c.take(1)
		}
		shares[c.lane]++
	}
	return shares
}

// charge notes how many tasks each lane got.
func (t *turns) charge(lanes []lane, weights Weights, got []int) {
	root, paths := t.contend(lanes, weights, nil)
	for i, path := range paths {
		for _, c := range path {
			c.take(got[i])
		}
	}
	t.note(root)
}

// contend returns the lanes as contenders for the next turn, as a tree and as the path to each.
func (t *turns) contend(lanes []lane, weights Weights, held map[uuid.UUID]int) (*contender, [][3]*contender) {
	root, paths := new(contender), make([][3]*contender, len(lanes))
	for i, l := range lanes {
		c, past := root, t
		for depth, key := range l.path() {
			c, past = c.of(key, past), past.of(key)
			paths[i][depth] = c
		}
		paths[i][0].org, paths[i][0].held = true, held[l.org]
		paths[i][1].weight = weights.of(l.class)
		c.lane = i
	}
	return root, paths
}

// of returns the contender with a key below c, whose past is below past. It is the last, or new: lanes are sorted.
func (c *contender) of(key any, past *turns) *contender {
	if n := len(c.below); n > 0 && c.below[n-1].key == key {
		return c.below[n-1]
	}
	b := &contender{key: key, weight: 1}
	if past != nil {
		b.had = past.level
	}
	if own := past.of(key); own != nil {
		b.had = max(b.had, own.had)
	}
	c.below = append(c.below, b)
	return b
}

// of returns the past of one below, or nil.
func (t *turns) of(key any) *turns {
	if t == nil {
		return nil
	}
	return t.below[key]
}

// next returns who of those below has had the least.
func (c *contender) next() *contender {
	first := c.below[0]
	for _, b := range c.below[1:] {
		if b.held < first.held || b.held == first.held && b.had < first.had {
			first = b
		}
	}
	return first
}

// take counts n tasks.
func (c *contender) take(n int) {
	c.had += float64(n) / c.weight
	if c.org {
		c.held += n
	}
}

// note keeps what contenders have had. Of the others it forgets those who would begin at the same level without it.
func (t *turns) note(c *contender) {
	if len(c.below) == 0 {
		return
	}
	if t.below == nil {
		t.below = map[any]*turns{}
	}
	level, contends := c.below[0].had, make(map[any]bool, len(c.below))
	for _, b := range c.below {
		level = min(level, b.had)
		contends[b.key] = true
		if t.below[b.key] == nil {
			t.below[b.key] = &turns{}
		}
		t.below[b.key].had = b.had
		t.below[b.key].note(b)
	}

	t.level = max(t.level, level)
	for key, b := range t.below {
		if !contends[key] && b.had <= t.level {
			delete(t.below, key)
		}
	}
}
