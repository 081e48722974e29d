package dispatcher

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
)

func TestClaimsThatComeTogetherAreAnsweredEachForItself(t *testing.T) {
	t.Parallel()
	w := remoteWorld(t)
	other := w.org("other")
	running, canceled := w.want("loads"), w.want("loads")
	require.Equal(t, protocol.Claimed, w.claimID(w.claimant(), running).Status)
	_, err := w.d.Cancel(t.Context(), w.caller, canceled)
	require.NoError(t, err)
	ready, mail := w.want("loads"), w.want("mails")
	var batch []*claiming
	ask := func(by Claimant, task uuid.UUID) *claiming {
		x := &claiming{claimant: by, task: task, now: time.Now(), done: make(chan struct{})}
		batch = append(batch, x)
		return x
	}
	mine := w.claimant()
	foreign := ask(other.claimant(), ready)
	first, again, second := ask(mine, ready), ask(mine, ready), ask(mine, mail)
	none, late, over, overAgain := ask(mine, uuid.New()), ask(mine, running), ask(mine, canceled), ask(mine, canceled)
	w.d.claimAll(batch)
	for _, x := range batch {
		<-x.done
		require.NoError(t, x.err)
	}
	require.Equal(t, ready, first.claimed.TaskID)
	require.Equal(t, mail, second.claimed.TaskID)
	require.NotEqual(t, first.claimed.LeaseToken, second.claimed.LeaseToken)
	for x, reason := range map[*claiming]string{foreign: protocol.NotFound, again: protocol.AlreadyRunning, none: protocol.NotFound,
		late: protocol.AlreadyRunning, over: protocol.Canceled, overAgain: protocol.Canceled} {
		require.Nil(t, x.claimed)
		require.Equal(t, reason, x.reason, x.task)
	}
	require.Equal(t, 3, w.count(`SELECT FROM leases`))
}
