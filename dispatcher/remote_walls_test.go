package dispatcher_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/worker/protocol"
)

// refuseOwner makes the database refuse what the owner writes of attempts from now on, so that only calls under
// row-level security get through.
func refuseOwner(w *dispatchertest.World) {
	w.T.Helper()
	w.Exec(`CREATE FUNCTION refuse_owner() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF row_security_active(TG_RELID) THEN RETURN coalesce(NEW, OLD); END IF;
			RAISE 'the owner writes to %', TG_TABLE_NAME;
		END $$`)
	for _, table := range []string{"tasks", "leases", "task_attempts", "task_results", "partition_versions", "events",
		"outbox", "operator_state"} {
		w.Exec(`CREATE TRIGGER refuse_owner BEFORE INSERT OR UPDATE OR DELETE ON ` + table + `
			FOR EACH ROW EXECUTE FUNCTION refuse_owner()`)
	}
}

// Whatever a worker elsewhere calls for an attempt is done by the login of requests, with the attempt's org set.
func TestCallsOfAttemptsElsewhereAreUnderRowLevelSecurity(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	done, lost, feed := claimFar(w.Tenant, "daily", "2024-01-01"), claimFar(w.Tenant, "daily", "2024-01-02"),
		claimFar(w.Tenant, "feed", "")
	refuseOwner(w)

	_, err := done.beat(time.Now())
	require.NoError(t, err)
	_, err = feed.commit(protocol.Events{Outputs: feed.upload("a.parquet", rows("1"))}, time.Now())
	require.NoError(t, err)
	state, err := done.complete(done.completed(done.upload("a.parquet", rows("1"))), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", state.Status)
	state, err = lost.complete(lost.failed(false), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Failed", state.Status)
}

// Completions of several orgs that come at once are committed apart, each in a transaction of its own org.
func TestCompletionsOfSeveralOrgsAtOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	tenants := []*dispatchertest.Tenant{w.Tenant, w.Org("second"), w.Org("third")}
	var all []far
	for _, tn := range tenants {
		tn.Serve(farDAG)
		all = append(all, claimFar(tn, "daily", "2024-01-01"), claimFar(tn, "daily", "2024-01-02"))
	}
	refuseOwner(w)

	failed := make(chan error, len(all))
	for _, f := range all {
		body := f.completed(f.upload("a.parquet", rows("1")))
		go func() { _, err := f.complete(body, time.Now()); failed <- err }()
	}
	for range all {
		require.NoError(t, <-failed)
	}
	w.Exec(`DROP FUNCTION refuse_owner CASCADE`)
	for _, tn := range tenants {
		require.Len(t, tn.Read("far_daily"), 2)
	}
}

// A call that names a task of another org changes nothing, even where the code believes that the task is the caller's:
// to the database, there is no such task.
func TestTheDatabaseRefusesTasksOfOtherOrgs(t *testing.T) {
	t.Parallel()
	w := farWorld(t)
	other := w.Org("other").Caller.OrgID
	theirs := claimFar(w.Tenant, "daily", "2024-01-01")
	attempt, err := w.D.RunningAttempt(t.Context(), theirs.c, theirs.claim.Fence())
	require.NoError(t, err)
	forged := attempt.Of(other)
	token := theirs.c
	token.OrgID = other
	before := committed(w)

	for name, call := range map[string]func() error{
		"heartbeat": func() error {
			_, err := w.D.Heartbeat(t.Context(), token, protocol.Heartbeat{Fence: theirs.claim.Fence()}, time.Now())
			return err
		},
		"log": func() error {
			return w.D.InAttempt(t.Context(), token, theirs.claim.Fence(), func(context.Context, pgx.Tx) error {
				return nil
			})
		},
		"seal":     func() error { return w.D.Reserve(t.Context(), forged) },
		"fail":     func() error { return w.D.EndRemote(t.Context(), forged, theirs.failed(false), time.Now()) },
		"complete": func() error { return w.D.CompleteRemote(t.Context(), forged, time.Now()) },
	} {
		err := call()
		require.True(t, fault.Is(err, fault.NotFound), "%s: %v", name, err)
	}
	require.Equal(t, before, committed(w))
	require.Equal(t, "Running leased", w.Task(theirs.id))
}
