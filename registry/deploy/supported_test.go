package deploy

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

func TestWhatTheEngineDoesNotDoIsRefused(t *testing.T) {
	t.Parallel()
	job := func(change func(*dag.Job)) *dag.Document {
		j := dag.Job{Name: "j", Source: &dag.Source{Kind: "poll"},
			Position: dag.Position{File: "dag.yaml", Line: 3, Column: 5}}
		change(&j)
		return &dag.Document{Name: "d", Jobs: []dag.Job{j}}
	}
	for name, doc := range map[string]*dag.Document{
		"cursor of units": job(func(j *dag.Job) { j.PartitionBy.Kind, j.Operator = dag.ByCursor, "lists" }),
		"cursor of a job": job(func(j *dag.Job) { j.PartitionBy.Kind, j.Source = dag.ByCursor, nil }),
		"cursor in Postgres": job(func(j *dag.Job) {
			j.PartitionBy.Kind, j.Storage = dag.ByCursor,
				[]dag.Storage{{Kind: "postgres"}}
		}),
		"cursor, appended": job(func(j *dag.Job) { j.PartitionBy.Kind, j.UpdateStrategy = dag.ByCursor, dag.Append }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := refuseUnserved(doc, map[string]dag.OperatorSpec{"lists": {Replayable: true}})
			require.True(t, fault.Is(err, fault.Invalid), "%v", err)
			require.ErrorContains(t, err, "this server")
		})
	}
	for _, kind := range []string{"cron", "poll", "manual", "webhook", "timer", "always_on"} {
		require.NoError(t, refuseUnserved(job(func(j *dag.Job) { j.Source.Kind = kind }), nil))
	}
	require.NoError(t, refuseUnserved(job(func(j *dag.Job) { j.PartitionBy.Kind = dag.ByCursor }), nil))
}
