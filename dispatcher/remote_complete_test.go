package dispatcher_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/storage"
	"github.com/dagctl/dagctl/worker/protocol"
)

// farDAG has jobs that workers elsewhere run, from uploads, and a job twice that reads them in the server's own
// process.
const farDAG = `
name: work
jobs:
  - { name: daily, operator: handler, runtime: poll, source: { kind: manual }, partition_by: key, config: { handler: "load" }, retry: { initial_seconds: 60 } }
  - { name: feed, operator: handler, runtime: poll, source: { kind: manual }, config: { handler: "feed" }, update_strategy: append, unique_key: [v] }
  - { name: chain, operator: handler, runtime: poll, source: { kind: manual }, partition_by: { cursor: height }, config: { handler: "chain" } }
  - { name: twice, operator: sql, inputs: [{ from: { job: daily } }], config: { query: "SELECT v || v AS v FROM daily" } }
publish:
  far_daily: { from: { job: daily } }
  far_feed: { from: { job: feed } }
  far_chain: { from: { job: chain } }
  far_twice: { from: { job: twice } }
`

// far is a claimed task elsewhere, with everything that its worker has received.
type far struct {
	w     *dispatchertest.World
	id    uuid.UUID
	claim protocol.Claim
	c     authz.Capability
}

func claimFar(tn *dispatchertest.Tenant, job, partition string) far {
	tn.W.T.Helper()
	out, err := tn.W.D.Enqueue(tn.W.T.Context(), tn.Caller, "work", job,
		[]dispatcher.EnqueueItem{{Partition: partition}})
	require.NoError(tn.W.T, err)
	return claimFarAgain(tn, out[0].ID)
}

// claimFarAgain claims the next attempt.
func claimFarAgain(tn *dispatchertest.Tenant, task uuid.UUID) far {
	tn.W.T.Helper()
	claim := claimID(tn.W, claimant(tn), task)
	require.Equal(tn.W.T, protocol.Claimed, claim.Status, claim.Reason)
	c, err := tn.W.D.Signer.Verify(claim.CapabilityToken, time.Now())
	require.NoError(tn.W.T, err)
	return far{tn.W, task, claim, c}
}

// upload uploads rows for the first output, and names them for a commit. The query makes them.
func (f far) upload(name, query string) []protocol.CommittedOutput {
	f.w.T.Helper()
	file := filepath.Join(f.w.T.TempDir(), "rows.parquet")
	require.NoError(f.w.T, dispatchertest.CopyToParquet(f.w.T.Context(), query, file))
	content, err := os.ReadFile(file)
	require.NoError(f.w.T, err)
	up, err := f.w.Storage.PutUpload(f.w.T.Context(), storage.UploadKey{Org: f.c.OrgID, Task: f.id,
		Attempt: f.claim.Attempt, Name: name}, bytes.NewReader(content))
	require.NoError(f.w.T, err)
	return []protocol.CommittedOutput{{Files: []protocol.UploadedFile{{Name: up.Name, ETag: up.ETag}}}}
}

// uploaded lists the names of the files in the upload area.
func (f far) uploaded() (names []string) {
	f.w.T.Helper()
	list, err := f.w.Storage.ListUploads(f.w.T.Context(), storage.UploadKey{Org: f.c.OrgID, Task: f.id,
		Attempt: f.claim.Attempt})
	require.NoError(f.w.T, err)
	for _, u := range list {
		names = append(names, u.Name)
	}
	return names
}

func rows(values ...string) string {
	text := "SELECT * FROM (VALUES "
	for i, v := range values {
		if i > 0 {
			text += ", "
		}
		text += "(" + sqltext.Literal(v) + ")"
	}
	return text + ") AS t(v)"
}

func (f far) completed(outputs []protocol.CommittedOutput) protocol.Completion {
	return protocol.Completion{Fence: f.claim.Fence(), Status: "Completed", Outputs: outputs}
}

func (f far) failed(retryable bool) protocol.Completion {
	return protocol.Completion{Fence: f.claim.Fence(), Status: "Failed", Error: &protocol.Error{Message: "no luck",
		Retryable: &retryable}}
}

func (f far) complete(body protocol.Completion, now time.Time) (protocol.TaskState, error) {
	return f.w.D.Complete(context.WithoutCancel(f.w.T.Context()), f.c, body, now)
}

func (f far) beat(now time.Time) (protocol.HeartbeatAnswer, error) {
	return f.w.D.Heartbeat(f.w.T.Context(), f.c, protocol.Heartbeat{Fence: f.claim.Fence(), Progress: 40,
		State: "on it"}, now)
}

func (f far) commit(events protocol.Events, now time.Time) (protocol.EventsAnswer, error) {
	events.Fence = f.claim.Fence()
	return f.w.D.CommitEvents(f.w.T.Context(), f.c, events, now)
}

func farWorld(t *testing.T) *dispatchertest.World {
	t.Helper()
	w := dispatchertest.NewWorld(t)
	w.Serve(farDAG)
	return w
}

// committed returns everything that commits change, as text: of a lease, not what its heartbeats change.
func committed(w *dispatchertest.World) (text string) {
	w.T.Helper()
	w.Row(`SELECT jsonb_build_array(
		(SELECT jsonb_agg(to_jsonb(t) ORDER BY id) FROM tasks t), (SELECT jsonb_agg(to_jsonb(p)
		ORDER BY dataset_version, partition_key, revision) FROM partition_versions p),
		(SELECT jsonb_agg(to_jsonb(l) - ARRAY['expires_at', 'heartbeat_at', 'state', 'progress'] ORDER BY task_id)
		 FROM leases l),
		(SELECT jsonb_agg(to_jsonb(e) ORDER BY id) FROM events e),
		(SELECT jsonb_agg(to_jsonb(s) ORDER BY job_id) FROM operator_state s))::text`)(&text)
	return text
}

func requireConflict(t *testing.T, err error, says string) {
	t.Helper()
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, says)
}

func TestWhatAWorkerUploadsIsPublishedAndFollowed(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	require.Equal(t, "a", f.claim.Task.Partition.Key)
	body := f.completed(f.upload("one.parquet", rows("x", "y")))
	body.Result, body.OperatorState = json.RawMessage(`{"rows":2}`), json.RawMessage(`{"seen":"y"}`)
	state, err := f.complete(body, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
	w.Settle()
	require.Equal(t, map[string][]string{"a": {"x", "y"}}, w.Read("far_daily"))
	require.Equal(t, map[string][]string{"a": {"xx", "yy"}}, w.Read("far_twice"))
	left, err := w.Storage.ListUploads(t.Context(), storage.UploadKey{Org: f.c.OrgID, Task: f.id, Attempt: 1})
	require.NoError(t, err)
	require.Empty(t, left, "uploads go when the attempt has ended")

	before := committed(w)
	again, err := f.complete(body, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", again.Status)
	require.Equal(t, before, committed(w), "the same again changes nothing")
	other := body
	other.Result = json.RawMessage(`{"rows":3}`)
	_, err = f.complete(other, time.Now())
	requireConflict(t, err, "is already Completed")
	require.Equal(t, before, committed(w))

	next := claimFar(w.Tenant, "daily", "b")
	require.JSONEq(t, `{"seen":"y"}`, string(next.claim.Task.OperatorState))
}

func TestAnAttemptThatWasFencedOffChangesNothing(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	outputs := f.upload("one.parquet", rows("old"))
	gone := time.Now().Add(time.Hour)
	w.Reap(gone)
	w.Promote(gone.Add(time.Hour))
	next := claimFarAgain(w.Tenant, f.id)
	require.Equal(t, 2, next.claim.Attempt)
	before := committed(w)
	_, err := f.beat(time.Now())
	requireConflict(t, err, "is Running at attempt 2: attempt 1 was fenced off")
	_, err = f.commit(protocol.Events{Outputs: outputs, OperatorState: json.RawMessage(`1`)}, time.Now())
	requireConflict(t, err, "was fenced off")
	for _, body := range []protocol.Completion{f.completed(outputs), f.failed(false),
		{Fence: f.claim.Fence(), Status: "Canceled"}} {
		_, err = f.complete(body, time.Now())
		requireConflict(t, err, "was fenced off")
	}
	_, err = w.D.RunningAttempt(t.Context(), f.c, f.claim.Fence())
	requireConflict(t, err, "was fenced off")
	require.Equal(t, before, committed(w))

	// The next attempt's fence is sent with the previous attempt's token, and vice versa.
	_, err = w.D.Complete(t.Context(), f.c, next.completed(nil), time.Now())
	require.True(t, fault.Is(err, fault.Forbidden), "%v", err)
	mixed := next.claim.Fence()
	mixed.LeaseToken = f.claim.Fence().LeaseToken
	_, err = w.D.Heartbeat(t.Context(), next.c, protocol.Heartbeat{Fence: mixed}, time.Now())
	requireConflict(t, err, "fenced off")
}

func TestLateCompletions(t *testing.T) {
	t.Parallel()
	late := time.Now().Add(time.Hour)
	tests := map[string]struct {
		then func(w *dispatchertest.World, f far)
		want string // status after; empty: refused
	}{
		"while it runs":           {func(*dispatchertest.World, far) {}, "Completed"},
		"after its lease ran out": {func(w *dispatchertest.World, f far) { w.Reap(late) }, "Completed"},
		"and it was made claimable again": {func(w *dispatchertest.World,
			f far) {
			w.Reap(late)
			w.Promote(late.Add(time.Hour))
		}, "Completed"},
		"after its timeout": {func(w *dispatchertest.World, f far) {
			w.Exec(`UPDATE leases SET timeout_at = now() - interval '1 minute' WHERE task_id = $1`, f.id)
			w.Reap(time.Now())
		}, ""},
		"after it was canceled": {func(w *dispatchertest.World, f far) {
			_, err := w.D.Control.Cancel(w.T.Context(), w.Caller, f.id)
			require.NoError(w.T, err)
			_, err = f.complete(protocol.Completion{Fence: f.claim.Fence(), Status: "Canceled"}, time.Now())
			require.NoError(w.T, err)
		}, ""},
		"after it said that it failed": {func(w *dispatchertest.World, f far) {
			_, err := f.complete(f.failed(true), time.Now())
			require.NoError(w.T, err)
		}, ""},
		"after its worker said that it stops": {func(w *dispatchertest.World, f far) {
			_, err := w.D.WorkerHeartbeat(w.T.Context(), w.Worker(), protocol.WorkerHeartbeat{WorkerID: "w1",
				Stopping: true}, time.Now())
			require.NoError(w.T, err)
		}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := farWorld(t)
			f := claimFar(w.Tenant, "daily", "a")
			body := f.completed(f.upload("one.parquet", rows("x")))
			test.then(w, f)
			before := committed(w)
			state, err := f.complete(body, time.Now())
			if test.want == "" {
				requireConflict(t, err, "already")
				require.Equal(t, before, committed(w))
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.want, state.Status)
			w.Settle()
			require.Equal(t, map[string][]string{"a": {"x"}}, w.Read("far_daily"))
			require.Zero(t, w.Count(`SELECT FROM leases UNION ALL SELECT FROM ready UNION ALL SELECT FROM waiting`))
		})
	}
}

func TestFailedAttemptsElsewhere(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	state, err := f.complete(f.failed(true), time.Now())
	require.NoError(t, err)
	require.Equal(t, []any{"Failed", "error"}, []any{state.Status, state.Reason})
	require.NotNil(t, state.NextRetryAt)
	require.Equal(t, dispatcher.NotClaimed(protocol.Throttled), claimID(w, claimant(w.Tenant), f.id), "it backs off")
	_, err = f.complete(f.failed(true), time.Now())
	require.NoError(t, err, "the same again")
	w.Promote(time.Now().Add(time.Hour))
	_, err = f.complete(f.failed(true), time.Now())
	require.NoError(t, err, "and again, when it is queued")

	next := claimFarAgain(w.Tenant, f.id)
	state, err = next.complete(next.failed(false), time.Now())
	require.NoError(t, err)
	require.Nil(t, state.NextRetryAt)
	require.Equal(t, dispatcher.NotClaimed(protocol.Failed), claimID(w, claimant(w.Tenant), f.id))
}

func TestHeartbeatsElsewhere(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	now := time.Now()
	answer, err := f.beat(now)
	require.NoError(t, err)
	require.WithinDuration(t, now.Add(time.Duration(f.claim.Task.LeaseSeconds)*time.Second), answer.LeaseExpiresAt,
		time.Second)
	require.Equal(t, []any{false, false, ""}, []any{answer.CancelRequested, answer.DrainRequested,
		answer.CapabilityToken})

	old := f
	old.c.ExpiresAt = now.Add(dispatcher.CapabilityFor / 3)
	answer, err = old.beat(now)
	require.NoError(t, err)
	renewed, err := w.D.Signer.Verify(answer.CapabilityToken, now)
	require.NoError(t, err)
	require.Greater(t, renewed.ExpiresAt, now.Add(dispatcher.CapabilityFor/2), "the token is renewed before it ends")

	_, err = w.D.Control.Cancel(t.Context(), w.Caller, f.id)
	require.NoError(t, err)
	answer, err = f.beat(now)
	require.NoError(t, err)
	require.True(t, answer.CancelRequested)

	before := committed(w)
	_, err = f.beat(now.Add(time.Hour))
	requireConflict(t, err, "the lease of attempt 1")
	require.Equal(t, before, committed(w), "even where no newer attempt has begun")
	_, err = f.commit(protocol.Events{OperatorState: json.RawMessage(`1`)}, now.Add(time.Hour))
	requireConflict(t, err, "the lease of attempt 1")
	require.Equal(t, before, committed(w))
}

func TestCommitsOnTheWay(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "feed", "")
	first := protocol.Events{Outputs: f.upload("1.parquet", rows("a")), OperatorState: json.RawMessage(`{"at":1}`)}
	answer, err := f.commit(first, time.Now())
	require.NoError(t, err)
	require.True(t, answer.Accepted)
	require.Equal(t, map[string][]string{"all": {"a"}}, w.Read("far_feed"))
	before := committed(w)
	again, err := f.commit(first, time.Now())
	require.NoError(t, err)
	require.Equal(t, answer, again)
	require.Equal(t, before, committed(w), "the last call again")
	require.Empty(t, f.uploaded(), "what is committed is kept once")

	// A call is repeated after its answer was lost, while the first one is still being handled.
	doubled := protocol.Events{Outputs: f.upload("twice.parquet", rows("t")), Events: nil}
	answers := make(chan error, 4)
	for range cap(answers) {
		go func() {
			_, err := f.commit(doubled, time.Now())
			answers <- err
		}()
	}
	for range cap(answers) {
		require.NoError(t, <-answers)
	}
	require.Equal(t, map[string][]string{"all": {"a", "t"}}, w.Read("far_feed"))

	_, err = f.commit(protocol.Events{Outputs: f.upload("2.parquet", rows("b"))}, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Running", status1(w, f.id))
	_, err = f.commit(protocol.Events{Outputs: []protocol.CommittedOutput{{Files: []protocol.UploadedFile{{Name: "2.parquet"}}}}, OperatorState: json.RawMessage(`{"at":1}`)}, time.Now())
	require.True(t, fault.Is(err, fault.Invalid), "it is committed: %v", err)
	all := f.completed(f.upload("3.parquet", rows("c")))
	all.Outputs[0].Files = nil // all files that were uploaded since
	state, err := f.complete(all, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
	require.Equal(t, map[string][]string{"all": {"a", "b", "c", "t"}}, w.Read("far_feed"))
	next := claimFar(w.Tenant, "feed", "")
	require.JSONEq(t, `{"at":1}`, string(next.claim.Task.OperatorState))
	w.Check()
}

func status1(w *dispatchertest.World, task uuid.UUID) (status string) {
	w.Row(`SELECT status FROM tasks WHERE id = $1`, task)(&status)
	return status
}

func TestACursorElsewhere(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	blocks := func(from, to int) string { return fmt.Sprintf("SELECT range AS height FROM range(%d, %d)", from, to+1) }
	f := claimFar(w.Tenant, "chain", "")
	require.Equal(t, &protocol.Cursor{From: -1}, f.claim.Task.Cursor)
	_, err := f.commit(protocol.Events{Outputs: f.upload("1.parquet", blocks(0, 9))}, time.Now())
	require.NoError(t, err)
	position := int64(19)
	answer, err := f.commit(protocol.Events{Outputs: f.upload("2.parquet", blocks(10, 19)),
		Events: []protocol.Event{{Cursor: &position}}}, time.Now())
	require.NoError(t, err)
	require.Equal(t, []protocol.EventOutcome{{Outcome: "accepted"}}, answer.Events)
	_, err = f.commit(protocol.Events{Outputs: f.upload("3.parquet", blocks(15, 25))}, time.Now())
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	_, err = f.complete(f.completed(f.upload("4.parquet", blocks(20, 29))), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"0-10", "10-20", "20-30"}, dispatchertest.Texts(t, w.Pool, `SELECT partition_key
		FROM partition_versions WHERE state = 'Published' ORDER BY 1`))
	w.Check()
}

// An append whose base has been replaced meanwhile is sealed again on top of the new base.
func TestTwoAppendsElsewhere(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "feed", "")
	other := f
	outputs := f.upload("1.parquet", rows("a"))
	_, err := other.commit(protocol.Events{Outputs: other.upload("0.parquet", rows("z"))}, time.Now())
	require.NoError(t, err)
	_, err = f.complete(f.completed(outputs), time.Now())
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"all": {"a", "z"}}, w.Read("far_feed"))
}

func TestFaultsOfACommitAreListed(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "daily", "a")
	good := f.upload("one.parquet", rows("x"))
	bad := f.completed([]protocol.CommittedOutput{
		{Files: []protocol.UploadedFile{{Name: "two.parquet"}, {Name: "one.parquet", ETag: "other"}}},
		{Index: 1}, {Partition: "b", Files: good[0].Files},
	})
	bad.ColumnLineage = []protocol.ColumnOrigin{{Output: 3}}
	bad.Error = &protocol.Error{Message: "x"}
	bad.OperatorState = json.RawMessage(`"\u0000"`)
	bad.Events = []protocol.Event{{Output: 4}, {Key: "b"}}
	before := committed(w)
	_, err := f.complete(bad, time.Now())
	var e *fault.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, fault.Invalid, e.Kind)
	var places []string
	for _, p := range e.Problems {
		places = append(places, p.Location)
	}
	require.ElementsMatch(t, []string{"body.outputs[0].files[0].name", "body.outputs[0].files[1].etag",
		"body.outputs[1].index", "body.outputs[2].partition_key",
		"body.error", "body.column_lineage[0].output", "body.column_lineage[0].input", "body.operator_state",
		"body.events[0].output", "body.events[1].partition_key"}, places)
	require.Equal(t, before, committed(w), "and the attempt goes on")
	state, err := f.complete(f.completed(good), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
}

// What no column of the database takes is refused with its place, and is no failure of the attempt.
func TestWhatCannotBeStoredIsRefused(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	w.Serve(dispatchertest.Edit(farDAG, `handler: "feed" }`, `handler: "feed" }, enqueues: [daily]`))
	f, chain := claimFar(w.Tenant, "feed", ""), claimFar(w.Tenant, "chain", "")
	deep := json.RawMessage(strings.Repeat("[", 9000) + strings.Repeat("]", 9000))
	beyond, last := 99999999999, int64(math.MaxInt64)
	asks := []protocol.EnqueuedTask{{Job: "daily", PartitionKey: "b", Priority: &beyond},
		{Job: "daily", PartitionKey: "c", MaxAttempts: beyond}, {Job: "daily", PartitionKey: "d", Payload: deep},
		{Job: "daily", PartitionKey: "e", Metadata: deep}}
	before := committed(w)

	places := func(err error) (places []string) {
		var e *fault.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, fault.Invalid, e.Kind)
		for _, p := range e.Problems {
			places = append(places, p.Location)
		}
		return places
	}
	asked := []string{"body.tasks[0].priority", "body.tasks[1].max_attempts", "body.tasks[2].payload",
		"body.tasks[3].metadata"}
	body := f.completed(nil)
	body.Tasks, body.OperatorState = asks, deep
	_, err := f.complete(body, time.Now())
	require.ElementsMatch(t, append(asked, "body.operator_state"), places(err))
	_, err = f.commit(protocol.Events{Tasks: asks, OperatorState: deep}, time.Now())
	require.ElementsMatch(t, append(asked, "body.operator_state"), places(err))

	for text, says := range map[string]string{
		string(deep): "is nested too deeply: lists and objects may be 500 levels deep",
		"[" + strings.Repeat("1,", 20_000) + "1]": "takes 240020 bytes in the database",
	} {
		body := f.completed(nil)
		body.Result = json.RawMessage(text)
		_, err := f.complete(body, time.Now())
		require.Contains(t, places(err), "body.result")
		require.ErrorContains(t, err, says)
	}
	body = chain.completed(nil)
	body.Cursor = &last
	_, err = chain.complete(body, time.Now())
	require.Equal(t, []string{"body.cursor"}, places(err))

	require.Equal(t, before, committed(w), "and the attempts go on")
	w.Check()
}

// A file that is not Parquet fails the attempt, as it would in the server's own process.
func TestAnUploadThatCannotBePublished(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	f := claimFar(w.Tenant, "feed", "")
	state, err := f.complete(f.completed(f.upload("one.parquet", "SELECT 1 AS other")), time.Now())
	require.NoError(t, err)
	require.Equal(t, []any{"Failed", "error"}, []any{state.Status, state.Reason})
	require.Nil(t, state.NextRetryAt, "the same rows would fail again")
}

func TestEventsOfATasksOwnOutputs(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	a := claimFar(w.Tenant, "daily", "a")
	_, err := a.complete(a.completed(a.upload("one.parquet", rows("x"))), time.Now())
	require.NoError(t, err)
	w.Settle()
	f := claimFar(w.Tenant, "daily", "a")
	answer, err := f.commit(protocol.Events{Events: []protocol.Event{{}}}, time.Now())
	require.NoError(t, err)
	require.Equal(t, "accepted", answer.Events[0].Outcome)
	require.NotNil(t, answer.Events[0].EventID)
	require.Equal(t, 3, w.Count(`SELECT FROM events WHERE partition_key = 'a'`),
		"of both revisions, and of what was made of the first")
	b := claimFar(w.Tenant, "daily", "b")
	answer, err = b.commit(protocol.Events{Events: []protocol.Event{{Key: "b"}, {Key: "b", Scope: "partition",
		Reason: "correction"}}}, time.Now())
	require.NoError(t, err)
	require.Equal(t, "rejected", answer.Events[0].Outcome, "an event brings no data")
	require.Equal(t, "rejected", answer.Events[1].Outcome)
	w.Check()
}

func TestWorkersElsewhereAreRegistered(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	beat := protocol.WorkerHeartbeat{WorkerID: "w1", Hostname: "host", Version: "1.2.3", PoolSize: 3,
		Runtimes: []string{"poll"}, Handlers: []string{"load"}}
	orders, err := w.D.WorkerHeartbeat(t.Context(), w.Worker(), beat, time.Now())
	require.NoError(t, err)
	require.False(t, orders.Drain)
	workers, err := w.D.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{}, 10, time.Now())
	require.NoError(t, err)
	require.Len(t, workers, 2)
	require.Equal(t, []any{"w1", 3, []string{"handler:load"}}, []any{workers[1].ID, workers[1].PoolSize,
		workers[1].Operators})
	workers, err = w.D.Workers(t.Context(), w.Org("other").Caller, dispatcher.WorkerKey{}, 10, time.Now())
	require.NoError(t, err)
	require.Len(t, workers, 1, "another org's worker is not shown")

	stranger := w.Worker()
	stranger.TokenName = "other"
	_, err = w.D.WorkerHeartbeat(t.Context(), stranger, beat, time.Now())
	require.NoError(t, err, "another token's worker is another worker")
	_, err = w.D.Drain(t.Context(), w.Caller, "w1", "", time.Now())
	requireConflict(t, err, "2 processes have the id w1, with the worker tokens other, workers")
	drained, err := w.D.Drain(t.Context(), w.Caller, "w1", "other", time.Now())
	require.NoError(t, err)
	require.Equal(t, "other", drained.Token)
	workers, err = w.D.Workers(t.Context(), w.Caller, dispatcher.WorkerKey{ID: "w1", Token: "other"}, 10, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"workers live"}, []string{workers[0].Token + " " + workers[0].State})

	f := claimFar(w.Tenant, "daily", "a")
	_, err = w.D.Drain(t.Context(), w.Caller, "w1", "workers", time.Now())
	require.NoError(t, err, "it works for the org alone")
	orders, err = w.D.WorkerHeartbeat(t.Context(), w.Worker(), beat, time.Now())
	require.NoError(t, err)
	require.True(t, orders.Drain)
	answer, err := f.beat(time.Now())
	require.NoError(t, err)
	require.True(t, answer.DrainRequested)
	polled, err := w.D.PollTasks(t.Context(), claimant(w.Tenant, "poll"), 1, time.Minute)
	require.NoError(t, err)
	require.True(t, polled.Drain)

	beat.Stopping = true
	_, err = w.D.WorkerHeartbeat(t.Context(), w.Worker(), beat, time.Now())
	require.NoError(t, err)
	next := claimFarAgain(w.Tenant, f.id)
	require.Equal(t, 2, next.claim.Attempt, "what it ran is claimable at once")
	w.Check()
}

func TestAPollIsWoken(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	d := w.Dispatcher("two", func(c *service.Config) { c.Poll = time.Hour }) // it does not poll
	w.Start(d)
	got := make(chan protocol.PollResponse, 1)
	go func() {
		answer, err := d.PollTasks(t.Context(), claimant(w.Tenant, "poll"), 10, time.Minute)
		if err == nil {
			got <- answer
		}
	}()
	require.Eventually(t, func() bool { return d.Wakeups.Claimable.Waiting() }, 10*time.Second, time.Millisecond)
	out, err := d.Enqueue(t.Context(), w.Caller, "work", "loads", []dispatcher.EnqueueItem{{}})
	require.NoError(t, err)
	answer := <-got
	require.Equal(t, out[0].ID, answer.Tasks[0].Task.TaskID)
}

// A worker's run whose files show no columns is no failure: the task waits for a file that does, as in the server's own
// process. A build fails if nothing is left that may show them.
func TestAnEmptyFileReadElsewhere(t *testing.T) {
	t.Parallel()
	away := dispatchertest.Edit(fed, "operator: file_source", "runtime: poll\n    operator: file_source",
		"max_attempts: 1", "max_attempts: 2")
	says := protocol.Completion{Status: protocol.Failed,
		Error: &protocol.Error{Message: "the files say nothing of their columns", ColumnsUnknown: true}}

	w := dispatchertest.NewWorld(t)
	w.Serve(away)
	w.Drop("2026-01-01.csv", "")
	w.Poll()
	at := time.Now()
	for range 3 {
		f := claimFarAgain(w.Tenant, w.TaskOf("raw", "2026-01-01"))
		body := says
		body.Fence = f.claim.Fence()
		_, err := f.complete(body, at)
		require.NoError(t, err)
		_, err = f.complete(body, at)
		require.NoError(t, err, "the same call again changes nothing")
		at = at.Add(time.Hour)
		w.Promote(at)
		require.Equal(t, []string{"2026-01-01 Queued handed_back"}, w.Tasks("raw"))
	}
	require.Zero(t, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))

	w = dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "")
	build := w.Deploy(away)
	w.Advance()
	f := claimFarAgain(w.Tenant, w.TaskOf("raw", "2026-01-01"))
	body := says
	body.Fence = f.claim.Fence()
	_, err := f.complete(body, time.Now())
	require.NoError(t, err)
	w.Settle()
	status, why := w.Status(build.Version.ID)
	require.EqualValues(t, "Failed", status)
	require.Contains(t, why, "say nothing of their columns")

	// Only a source of files may say so.
	w = dispatchertest.NewWorld(t)
	w.Serve(farDAG)
	f = claimFar(w.Tenant, "daily", "a")
	body.Fence = f.claim.Fence()
	_, err = f.complete(body, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"a Failed error"}, w.Tasks("daily"))
}

// Of two tasks with payloads of their own, the one that lost its lease and ends last is not taken for superseded:
// nobody else does its work. An append goes on top of what the other wrote; a replacement is done again.
func TestALateEndOfATaskWithItsOwnPayload(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(farDAG, `handler: "feed" }`, `handler: "feed" }, enqueues: [daily]`))
	child := []protocol.EnqueuedTask{{Job: "daily", PartitionKey: "child"}}
	overtaken := func(job, partition string) (late far, end protocol.Completion) {
		t.Helper()
		late = claimFar(w.Tenant, job, partition)
		w.Reap(time.Now().Add(time.Hour))
		other := claimFar(w.Tenant, job, partition)
		_, err := other.complete(other.completed(other.upload("b.parquet", rows("b"))), time.Now())
		require.NoError(t, err)
		return late, late.completed(late.upload("a.parquet", rows("a")))
	}

	late, end := overtaken("feed", "")
	end.Tasks = child
	state, err := late.complete(end, time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"Completed", ""}, []string{state.Status, state.State})
	require.Equal(t, map[string][]string{"all": {"a", "b"}}, w.Read("far_feed"))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks WHERE partitions = '{child}'`))

	late, end = overtaken("daily", "x")
	_, err = late.complete(end, time.Now())
	require.NoError(t, err)
	require.Equal(t, "Failed", status1(w, late.id), "it waits to be tried again")
	require.Zero(t, w.Count(`SELECT FROM tasks WHERE id = $1 AND failures > 1`, late.id))
	w.Promote(time.Now().Add(2 * time.Hour))
	again := claimFarAgain(w.Tenant, late.id)
	_, err = again.complete(again.completed(again.upload("a.parquet", rows("a"))), time.Now())
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, w.Read("far_daily")["x"])
}
