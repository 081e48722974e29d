package dispatcher_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/worker/protocol"
)

func TestClaimsThatComeTogetherAreAnsweredEachForItself(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.Org("other")
	running, canceled := w.Want("loads"), w.Want("loads")
	require.Equal(t, protocol.Claimed, claimID(w, claimant(w.Tenant), running).Status)
	_, err := w.D.Control.Cancel(t.Context(), w.Caller, canceled)
	require.NoError(t, err)
	ready, mail := w.Want("loads"), w.Want("mails")
	var batch []*dispatcher.Claiming
	ask := func(by dispatcher.Claimant, task uuid.UUID) *dispatcher.Claiming {
		x := &dispatcher.Claiming{Claimant: by, Task: task, Now: time.Now(), Done: make(chan struct{})}
		batch = append(batch, x)
		return x
	}
	mine := claimant(w.Tenant)
	foreign := ask(claimant(other), ready)
	first, again, second := ask(mine, ready), ask(mine, ready), ask(mine, mail)
	none, late, over, overAgain := ask(mine, uuid.New()), ask(mine, running), ask(mine, canceled), ask(mine, canceled)
	w.D.ClaimAll(batch)
	for _, x := range batch {
		<-x.Done
		require.NoError(t, x.Err)
	}
	require.Equal(t, ready, first.Claimed.TaskID)
	require.Equal(t, mail, second.Claimed.TaskID)
	require.NotEqual(t, first.Claimed.LeaseToken, second.Claimed.LeaseToken)
	for x, reason := range map[*dispatcher.Claiming]string{foreign: protocol.NotFound, again: protocol.AlreadyRunning,
		none: protocol.NotFound,
		late: protocol.AlreadyRunning, over: protocol.Canceled, overAgain: protocol.Canceled} {
		require.Nil(t, x.Claimed)
		require.Equal(t, reason, x.Reason, x.Task)
	}
	require.Equal(t, 3, w.Count(`SELECT FROM leases`))
}

// The creation of tasks locks queued tasks for a moment. If a worker got AlreadyRunning in that moment, it would
// delete its message, and nobody would claim the task until its message is sent again.
func TestClaimsWaitForALookAtWhatIsQueued(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	load, mail := w.Want("loads"), w.Want("mails")
	looker, err := w.Pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = looker.Exec(t.Context(), `SELECT FROM ready FOR SHARE`)
	require.NoError(t, err)

	var batch []*dispatcher.Claiming
	for _, task := range []uuid.UUID{load, mail, load} {
		batch = append(batch, &dispatcher.Claiming{Claimant: claimant(w.Tenant), Task: task, Now: time.Now(),
			Done: make(chan struct{})})
	}
	go w.D.ClaimAll(batch)
	require.Eventually(t, func() bool {
		return w.Count(`SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, time.Minute, time.Millisecond)
	require.NoError(t, looker.Commit(t.Context()))

	for _, x := range batch {
		<-x.Done
		require.NoError(t, x.Err)
	}
	require.Equal(t, load, batch[0].Claimed.TaskID)
	require.Equal(t, mail, batch[1].Claimed.TaskID)
	require.Nil(t, batch[2].Claimed)
	require.Equal(t, protocol.AlreadyRunning, batch[2].Reason)
}
