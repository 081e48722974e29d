package dispatcher_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// Leases that expire together are taken back together, except a lease whose worker has sent a heartbeat in between.
func TestManyLostLeasesAreTakenBackTogether(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	const days = 9
	for day := range days {
		w.Probe.Put("raw", fmt.Sprintf("2024-02-%02d", day+1), "b")
	}
	w.Poll()
	batch := w.Claim(w.D)
	require.Len(t, batch, days)
	var found []dispatcher.LostLease
	for _, task := range batch {
		found = append(found, dispatcher.LostLease{Task: task.TaskID, Attempt: task.Attempt, Token: task.LeaseToken,
			Reason: tasks.ReasonLeaseExpired})
	}
	heard := batch[days/2]
	_, held, err := w.D.ExtendLease(t.Context(), heard.Fence, 50, "", dispatchertest.Later(50*time.Second))
	require.NoError(t, err)
	require.True(t, held)
	w.Exec(`UPDATE workers SET last_heartbeat = $1`, dispatchertest.Later(time.Hour))
	told := w.Count(`SELECT FROM task_events`)

	require.NoError(t, w.D.ReapAll(t.Context(), found, dispatchertest.Later(90*time.Second)))
	for _, task := range batch {
		if task.TaskID == heard.TaskID {
			require.Equal(t, "Running leased", w.Task(task.TaskID))
		} else {
			require.Equal(t, "Failed lease_expired waiting:backoff", w.Task(task.TaskID))
		}
	}
	require.Equal(t, told+2*(days-1), w.Count(`SELECT FROM task_events`),
		"the beginning and the end of each is on the trail")
	w.Check()
	require.NoError(t, w.D.ReapAll(t.Context(), found, dispatchertest.Later(90*time.Second)), "once is enough")
	require.Equal(t, told+2*(days-1), w.Count(`SELECT FROM task_events`))
}
