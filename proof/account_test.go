package proof_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// account compares a deploy's plan with what ran: the partitions that the plan said it would compute, and those that
// tasks did compute. The two sets are the same, apart from data that arrives after the plan was made: a file that is
// read later makes tasks of its own, only for the partitions that it feeds.
type account struct {
	deployed registry.Deployment
	planned  map[string]bool      // "job partition"
	jobs     map[uuid.UUID]string // by origin, those whose datasets are not live already
	before   map[uuid.UUID]string // tasks that had ended before the deploy
	after    map[uuid.UUID]string // tasks that had ended when it was answered
	landed   map[string]int64     // what had been read before the deploy: revisions by partition
}

// accounted deploys and opens the account of the deploy.
func (w *world) accounted(yaml string, change ...func(*registry.DeployRequest)) *account {
	w.t.Helper()
	a := &account{landed: w.landedRevisions(), before: w.ended(), planned: map[string]bool{},
		jobs: map[uuid.UUID]string{}}
	moves := func(r *registry.DeployRequest) { r.AllowMoves = true }
	a.deployed = w.deploy(yaml, append(slices.Clone(change), moves)...)
	a.after = w.ended()
	for _, c := range a.deployed.Changes {
		if c.Action == deploy.Reuse || c.Action == deploy.Remove {
			continue
		}
		a.jobs[c.Origin] = c.Job
		for _, key := range c.Keys {
			a.planned[c.Job+" "+key] = true
		}
	}
	return a
}

// ended returns the tasks that computed something, each as "origin partition".
func (w *world) ended() map[uuid.UUID]string {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `
		SELECT id, concat_ws(' ', job_id, partitions[1]) FROM tasks WHERE status = 'Completed' AND kind <> 'check'`)
	require.NoError(w.t, err)
	found := map[uuid.UUID]string{}
	var id uuid.UUID
	var unit string
	_, err = pgx.ForEachRow(rows, []any{&id, &unit}, func() error { found[id] = unit; return nil })
	require.NoError(w.t, err)
	return found
}

// landedRevisions returns the revisions of the source's partitions.
func (w *world) landedRevisions() map[string]int64 {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(), `
		SELECT p.partition_key, max(p.revision) FROM partition_versions p JOIN datasets d ON d.id = p.dataset_uuid
		WHERE d.name = 'landed' GROUP BY 1`)
	require.NoError(w.t, err)
	found := map[string]int64{}
	var key string
	var revision int64
	_, err = pgx.ForEachRow(rows, []any{&key, &revision}, func() error { found[key] = revision; return nil })
	require.NoError(w.t, err)
	return found
}

// close compares the plan with the tasks that ran, once for every deploy, before anything else causes more tasks. A
// build that did not finish must only have computed nothing else.
func (a *account) close(w *world) {
	w.t.Helper()
	status, reason := w.status(a.deployed) // first, because later queries can only find more
	ended, landed := w.ended(), w.landedRevisions()
	news := map[string]bool{}
	for key, revision := range landed {
		if revision > a.landed[key] {
			news[key], news["all"] = true, true
		}
	}

	for id, unit := range ended {
		job, ours := a.unit(id, unit)
		_, old := a.after[id]
		if _, key, _ := strings.Cut(unit, " "); ours && !old && !news[key] {
			require.Contains(w.t, a.planned, job, "version %d (%s %s) computed what it had not planned",
				a.deployed.Version.Number, status, reason)
		}
	}

	// A version that was ready before it was deployed again catches up when it is promoted.
	built := status == registry.Ready && a.deployed.Version.Status == registry.Building
	if status != registry.Active && !built {
		return
	}

	// The swap does not wait for partitions that the version before had not computed either; their tasks are under way.
	var missing []string
	defer func() {
		if len(missing) > 0 {
			w.t.Logf("version %d is %s and does not compute %v of what it had planned: %v", a.deployed.Version.Number,
				status,
				missing, slices.Sorted(maps.Keys(a.planned)))
		}
	}()

	w.eventually("the version to compute what it had planned", func() bool {
		ran := map[string]bool{}
		for id, unit := range w.ended() {
			if unit, ours := a.unit(id, unit); ours {
				ran[unit] = true
			}
		}
		missing = slices.DeleteFunc(slices.Sorted(maps.Keys(a.planned)), func(unit string) bool { return ran[unit] })
		return len(missing) == 0
	})
}

// unit returns the "job partition" of the deploy that a task has computed since; false for other tasks and earlier
// ones.
func (a *account) unit(id uuid.UUID, computed string) (string, bool) {
	origin, key, _ := strings.Cut(computed, " ")
	job, ours := a.jobs[uuid.MustParse(origin)]
	_, old := a.before[id]
	return job + " " + key, ours && !old
}
