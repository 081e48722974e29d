package main

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/dispatcher/why"
)

// Why a job does nothing does not depend on who asks. Whoever may not read an input gets the same code, without names.
func TestWhyIsTrueForThoseWhoMayNotReadAnInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	w.deployReadings(t, "2026-01-01")
	must(t, w.env(t, writer), "deploy", writeDAG(t, t.TempDir(), "doubles", doublesDAG))
	admins := w.env(t, admin)
	must(t, admins, "roles", "create", "role:finance")
	must(t, admins, "datasets", "visibility", "daily_highest", "--role", "role:finance")
	must(t, admins, "datasets", "visibility", "doubled", "--everyone", "--opened")

	ask := func(caller, path string) (answer why.Why) {
		t.Helper()
		status, body := w.send(t, caller, http.MethodGet, path, "", nil)
		require.Equal(t, http.StatusOK, status, body)
		require.NoError(t, json.Unmarshal([]byte(body), &answer))
		if caller != admin {
			require.NotContains(t, body, "daily_highest", "%s is told the name of what is hidden", caller)
		}
		return answer
	}
	whyNot := "/v1/datasets/doubled/partitions/2026-01-01/why-not"
	for _, path := range []string{"/v1/jobs/doubles/doubled/why", "/v1/datasets/doubled/why", whyNot} {
		told := ask(admin, path)
		require.Contains(t, dispatchertest.CodesIn(told.Reasons), "up_to_date", path)
		for _, caller := range []string{reader, writer} {
			seen := ask(caller, path)
			require.Equal(t, dispatchertest.CodesIn(told.Reasons), dispatchertest.CodesIn(seen.Reasons), "%s %s",
				caller, path)
			require.True(t, seen.Reasons[len(seen.Reasons)-1].Hidden, path)
		}
	}
	require.NotContains(t, text(w.page(t, reader, "/dags/doubles/jobs/doubled")), "nothing that it needs")

	// What somebody canceled is not about to be made, whoever asks.
	must(t, admins, "pause", "doubles/doubled")
	w.landText(t, "2026-01-01", "station,celsius\nharbour,9\n")
	waits := func() []views.Task {
		return decode[[]views.Task](t, admins, "tasks", "list", "--dag", "doubles", "--status", "Queued")
	}
	eventually(t, "a task waits", func() (bool, error) { return len(waits()) == 1, nil })
	must(t, admins, "tasks", "cancel", waits()[0].ID.String())
	for _, caller := range []string{admin, reader, writer} {
		require.Equal(t, []string{"published", "canceled"}, dispatchertest.CodesIn(ask(caller, whyNot).Reasons), caller)
	}
}

// The page of a job says that it writes no dataset only to those who may know.
func TestAJobPageDoesNotDenyAHiddenOutput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, withPages)
	w.deployReadings(t, "2026-01-01")
	w.lockVault(t)
	for _, caller := range []string{reader, writer} {
		page := text(w.page(t, caller, "/dags/vault/jobs/asked"))
		require.Contains(t, page, "No dataset that you may see.", caller)
		require.NotContains(t, page, "elsewhere", caller)
	}
	require.Contains(t, text(w.page(t, writer, "/dags/readings/jobs/note")), "No dataset: it has an effect elsewhere.")
	require.NotContains(t, text(w.page(t, reader, "/dags/readings/jobs/note")), "No dataset: it has")
}
