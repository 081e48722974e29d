package deploy

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/registry"
)

// TestBehind compares what a partition was made from with what its inputs have.
func TestBehind(t *testing.T) {
	t.Parallel()
	const day = "2026-01-01"
	orders, output := uuid.MustParse("00000000-0000-0000-0000-000000000001"),
		uuid.MustParse("00000000-0000-0000-0000-000000000002")
	other := uuid.MustParse("00000000-0000-0000-0000-000000000003")
	pin := func(version uuid.UUID, revision int64, compared bool) []registry.Pin {
		return []registry.Pin{{Version: version, Key: day, Revision: revision, Compared: compared}}
	}

	for name, c := range map[string]struct {
		made      *registry.Made
		published int64 // revision of the input's partition; 0: it does not exist
		appends   bool  // the job reads only what is new
		want      bool
	}{
		"never made":                        {nil, 1, false, true},
		"made from the present revision":    {&registry.Made{Pins: pin(orders, 1, true)}, 1, false, false},
		"made from an older revision":       {&registry.Made{Pins: pin(orders, 1, true)}, 2, false, true},
		"made from a newer revision":        {&registry.Made{Pins: pin(orders, 2, true)}, 1, false, true},
		"made from another generation":      {&registry.Made{Pins: pin(other, 1, true)}, 1, false, true},
		"made from a partition that went":   {&registry.Made{Pins: pin(orders, 1, true)}, 0, false, true},
		"read without being compared":       {&registry.Made{Pins: pin(orders, 1, false)}, 1, false, true},
		"appended, from an older revision":  {&registry.Made{Pins: pin(orders, 1, true)}, 2, true, true},
		"appended, from a newer revision":   {&registry.Made{Pins: pin(orders, 2, true)}, 1, true, false},
		"appended, from what went":          {&registry.Made{Pins: pin(orders, 1, true)}, 0, true, false},
		"inherited, from another partition": {&registry.Made{Inherited: true}, 1, false, false},
		"inherited, from an older revision": {&registry.Made{Inherited: true, Pins: pin(orders, 1, true)},
			2, false, true},
		"inherited, from what went": {&registry.Made{Inherited: true, Pins: pin(orders, 1, true)},
			0, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			byDay := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "UTC"}
			job := dag.Job{Name: "daily", Outputs: []string{"0"}, PartitionBy: byDay,
				Inputs: []dag.Input{{Dataset: "orders", Map: dag.Mapping{Kind: dag.MapSame}}}}
			if c.appends {
				job.UpdateStrategy, job.Inputs[0].Read = dag.Append, dag.ReadNew
			}
			b := &behind{
				forecast: &forecast{doc: &dag.Document{Jobs: []dag.Job{job}}, done: map[string]partitions{},
					foreign: map[string]partitions{"orders": {}}, shapes: map[string]dag.Partitioning{"orders": byDay}},
				generations: map[outputRef]uuid.UUID{{"daily", 0}: output},
				elsewhere:   map[string]uuid.UUID{"orders": orders},
				published:   map[uuid.UUID]map[string]int64{orders: {}},
				made:        map[registry.Ref]registry.Made{},
				known:       map[registry.Ref]bool{},
			}
			if c.published > 0 {
				b.published[orders][day] = c.published
			}
			if c.made != nil {
				b.made[registry.Ref{Version: output, Key: day}] = *c.made
			}

			require.Equal(t, c.want, b.wants(&job, day))
		})
	}
}
