package dispatcher

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/worker/protocol"
)

const workDAG = `
name: work
jobs:
  - { name: mails, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "email:send" } }
  - { name: texts, operator: handler, runtime: poll, source: { kind: manual }, outputs: 0, config: { handler: "sms:send" }, retry: { initial_seconds: 60 } }
  - { name: loads, operator: hook, runtime: poll, source: { kind: manual }, outputs: 0 }
  - { name: few, operator: hook, runtime: poll, source: { kind: manual }, outputs: 0, scaling: { max_concurrency: 1 } }
  - { name: there, operator: hook, runtime: lambda, source: { kind: manual }, outputs: 0 }
`

// remoteWorld is a world whose DAG "work" runs outside of the servers.
func remoteWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.serve(workDAG)
	return w
}

// worker is a worker of the org whose token allows everything.
func (tn *tenant) worker() authz.Worker {
	return authz.Worker{OrgID: tn.caller.OrgID, TokenName: "workers", Orgs: []uuid.UUID{tn.caller.OrgID}}
}

func (tn *tenant) claimant(runtimes ...string) Claimant {
	return Claimant{WorkerID: "w1", Worker: tn.worker(), Runtimes: runtimes}
}

func (tn *tenant) want(job string) uuid.UUID {
	tn.w.t.Helper()
	out, err := tn.w.d.Enqueue(tn.w.t.Context(), tn.caller, "work", job, []EnqueueItem{{Payload: json.RawMessage(`{"n": 1}`)}})
	require.NoError(tn.w.t, err)
	return out[0].ID
}

func (w *world) claimID(c Claimant, task uuid.UUID) protocol.Claim {
	w.t.Helper()
	claim, err := w.d.ClaimByID(w.t.Context(), c, task, time.Now())
	require.NoError(w.t, err)
	return claim
}

func (w *world) claimMany(c Claimant, max int) (tasks []uuid.UUID) {
	w.t.Helper()
	claims, err := w.d.ClaimMany(w.t.Context(), c, max, time.Now())
	require.NoError(w.t, err)
	for _, claim := range claims {
		tasks = append(tasks, claim.Task.TaskID)
	}
	return tasks
}

func TestAClaimSaysAllThatARunNeeds(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	task := w.want("mails")
	claim := w.claimID(w.claimant(), task)
	require.Equal(t, protocol.Claimed, claim.Status)
	require.Equal(t, protocol.Job{DAGName: "work", Name: "mails"}, claim.Task.Job)
	require.Equal(t, []any{"acme", "handler", "manual", 1}, []any{claim.Task.Org, claim.Task.Operator, claim.Task.Kind, claim.Task.Attempt})
	require.JSONEq(t, `{"n": 1}`, string(claim.Task.Payload))
	require.Equal(t, "email:send", claim.Task.Config["handler"])
	c, err := w.d.Signer.Verify(claim.CapabilityToken, time.Now())
	require.NoError(t, err)
	require.Equal(t, []any{w.caller.OrgID, task, 1}, []any{c.OrgID, c.TaskID, c.Attempt})
	given, err := w.d.Given(t.Context(), c, claim.Fence())
	require.NoError(t, err)
	require.Equal(t, []any{"mails", "poll", task}, []any{given.Job.Name, given.Runtime, given.Assignment.TaskID})
}

func TestWhyATaskIsNotClaimed(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.org("other")
	tests := map[string]struct {
		task   func() uuid.UUID
		by     Claimant
		reason string
	}{
		"there is none":           {uuid.New, w.claimant(), protocol.NotFound},
		"another org's":           {func() uuid.UUID { return w.want("loads") }, other.claimant(), protocol.NotFound},
		"another runtime":         {func() uuid.UUID { return w.want("there") }, w.claimant("poll"), protocol.NotFound},
		"a runtime not allowed":   {func() uuid.UUID { return w.want("there") }, Claimant{WorkerID: "w", Worker: allowed(w.worker(), []string{"poll"}, nil)}, protocol.NotFound},
		"an operator not allowed": {func() uuid.UUID { return w.want("loads") }, Claimant{WorkerID: "w", Worker: allowed(w.worker(), nil, []string{"sql"})}, protocol.NotFound},
		"a handler it lacks":      {func() uuid.UUID { return w.want("mails") }, Claimant{WorkerID: "w", Worker: w.worker(), Handlers: []string{"sms:send"}}, protocol.NotFound},
		"an operator it lacks":    {func() uuid.UUID { return w.want("loads") }, Claimant{WorkerID: "w", Worker: w.worker(), Operators: []protocol.Operator{{Name: "sql"}}}, protocol.NotFound},
		"another version of it":   {func() uuid.UUID { return w.want("loads") }, Claimant{WorkerID: "w", Worker: w.worker(), Operators: []protocol.Operator{{Name: "hook", Version: "0.0.1"}}}, protocol.NotFound},
		"it runs": {func() uuid.UUID {
			task := w.want("loads")
			require.Equal(t, protocol.Claimed, w.claimID(w.claimant(), task).Status)
			return task
		}, w.claimant(), protocol.AlreadyRunning},
		"canceled": {func() uuid.UUID {
			task := w.want("loads")
			_, err := w.d.Cancel(t.Context(), w.caller, task)
			require.NoError(t, err)
			return task
		}, w.claimant(), protocol.Canceled},
		"over a limit": {func() uuid.UUID { w.want("few"); return w.want("few") }, w.claimant(), protocol.Throttled},
		"paused": {func() uuid.UUID {
			_, err := w.d.Pause(t.Context(), w.caller, "work", "texts", "", time.Now())
			require.NoError(t, err)
			return w.want("texts")
		}, w.claimant(), protocol.Throttled},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, notClaimed(test.reason), w.claimID(test.by, test.task()))
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
	mails, load := []uuid.UUID{w.want("mails"), w.want("mails")}, w.want("loads")
	w.want("there")
	require.Empty(t, w.claimMany(w.org("other").claimant("poll"), 10), "another org's worker")
	require.Empty(t, w.claimMany(Claimant{WorkerID: "w", Worker: w.worker(), Runtimes: []string{"poll"}, Handlers: []string{"sms:send"}}, 10))
	require.Equal(t, []uuid.UUID{load}, w.claimMany(Claimant{WorkerID: "w", Worker: w.worker(), Runtimes: []string{"poll"}, Operators: []protocol.Operator{{Name: "hook"}}}, 10))
	only := Claimant{WorkerID: "w", Worker: allowed(w.worker(), []string{"poll"}, []string{"handler"})}
	require.Equal(t, mails[:1], w.claimMany(only, 1), "the runtimes of its token, where it names none")
	require.Equal(t, mails[1:], w.claimMany(Claimant{WorkerID: "w", Worker: w.worker(), Runtimes: []string{"poll"}, Handlers: []string{"email:send"}}, 10))
	require.Empty(t, w.claimMany(w.claimant("poll"), 10))
	require.Len(t, w.claimMany(w.claimant("lambda"), 10), 1)
}

func TestOrgsOfOneWorkerTakeTurns(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.org("other")
	other.serve(workDAG)
	both := w.claimant("poll")
	both.Worker.Orgs = append(both.Worker.Orgs, other.caller.OrgID)
	var of []string
	for range 2 {
		w.want("loads")
		other.want("loads")
	}
	for range 4 {
		claims, err := w.d.ClaimMany(t.Context(), both, 1, time.Now())
		require.NoError(t, err)
		of = append(of, claims[0].Task.Org)
	}
	require.NotEqual(t, of[0], of[1])
	require.NotEqual(t, of[2], of[3])
}

func TestTwoWorkersClaimATaskOnce(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	d2 := w.dispatcher("two")
	for range 20 {
		task := w.want("loads")
		claims := make([]protocol.Claim, 4)
		var g errgroup.Group
		for i := range claims {
			g.Go(func() (err error) {
				d := []*Dispatcher{w.d, d2}[i%2]
				if i < 2 {
					claims[i], err = d.ClaimByID(t.Context(), w.claimant(), task, time.Now())
					return err
				}
				many, err := d.ClaimMany(t.Context(), w.claimant("poll"), 1, time.Now())
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
