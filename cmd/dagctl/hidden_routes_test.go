package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/timers"
)

// vaultDAG has jobs that people act on: by hand, by timers, and by reading a source.
const vaultDAG = `name: vault
jobs:
` + landingJob + `  - name: daily
    operator: sql
    inputs: [{ from: { job: landing } }]
    execution_strategy: PerPartition
    config: { query: "SELECT * FROM landing" }
  - name: asked
    operator: command
    source: { kind: manual }
    outputs: [ask_mark]
    max_attempts: 1
    config: { argv: [/bin/sh, -c, "exit 1"] }
  - name: timed
    operator: command
    source: { kind: timer }
    outputs: [time_mark]
    config: { argv: [/bin/sh, -c, "exit 1"] }
publish:
  vault_daily: { from: { job: daily } }
  vault_asked: { from: { job: asked } }
  vault_timed: { from: { job: timed } }
`

// vault is what is in the vault: one object of each kind.
type vault struct{ task, timer, backfill, bulk string }

// lockVault deploys vaultDAG, makes something of each kind, and hides the vault from everybody but role:finance.
func (w *world) lockVault(t *testing.T) (v vault) {
	t.Helper()
	w.land(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "vault", vaultDAG))
	must(t, w.env(t, writer), "run", "vault/asked", "--payload", "{}")
	var dead []views.Task
	eventually(t, "a task is dead", func() (bool, error) {
		dead = decode[[]views.Task](t, w.env(t, writer), "tasks", "list", "--dag", "vault", "--dead")
		return len(dead) == 1, nil
	})

	var timer timers.Timer
	require.NoError(t, w.as(writer).Post(t.Context(), "/v1/scheduled-events", timers.NewTimer{DAG: "vault",
		Job: "timed", Local: "2100-01-01T00:00:00", Timezone: "UTC", Group: "group_mark"}, &timer))
	var backfill control.Backfill
	require.NoError(t, w.as(writer).Post(t.Context(), "/v1/dags/vault/backfills", control.BackfillRequest{Job: "daily",
		From: "2026-01-01", To: "2026-01-01"}, &backfill))
	var bulk control.BulkAction
	require.NoError(t, w.as(writer).Post(t.Context(), "/v1/tasks:skip", control.BulkRequest{Reason: "reason_mark",
		Filter: views.TaskSelection{DAG: "vault", Dead: true}}, &bulk))
	must(t, w.env(t, writer), "pause", "vault/asked", "--reason", "reason_mark")
	eventually(t, "it is settled", func() (bool, error) {
		err := w.as(writer).Get(t.Context(), "/v1/dags/vault/backfills/"+backfill.ID.String(), nil, &backfill)
		return backfill.EndedAt != nil, err
	})

	if w.tokens[finance] == "" {
		must(t, w.env(t, admin), "roles", "create", "role:finance")
	}
	for _, name := range []string{"vault/landing/0", "vault_asked", "vault_timed"} {
		must(t, w.env(t, admin), "datasets", "visibility", name, "--role", "role:finance")
	}
	return vault{dead[0].ID.String(), timer.ID.String(), backfill.ID.String(), bulk.ID.String()}
}

// Who may not look into a job, task, timer, dataset, backfill or bulk action does not act on it, on any route: it does
// not exist. A route that acts on something whose body names it is one of those below, each of which is tried.
func TestNobodyActsOnWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	v := w.lockVault(t)
	paths := map[authz.Target]*strings.Replacer{
		authz.TheTasks:     strings.NewReplacer("{id}", v.task),
		authz.TheTimers:    strings.NewReplacer("{id}", v.timer),
		authz.TheBulk:      strings.NewReplacer("{id}", v.bulk),
		authz.TheBackfills: strings.NewReplacer("{dag}", "vault", "{id}", v.backfill),
		authz.TheJobs:      strings.NewReplacer("{dag}", "vault", "{job}", "asked"),
		authz.TheDatasets:  strings.NewReplacer("{name}", "vault_daily", "{name...}", "vault_daily"),
	}
	inBodies := []string{"POST /v1/tasks:retry", "POST /v1/tasks:cancel", "POST /v1/tasks:skip", "GET /v1/bulk-actions",
		"POST /v1/scheduled-events", "POST /v1/scheduled-events/batch", "POST /timers", "GET /dead/retry",
		"POST /dead/retry", "GET /dead/skip", "POST /dead/skip", "GET /bulk/{verb}", "POST /bulk/{verb}"}

	tried := map[authz.Target]int{}
	before := w.everything(t)
	for _, route := range w.app.API.Routes() {
		if !slices.Contains([]authz.Action{authz.Operate, authz.Deploy}, route.Rule.Action()) {
			continue
		}
		target := route.Rule.Target()
		if target == authz.InBody {
			require.Contains(t, inBodies, route.Method+" "+route.Path, "try what it does to what is hidden, below")
		}
		if paths[target] == nil {
			continue
		}

		path := paths[target].Replace(route.Path)
		status, body := w.send(t, writer, route.Method, path, "application/json", strings.NewReader("{}"))
		require.Equal(t, http.StatusNotFound, status, "%s %s: %s", route.Method, path, body)
		require.NotRegexp(t, "_mark|2026-01-01", body, path)
		tried[target]++
	}
	require.Len(t, tried, len(paths), "%v", tried)
	require.Len(t, paths, len(hideable))

	for path, body := range map[string]string{
		"/v1/scheduled-events": `{"dag": "vault", "job": "timed", "target_timezone": "UTC",
			"target_timestamp_local": "2100-01-01T00:00:00"}`,
		"/v1/dags/vault/backfills": `{"job": "daily", "from": "2026-01-01", "to": "2026-01-01"}`,
	} {
		status, text := w.send(t, writer, http.MethodPost, path, "application/json", strings.NewReader(body))
		require.Equal(t, http.StatusNotFound, status, "%s: %s", path, text)
	}
	require.Equal(t, before, w.everything(t), "nothing has changed")
}

// everything returns the rows of what people act on, as texts.
func (w *world) everything(t *testing.T) (rows []string) {
	t.Helper()
	for _, table := range []string{"tasks", "pauses", "scheduled_events", "backfills", "bulk_actions"} {
		rows = append(rows, w.read(t, t.Context(), table)...)
	}
	return rows
}

// Bulk actions, groups of timers, pauses and outputs tell nothing of what is hidden, not even how much there is.
func TestNothingIsCountedOfWhatIsHidden(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.lockVault(t)
	must(t, w.env(t, admin), "resume", "vault/asked")
	must(t, w.env(t, admin), "run", "vault/asked", "--payload", "{}")
	eventually(t, "a task is dead", func() (bool, error) {
		return len(decode[[]views.Task](t, w.env(t, admin), "tasks", "list", "--dag", "vault", "--dead")) == 1, nil
	})
	must(t, w.env(t, admin), "pause", "vault/asked", "--reason", "reason_mark")

	matched := func(caller string) (n int64) {
		var b control.BulkAction
		require.NoError(t, w.as(caller).Post(t.Context(), "/v1/tasks:retry", control.BulkRequest{DryRun: true,
			Filter: views.TaskSelection{DAG: "vault", Dead: true}}, &b))
		return b.Matched
	}
	require.EqualValues(t, 1, matched(admin))
	require.Zero(t, matched(writer))

	told := func(caller string) (all string) {
		for _, path := range []string{"/v1/bulk-actions", "/v1/pauses", "/v1/dags/vault", "/v1/jobs/vault/asked",
			"/v1/attention", "/v1/jobs/vault/asked/why", "/v1/scheduled-events", "/v1/dags/vault/backfills"} {
			var body json.RawMessage
			require.NoError(t, w.as(caller).Get(t.Context(), path, nil, &body), path)
			all += string(body)
		}
		return all
	}
	for _, mark := range []string{"ask_mark", "time_mark", "reason_mark", "group_mark", "vault_asked", `"2026-01-01"`} {
		require.Contains(t, told(admin), mark)
		require.NotContains(t, told(writer), mark)
	}
	require.Equal(t, "vault/asked", pausesOf(t, w, writer)[0].What(), "that it is paused, everybody may see")

	for _, caller := range []string{writer, admin} {
		var counted timers.Counted
		status, body := w.send(t, caller, http.MethodDelete, "/v1/scheduled-events?group=group_mark", "", nil)
		require.Equal(t, http.StatusOK, status, body)
		require.NoError(t, json.Unmarshal([]byte(body), &counted))
		require.Equal(t, map[string]int{writer: 0, admin: 1}[caller], counted.Timers)
	}
}

// pausesOf returns the pauses that a caller sees.
func pausesOf(t *testing.T, w *world, caller string) []tasks.Pause {
	t.Helper()
	var list struct{ Items []tasks.Pause }
	require.NoError(t, w.as(caller).Get(t.Context(), "/v1/pauses", nil, &list))
	return list.Items
}
