package tasks

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A DAG's tasks go by priority, and a preferred one goes before others for a bounded time.
func TestRank(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		first, second int // priorities
		waited        time.Duration
		before        bool
	}{
		{0, 0, time.Millisecond, true},
		{0, 50, time.Hour, false},
		{0, 1, 59 * time.Minute, false},
		{0, 1, 61 * time.Minute, true},
		{0, 50, 51 * time.Hour, true},
		{-1000, 1000, 2001 * time.Hour, true},
		{0, 1 << 30, 1001 * time.Hour, true},
	} {
		old, new := rankOf(c.first, now.Add(-c.waited)), rankOf(c.second, now)
		require.Equal(t, c.before, old < new, "%+v", c)
	}
}

var orgA, orgB = uuid.UUID{1}, uuid.UUID{2}

// Each lane always has work. The table says how many of the tasks of several claims each gets.
func TestShares(t *testing.T) {
	t.Parallel()
	classes := []lane{{orgA, ClassLive, "d"}, {orgA, ClassBuild, "d"}, {orgA, ClassBackfill, "d"},
		{orgA, ClassBranch, "d"}}
	for name, c := range map[string]struct {
		lanes   []lane
		weights Weights
		held    map[uuid.UUID]int
		claims  []int
		want    []int
	}{
		"one lane gets all":              {lanes: classes[:1], claims: []int{7}, want: []int{7}},
		"classes share by weight":        {lanes: classes, claims: []int{120}, want: []int{80, 20, 10, 10}},
		"also if each claim is one task": {lanes: classes, claims: ones(120), want: []int{80, 20, 10, 10}},
		"weights of the config": {lanes: classes, weights: Weights{1, 1, 1, 1}, claims: []int{8},
			want: []int{2, 2, 2, 2}},
		"live comes first": {lanes: classes, claims: []int{1}, want: []int{1, 0, 0, 0}},
		"DAGs of a class take turns": {
			lanes:  []lane{{orgA, ClassBuild, "a"}, {orgA, ClassBuild, "b"}, {orgA, ClassBuild, "c"}},
			claims: []int{4, 1, 1, 3}, want: []int{3, 3, 3}},
		"a DAG in two classes gets more from none": {
			lanes:  []lane{{orgA, ClassLive, "a"}, {orgA, ClassLive, "b"}, {orgA, ClassBuild, "a"}},
			claims: []int{10}, want: []int{4, 4, 2}},
		"orgs take turns, whatever their classes": {
			lanes:  []lane{{orgA, ClassLive, "a"}, {orgA, ClassBuild, "a"}, {orgB, ClassBackfill, "a"}},
			claims: []int{10, 10}, want: []int{8, 2, 10}},
		"who holds slots waits": {
			lanes: []lane{{orgA, ClassLive, "a"}, {orgB, ClassLive, "a"}}, held: map[uuid.UUID]int{orgA: 4},
			claims: []int{6}, want: []int{1, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.weights == (Weights{}) {
				c.weights = DefaultWeights
			}
			past, got := &turns{}, make([]int, len(c.lanes))
			for _, n := range c.claims {
				shares := past.share(c.lanes, c.weights, c.held, n)
				require.Equal(t, shares, past.share(c.lanes, c.weights, c.held, n), "it is pure")
				past.charge(c.lanes, c.weights, shares)
				for i, s := range shares {
					got[i] += s
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// A class that had nothing queued has saved no turns, and one that comes again owes none.
func TestNobodySavesUpTurns(t *testing.T) {
	t.Parallel()
	live, build := lane{orgA, ClassLive, "d"}, lane{orgA, ClassBuild, "d"}
	past := &turns{}
	claim := func(n int, lanes ...lane) []int {
		shares := past.share(lanes, DefaultWeights, nil, n)
		past.charge(lanes, DefaultWeights, shares)
		return shares
	}
	claim(1000, build)
	require.Equal(t, []int{8, 2}, claim(10, live, build))
	claim(1000, live)
	require.Equal(t, []int{8, 2}, claim(10, live, build))
	for range 100 {
		claim(1, lane{uuid.New(), ClassLive, "d"})
	}
	require.LessOrEqual(t, len(past.below), 2, "who is gone is forgotten")
}

func ones(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = 1
	}
	return list
}
