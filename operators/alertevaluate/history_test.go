package alertevaluate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/operators/alerts"
)

var begin = time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)

func hour(n int) time.Time { return begin.Add(time.Duration(n) * time.Hour) }

// holding returns the keys, one character each, for which the rule "r" holds.
func holding(keys string) held {
	h := held{}
	for _, c := range keys {
		h[id{"r", string(c)}] = "{}"
	}
	return h
}

func newHistory(t testing.TB) *history {
	h, _, err := decode(nil)
	require.NoError(t, err)
	return h
}

// again returns what a history is after it was stored and read.
func again(t testing.TB, h *history) *history {
	text, err := h.encode("s")
	require.NoError(t, err)
	read, stream, err := decode(text)
	require.NoError(t, err)
	require.Equal(t, "s", stream)
	twice, err := read.encode("s")
	require.NoError(t, err)
	require.Equal(t, string(text), string(twice))
	return read
}

// shown returns alerts as "a firing since 0 at 2", the hours as numbers.
func shown(rows []alerts.Alert) (texts []string) {
	for _, a := range rows {
		text := fmt.Sprintf("%s %s since %v at %v", a.Key, a.Status, a.StartedAt.Sub(begin).Hours(),
			a.EvaluatedAt.Sub(begin).Hours())
		if a.Late {
			text += " late"
		}
		texts = append(texts, text)
	}
	return texts
}

func TestTheWayOfAnAlert(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	rules := map[string]patience{"r": {evaluations: 2}}
	step := func(at int, keys string, want ...string) {
		t.Helper()
		for range 2 { // a repetition says the same
			require.Equal(t, want, shown(h.take(hour(at), holding(keys), rules, 50)))
			h = again(t, h)
		}
	}
	step(0, "a")
	step(1, "ab", "a firing since 0 at 1")
	step(2, "b", "a resolved since 0 at 2", "b firing since 1 at 2")
	step(3, "", "b resolved since 1 at 3")
	step(4, "")
	step(5, "a")
	step(6, "")
	step(7, "a")
	step(8, "a", "a firing since 7 at 8")

	lasting := map[string]patience{"r": {evaluations: 1, lasting: 2 * time.Hour}}
	h = newHistory(t)
	require.Empty(t, h.take(hour(0), holding("a"), lasting, 50))
	require.Empty(t, h.take(hour(1), holding("a"), lasting, 50))
	require.Equal(t, []string{"a firing since 0 at 2"}, shown(h.take(hour(2), holding("a"), lasting, 50)))
}

// What comes late never ends what newer data says is firing, and nobody is told of what it finds.
func TestOlderDataTellsNobody(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	once := map[string]patience{"r": {evaluations: 1}}
	take := func(at int, keys string) []string {
		h = again(t, h)
		return shown(h.take(hour(at), holding(keys), once, 50))
	}
	require.Equal(t, []string{"a firing since 0 at 0"}, take(0, "a"))
	require.Equal(t, []string{"a firing since 0 at 4"}, take(4, "a"))
	require.Equal(t, []string{"a resolved since 0 at 2 late", "b firing since 2 at 2 late"}, take(2, "b"))
	require.Equal(t, []string{"a firing since 0 at 0"}, take(0, "a"), "what was told before is told in the same way")
	require.Equal(t, []string{"a firing since 4 at 5"}, take(5, "a"), "since when it fires is known better")
	require.Equal(t, []string{"a resolved since 4 at 6"}, take(6, ""))

	require.Equal(t, []string{"a firing since 0 at 0", "c firing since 0 at 0 late"}, take(0, "ac"), "mended data")
	require.Equal(t, []string{"a firing since 4 at 6"}, take(6, "a"), "the newest data was wrong")
	require.Equal(t, []string{"a resolved since 4 at 6"}, take(6, ""), "or was not")
	require.Equal(t, []string{"a resolved since 4 at 6"}, take(6, ""), "and says so again")
	require.Empty(t, take(7, ""))
}

// What a rule waits for, and an older gap takes away, is told as resolved with the next data.
func TestALateGapEndsWhatWasTold(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	two := map[string]patience{"r": {evaluations: 2}}
	h.take(hour(0), holding("a"), two, 50)
	require.Equal(t, []string{"a firing since 0 at 2"}, shown(h.take(hour(2), holding("a"), two, 50)))
	require.Equal(t, []string(nil), shown(h.take(hour(1), holding(""), two, 50)))
	require.Equal(t, []string{"a firing since 2 at 3"}, shown(h.take(hour(3), holding("a"), two, 50)), "it went on")

	h = newHistory(t)
	three := map[string]patience{"r": {evaluations: 3}}
	h.take(hour(0), holding("a"), three, 50)
	h.take(hour(1), holding("a"), three, 50)
	require.Len(t, h.take(hour(3), holding("a"), three, 50), 1)
	h.take(hour(2), holding(""), three, 50)
	require.Equal(t, []string{"a resolved since 0 at 4"}, shown(h.take(hour(4), holding("a"), three, 50)))
}

// Evaluations that are remembered no more count in what came of them, and older data than these changes nothing.
func TestWhatIsNotRemembered(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	rules := map[string]patience{"r": {evaluations: 5}}
	for n := range 4 {
		require.Empty(t, h.take(hour(n), holding("a"), rules, 2))
		h = again(t, h)
	}
	require.Len(t, h.evaluations, 2)
	require.Equal(t, []string{"a firing since 0 at 4"}, shown(h.take(hour(4), holding("a"), rules, 2)))

	before, err := h.encode("")
	require.NoError(t, err)
	require.Empty(t, h.take(hour(1), holding("b"), rules, 2))
	once := map[string]patience{"r": {evaluations: 1}}
	require.Equal(t, []string{"b firing since 1 at 1 late"}, shown(h.take(hour(1), holding("b"), once, 2)))
	after, err := h.encode("")
	require.NoError(t, err)
	require.Equal(t, string(before), string(after))
}

// In any order, with repetitions and stored between any two, evaluations leave the same behind as in their order: which
// alerts fire since when, and what the next evaluation says of them.
func TestAnyOrderEndsTheSame(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 81))
		rules := map[string]patience{"r": {evaluations: 1 + random.IntN(3),
			lasting: time.Duration(random.IntN(3)) * time.Hour}}
		n := 1 + random.IntN(12)
		data := make([]string, n+1)
		for i := range data {
			for _, key := range "abc" {
				if random.IntN(3) > 0 {
					data[i] += string(key)
				}
			}
		}
		data[n] = ""

		ordered, shuffled := newHistory(t), newHistory(t)
		for at := range n {
			ordered.take(hour(at), holding(data[at]), rules, 50)
		}
		order := slices.Concat(random.Perm(n), random.Perm(n)[:random.IntN(n+1)])
		for _, at := range order {
			shuffled.take(hour(at), holding(data[at]), rules, 50)
			shuffled = again(t, shuffled)
		}
		for at := range n {
			require.Equal(t, ordered.evaluations[at].holds, shuffled.evaluations[at].holds)
			prior, priorAt := ordered.upTo(at)
			other, otherAt := shuffled.upTo(at)
			require.Equal(t, prior, other, "seed %d", seed)
			require.Equal(t, priorAt, otherAt)
		}

		// Once newer data has come, also what was told is the same: with nothing that holds, nothing.
		ordered.take(hour(n), holding(data[n]), rules, 50)
		shuffled.take(hour(n), holding(data[n]), rules, 50)
		require.Equal(t, ordered.announced, shuffled.announced, "seed %d", seed)
		require.Empty(t, shuffled.announced)
	}
}

// Whoever listens to the rows that are not late, in whatever order the data comes, has heard of the end of all that
// they have heard to fire, once the newest data says so, and of no end that newer data denies.
func TestWhoeverListensHearsTheEnd(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 82))
		rules := map[string]patience{"r": {evaluations: 1 + random.IntN(3)}}
		h, heard := newHistory(t), map[string]alerts.Alert{}
		newest := -1
		for range 25 {
			at, keys := random.IntN(15), ""
			for _, key := range "abc" {
				if random.IntN(2) > 0 {
					keys += string(key)
				}
			}
			for _, a := range h.take(hour(at), holding(keys), rules, 50) {
				if last, ok := heard[a.Key]; !a.Late && (!ok || !a.EvaluatedAt.Before(last.EvaluatedAt)) {
					heard[a.Key] = a
				}
			}
			h = again(t, h)
			if at < newest {
				continue
			}
			newest = at
			for which := range h.announced {
				require.Equal(t, alerts.Firing, heard[which.key].Status, "seed %d", seed)
			}
			for key, last := range heard {
				_, firing := h.announced[id{"r", key}]
				require.Equal(t, firing, last.Status == alerts.Firing, "seed %d: %s at %d", seed, key, at)
			}
		}
	}
}

// A stream whose evaluations take each other's place says what has ended for as long as it is remembered.
func TestWhatHasEndedLately(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	once := map[string]patience{"r": {evaluations: 1}}
	h.take(hour(0), holding("ab"), once, 3)
	h.take(hour(1), holding("b"), once, 3)
	h.take(hour(2), holding(""), once, 3)
	require.Equal(t, []string{"a resolved since 0 at 1", "b resolved since 0 at 2"}, shown(h.lately(2, once)))
	h.take(hour(3), holding("b"), once, 3)
	require.Equal(t, []string{"a resolved since 0 at 1"}, shown(h.lately(2, once)))
	h.take(hour(4), holding(""), once, 3)
	require.Equal(t, []string{"b resolved since 3 at 4"}, shown(h.lately(2, once)))
}

func TestAStateHasABound(t *testing.T) {
	t.Parallel()
	h := newHistory(t)
	many := held{}
	for n := range 60_000 {
		many[id{"r", fmt.Sprint(n)}] = "{}"
	}
	h.take(begin, many, map[string]patience{"r": {evaluations: 1}}, 50)
	_, err := h.encode("")
	require.ErrorContains(t, err, "60000 keys over 1 evaluations")
	_, _, err = decode([]byte(`{"keys": [], "announced": [[1, 2]]}`))
	require.ErrorContains(t, err, "names keys that it does not have")
}
