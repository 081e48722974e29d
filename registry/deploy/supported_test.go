package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
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

// A plan whose time is over looks at no more jobs, however many there are.
func TestAPlanEndsWithItsTime(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancelCause(t.Context())
	looked := 0
	slow := dag.OperatorSpec{Name: "slow", Version: "1", Source: true, ConfigSchema: json.RawMessage(`{"type": "object"}`),
		Canonical: func(config map[string]any) (any, *dag.ConfigError) {
			looked++
			end(nil)
			return config, nil
		}}
	catalog := dag.Catalog{Runtimes: []string{"dispatcher"}, Operators: map[string]dag.OperatorSpec{"slow": slow}}
	text := "name: many\njobs:\n"
	for i := range 100 {
		text += fmt.Sprintf("  - {name: j%d, operator: slow, source: {kind: manual}, config: {n: %d}}\n", i, i)
	}

	dp := &Deployer{catalog: catalog, registry: &registry.Registry{}}
	err := dp.define(ctx, authz.Caller{}, "many", registry.DeployRequest{YAML: text}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, looked)
}
