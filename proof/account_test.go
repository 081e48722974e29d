package proof_test

import (
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

// account holds a deploy to its plan: the partitions that it said it would compute, and those that tasks of it computed.
// The two are the same set, but for what arrives after the plan was made: a file that is read later makes tasks of its
// own, and they are of the partitions that it feeds and of no other.
type account struct {
	deployed registry.Deployment
	planned  map[string]bool      // "job partition"
	jobs     map[uuid.UUID]string // whose datasets are not the ones that serve anyway, by origin
	before   map[uuid.UUID]string // tasks that had ended before the deploy was asked for
	after    map[uuid.UUID]string // and when it had been answered
	landed   map[string]int64     // what had been read before: revisions by partition
}

// accounted deploys and opens the account of that.
func (w *world) accounted(yaml string, change ...func(*registry.DeployRequest)) *account {
	w.t.Helper()
	a := &account{landed: w.landedRevisions(), before: w.ended(), planned: map[string]bool{}, jobs: map[uuid.UUID]string{}}
	a.deployed = w.deploy(yaml, change...)
	a.after = w.ended()
	for _, c := range a.deployed.Changes {
		if c.Action == registry.Reuse || c.Action == registry.Remove {
			continue
		}
		a.jobs[c.Origin] = c.Job
		for _, key := range c.Keys {
			a.planned[c.Job+" "+key] = true
		}
	}
	return a
}

// ended are the tasks that computed something, each as "origin partition".
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

// landedRevisions are the revisions of the source's partitions.
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

// close compares what was planned with what ran, once for every deploy and before anything else decides what is to be
// computed. A build that did not come to its end is held only to have computed nothing else.
func (a *account) close(w *world) {
	w.t.Helper()
	status, reason := w.status(a.deployed) // first: what is looked at later can only be more
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
			require.Contains(w.t, a.planned, job, "version %d (%s %s) computed what it had not planned", a.deployed.Version.Number, status, reason)
		}
	}
	// One that was ready before it was asked for again catches up when it is promoted.
	built := status == registry.Ready && a.deployed.Version.Status == registry.Building
	if status != registry.Active && !built {
		return
	}
	// What the version that served before had not computed either need not be there at the swap; it is under way.
	var missing []string
	defer func() {
		if len(missing) > 0 {
			w.t.Logf("version %d is %s and does not compute %v of what it had planned: %v", a.deployed.Version.Number, status,
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

// unit tells which "job partition" of the deploy a task has computed since; false where it is another's or from before.
func (a *account) unit(id uuid.UUID, computed string) (string, bool) {
	origin, key, _ := strings.Cut(computed, " ")
	job, ours := a.jobs[uuid.MustParse(origin)]
	_, old := a.before[id]
	return job + " " + key, ours && !old
}
