package dispatcher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/registry/contract"
)

// Whoever was told of an alert hears its end, also when a version with that receiver serves again; whoever was not told
// of it does not.
func TestARollbackToAnotherReceiverTellsIt(t *testing.T) {
	t.Parallel()
	w, ops := alertsWorld(t)
	desk := newReceiver(t)
	w.Secret("DESK", desk.URL+"/alerts#otherkey", authz.Binding{AddJobs: []string{"watching/told"},
		AddHosts: []string{desk.URL}})
	put(w, "1: a 95, b 50")
	require.Equal(t, []string{"a firing"}, heard(t, ops))

	w.Serve(dispatchertest.Edit(watching, "ops: { url: { secret: OPS } }", "desk: { url: { secret: DESK } }",
		"to: [ops]", "to: [desk]"))
	put(w, "2: a 95, b 95")
	require.Equal(t, []string{"a firing, b firing"}, heard(t, desk), "it has not heard of either")
	put(w, "3: a 20, b 20")
	require.Equal(t, []string{"a resolved, b resolved"}, heard(t, desk))
	require.Empty(t, heard(t, ops), "it is told nothing while the other version serves")

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "watching", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	put(w, "4: a 20, b 20")
	require.Equal(t, []string{"a resolved"}, heard(t, ops), "the end of what it was told of, and nothing of b")
	require.Empty(t, heard(t, desk))
}

// A plan says which job begins without the memory of what another one has told, and how to keep that.
func TestAPlanSaysThatDeliveriesAreForgotten(t *testing.T) {
	t.Parallel()
	w, _ := alertsWorld(t)
	said := func(edits ...string) (texts []string) {
		for _, f := range w.Plan(dispatchertest.Edit(watching, edits...)).Findings {
			if f.Kind == contract.DeliveriesForgotten {
				require.Equal(t, contract.Says, f.Level)
				texts = append(texts, f.Text)
			}
		}
		return texts
	}
	_, err := w.Vault.BindSecret(t.Context(), w.Caller, "OPS", authz.Binding{AddJobs: []string{"watching/posted"}})
	require.NoError(t, err)
	require.Empty(t, said())
	require.Empty(t, said("max_tries: 2", "max_tries: 3"))
	require.Empty(t, said("- name: told", "- name: posted\n    renamed_from: told"))
	require.Equal(t, []string{"job posted is new: it does not know what job told has delivered, and delivers again " +
		"what it reads. If it is the same job, `renamed_from: told` keeps that"},
		said("- name: told", "- name: posted"))

	// A job that was renamed stays the same one without a line that says so. The next rename is from its name of now.
	w.Serve(dispatchertest.Edit(watching, "- name: told", "- name: posted\n    renamed_from: told"))
	require.Empty(t, said("- name: told", "- name: posted"))
	_, err = w.Vault.BindSecret(t.Context(), w.Caller, "OPS", authz.Binding{AddJobs: []string{"watching/rung"}})
	require.NoError(t, err)
	require.Equal(t, []string{"job rung is new: it does not know what job posted has delivered, and delivers again " +
		"what it reads. If it is the same job, `renamed_from: posted` keeps that"},
		said("- name: told", "- name: rung"))
	require.Empty(t, said("- name: told", "- name: rung\n    renamed_from: posted"))
}

// A dataset without the columns of alerts is refused when the DAG is planned.
func TestRoutesOfRowsThatAreNoAlerts(t *testing.T) {
	t.Parallel()
	w, _ := alertsWorld(t)
	put(w, "1: a 50")
	_, err := w.TryPlan(dispatchertest.Edit(watching, "from: { job: found } }]\n    outputs: 0",
		"from: { job: rows } }]\n    outputs: 0", "publish:", `  - name: rows
    operator: sql
    inputs: [{ from: { job: disks } }]
    config: { query: "SELECT host AS alert, host AS key, used FROM disks" }
publish:`))
	require.ErrorContains(t, err, `the input "rows" has no column severity, status, started_at, evaluated_at; it has `+
		"alert, key, used")
	require.ErrorContains(t, err, "alerts have at least the columns")
}
