package proof_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// A deploy that rebuilds nothing may overtake a running build; any other two deploys exclude each other.

// settings are edits of chain that rebuild nothing. stuckBuild is an edit whose last step waits for a runtime that
// nobody serves.
var (
	settings = []string{"operator: file_source", "operator: file_source\n    max_attempts: 7",
		"summed: { from: { job: summed } }", "summed: { from: { job: summed }, description: the sum }"}
	stuckBuild = append(slices.Clone(tripled), "- name: summed\n", "- name: summed\n    runtime: elsewhere\n")
)

func (w *world) base(d registry.Deployment) (number int) {
	w.t.Helper()
	w.one(`SELECT coalesce((SELECT number FROM dag_versions b WHERE b.id = v.base_version_id), 0) FROM dag_versions v
		WHERE v.id = $1`, d.Version.ID)(&number)
	return number
}

func (w *world) activeVersion(dag string) (number int) {
	w.t.Helper()
	w.one(`SELECT v.number FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id
		WHERE c.dag_name = $1`, dag)(&number)
	return number
}

func TestADeployThatRebuildsNothingOvertakesABuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	w.serve(chain())
	building := w.deploy(chain(stuckBuild...))
	require.Equal(t, 1, w.base(building))

	hotfix := chain(settings...)
	plan, err := w.d.Views.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: hotfix})
	require.NoError(t, err)
	require.Equal(t, &registry.Meeting{Version: 2, Status: registry.Building, Outcome: deploy.BuildPassed},
		plan.Meets)

	blocked, err := w.d.Views.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: chain(counted...)})
	require.NoError(t, err)
	require.Equal(t, deploy.BuildBlocks, blocked.Meets.Outcome)

	_, err = w.tryDeploy(chain(counted...))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = w.tryDeploy(hotfix, parked)
	require.True(t, fault.Is(err, fault.Conflict), "a deploy that does not activate overtakes nothing: %v", err)

	passing := w.serve(hotfix)
	require.Equal(t, deploy.BuildPassed, passing.Meets.Outcome)
	require.Equal(t, 3, w.activeVersion("chain"))

	status, reason := w.status(building)
	require.Equal(t, registry.Building, status, reason)
	require.Equal(t, 3, w.base(building))

	// The live version runs the jobs of both versions, and both get the results.
	w.drop("b.csv", "n\n2\n")
	w.poll()
	w.eventually("the news", func() bool { return slices.Equal([]string{"2", "4"}, w.read("summed")) })
	require.Equal(t, 1,
		w.count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = 'landing' AND t.max_attempts = 7`))

	// After a rollback the build would replace the version rolled back to, but waits, and deploying again overtakes it
	// once more.
	w.rollback("chain")
	require.Equal(t, 1, w.base(building))

	w.serve(hotfix)
	require.Equal(t, 3, w.base(building))

	w.start(w.dispatcher("elsewhere", runtimes[1]))
	w.reach(building, registry.Ready)
	require.Equal(t, 3, w.activeVersion("chain"))
	_, err = w.d.Builds.Promote(t.Context(), w.caller, "chain", 2)
	require.NoError(t, err)
	w.reach(building, registry.Active)
	require.Equal(t, []string{"3", "6"}, w.read("summed"))
	require.Equal(t, []string{"2 from 3"}, w.texts(`SELECT format('%s from %s', v.number, f.number)
		FROM dag_activations a
		JOIN dag_versions v ON v.id = a.dag_version_id JOIN dag_versions f ON f.id = a.from_version_id
			ORDER BY a.id DESC LIMIT 1`))
	require.Equal(t, 3, w.rollback("chain").Number)
	require.Equal(t, []string{"2", "4"}, w.read("summed"))
	require.Equal(t, 2, w.rollback("chain").Number)

	w.sweep()
	require.Equal(t, []string{"3", "6"}, w.read("summed"))
}

func TestAnOvertakingDeployIsCheckedAndNotOvertaken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	stop := w.start(w.d)
	w.serve(chain())
	checked := func(sql string) string {
		return chain("config: { query: \"SELECT n * 2", "checks: [{ name: probe, sql: \""+sql+
			"\" }]\n    config: { query: \"SELECT n * 2")
	}

	building := w.deploy(chain(stuckBuild...))
	failing := w.deploy(checked("SELECT * FROM output"))
	require.Equal(t, deploy.BuildPassed, failing.Meets.Outcome)

	w.eventually("the check to fail", func() bool { status, _ := w.status(failing); return status == registry.Failed })
	status, reason := w.status(building)
	require.Equal(t, registry.Building, status, reason)
	require.Equal(t, 1, w.activeVersion("chain"))

	// Nobody works, so the next deploy stays pending: it is not overtaken, or the older would follow the newer.
	stop()
	passing := w.deploy(checked("SELECT * FROM output WHERE n < 0"))
	_, err := w.tryDeploy(chain(settings...))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "version 4 of chain is Building")

	w.start(w.dispatcher("second", runtimes...))
	w.reach(passing, registry.Active)
	w.reach(building, registry.Active)
	require.Equal(t, []string{"3"}, w.read("summed"))
}

func TestDeploysOfOneDAGAtOnceExcludeEachOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.drop("b.csv", "n\n2\n")
	w.start(w.d)
	w.start(w.dispatcher("second", runtimes[0]))
	w.serve(chain())

	for round, change := range [][]func(*registry.DeployRequest){nil, {superseding}} {
		var all sync.WaitGroup
		deployments, errs := make([]registry.Deployment, 4), make([]error, 4)
		for i := range deployments {
			all.Go(func() {
				factor := fmt.Sprintf("n * %d0 AS n", 10*round+i+1)
				deployments[i], errs[i] = w.tryDeploy(chain("n * 2 AS n", factor), change...)
			})
		}

		all.Wait()
		won, last := 0, -1
		for i, err := range errs {
			if err != nil {
				require.True(t, fault.Is(err, fault.Conflict), "%v", err)
				continue
			}
			won++
			if last < 0 || deployments[last].Version.Number < deployments[i].Version.Number {
				last = i
			}
		}

		if change == nil {
			require.GreaterOrEqual(t, won, 1) // more if the one before was already active
		} else {
			require.Equal(t, 4, won)
		}

		w.reach(deployments[last], registry.Active)
		w.settle()
		n := (10*round + last + 1) * 10
		want := []string{fmt.Sprint(n), fmt.Sprint(2 * n)}
		slices.Sort(want)
		require.Equal(t, want, w.read("doubled"))
		require.Equal(t, want, w.read("summed"), "all of one version")
		require.Equal(t, 1, w.count(`SELECT FROM dag_versions WHERE status IN ('Active', 'Building', 'Ready')`))

		// Each activation replaced the version that was active just before it.
		require.Zero(t, w.count(`SELECT FROM (SELECT from_version_id, lag(dag_version_id) OVER (ORDER BY at,
			id) AS before FROM dag_activations) AS a
			WHERE from_version_id IS DISTINCT FROM before`))
	}
}

func TestSeveralDAGsBuildAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.drop("a.csv", "n\n1\n")
	w.start(w.d)
	named := func(name string, replace ...string) string {
		return strings.NewReplacer("name: chain\n", "name: "+name+"\n", "  landed:", "  landed_"+name+":",
			"  doubled: {", "  doubled_"+name+": {",
			"  summed: {", "  summed_"+name+": {").Replace(chain(replace...))
	}

	names := []string{"one", "two", "three", "four"}
	var first, second []registry.Deployment
	for _, name := range names {
		first = append(first, w.deploy(named(name)))
	}

	for _, d := range first {
		w.reach(d, registry.Active)
	}
	for _, name := range names {
		second = append(second, w.deploy(named(name, stuckBuild...)))
	}

	w.eventually("all to be half built", func() bool {
		return w.count(`SELECT FROM ready r JOIN jobs j ON j.id = r.origin_job_id WHERE j.name = 'summed'`) == len(names)
	})
	require.Equal(t, len(names), w.count(`SELECT FROM dag_versions WHERE status = 'Building'`))

	for _, name := range names {
		require.Equal(t, []string{"2"}, w.read("summed_"+name))
	}
	w.start(w.dispatcher("elsewhere", runtimes[1]))
	for i, d := range second {
		w.reach(d, registry.Active)
		require.Equal(t, []string{"3"}, w.read("summed_"+names[i]))
	}
}
