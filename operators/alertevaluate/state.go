package alertevaluate

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// maxState is how many bytes the operator state of a job may have.
const maxState = 1 << 20

// A stored state names each key once, with its labels: everything else has the number of that in the list. Times are
// microseconds since 1970.
type (
	storedState struct {
		Stream      string             `json:"stream"` // the partition that is evaluated; empty: those of time
		Keys        [][3]string        `json:"keys"`   // rule, key, labels
		Evaluations []storedEvaluation `json:"evaluations"`
		Before      *int64             `json:"before,omitempty"`
		Runs        [][3]int64         `json:"runs,omitempty"` // key, since, count
		Announced   [][2]int64         `json:"announced"`      // key, since
	}
	storedEvaluation struct {
		At    int64      `json:"at"`
		Holds []int64    `json:"holds"`
		Open  [][2]int64 `json:"open,omitempty"`
		Fired [][2]int64 `json:"fired,omitempty"`
		Ended []int64    `json:"ended,omitempty"`
	}
)

// keyList numbers keys with their labels.
type keyList struct {
	numbers map[[3]string]int64
	keys    [][3]string
}

func (l *keyList) number(which id, labels string) int64 {
	key := [3]string{which.rule, which.key, labels}
	n, known := l.numbers[key]
	if !known {
		n = int64(len(l.keys))
		l.numbers[key], l.keys = n, append(l.keys, key)
	}
	return n
}

func (l *keyList) told(all map[id]told) [][2]int64 {
	stored := make([][2]int64, 0, len(all))
	for _, which := range sorted(all) {
		stored = append(stored, [2]int64{l.number(which, all[which].labels), all[which].since.UnixMicro()})
	}
	return stored
}

// sorted returns ids by rule and key.
func sorted[V any](of map[id]V) []id {
	return slices.SortedFunc(maps.Keys(of), func(a, b id) int {
		return cmp.Or(cmp.Compare(a.rule, b.rule), cmp.Compare(a.key, b.key))
	})
}

// encode returns the history as an operator state.
func (h *history) encode(stream string) (json.RawMessage, error) {
	list := &keyList{numbers: map[[3]string]int64{}, keys: [][3]string{}}
	s := storedState{Stream: stream, Evaluations: []storedEvaluation{}}
	if !h.before.IsZero() {
		at := h.before.UnixMicro()
		s.Before = &at
	}
	for _, which := range sorted(h.runs) {
		r := h.runs[which]
		s.Runs = append(s.Runs, [3]int64{list.number(which, r.labels), r.since.UnixMicro(), int64(r.count)})
	}

	for _, e := range h.evaluations {
		one := storedEvaluation{At: e.at.UnixMicro(), Holds: []int64{}, Open: list.told(e.open),
			Fired: list.told(e.fired)}
		for _, which := range sorted(e.holds) {
			one.Holds = append(one.Holds, list.number(which, e.holds[which]))
		}
		for _, which := range sorted(e.ended) {
			one.Ended = append(one.Ended, list.number(which, ""))
		}
		s.Evaluations = append(s.Evaluations, one)
	}
	s.Announced = list.told(h.announced)
	s.Keys = list.keys

	text, err := json.Marshal(s)
	if err == nil && len(text) > maxState {
		err = fault.New(fault.TooLarge, "what is to be remembered of %d keys over %d evaluations has %d bytes; %d are "+
			"allowed", len(s.Keys), len(s.Evaluations), len(text), maxState).
			WithHint("let fewer keys fire, by another `key` or `condition`, or set a smaller `remember`")
	}
	return text, err
}

// decode reads an operator state; an empty one is that of no evaluations.
func decode(text json.RawMessage) (h *history, stream string, err error) {
	h = &history{runs: map[id]run{}, announced: map[id]told{}}
	if len(text) == 0 {
		return h, "", nil
	}
	var s storedState
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, "", fault.New(fault.Internal, "the operator state cannot be read: %w", err)
	}

	var broken bool
	key := func(n int64) (which id, labels string) {
		if n < 0 || n >= int64(len(s.Keys)) {
			broken = true
			return which, ""
		}
		return id{s.Keys[n][0], s.Keys[n][1]}, s.Keys[n][2]
	}
	toldOf := func(stored [][2]int64) map[id]told {
		all := make(map[id]told, len(stored))
		for _, one := range stored {
			which, labels := key(one[0])
			all[which] = told{labels, time.UnixMicro(one[1]).UTC()}
		}
		return all
	}

	if s.Before != nil {
		h.before = time.UnixMicro(*s.Before).UTC()
	}
	for _, one := range s.Runs {
		which, labels := key(one[0])
		h.runs[which] = run{labels, time.UnixMicro(one[1]).UTC(), int(one[2])}
	}
	for _, one := range s.Evaluations {
		e := evaluation{at: time.UnixMicro(one.At).UTC(), holds: held{}, open: toldOf(one.Open),
			fired: toldOf(one.Fired), ended: map[id]bool{}}
		for _, n := range one.Holds {
			which, labels := key(n)
			e.holds[which] = labels
		}
		for _, n := range one.Ended {
			which, _ := key(n)
			e.ended[which] = true
		}
		h.evaluations = append(h.evaluations, e)
	}
	h.announced = toldOf(s.Announced)
	if broken {
		return nil, "", fault.New(fault.Internal, "the operator state names keys that it does not have")
	}
	return h, s.Stream, nil
}
