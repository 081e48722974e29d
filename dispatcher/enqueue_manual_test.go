package dispatcher

import (
	"testing"
	"time"

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

// A task of a job with partitions says which one it makes, and the refusal names one that it could be.
func TestATaskNamesItsPartition(t *testing.T) {
	t.Parallel()
	job := &registry.Job{DAG: "tz", Name: "q", Outputs: make([]registry.OutputGeneration, 1),
		Def: dag.Job{PartitionBy: dag.Partitioning{Kind: dag.ByTime, Unit: dag.TimeUnit("day")}}}
	now := time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)
	require.Equal(t, "the job makes day partitions, and each task one of them: say which (`--partition KEY`), such as "+
		"2026-01-31", wrongPartition(job, dag.WholeKey, now))
	require.Empty(t, wrongPartition(job, "2026-01-31", now))
	require.Contains(t, wrongPartition(job, "2026", now), "is not a day")
}
