package stale

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// Generations and datasets of the tables below.
var (
	gen1  = uuid.MustParse("00000000-0000-0000-0000-000000000001")
	gen2  = uuid.MustParse("00000000-0000-0000-0000-000000000002")
	gen3  = uuid.MustParse("00000000-0000-0000-0000-000000000003")
	day   = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "UTC"}
	month = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month, Timezone: "UTC"}
)

// facts returns an input at generation g that wants partitions and has some of them published.
func facts(index int, g uuid.UUID, m dag.Mapping, wanted []string, published map[string]int64) InputFacts {
	return InputFacts{
		Index: index, Def: dag.Input{Map: m}, Dataset: g, Generation: g, Producer: fmt.Sprintf("d/in%d", index),
		Wanted: wanted, All: wanted == nil, Published: published,
	}
}

// madeOf returns a revision made from the inputs as they are.
func madeOf(state string, revision int64, inputs ...InputFacts) *registry.Made {
	m := &registry.Made{State: state, Revision: revision}
	for _, in := range inputs {
		m.Pins = append(m.Pins, in.Pins()...)
	}
	return m
}

func TestDecide(t *testing.T) {
	t.Parallel()
	var (
		same   = dag.Mapping{Kind: dag.MapSame}
		latest = dag.Mapping{Kind: dag.MapLatest}
		window = dag.Mapping{Kind: dag.MapWindow, Window: dag.Month}
		some   = dag.Mapping{Kind: dag.MapWindow, Window: dag.Month, Require: "available"}
		last3  = dag.Mapping{Kind: dag.MapWindow, Last: 3}
		at     = func(revisions ...int64) map[string]int64 { // days 1, 2, 3; 0 is absent
			m := map[string]int64{}
			for i, r := range revisions {
				if r > 0 {
					m[fmt.Sprintf("2024-01-0%d", i+1)] = r
				}
			}
			return m
		}
		days = []string{"2024-01-01", "2024-01-02", "2024-01-03"}
		d1   = days[:1]
	)
	all := dag.Job{Trigger: dag.TriggerAll, UpdateStrategy: dag.Replace}
	anyOf := dag.Job{Trigger: dag.TriggerAny, UpdateStrategy: dag.Replace}
	in := func(revisions ...int64) InputFacts { return facts(0, gen1, same, d1, at(revisions...)) }
	other := func(revisions ...int64) InputFacts { return facts(1, gen2, same, d1, at(revisions...)) }
	unknown := other()
	unknown.Unknown = true
	dim := func(published map[string]int64) InputFacts { return facts(1, gen2, latest, nil, published) }
	refreshed := func(revision int64) InputFacts {
		f := dim(map[string]int64{"all": revision})
		f.Def.Refresh = true
		return f
	}
	appending := dag.Job{Trigger: dag.TriggerAny, UpdateStrategy: dag.Append, Inputs: []dag.Input{{Map: same}}}
	whole := func(revisions ...int64) InputFacts { return facts(0, gen1, same, nil, at(revisions...)) }

	for _, c := range []struct {
		name    string
		job     dag.Job
		inputs  []InputFacts
		made    *registry.Made
		verdict Verdict
		pins    int
		missing string
	}{
		{"same: nothing there", all, []InputFacts{in()}, nil, Incomplete, 0, "d/in0 has no partition 2024-01-01"},
		{"same: never made", all, []InputFacts{in(1)}, nil, Stale, 1, ""},
		{"same: made from it", all, []InputFacts{in(1)}, madeOf("Published", 1, in(1)), Current, 1, ""},
		{"same: newer", all, []InputFacts{in(2)}, madeOf("Published", 1, in(1)), Stale, 1, ""},
		{"same: the newest is held", all, []InputFacts{in(1)}, madeOf("Held", 1, in(1)), Current, 1, ""},
		{"same: the newest was rejected", all, []InputFacts{in(1)}, madeOf("Rejected", 1, in(1)), Current, 1, ""},
		{"same: newer than what was rejected", all, []InputFacts{in(2)}, madeOf("Rejected", 1, in(1)), Stale, 1, ""},
		{"same: another generation at the same revision", all, []InputFacts{facts(0, gen3, same, d1, at(1))},
			madeOf("Published", 1, in(1)), Stale, 1, ""},
		{"same: a generation gone back to", all, []InputFacts{in(1)},
			madeOf("Published", 2, facts(0, gen3, same, d1, at(7))), Stale, 1, ""},

		{"window: incomplete", all, []InputFacts{facts(0, gen1, window, days, at(1, 0, 1))}, nil, Incomplete, 0,
			"d/in0 has no partition 2024-01-02"},
		{"window: complete", all, []InputFacts{facts(0, gen1, window, days, at(1, 1, 1))}, nil, Stale, 3, ""},
		{"window: one newer", all, []InputFacts{facts(0, gen1, window, days, at(1, 2, 1))},
			madeOf("Published", 1, facts(0, gen1, window, days, at(1, 1, 1))), Stale, 3, ""},
		{"window: available", all, []InputFacts{facts(0, gen1, some, days, at(1, 0, 1))}, nil, Stale, 2, ""},
		{"window: one more available", all, []InputFacts{facts(0, gen1, some, days, at(1, 1, 1))},
			madeOf("Published", 1, facts(0, gen1, some, days, at(1, 0, 1))), Stale, 3, ""},
		{"window: one gone", all, []InputFacts{facts(0, gen1, some, days, at(1, 0, 1))},
			madeOf("Published", 1, facts(0, gen1, some, days, at(1, 1, 1))), Stale, 2, ""},
		{"window: none available", all, []InputFacts{facts(0, gen1, some, days, at())}, nil, Incomplete, 0,
			"d/in0 has no partition 2024-01-01"},
		{"last 3: two there", all, []InputFacts{facts(0, gen1, last3, days, at(1, 1))}, nil, Incomplete, 0,
			"d/in0 has no partition 2024-01-03"},
		{"last 3: three there", all, []InputFacts{facts(0, gen1, last3, days, at(1, 1, 4))}, nil, Stale, 3, ""},

		{"latest: not there yet", all, []InputFacts{in(1), dim(nil)}, nil, Incomplete, 0,
			"d/in1 has no published partition"},
		{"latest: there", all, []InputFacts{in(1), dim(map[string]int64{"all": 1})}, nil, Stale, 2, ""},
		{"latest: newer stales nothing", all, []InputFacts{in(1), dim(map[string]int64{"all": 2})},
			madeOf("Published", 1, in(1), dim(map[string]int64{"all": 1})), Current, 2, ""},
		{"latest: with refresh it does", all, []InputFacts{in(1), refreshed(2)}, madeOf("Published", 1, in(1),
			refreshed(1)), Stale, 2, ""},
		{"latest: alone it makes nothing", all, []InputFacts{in(), refreshed(2)}, nil, Incomplete, 0,
			"d/in0 has no partition 2024-01-01"},

		{"all: one of two", all, []InputFacts{in(1), other()}, nil, Incomplete, 0, "d/in1 has no partition 2024-01-01"},
		{"all: both", all, []InputFacts{in(1), other(1)}, nil, Stale, 2, ""},
		{"all: the second is newer", all, []InputFacts{in(1), other(2)}, madeOf("Published", 1, in(1), other(1)),
			Stale, 2, ""},
		{"any: one of two", anyOf, []InputFacts{in(), other(1)}, nil, Stale, 1, ""},
		{"any: the other comes later", anyOf, []InputFacts{in(1), other(1)}, madeOf("Published", 1, other(1)), Stale,
			2, ""},
		{"any: one whose columns nobody knows", anyOf, []InputFacts{in(1), unknown}, nil, Incomplete, 0,
			"d/in1 has no published partition"},
		{"any: none", anyOf, []InputFacts{in(), other()}, nil, Incomplete, 0, "d/in0 has no partition 2024-01-01"},

		{"append: all there is, at first", appending, []InputFacts{whole(1, 1)}, nil, Stale, 2, ""},
		{"append: only what is new", appending, []InputFacts{whole(1, 1, 1)}, madeOf("Published", 1, whole(1, 1)),
			Stale, 1, ""},
		{"append: a newer revision is new", appending, []InputFacts{whole(1, 2)}, madeOf("Published", 1, whole(1, 1)),
			Stale, 1, ""},
		{"append: nothing new", appending, []InputFacts{whole(1, 1)}, madeOf("Published", 1, whole(1, 1)), Current, 0,
			""},
		{"append: a partition that is gone changes nothing", appending, []InputFacts{whole(1)},
			madeOf("Published", 1, whole(1, 1)), Current, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := decide(Target{&registry.Job{Def: c.job}, "2024-01-01"}, c.inputs, c.made)
			require.Equal(t, c.verdict, f.Verdict)
			require.Equal(t, c.missing, f.Missing)
			require.Equal(t, c.verdict == Stale, f.Dedupe != "")
			if c.verdict != Incomplete {
				require.Len(t, f.Pins, c.pins)
			}
		})
	}
}

func TestTheSameReadingIsTheSameTask(t *testing.T) {
	t.Parallel()
	job := &registry.Job{Def: dag.Job{Trigger: dag.TriggerAll}}
	same := dag.Mapping{Kind: dag.MapSame}
	in := func(g uuid.UUID, r int64) InputFacts {
		return facts(0, g, same, []string{"a"}, map[string]int64{"a": r})
	}
	key := func(made *registry.Made, inputs ...InputFacts) string {
		return decide(Target{job, "a"}, inputs, made).Dedupe
	}

	first := key(nil, in(gen1, 1))
	require.Equal(t, fmt.Sprintf("partition:%s:%s:a@1", gen1, gen1), first)
	require.Equal(t, first, key(nil, in(gen1, 1)))
	require.NotEqual(t, first, key(madeOf("Published", 1, in(gen1, 1)), in(gen1, 2)))

	// Reading one generation, then another, then the first again is new work each time.
	back := key(madeOf("Published", 2, in(gen2, 1)), in(gen1, 1))
	require.NotEqual(t, first, back)
	require.NotEqual(t, back, key(madeOf("Published", 4, in(gen2, 1)), in(gen1, 1)))
}

func TestDedupeKey(t *testing.T) {
	t.Parallel()
	p := registry.Pin{Input: 0, Dataset: gen1, Version: gen2, Key: "a", Revision: 3}
	q := registry.Pin{Input: 1, Dataset: gen1, Version: gen3, Key: "a", Revision: 1}
	require.Equal(t, fmt.Sprintf("partition:%s:%s:a@3", gen1, gen2), dedupeKey("a", []registry.Pin{p}))
	require.Equal(t, dedupeKey("a", []registry.Pin{p, q}), dedupeKey("a", []registry.Pin{q, p}),
		"order does not matter")
	p2 := p
	p2.Revision = 4
	keys := map[string]bool{}
	for _, k := range []string{dedupeKey("a", []registry.Pin{p}), dedupeKey("b", []registry.Pin{p}),
		dedupeKey("a", []registry.Pin{p, q}),
		dedupeKey("a", []registry.Pin{p2, q}), dedupeKey("b", []registry.Pin{p, q})} {
		keys[k] = true
	}
	require.Len(t, keys, 5)
}

func TestOvertaken(t *testing.T) {
	t.Parallel()
	pin := func(input int, g uuid.UUID, key string, revision int64, compared bool) registry.Pin {
		return registry.Pin{Input: input, Version: g, Key: key, Revision: revision, Compared: compared}
	}

	mine := []registry.Pin{pin(0, gen1, "a", 2, true), pin(1, gen2, "all", 5, false)}
	for name, c := range map[string]struct {
		made []registry.Pin
		want bool
	}{
		"nothing made":  {nil, false},
		"from older":    {[]registry.Pin{pin(0, gen1, "a", 1, true)}, false},
		"from the same": {[]registry.Pin{pin(0, gen1, "a", 2, true)}, false},
		"from newer":    {[]registry.Pin{pin(0, gen1, "a", 3, true)}, true},
		"from a newer dimension": {[]registry.Pin{pin(0, gen1, "a", 2, true), pin(1, gen2, "all", 6, false)},
			false},
		"from another partition":         {[]registry.Pin{pin(0, gen1, "b", 9, true)}, false},
		"from another generation":        {[]registry.Pin{pin(0, gen3, "a", 9, true)}, false},
		"from the same, through another": {[]registry.Pin{pin(1, gen1, "a", 9, true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, Overtaken(mine, c.made))
		})
	}
}

func TestOutputKeys(t *testing.T) {
	t.Parallel()
	published := map[uuid.UUID]map[string]int64{
		gen1: {"2024-01-01": 1, "2024-01-31": 2, "2024-02-01": 1},
		gen2: {"2024-03-01": 1},
	}
	input := func(m dag.Mapping) registry.JobInput {
		return registry.JobInput{Def: dag.Input{Map: m}, PartitionBy: day, Producer: "d/p"}
	}
	var (
		same    = input(dag.Mapping{Kind: dag.MapSame})
		ofMonth = input(dag.Mapping{Kind: dag.MapWindow, Window: dag.Month})
		lastTwo = input(dag.Mapping{Kind: dag.MapWindow, Last: 2})
		latest  = input(dag.Mapping{Kind: dag.MapLatest})
		days    = []string{"2024-01-01", "2024-01-31", "2024-02-01"}
	)

	for name, c := range map[string]struct {
		out    dag.Partitioning
		inputs []registry.JobInput
		want   []string
	}{
		"same":         {day, []registry.JobInput{same}, days},
		"into one":     {dag.Partitioning{}, []registry.JobInput{same}, []string{"all"}},
		"months":       {month, []registry.JobInput{ofMonth}, []string{"2024-01", "2024-02"}},
		"latest: none": {day, []registry.JobInput{latest}, []string{}},
		"last two": {day, []registry.JobInput{lastTwo},
			[]string{"2024-01-01", "2024-01-02", "2024-01-31", "2024-02-01", "2024-02-02"}},
		"of two inputs": {day, []registry.JobInput{same, same}, append(slices.Clone(days), "2024-03-01")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			job := &registry.Job{Def: dag.Job{PartitionBy: c.out}, Inputs: c.inputs}
			generations := make([]registry.InputGeneration, len(c.inputs))
			for i, version := range []uuid.UUID{gen1, gen2}[:len(c.inputs)] {
				generations[i].Version, generations[i].PartitionBy = version, day
			}
			require.Equal(t, c.want, outputKeys(job, generations, published))
		})
	}
}

func TestRevisionKeysAreThoseOfStoredTasks(t *testing.T) {
	t.Parallel()
	dataset, version := uuid.MustParse("0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69"), uuid.MustParse(
		"ffffffff-0000-7b0c-9a3e-1f2d3c4b5a6a")
	require.Equal(t, "partition:"+dataset.String()+":"+version.String()+":2026-01-01@17",
		RevisionKey(dataset, version, "2026-01-01", 17))
}
