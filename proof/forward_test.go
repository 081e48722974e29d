package proof_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// A forward-only deploy keeps existing partitions and computes new ones, whatever is deployed after it.

func forwardOnly(r *registry.DeployRequest) { r.ForwardOnly = true }

func forwardFrom(partition string) func(*registry.DeployRequest) {
	return func(r *registry.DeployRequest) { r.ForwardOnly, r.ForwardFrom = true, partition }
}

// lose removes a file from the landing folder.
func (w *world) lose(name string) {
	w.t.Helper()
	require.NoError(w.t, os.Remove(filepath.Join(w.landing, name)))
}

// change returns what a deploy does to a job's dataset.
func change(t *testing.T, d registry.Deployment, job string) registry.Change {
	t.Helper()
	i := slices.IndexFunc(d.Changes, func(c registry.Change) bool { return c.Job == job })
	require.GreaterOrEqual(t, i, 0, job)
	return d.Changes[i]
}

func TestForwardOnlyDeploysWithoutTheOldFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.drop("b.csv", "n\n2\n")
	w.start(w.d)
	first := w.serve(chain())
	w.serve(consumer)
	w.settle()
	w.lose("a.csv")
	edited := chain("format: csv", "format: csv, delimiter: ','")
	failing := w.deploy(edited)
	w.eventually("the build to fail", func() bool { status, _ := w.status(failing); return status == registry.Failed })
	_, reason := w.status(failing)
	require.Contains(t, reason, "--forward-only")

	made := w.count(`SELECT FROM tasks`)

	second := w.serve(edited, forwardOnly)
	require.NotEqual(t, failing.Version.ID, second.Version.ID)
	require.True(t, second.Version.ForwardOnly)
	require.Equal(t, map[string]string{"landing": "forward-only", "doubled": "forward-only", "summed": "forward-only"},
		actions(second.Changes))

	for _, job := range []string{"landing", "doubled", "summed"} {
		require.NotEqual(t, w.generation(first, job), w.generation(second, job))
		require.Equal(t, 2, change(t, second, job).Kept)
		require.Zero(t, *change(t, second, job).Partitions)
	}

	w.sweep()
	w.poll()
	w.settle()
	require.Equal(t, made, w.count(`SELECT FROM tasks`), "nothing was computed, here or by consumers")
	require.Equal(t, []string{"2", "4"}, w.read("summed"))
	require.Equal(t, []string{"2", "4"}, w.read("taken"))

	// The new definition reads new files and changed ones.
	w.drop("b.csv", "n\n20\n")
	w.drop("c.csv", "n\n3\n")
	w.poll()
	w.eventually("the news", func() bool { return slices.Equal([]string{"2", "40", "6"}, w.read("taken")) })
	w.settle()
	require.Equal(t, []string{"2", "40", "6"}, w.read("summed"))

	// The same document, with the flag or without, is the live version; and back and forth computes nothing but
	// news.
	again := w.deploy(edited)
	require.Equal(t, second.Version.ID, again.Version.ID)

	again = w.deploy(edited, forwardOnly)
	require.Equal(t, second.Version.ID, again.Version.ID)
	w.rollback("chain")
	w.sweep()
	w.poll()
	w.settle()
	require.Equal(t, []string{"2", "40", "6"}, w.read("summed"))

	again = w.serve(edited)
	require.Equal(t, second.Version.ID, again.Version.ID)
	w.sweep()
	require.Equal(t, []string{"2", "40", "6"}, w.read("taken"))
}

// days returns a DAG of a landing folder by day and two steps, the first of which is in the given storage.
func days(storage string, replace ...string) string {
	return strings.NewReplacer(replace...).Replace(`
name: days
jobs:
  - name: landing
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config: { path: ".", pattern: "{date}.csv", format: csv }
  - name: doubled
    operator: sql
    inputs: [{ from: { job: landing }, as: input }]
    execution_strategy: PerPartition
    storage: ` + storage + `
    config: { query: "SELECT n * 2 AS n FROM input" }
  - name: month
    operator: sql
    inputs: [{ from: { job: doubled }, as: input, map: { window: month, require: available } }]
    execution_strategy: PerPartition
    partition_by: { time: month }
    config: { query: "SELECT sum(n) AS n FROM input" }
  - name: total
    operator: sql
    inputs: [{ from: { job: doubled }, as: input }]
    partition_by: none
    config: { query: "SELECT sum(n) AS n FROM input" }
publish:
  doubled: { from: { job: doubled } }
  month: { from: { job: month } }
  total: { from: { job: total } }
`)
}

func TestForwardOnlyFromTheMiddleOfTheHistory(t *testing.T) {
	t.Parallel()
	for _, storage := range []string{"parquet", "{ postgres: {} }"} {
		t.Run(storage, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			for _, day := range []string{"2024-01-30", "2024-01-31", "2024-02-01", "2024-02-02"} {
				w.drop(day+".csv", "n\n1\n")
			}

			w.start(w.d)
			first := w.serve(days(storage))
			require.Equal(t, []string{"4", "4"}, w.read("month"))

			edited := days(storage, "n * 2", "n * 10")

			_, err := w.tryDeploy(edited, forwardFrom("yesterday"))
			require.True(t, fault.Is(err, fault.Invalid), "%v", err)
			require.ErrorContains(t, err, "yesterday")

			_, err = w.tryDeploy(edited, forwardFrom("2023-01-01"))
			require.True(t, fault.Is(err, fault.Invalid), "%v", err)
			require.ErrorContains(t, err, "nothing to keep")

			computed, months := len(w.tasks("doubled")), len(w.tasks("month"))
			second := w.serve(edited, forwardFrom("2024-02-02"))
			require.Equal(t, "2024-02-02", second.Version.ForwardFrom)
			require.Equal(t, map[string]string{"landing": "reuse", "doubled": "forward-only", "month": "forward-only",
				"total": "rebuild"}, actions(second.Changes))
			require.Equal(t, 3, change(t, second, "doubled").Kept)
			require.Equal(t, 1, *change(t, second, "doubled").Partitions)
			require.Equal(t, 1, change(t, second, "month").Kept)
			require.Equal(t, []string{"10", "2", "2", "2"}, w.read("doubled"))
			require.Equal(t, []string{"12", "4"}, w.read("month"))
			require.Equal(t, []string{"16"}, w.read("total"))

			w.sweep()
			require.Equal(t, computed+1, len(w.tasks("doubled")), "only the day after the bound")
			require.NotContains(t, w.tasks("month")[months:], "2024-01 Completed")

			if storage != "parquet" {
				require.Equal(t, []string{"10", "2", "2", "2"},
					w.texts(`SELECT n::text FROM data_acme.doubled ORDER BY 1`))
			}

			// Changed old files are read again by the live definition; a later day is computed as usual.
			w.drop("2024-01-30.csv", "n\n5\n")
			w.drop("2024-02-03.csv", "n\n1\n")
			w.poll()
			w.eventually("the news", func() bool {
				return slices.Equal([]string{"82"}, w.read("total")) || slices.Equal([]string{"74"}, w.read("total"))
			})

			w.settle()
			require.Equal(t, []string{"10", "10", "2", "2", "50"}, w.read("doubled"))
			require.Equal(t, []string{"22", "52"}, w.read("month"))

			// Back, forth, and then an edit that rebuilds only the last step.
			w.rollback("days")
			w.sweep()
			require.Equal(t, []string{"10", "2", "2", "2", "2"}, w.read("doubled"))

			w.serve(edited)
			w.sweep()
			require.Equal(t, []string{"10", "10", "2", "2", "50"}, w.read("doubled"))

			third := w.serve(strings.Replace(edited, "SELECT sum(n) AS n FROM input\" }\npublish",
				"SELECT 0 + sum(n) AS n FROM input\" }\npublish", 1))
			require.Equal(t, "reuse", actions(third.Changes)["doubled"])
			require.Equal(t, []string{"74"}, w.read("total"))

			// How to compute everything with the new definition after all.
			_, err = deploy.New(w.registry).Rematerialize(t.Context(), w.caller, "doubled",
				deploy.RematerializeRequest{})
			require.NoError(t, err)

			w.settle()
			w.sweep()
			require.Equal(t, []string{"10", "10", "10", "10", "50"}, w.read("doubled"))
			require.Equal(t, []string{"30", "60"}, w.read("month"))

			// A partition that was taken over does not need its origin.
			w.exec(`UPDATE dag_versions SET ended_at = now() - interval '30 days' WHERE number = 1`)
			_, err = w.d.Upkeep.CollectGarbage(t.Context(), w.caller, false, time.Now())
			require.NoError(t, err)
			require.Equal(t, 1, w.count(`SELECT FROM dataset_versions WHERE id = $1 AND cleared_at IS NOT NULL`,
				w.generation(first, "doubled")))

			v, err := w.d.Builds.Rollback(t.Context(), w.caller, "days",
				builds.RollbackRequest{To: &second.Version.Number})
			require.NoError(t, err)
			require.Equal(t, second.Version.ID, v.ID)
			w.sweep()
			require.Equal(t, []string{"10", "10", "2", "2", "50"}, w.read("doubled"))
		})
	}
}

func TestForwardOnlyIsRefusedWithoutPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("2024-01-30.csv", "n\n1\n")
	w.start(w.d)
	first := w.serve(days("parquet"))
	for name, test := range map[string]struct {
		yaml, from, why string
	}{
		"no partitions": {strings.Replace(days("parquet"), "SELECT sum(n) AS n FROM input\" }\npublish",
			"SELECT 0 + sum(n) AS n FROM input\" }\npublish", 1), "",
			"the jobs that this deploy rebuilds have none: total"},
		"no such partition": {days("parquet", "n * 2", "n * 3"), "2024-13-01", "2024-13-01"},
		"another storage":   {days("{ postgres: {} }"), "", "is in parquet storage and is to be in postgres storage"},
		"another partition": {days("parquet", "partition_by: { time: month }", "partition_by: { time: week }",
			"window: month", "window: week"), "", "its partitions cannot stay"},
		"nothing that is old": {days("parquet", "n * 2", "n * 3"), "2023-12-31", "there is nothing to keep"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.tryDeploy(test.yaml, forwardFrom(test.from))
			require.True(t, fault.Is(err, fault.Invalid), "%v", err)
			require.ErrorContains(t, err, test.why)
		})
	}
	require.Equal(t, 1, w.count(`SELECT FROM dag_versions`))

	// If nothing is rebuilt there is nothing to bound, and the flag does no harm.
	again := w.deploy(days("parquet"), forwardOnly)
	require.Equal(t, first.Version.ID, again.Version.ID)

	second := w.serve(days("parquet", "n * 2", "n * 3"), forwardFrom("2024-01-31"))
	require.True(t, second.Version.ForwardOnly)
	_, err := w.tryDeploy(days("parquet", "n * 2", "n * 3"), forwardFrom("2024-01-30"))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}
