package deploy

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

func TestPlanComparesPointerSets(t *testing.T) {
	t.Parallel()
	g1, g2 := uuid.MustParse("00000000-0000-0000-0000-000000000001"),
		uuid.MustParse("00000000-0000-0000-0000-000000000002")
	output := func(job string, index int, g uuid.UUID, config string, exists bool) planned {
		id := uuid.NewSHA1(uuid.Nil, fmt.Appendf(nil, "%s/%d", job, index))
		return planned{job: job, output: index, id: id, dataset: "d/" + job, generation: g, configHash: config,
			exists: exists}
	}
	renamed := output("a", 0, g1, "x", true)
	renamed.job = "b"
	forced := output("a", 0, g2, "x", false)
	forced.epoch = 1
	reset := forced
	reset.reset = true
	for _, c := range []struct {
		name       string
		live, next []planned
		want       []string // job action: reason
	}{
		{"nothing to nothing", nil, nil, []string{}},
		{"new", nil, []planned{output("a", 0, g1, "x", false)}, []string{"a create: new"}},
		{"new, but made before", nil, []planned{output("a", 0, g1, "x", true)},
			[]string{"a swap-only: an earlier version made it"}},
		{"the same", []planned{output("a", 0, g1, "x", true)}, []planned{output("a", 0, g1, "x", true)},
			[]string{"a reuse: same definition"}},
		{"the same, and still empty", []planned{output("a", 0, g1, "x", false)},
			[]planned{output("a", 0, g1, "x", false)}, []string{"a reuse: same definition"}},
		{"its definition changed", []planned{output("a", 0, g1, "x", true)}, []planned{output("a", 0, g2, "y", false)},
			[]string{"a rebuild: definition changed"}},
		{"its upstream changed", []planned{output("a", 0, g1, "x", true)}, []planned{output("a", 0, g2, "x", false)},
			[]string{"a rebuild: upstream changed"}},
		{"renamed", []planned{output("a", 0, g1, "x", true)}, []planned{renamed}, []string{"b reuse: same definition"}},
		{"rematerialized", []planned{output("a", 0, g1, "x", true)}, []planned{forced}, []string{"a rebuild: forced"}},
		{"reset", []planned{output("a", 0, g1, "x", true)}, []planned{reset}, []string{"a rebuild: outputs reset"}},
		{"gone back to", []planned{output("a", 0, g1, "x", true)}, []planned{output("a", 0, g2, "y", true)},
			[]string{"a swap-only: an earlier version made it"}},
		{"removed, in order", []planned{output("c", 0, g1, "x", true), output("b", 1, g1, "x", true),
			output("b", 0, g2, "x", true)}, []planned{output("a", 0, g1, "x", false)},
			[]string{"a create: new", "b remove: job b is no longer in the document",
				"b remove: job b is no longer in the document", "c remove: job c is no longer in the document"}},
		{"another output of a job that stays", []planned{output("a", 0, g1, "x", true)},
			[]planned{output("a", 0, g1, "x", true), output("a", 1, g2, "x", false)},
			[]string{"a reuse: same definition", "a create: new"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			got := []string{}
			for _, change := range plan(c.live, c.next) {
				got = append(got, change.Job+" "+change.Action+": "+change.Reason)
			}
			require.Equal(t, c.want, got)
		})
	}
}
