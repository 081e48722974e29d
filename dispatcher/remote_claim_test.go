package dispatcher_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/worker/protocol"
)

// remoteWorld is a world whose DAG "work" runs outside of the servers.
func remoteWorld(t *testing.T) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.WorkDAG)
	return w
}

func claimant(tn *dispatchertest.Tenant, runtimes ...string) dispatcher.Claimant {
	return dispatcher.Claimant{WorkerID: "w1", Worker: tn.Worker(), Runtimes: runtimes}
}

func claimID(w *dispatchertest.World, c dispatcher.Claimant, task uuid.UUID) protocol.Claim {
	w.T.Helper()
	claim, err := w.D.ClaimByID(w.T.Context(), c, task, time.Now())
	require.NoError(w.T, err)
	return claim
}

func claimMany(w *dispatchertest.World, c dispatcher.Claimant, max int) (tasks []uuid.UUID) {
	w.T.Helper()
	claims, err := w.D.ClaimMany(w.T.Context(), c, max, time.Now())
	require.NoError(w.T, err)
	for _, claim := range claims {
		tasks = append(tasks, claim.Task.TaskID)
	}
	return tasks
}

func TestAClaimSaysAllThatARunNeeds(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	task := w.Want("mails")
	claim := claimID(w, claimant(w.Tenant), task)
	require.Equal(t, protocol.Claimed, claim.Status)
	require.Equal(t, protocol.Job{DAGName: "work", Name: "mails"}, claim.Task.Job)
	require.Equal(t, []any{"acme", "handler", "manual", 1}, []any{claim.Task.Org, claim.Task.Operator, claim.Task.Kind,
		claim.Task.Attempt})
	require.JSONEq(t, `{"n": 1}`, string(claim.Task.Payload))
	require.Equal(t, "email:send", claim.Task.Config["handler"])
	c, err := w.D.Signer.Verify(claim.CapabilityToken, time.Now())
	require.NoError(t, err)
	require.Equal(t, []any{w.Caller.OrgID, task, 1}, []any{c.OrgID, c.TaskID, c.Attempt})
	given, err := w.D.RunningAttempt(t.Context(), c, claim.Fence())
	require.NoError(t, err)
	require.Equal(t, []any{"mails", "poll", task}, []any{given.Job.Name, given.Runtime, given.Assignment.TaskID})
}

func TestWhyATaskIsNotClaimed(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.Org("other")
	tests := map[string]struct {
		task   func() uuid.UUID
		by     dispatcher.Claimant
		reason string
	}{
		"there is none": {uuid.New, claimant(w.Tenant), protocol.NotFound},
		"another org's": {func() uuid.UUID { return w.Want("loads") }, claimant(other), protocol.NotFound},
		"another runtime": {func() uuid.UUID { return w.Want("there") }, claimant(w.Tenant, "poll"),
			protocol.NotFound},
		"a runtime not allowed": {func() uuid.UUID { return w.Want("there") }, dispatcher.Claimant{WorkerID: "w",
			Worker: allowed(w.Worker(), []string{"poll"}, nil)}, protocol.NotFound},
		"an operator not allowed": {func() uuid.UUID { return w.Want("loads") }, dispatcher.Claimant{WorkerID: "w",
			Worker: allowed(w.Worker(), nil, []string{"sql"})}, protocol.NotFound},
		"a handler it lacks": {func() uuid.UUID { return w.Want("mails") }, dispatcher.Claimant{WorkerID: "w",
			Worker: w.Worker(), Handlers: []string{"sms:send"}}, protocol.NotFound},
		"an operator it lacks": {func() uuid.UUID { return w.Want("loads") }, dispatcher.Claimant{WorkerID: "w",
			Worker: w.Worker(), Operators: []protocol.Operator{{Name: "sql"}}}, protocol.NotFound},
		"another version of it": {func() uuid.UUID { return w.Want("loads") }, dispatcher.Claimant{WorkerID: "w",
			Worker: w.Worker(), Operators: []protocol.Operator{{Name: "hook", Version: "0.0.1"}}}, protocol.NotFound},
		"it runs": {func() uuid.UUID {
			task := w.Want("loads")
			require.Equal(t, protocol.Claimed, claimID(w, claimant(w.Tenant), task).Status)
			return task
		}, claimant(w.Tenant), protocol.AlreadyRunning},
		"canceled": {func() uuid.UUID {
			task := w.Want("loads")
			_, err := w.D.Control.Cancel(t.Context(), w.Caller, task)
			require.NoError(t, err)
			return task
		}, claimant(w.Tenant), protocol.Canceled},
		"over a limit": {func() uuid.UUID { w.Want("few"); return w.Want("few") }, claimant(w.Tenant),
			protocol.Throttled},
		"paused": {func() uuid.UUID {
			_, err := w.D.Control.Pause(t.Context(), w.Caller, "work", "texts", "", time.Now())
			require.NoError(t, err)
			return w.Want("texts")
		}, claimant(w.Tenant), protocol.Throttled},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, dispatcher.NotClaimed(test.reason), claimID(w, test.by, test.task()))
		})
	}
}

func allowed(w authz.Worker, runtimes, ops []string) authz.Worker {
	w.Runtimes, w.Operators = runtimes, ops
	return w
}

func TestWorkersGetWhatTheyRun(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	mails, load := []uuid.UUID{w.Want("mails"), w.Want("mails")}, w.Want("loads")
	w.Want("there")
	require.Empty(t, claimMany(w, claimant(w.Org("other"), "poll"), 10), "another org's worker")
	require.Empty(t, claimMany(w, dispatcher.Claimant{WorkerID: "w", Worker: w.Worker(), Runtimes: []string{"poll"},
		Handlers: []string{"sms:send"}}, 10))
	require.Equal(t, []uuid.UUID{load}, claimMany(w, dispatcher.Claimant{WorkerID: "w", Worker: w.Worker(),
		Runtimes: []string{"poll"}, Operators: []protocol.Operator{{Name: "hook"}}}, 10))
	only := dispatcher.Claimant{WorkerID: "w", Worker: allowed(w.Worker(), []string{"poll"}, []string{"handler"})}
	require.Equal(t, mails[:1], claimMany(w, only, 1), "the runtimes of its token, where it names none")
	require.Equal(t, mails[1:], claimMany(w, dispatcher.Claimant{WorkerID: "w", Worker: w.Worker(),
		Runtimes: []string{"poll"}, Handlers: []string{"email:send"}}, 10))
	require.Empty(t, claimMany(w, claimant(w.Tenant, "poll"), 10))
	require.Len(t, claimMany(w, claimant(w.Tenant, "lambda"), 10), 1)
}

func TestOrgsOfOneWorkerTakeTurns(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.Org("other")
	other.Serve(dispatchertest.WorkDAG)
	both := claimant(w.Tenant, "poll")
	both.Worker.Orgs = append(both.Worker.Orgs, other.Caller.OrgID)
	var of []string
	for range 2 {
		w.Want("loads")
		other.Want("loads")
	}
	for range 4 {
		claims, err := w.D.ClaimMany(t.Context(), both, 1, time.Now())
		require.NoError(t, err)
		of = append(of, claims[0].Task.Org)
	}
	require.NotEqual(t, of[0], of[1])
	require.NotEqual(t, of[2], of[3])
}

func TestTwoWorkersClaimATaskOnce(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	d2 := w.Dispatcher("two")
	for range 20 {
		task := w.Want("loads")
		claims := make([]protocol.Claim, 4)
		var g errgroup.Group
		for i := range claims {
			g.Go(func() (err error) {
				d := []*service.Service{w.D, d2}[i%2]
				if i < 2 {
					claims[i], err = d.ClaimByID(t.Context(), claimant(w.Tenant), task, time.Now())
					return err
				}
				many, err := d.ClaimMany(t.Context(), claimant(w.Tenant, "poll"), 1, time.Now())
				if len(many) > 0 {
					claims[i] = many[0]
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		won := 0
		for _, c := range claims {
			if c.Status == protocol.Claimed {
				won++
			} else if c.Status != "" {
				require.Equal(t, protocol.AlreadyRunning, c.Reason)
			}
		}
		require.Equal(t, 1, won)
	}
}
