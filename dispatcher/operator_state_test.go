package dispatcher_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker/protocol"
)

// counting has a job whose tasks count in the job's operator state.
const counting = `
name: mail
jobs:
  - { name: count, operator: hook, source: { kind: manual }, outputs: 0, config: {} }
`

// count adds one to the state.
func count(_ context.Context, t *operators.Task) (operators.Result, error) {
	var n int
	if len(t.State) > 0 {
		if err := json.Unmarshal(t.State, &n); err != nil {
			return operators.Result{}, err
		}
	}
	return operators.Result{State: json.RawMessage(fmt.Sprint(n + 1))}, nil
}

// countingWorld has tasks that count, ready to be claimed.
func countingWorld(t *testing.T, ready int) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("count", count)
	w.Serve(counting)
	w.Enqueue("count", make([]dispatcher.EnqueueItem, ready)...)
	return w
}

func counted(w *dispatchertest.World) (n int) {
	w.T.Helper()
	w.Row(`SELECT coalesce(max((state #>> '{}')::int), 0) FROM operator_state`)(&n)
	return n
}

// Six runs that read the same state and write it at the same time: each builds on what another wrote, or is run again.
func TestOperatorStateIsComparedAndSet(t *testing.T) {
	t.Parallel()
	w := countingWorld(t, 6)
	claimed := w.Claim(w.D)
	require.Len(t, claimed, 6)
	var done []dispatcher.Completion
	for _, task := range claimed {
		done = append(done, w.Do(w.D, task))
	}

	for i, task := range claimed {
		require.NoError(t, w.D.Report(t.Context(), task, done[i], nil, false))
	}
	require.Equal(t, 1, counted(w), "all read the same")
	require.Equal(t, 5, w.Count(`SELECT FROM task_events
		WHERE state LIKE '%operator_state was written by another run meanwhile'`))
	for range 5 {
		w.Promote(time.Now().Add(time.Hour))
		w.Work()
	}
	require.Equal(t, 6, counted(w))
	require.Equal(t, 6, w.Count(`SELECT FROM tasks WHERE status = 'Completed' AND failures = 0`))
}

// Completions that share a transaction cannot both build on the same state either.
func TestOperatorStateInOneBatch(t *testing.T) {
	t.Parallel()
	w := countingWorld(t, 20)
	for range 20 {
		w.Promote(time.Now().Add(time.Hour))
		claimed := w.Claim(w.D)
		ends := make(chan error, len(claimed))
		for _, task := range claimed {
			done := w.Do(w.D, task)
			go func() { ends <- w.D.Report(context.Background(), task, done, nil, false) }()
		}
		for range claimed {
			require.NoError(t, <-ends)
		}
	}
	require.Equal(t, 20, counted(w))
	require.Equal(t, 20, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`))
}

// A run that commits on its way goes on from what it wrote; what another writes in between ends it.
func TestOperatorStateOfCommitsOnTheWay(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	meeting := dispatchertest.NewMeeting()
	w.Probe.On("count", func(ctx context.Context, t *operators.Task) (operators.Result, error) {
		result, err := count(ctx, t)
		if err != nil || string(t.Payload) != `"twice"` {
			return result, err
		}
		if _, err := t.Commit(ctx, operators.Commit{State: result.State}); err != nil {
			return operators.Result{}, err
		}
		if err := meeting.Wait(ctx, t); err != nil {
			return operators.Result{}, err
		}
		t.State = result.State
		return count(ctx, t)
	})
	w.Serve(counting)
	twice := dispatcher.EnqueueItem{Payload: json.RawMessage(`"twice"`)}

	w.Enqueue("count", twice)
	ended := make(chan struct{})
	first := w.One(w.D)
	go func() { defer close(ended); dispatchertest.Execute(context.Background(), w.D, first) }()
	<-meeting.Arrived
	require.Equal(t, 1, counted(w))
	meeting.Leave <- struct{}{}
	<-ended
	require.Equal(t, 2, counted(w))

	w.Enqueue("count", twice, dispatcher.EnqueueItem{})
	claimed := w.Claim(w.D)
	require.Len(t, claimed, 2)
	ended = make(chan struct{})
	go func() { defer close(ended); dispatchertest.Execute(context.Background(), w.D, claimed[0]) }()
	<-meeting.Arrived
	dispatchertest.Execute(t.Context(), w.D, claimed[1]) // it read the state before the other one's commit
	require.Equal(t, 3, counted(w))
	w.Promote(time.Now().Add(time.Hour))
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))
	require.Equal(t, 4, counted(w))
	meeting.Leave <- struct{}{}
	<-ended
	require.Equal(t, 4, counted(w), "it went on from 3, which is gone")
	require.Equal(t, 1, w.Count(`SELECT FROM task_events WHERE task_id = $1 AND to_status = 'Failed'
		AND state LIKE '%operator_state was written by another run meanwhile'`, claimed[0].TaskID))
}

// A worker elsewhere is told where it commits, and handed back where it completes.
func TestOperatorStateOfRemoteRuns(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	first, second := claimFar(w.Tenant, "daily", "a"), claimFar(w.Tenant, "daily", "b")
	_, err := first.commit(protocol.Events{OperatorState: json.RawMessage(`1`)}, time.Now())
	require.NoError(t, err)
	_, err = second.commit(protocol.Events{OperatorState: json.RawMessage(`1`)}, time.Now())
	requireConflict(t, err, "operator_state was written by another run meanwhile")
	_, err = first.commit(protocol.Events{OperatorState: json.RawMessage(`2`)}, time.Now())
	require.NoError(t, err)

	end := second.completed(second.upload("b.parquet", rows("b")))
	end.OperatorState = json.RawMessage(`2`)
	_, err = second.complete(end, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Failed", status1(w, second.id), "it waits to be tried again")
	require.Equal(t, 2, counted(w))

	w.Promote(time.Now().Add(time.Hour))
	second = claimFarAgain(w.Tenant, second.id)
	require.JSONEq(t, `2`, string(second.claim.Task.OperatorState))
	end = second.completed(second.upload("b.parquet", rows("b")))
	end.OperatorState = json.RawMessage(`3`)
	state, err := second.complete(end, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
	require.Equal(t, 3, counted(w))
}

// A run that could not write because another state had gone leaves none behind: the next one has no state, not an empty
// one.
func TestARefusedOperatorStateLeavesNoneBehind(t *testing.T) {
	t.Parallel()
	w := countingWorld(t, 1)
	dispatchertest.Execute(t.Context(), w.D, w.One(w.D))

	w.Enqueue("count", dispatcher.EnqueueItem{})
	task := w.One(w.D)
	done := w.Do(w.D, task)
	w.Exec(`DELETE FROM operator_state`)
	require.NoError(t, w.D.Report(t.Context(), task, done, nil, false))
	w.Promote(time.Now().Add(time.Hour))
	task = w.One(w.D)
	require.Empty(t, task.Assignment.State)
	dispatchertest.Execute(t.Context(), w.D, task)
	require.Equal(t, 1, counted(w))
}

// Runs with other keys have states of their own: none of them is in another's way, and each goes on from its own.
func TestOperatorStatesByKey(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.On("count", count)
	w.Serve(dispatchertest.Edit(counting, "outputs: 0", `outputs: 0, state_key: "account {payload.account}"`))
	long := strings.Repeat("é", 5000)
	enqueue := func() {
		for _, account := range []string{"a", "b", long, long + "x"} {
			payload := dispatchertest.Payload(map[string]string{"account": account})
			w.Enqueue("count", dispatcher.EnqueueItem{Payload: payload})
		}
	}

	for range 3 {
		enqueue()
		claimed := w.Claim(w.D)
		require.Len(t, claimed, 4)
		for _, task := range claimed {
			dispatchertest.Execute(t.Context(), w.D, task)
		}
	}
	require.Equal(t, []string{"3"}, dispatchertest.Texts(t, w.Pool, `SELECT DISTINCT state #>> '{}' FROM operator_state`))
	require.Equal(t, 4, w.Count(`SELECT FROM operator_state`))
	require.Equal(t, 2, w.Count(`SELECT FROM operator_state WHERE state_key IN ('account a', 'account b')`))
	require.Zero(t, w.Count(`SELECT FROM task_events WHERE to_status = 'Failed'`), "nobody was handed back")

	enqueue()
	enqueue()
	claimed := w.Claim(w.D) // two runs of each account read the same state
	require.Len(t, claimed, 8)
	for _, task := range claimed {
		dispatchertest.Execute(t.Context(), w.D, task)
	}
	for range 2 {
		w.Promote(time.Now().Add(time.Hour))
		w.Work()
	}
	require.Equal(t, []string{"5"}, dispatchertest.Texts(t, w.Pool, `SELECT DISTINCT state #>> '{}' FROM operator_state`))
	require.Equal(t, 4, w.Count(`SELECT FROM task_events
		WHERE state LIKE '%operator_state was written by another run meanwhile'`))
}

// A worker elsewhere gets the state of its task's key.
func TestOperatorStatesByKeyOfRemoteRuns(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(farDAG, "name: daily", "name: daily, state_key: \"{partition}\""))
	for n := range 2 {
		first, second := claimFar(w.Tenant, "daily", "a"), claimFar(w.Tenant, "daily", "b")
		for _, run := range []far{first, second} {
			if n > 0 {
				require.JSONEq(t, `1`, string(run.claim.Task.OperatorState))
			}
			end := run.completed(run.upload("x.parquet", rows("x")))
			end.OperatorState = json.RawMessage(fmt.Sprint(n + 1))
			state, err := run.complete(end, time.Now())
			require.NoError(t, err)
			require.Equal(t, "Completed", state.Status)
		}
	}
	require.Equal(t, []string{"a 2", "b 2"}, dispatchertest.Texts(t, w.Pool, `
		SELECT concat_ws(' ', state_key, state) FROM operator_state ORDER BY 1`))
}
