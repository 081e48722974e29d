package dispatcher

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Generations and datasets of the tables below.
var (
	gen1, gen2, gen3 = uuid.MustParse("00000000-0000-0000-0000-000000000001"), uuid.MustParse("00000000-0000-0000-0000-000000000002"), uuid.MustParse("00000000-0000-0000-0000-000000000003")
	day              = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "UTC"}
	month            = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Month, Timezone: "UTC"}
)

// facts is an input at generation g that wants partitions and has some of them.
func facts(index int, g uuid.UUID, m dag.Mapping, wanted []string, published map[string]int64) inputFacts {
	return inputFacts{index: index, def: dag.Input{Map: m}, dataset: g, generation: g, producer: fmt.Sprintf("d/in%d", index),
		wanted: wanted, all: wanted == nil, published: published}
}

func madeOf(state string, revision int64, inputs ...inputFacts) *registry.Made {
	m := &registry.Made{State: state, Revision: revision}
	for _, in := range inputs {
		m.Pins = append(m.Pins, in.pins()...)
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
	in := func(revisions ...int64) inputFacts { return facts(0, gen1, same, d1, at(revisions...)) }
	other := func(revisions ...int64) inputFacts { return facts(1, gen2, same, d1, at(revisions...)) }
	dim := func(published map[string]int64) inputFacts { return facts(1, gen2, latest, nil, published) }
	refreshed := func(revision int64) inputFacts {
		f := dim(map[string]int64{"all": revision})
		f.def.Refresh = true
		return f
	}
	appending := dag.Job{Trigger: dag.TriggerAny, UpdateStrategy: dag.Append, Inputs: []dag.Input{{Map: same}}}
	whole := func(revisions ...int64) inputFacts { return facts(0, gen1, same, nil, at(revisions...)) }

	for _, c := range []struct {
		name    string
		job     dag.Job
		inputs  []inputFacts
		made    *registry.Made
		verdict verdict
		pins    int
		missing string
	}{
		{"same: nothing there", all, []inputFacts{in()}, nil, incomplete, 0, "d/in0 has no partition 2024-01-01"},
		{"same: never made", all, []inputFacts{in(1)}, nil, stale, 1, ""},
		{"same: made from it", all, []inputFacts{in(1)}, madeOf("Published", 1, in(1)), current, 1, ""},
		{"same: newer", all, []inputFacts{in(2)}, madeOf("Published", 1, in(1)), stale, 1, ""},
		{"same: the newest is held", all, []inputFacts{in(1)}, madeOf("Held", 1, in(1)), current, 1, ""},
		{"same: the newest was rejected", all, []inputFacts{in(1)}, madeOf("Rejected", 1, in(1)), current, 1, ""},
		{"same: newer than what was rejected", all, []inputFacts{in(2)}, madeOf("Rejected", 1, in(1)), stale, 1, ""},
		{"same: another generation at the same revision", all, []inputFacts{facts(0, gen3, same, d1, at(1))}, madeOf("Published", 1, in(1)), stale, 1, ""},
		{"same: a generation gone back to", all, []inputFacts{in(1)}, madeOf("Published", 2, facts(0, gen3, same, d1, at(7))), stale, 1, ""},

		{"window: incomplete", all, []inputFacts{facts(0, gen1, window, days, at(1, 0, 1))}, nil, incomplete, 0, "d/in0 has no partition 2024-01-02"},
		{"window: complete", all, []inputFacts{facts(0, gen1, window, days, at(1, 1, 1))}, nil, stale, 3, ""},
		{"window: one newer", all, []inputFacts{facts(0, gen1, window, days, at(1, 2, 1))}, madeOf("Published", 1, facts(0, gen1, window, days, at(1, 1, 1))), stale, 3, ""},
		{"window: available", all, []inputFacts{facts(0, gen1, some, days, at(1, 0, 1))}, nil, stale, 2, ""},
		{"window: one more available", all, []inputFacts{facts(0, gen1, some, days, at(1, 1, 1))}, madeOf("Published", 1, facts(0, gen1, some, days, at(1, 0, 1))), stale, 3, ""},
		{"window: one gone", all, []inputFacts{facts(0, gen1, some, days, at(1, 0, 1))}, madeOf("Published", 1, facts(0, gen1, some, days, at(1, 1, 1))), stale, 2, ""},
		{"window: none available", all, []inputFacts{facts(0, gen1, some, days, at())}, nil, incomplete, 0, "d/in0 has no partition 2024-01-01"},
		{"last 3: two there", all, []inputFacts{facts(0, gen1, last3, days, at(1, 1))}, nil, incomplete, 0, "d/in0 has no partition 2024-01-03"},
		{"last 3: three there", all, []inputFacts{facts(0, gen1, last3, days, at(1, 1, 4))}, nil, stale, 3, ""},

		{"latest: not there yet", all, []inputFacts{in(1), dim(nil)}, nil, incomplete, 0, "d/in1 has no published partition"},
		{"latest: there", all, []inputFacts{in(1), dim(map[string]int64{"all": 1})}, nil, stale, 2, ""},
		{"latest: newer stales nothing", all, []inputFacts{in(1), dim(map[string]int64{"all": 2})}, madeOf("Published", 1, in(1), dim(map[string]int64{"all": 1})), current, 2, ""},
		{"latest: with refresh it does", all, []inputFacts{in(1), refreshed(2)}, madeOf("Published", 1, in(1), refreshed(1)), stale, 2, ""},
		{"latest: alone it makes nothing", all, []inputFacts{in(), refreshed(2)}, nil, incomplete, 0, "d/in0 has no partition 2024-01-01"},

		{"all: one of two", all, []inputFacts{in(1), other()}, nil, incomplete, 0, "d/in1 has no partition 2024-01-01"},
		{"all: both", all, []inputFacts{in(1), other(1)}, nil, stale, 2, ""},
		{"all: the second is newer", all, []inputFacts{in(1), other(2)}, madeOf("Published", 1, in(1), other(1)), stale, 2, ""},
		{"any: one of two", anyOf, []inputFacts{in(), other(1)}, nil, stale, 1, ""},
		{"any: the other comes later", anyOf, []inputFacts{in(1), other(1)}, madeOf("Published", 1, other(1)), stale, 2, ""},
		{"any: none", anyOf, []inputFacts{in(), other()}, nil, incomplete, 0, "d/in0 has no partition 2024-01-01"},

		{"append: all there is, at first", appending, []inputFacts{whole(1, 1)}, nil, stale, 2, ""},
		{"append: only what is new", appending, []inputFacts{whole(1, 1, 1)}, madeOf("Published", 1, whole(1, 1)), stale, 1, ""},
		{"append: a newer revision is new", appending, []inputFacts{whole(1, 2)}, madeOf("Published", 1, whole(1, 1)), stale, 1, ""},
		{"append: nothing new", appending, []inputFacts{whole(1, 1)}, madeOf("Published", 1, whole(1, 1)), current, 0, ""},
		{"append: a partition that is gone changes nothing", appending, []inputFacts{whole(1)}, madeOf("Published", 1, whole(1, 1)), current, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := decide(target{&registry.Job{Def: c.job}, "2024-01-01"}, c.inputs, c.made)
			require.Equal(t, c.verdict, f.verdict)
			require.Equal(t, c.missing, f.missing)
			require.Equal(t, c.verdict == stale, f.dedupe != "")
			if c.verdict != incomplete {
				require.Len(t, f.pins, c.pins)
			}
		})
	}
}

func TestTheSameReadingIsTheSameTask(t *testing.T) {
	t.Parallel()
	job := &registry.Job{Def: dag.Job{Trigger: dag.TriggerAll}}
	same := dag.Mapping{Kind: dag.MapSame}
	in := func(g uuid.UUID, r int64) inputFacts {
		return facts(0, g, same, []string{"a"}, map[string]int64{"a": r})
	}
	key := func(made *registry.Made, inputs ...inputFacts) string {
		return decide(target{job, "a"}, inputs, made).dedupe
	}
	first := key(nil, in(gen1, 1))
	require.Equal(t, fmt.Sprintf("partition:%s:%s:a@1", gen1, gen1), first)
	require.Equal(t, first, key(nil, in(gen1, 1)))
	require.NotEqual(t, first, key(madeOf("Published", 1, in(gen1, 1)), in(gen1, 2)))
	// Read, then another generation read, then the first again: that is new work each time.
	back := key(madeOf("Published", 2, in(gen2, 1)), in(gen1, 1))
	require.NotEqual(t, first, back)
	require.NotEqual(t, back, key(madeOf("Published", 4, in(gen2, 1)), in(gen1, 1)))
}

func TestDedupeKey(t *testing.T) {
	t.Parallel()
	p := registry.Pin{Input: 0, Dataset: gen1, Version: gen2, Key: "a", Revision: 3}
	q := registry.Pin{Input: 1, Dataset: gen1, Version: gen3, Key: "a", Revision: 1}
	require.Equal(t, fmt.Sprintf("partition:%s:%s:a@3", gen1, gen2), dedupeKey("a", []registry.Pin{p}))
	require.Equal(t, dedupeKey("a", []registry.Pin{p, q}), dedupeKey("a", []registry.Pin{q, p}), "order does not matter")
	p2 := p
	p2.Revision = 4
	keys := map[string]bool{}
	for _, k := range []string{dedupeKey("a", []registry.Pin{p}), dedupeKey("b", []registry.Pin{p}), dedupeKey("a", []registry.Pin{p, q}),
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
		"nothing made":                   {nil, false},
		"from older":                     {[]registry.Pin{pin(0, gen1, "a", 1, true)}, false},
		"from the same":                  {[]registry.Pin{pin(0, gen1, "a", 2, true)}, false},
		"from newer":                     {[]registry.Pin{pin(0, gen1, "a", 3, true)}, true},
		"from a newer dimension":         {[]registry.Pin{pin(0, gen1, "a", 2, true), pin(1, gen2, "all", 6, false)}, false},
		"from another partition":         {[]registry.Pin{pin(0, gen1, "b", 9, true)}, false},
		"from another generation":        {[]registry.Pin{pin(0, gen3, "a", 9, true)}, false},
		"from the same, through another": {[]registry.Pin{pin(1, gen1, "a", 9, true)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, overtaken(mine, c.made))
		})
	}
}

func TestOutputKeys(t *testing.T) {
	t.Parallel()
	published := map[uuid.UUID]map[string]int64{
		gen1: {"2024-01-01": 1, "2024-01-31": 2, "2024-02-01": 1},
		gen2: {"2024-03-01": 1},
	}
	input := func(m dag.Mapping, p dag.Partitioning) registry.JobInput {
		return registry.JobInput{Def: dag.Input{Map: m}, PartitionBy: p, Producer: "d/p"}
	}
	for name, c := range map[string]struct {
		out    dag.Partitioning
		inputs []registry.JobInput
		want   []string
	}{
		"same":          {day, []registry.JobInput{input(dag.Mapping{Kind: dag.MapSame}, day)}, []string{"2024-01-01", "2024-01-31", "2024-02-01"}},
		"into one":      {dag.Partitioning{}, []registry.JobInput{input(dag.Mapping{Kind: dag.MapSame}, day)}, []string{"all"}},
		"months":        {month, []registry.JobInput{input(dag.Mapping{Kind: dag.MapWindow, Window: dag.Month}, day)}, []string{"2024-01", "2024-02"}},
		"last two":      {day, []registry.JobInput{input(dag.Mapping{Kind: dag.MapWindow, Last: 2}, day)}, []string{"2024-01-01", "2024-01-02", "2024-01-31", "2024-02-01", "2024-02-02"}},
		"latest: none":  {day, []registry.JobInput{input(dag.Mapping{Kind: dag.MapLatest}, day)}, []string{}},
		"of two inputs": {day, []registry.JobInput{input(dag.Mapping{Kind: dag.MapSame}, day), input(dag.Mapping{Kind: dag.MapSame}, day)}, []string{"2024-01-01", "2024-01-31", "2024-02-01", "2024-03-01"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			keys, err := outputKeys(&registry.Job{Def: dag.Job{PartitionBy: c.out}, Inputs: c.inputs}, []storage.Generation{{Version: gen1}, {Version: gen2}}[:len(c.inputs)], published)
			require.NoError(t, err)
			require.Equal(t, c.want, keys)
		})
	}
}
