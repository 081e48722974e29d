package dispatchertest

import (
	"encoding/json"
	"errors"
	"regexp"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
)

// Backfill starts a backfill of the DAG letters.
func (w *World) Backfill(req control.BackfillRequest) control.Backfill {
	w.T.Helper()
	b, err := w.D.Control.StartBackfill(w.T.Context(), w.Caller, "letters", req, time.Now())
	require.NoError(w.T, err)
	return b
}

// Follow works until a backfill has ended.
func (w *World) Follow(b control.Backfill) control.Backfill {
	w.T.Helper()
	for range 50 {
		_, err := w.D.Control.AdvanceBackfills(w.T.Context(), time.Now())
		require.NoError(w.T, err)
		w.Settle()
		b, err = w.D.Control.Backfill(w.T.Context(), w.Caller, "letters", b.ID)
		require.NoError(w.T, err)
		if b.Status != "Running" {
			return b
		}
	}
	require.Fail(w.T, "the backfill does not end")
	return b
}

// Enqueue asks for tasks of a job of the DAG mail.
func (tn *Tenant) Enqueue(job string, items ...dispatcher.EnqueueItem) []dispatcher.Enqueued {
	tn.W.T.Helper()
	out, err := tn.W.D.Enqueue(tn.W.T.Context(), tn.Caller, "mail", job, items)
	require.NoError(tn.W.T, err)
	require.Len(tn.W.T, out, len(items))
	return out
}

// Change gives the first day of raw new content and stops when the task of made that reads it is ready.
func (w *World) Change(content string) {
	w.T.Helper()
	w.Probe.Put("raw", FirstDay, content)
	w.Poll()
	for _, task := range w.Claim(w.D) {
		require.Equal(w.T, "raw", task.Job.Name)
		Execute(w.T.Context(), w.D, task)
	}
	w.Route()
	w.Check()
}

// How long after its end a generation is surely collected: past the grace period, and past the rollback window.
const (
	PastGrace  = time.Hour
	PastWindow = 8 * 24 * time.Hour
)

// GC collects garbage as of now and checks that a dry run lists the same, and that a second run finds nothing.
func (w *World) GC(now time.Time) upkeep.Garbage {
	w.T.Helper()
	dry, err := w.D.Upkeep.CollectGarbage(w.T.Context(), w.Caller, true, now)
	require.NoError(w.T, err)
	found, err := w.D.Upkeep.CollectGarbage(w.T.Context(), w.Caller, false, now)
	require.NoError(w.T, err)
	require.Equal(w.T, dry.Generations, found.Generations, "what a dry run lists is what goes")
	require.Equal(w.T, dry.Revisions, found.Revisions)
	again, err := w.D.Upkeep.CollectGarbage(w.T.Context(), w.Caller, false, now)
	require.NoError(w.T, err)
	require.Empty(w.T, again.Generations)
	require.Zero(w.T, again.Revisions)
	return found
}

// Secret sets a secret of the tenant and binds it.
func (tn *Tenant) Secret(name, value string, b authz.Binding) {
	tn.W.T.Helper()
	_, err := tn.W.Vault.SetSecret(tn.W.T.Context(), tn.Caller, name, value)
	require.NoError(tn.W.T, err)
	_, err = tn.W.Vault.BindSecret(tn.W.T.Context(), tn.Caller, name, b)
	require.NoError(tn.W.T, err)
}

// Grant plans a DAG and lets its programs have the secrets that they name, as the errors say.
func (tn *Tenant) Grant(yaml string) {
	tn.W.T.Helper()
	for {
		_, err := tn.TryPlan(yaml)
		var said *fault.Error
		if !errors.As(err, &said) {
			require.NoError(tn.W.T, err)
			return
		}
		asks := grantAsked.FindStringSubmatch(said.Hint)
		require.NotNil(tn.W.T, asks, "%v: %s", err, said.Hint)
		_, err = tn.W.Vault.BindSecret(tn.W.T.Context(), tn.Caller, asks[1],
			authz.Binding{AddPrograms: []string{asks[2]}})
		require.NoError(tn.W.T, err)
	}
}

var grantAsked = regexp.MustCompile("dagctl secrets bind ([A-Z]+) --program ([a-z/]+@[0-9a-f]{32})")

// Pause pauses a DAG, or one job of it.
func (tn *Tenant) Pause(dag, job string) {
	tn.W.T.Helper()
	_, err := tn.W.D.Control.Pause(tn.W.T.Context(), tn.Caller, dag, job, "a reason", time.Now())
	require.NoError(tn.W.T, err)
	tn.W.Check()
}

// Worker returns a worker of the org whose token allows everything.
func (tn *Tenant) Worker() authz.Worker {
	return authz.Worker{OrgID: tn.Caller.OrgID, TokenName: "workers", Orgs: []uuid.UUID{tn.Caller.OrgID}}
}

// Want asks for a task of a job of the DAG work and returns its id.
func (tn *Tenant) Want(job string) uuid.UUID {
	tn.W.T.Helper()
	out, err := tn.W.D.Enqueue(tn.W.T.Context(), tn.Caller, "work", job,
		[]dispatcher.EnqueueItem{{Payload: json.RawMessage(`{"n": 1}`)}})
	require.NoError(tn.W.T, err)
	return out[0].ID
}
