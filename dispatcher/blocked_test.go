package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
)

// reads returns a DAG whose job copies letters_made, and publishes it under the DAG's name.
func reads(name, partitionBy string) string {
	return fmt.Sprintf(`
name: %[1]s
jobs:
  - name: copy
    operator: hook
    inputs: [{ from: { dataset: letters_made } }]
    partition_by: %[2]s
    config: { tag: %[1]s }
publish:
  %[1]s: { from: { job: copy } }
`, name, partitionBy)
}

const whyBlocked = "input letters_made of daily/copy is mapped (`map: same`) from day partitions, but letters/made " +
	"has month partitions now: no partition of it is the same; deploy daily again, and if its file does not fit " +
	"either: `map: within` reads the month that each day lies in"

// blockedWorld returns a world in which letters_made went from days to months, while the job daily/copy maps days.
// Nothing has been routed since the cutover. Deploys refuse to get there, so the reader is out of sight meanwhile.
func blockedWorld(t *testing.T, daily string) *dispatchertest.World {
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.Put("months", "2024-01", "b")
	w.Serve(dispatchertest.Upkept)
	w.Serve(daily)
	w.Serve(reads("whole", "none"))

	hidden := `UPDATE dag_versions SET status = $1 WHERE dag_name = 'daily'`
	w.Exec(hidden, registry.Superseded)
	monthly := w.Deploy(dispatchertest.Edit(dispatchertest.Upkept, "time: day", "time: month", "list: raw",
		"list: months"))
	for range 10 {
		w.Route()
		w.Advance()
		w.Work()
		if status, _ := w.Status(monthly.Version.ID); status == registry.Active {
			break
		}
	}
	w.Exec(hidden, registry.Active)
	require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE kind = 'route_event'`))
	return w
}

// A job whose input cannot be mapped any more delays nobody else: neither the other readers after a cutover, nor the
// producer's events and completions, nor a sweep. Its own events are rejected, each with the reason.
func TestRoutingIsIsolated(t *testing.T) {
	t.Parallel()
	for name, stepped := range map[string]bool{"by the router": true, "by completions": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := blockedWorld(t, reads("daily", "{ time: day }"))
			w.D.Stepped = stepped
			w.Settle()
			require.Equal(t, map[string][]string{"all": {"whole(m(b))"}}, w.Read("whole"))

			w.Probe.Put("months", "2024-02", "c")
			w.Poll()
			w.Settle()
			require.Equal(t, map[string][]string{"2024-01": {"m(b)"}, "2024-02": {"m(c)"}}, w.Read("letters_made"))
			require.Equal(t, map[string][]string{"all": {"whole(m(b)+m(c))"}}, w.Read("whole"))
			require.Equal(t, map[string][]string{"2024-01-01": {"daily(m(a))"}}, w.Read("daily"))
			require.Equal(t, []string{"rejected: " + whyBlocked}, dispatchertest.Texts(t, w.Pool, `
				SELECT DISTINCT concat_ws(': ', o.outcome, o.reason) FROM event_outcomes o JOIN jobs j ON j.id = o.job_id
				WHERE j.dag_name = 'daily' AND o.outcome <> 'triggered'`))
			require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'route_event'`))

			require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
			w.Settle()

			w.Serve(dispatchertest.Edit(reads("daily", "x"), "    partition_by: x\n", ""))
			require.Equal(t, map[string][]string{"2024-01": {"daily(m(b))"}, "2024-02": {"daily(m(c))"}},
				w.Read("daily"))
		})
	}
}

// A job is not made from its other inputs alone while one cannot be mapped.
func TestBlockedInputHoldsTheJob(t *testing.T) {
	t.Parallel()
	w := blockedWorld(t, dispatchertest.Edit(reads("daily", "{ time: day }"), "jobs:\n", "jobs:\n"+dispatchertest.Raw,
		"letters_made } }]", "letters_made } }, { from: { job: raw } }]\n    trigger: any"))
	w.Probe.Put("raw", "2024-01-02", "e")
	w.Poll()
	w.Settle()
	require.Equal(t, map[string][]string{"2024-01-01": {"daily(m(a),a)"}}, w.Read("daily"))
	require.NoError(t, w.D.Upkeep.Reconcile(t.Context(), time.Now()))
	require.Empty(t, w.Claim(w.D))
}

// People see what is blocked, why, and how to mend it, unless they may not see the dataset.
func TestBlockedJobsAreShown(t *testing.T) {
	t.Parallel()
	w := blockedWorld(t, reads("daily", "{ time: day }"))
	w.Settle()

	job := w.WhyJob("daily", "copy")
	require.Equal(t, []string{"blocked_input"}, dispatchertest.CodesIn(job.Reasons))
	require.Equal(t, whyBlocked, job.Reasons[0].Text)
	require.Equal(t, []string{"published", "blocked_input"},
		dispatchertest.CodesIn(w.WhyNot("daily", "2024-01-01").Reasons))
	require.Equal(t, []string{"blocked_input"}, dispatchertest.CodesIn(w.WhyNot("daily", "2024-02-01").Reasons))

	shown := []views.BlockedJob{{Job: "copy", Input: "letters_made", Text: whyBlocked}}
	detail, err := w.D.Views.DAG(t.Context(), w.Caller, "daily")
	require.NoError(t, err)
	require.Equal(t, shown, detail.Blocked)
	dags, err := w.D.Views.DAGs(t.Context(), w.Caller, "", 10)
	require.NoError(t, err)
	for _, d := range dags {
		require.Equal(t, d.Name == "daily", len(d.Blocked) == 1, d.Name)
	}

	w.Exec(`UPDATE datasets SET read_roles = '{finance}' WHERE name = 'letters_made'`)
	reader := &dispatchertest.Tenant{W: w, Caller: w.Caller}
	reader.Caller.Role = authz.RoleReader
	detail, err = w.D.Views.DAG(t.Context(), reader.Caller, "daily")
	require.NoError(t, err)
	require.Equal(t, []views.BlockedJob{{Job: "copy", Text: "a dataset of another DAG, which you may not see, is " +
		"partitioned differently now; deploy daily again"}}, detail.Blocked)
	require.NotContains(t, fmt.Sprint(reader.WhyJob("daily", "copy").Reasons), "letters")
}

// A version whose input cannot be mapped any more when it is built fails, and says why.
func TestBlockedBuildFails(t *testing.T) {
	t.Parallel()
	w := blockedWorld(t, reads("daily", "{ time: day }"))
	w.Settle()
	w.Exec(`UPDATE dag_versions SET status = 'Building' WHERE dag_name = 'daily'`)
	w.Exec(`DELETE FROM dag_current_versions WHERE dag_name = 'daily'`)
	w.Settle()
	require.Equal(t, []string{"Failed: " + whyBlocked}, dispatchertest.Texts(t, w.Pool,
		`SELECT concat_ws(': ', status, error) FROM dag_versions WHERE dag_name = 'daily'`))
}
