package alertevaluate

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/dagctl/dagctl/operators/alerts"
)

// id is what fires: one key of one rule.
type id struct{ rule, key string }

// held says for which keys a rule's condition holds, with their labels as alerts.LabelsText has them.
type held map[id]string

// told is what rows have said of an alert.
type told struct {
	labels string
	since  time.Time
}

// patience is how long a condition has to hold before its alert fires: so many evaluations in a row, and so long.
type patience struct {
	evaluations int
	lasting     time.Duration
}

// run is a row of evaluations at which a condition held without a break.
type run struct {
	labels string // at the last of them
	since  time.Time
	count  int
}

// evaluation is what was found at one time, and what rows have said of it while it was the newest.
type evaluation struct {
	at    time.Time
	holds held
	open  map[id]told // what fired, as rows had it, before it
	fired map[id]told // what its rows were ever told to fire
	ended map[id]bool // and what they were told to have ended, the last time
}

// history is what is remembered of the evaluations of a stream of data: those of the latest times, in their order,
// whatever order they came in, and what came of those before. All that it says of alerts follows from that.
type history struct {
	evaluations []evaluation
	before      time.Time // of the last evaluation that is not remembered by itself; zero: all are
	runs        map[id]run
	announced   map[id]told // what fires, as the rows of the newest evaluation have it
}

// take adds an evaluation, or puts it in the place of that of the same time, and returns the alerts of it: what fires
// then, and what fired before and does not any more. Those that come after a newer evaluation are late, except for what
// was told of them before. Values and summaries are left to the caller.
//
// An evaluation that is older than all that are remembered changes nothing; its alerts are those that it shows alone.
func (h *history) take(at time.Time, holds held, rules map[string]patience, remember int) []alerts.Alert {
	if !h.before.IsZero() && !at.After(h.before) {
		return rowsOf(at, fire(next(nil, at, holds), at, rules), nil, func(id, alerts.Status) bool { return true })
	}

	i, again := slices.BinarySearchFunc(h.evaluations, at, func(e evaluation, at time.Time) int {
		return e.at.Compare(at)
	})
	newest := i >= len(h.evaluations)-1
	if !again {
		newest = i == len(h.evaluations)
		added := evaluation{at: at, open: map[id]told{}, fired: map[id]told{}, ended: map[id]bool{}}
		if newest {
			added.open = maps.Clone(h.announced)
		}
		h.evaluations = slices.Insert(h.evaluations, i, added)
	}
	e := &h.evaluations[i]
	e.holds = holds

	prior, priorAt := h.upTo(i)
	firing, ended := h.changes(i, prior, priorAt, rules)
	if newest {
		maps.Copy(e.fired, firing)
		for which := range firing {
			delete(e.ended, which)
		}
		for which := range ended {
			e.ended[which] = true
		}
		h.announced = firing
	}
	late := func(which id, status alerts.Status) bool {
		_, fired := e.fired[which]
		return status == alerts.Firing && (!fired || e.ended[which]) || status == alerts.Resolved && !e.ended[which]
	}
	rows := rowsOf(at, firing, ended, late)
	h.forget(remember)
	return rows
}

// changes returns what fires at an evaluation, and what fired before it, or was told to, and does not any more. prior
// is the runs up to the time of the evaluation before.
func (h *history) changes(
	i int, prior map[id]run, priorAt time.Time, rules map[string]patience,
) (firing, ended map[id]told) {
	e := h.evaluations[i]
	firing = fire(next(prior, e.at, e.holds), e.at, rules)

	ended = fire(prior, priorAt, rules)
	for _, was := range []map[id]told{e.fired, e.open} { // what was told counts most
		maps.Copy(ended, was)
	}
	maps.DeleteFunc(ended, func(which id, _ told) bool {
		_, still := firing[which]
		return still
	})
	return firing, ended
}

// lately returns the alerts that have ended at one of the remembered evaluations up to the i-th, and do not fire at
// that, by the last time that they ended.
func (h *history) lately(i int, rules map[string]patience) (ended []alerts.Alert) {
	last := map[id]alerts.Alert{}
	runs, at := h.runs, h.before
	for n, e := range h.evaluations[:i+1] {
		firing, over := h.changes(n, runs, at, rules)
		runs, at = next(runs, e.at, e.holds), e.at
		for _, row := range rowsOf(e.at, nil, over, func(id, alerts.Status) bool { return false }) {
			last[id{row.Name, row.Key}] = row
		}
		for which := range firing {
			delete(last, which)
		}
	}
	return inOrder(slices.Collect(maps.Values(last)))
}

// upTo returns the runs before the i-th evaluation, and the time of the one before.
func (h *history) upTo(i int) (runs map[id]run, at time.Time) {
	runs, at = h.runs, h.before
	for _, e := range h.evaluations[:i] {
		runs, at = next(runs, e.at, e.holds), e.at
	}
	return runs, at
}

// forget keeps the newest evaluations and sums the others up.
func (h *history) forget(remember int) {
	for len(h.evaluations) > remember {
		e := h.evaluations[0]
		h.runs, h.before = next(h.runs, e.at, e.holds), e.at
		h.evaluations = slices.Delete(h.evaluations, 0, 1)
	}
}

// next returns the runs after an evaluation.
func next(runs map[id]run, at time.Time, holds held) map[id]run {
	after := make(map[id]run, len(holds))
	for which, labels := range holds {
		r := run{labels: labels, since: at, count: 1}
		if before, ok := runs[which]; ok {
			r.since, r.count = before.since, before.count+1
		}
		after[which] = r
	}
	return after
}

// fire returns which of the runs up to a time have lasted as long as their rules want.
func fire(runs map[id]run, at time.Time, rules map[string]patience) map[id]told {
	firing := map[id]told{}
	for which, r := range runs {
		rule, known := rules[which.rule]
		if known && r.count >= rule.evaluations && at.Sub(r.since) >= rule.lasting {
			firing[which] = told{r.labels, r.since}
		}
	}
	return firing
}

// rowsOf returns the alerts of an evaluation, by rule and key.
func rowsOf(at time.Time, firing, ended map[id]told, late func(id, alerts.Status) bool) (rows []alerts.Alert) {
	add := func(of map[id]told, status alerts.Status) {
		for which, t := range of {
			labels, _ := alerts.ParseLabels(t.labels) // it is written by LabelsText
			rows = append(rows, alerts.Alert{Name: which.rule, Key: which.key, Status: status, StartedAt: t.since,
				EvaluatedAt: at, Labels: labels, Late: late(which, status)})
		}
	}
	add(firing, alerts.Firing)
	add(ended, alerts.Resolved)
	return inOrder(rows)
}

func inOrder(rows []alerts.Alert) []alerts.Alert {
	slices.SortFunc(rows, func(a, b alerts.Alert) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key))
	})
	return rows
}
