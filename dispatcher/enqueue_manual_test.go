package dispatcher

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// Who makes tasks by hand for a job that takes none hears where its tasks come from, and what to do in place of it.
func TestWhereTasksComeFrom(t *testing.T) {
	t.Parallel()
	for kind, wants := range map[string][]string{
		"":          {"from its inputs", "dagctl backfill sales/daily"},
		"timer":     {"from timers", "dagctl timers create sales/daily --at"},
		"webhook":   {"from deliveries", "dagctl why sales/daily"},
		"always_on": {"from its own run", "dagctl why sales/daily"},
		"poll":      {"from its schedule", "dagctl run sales/daily"},
		"cron":      {"from its schedule", "dagctl run sales/daily"},
	} {
		job := &registry.Job{DAG: "sales", Name: "daily", Def: dag.Job{}}
		if kind != "" {
			job.Def.Source = &dag.Source{Kind: kind}
		}
		for _, want := range wants {
			require.Contains(t, fault.Text(notManual(job)), want, kind)
		}
	}
}
