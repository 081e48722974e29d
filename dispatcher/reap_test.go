package dispatcher

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Leases that are lost at once are taken back at once, but not the one whose worker was heard of in between.
func TestManyLostLeasesAreTakenBackTogether(t *testing.T) {
	t.Parallel()
	w := pairWorld(t)
	const days = 9
	for day := range days {
		w.probe.put("raw", fmt.Sprintf("2024-02-%02d", day+1), "b")
	}
	w.poll()
	tasks := w.claim(w.d)
	require.Len(t, tasks, days)
	var found []lostLease
	for _, task := range tasks {
		found = append(found, lostLease{Task: task.TaskID, Attempt: task.Attempt, Token: task.LeaseToken, Reason: reasonLeaseExpired})
	}
	heard := tasks[days/2]
	_, held, err := w.d.heartbeat(t.Context(), heard.Fence, 50, "", later(50*time.Second))
	require.NoError(t, err)
	require.True(t, held)
	w.exec(`UPDATE workers SET last_heartbeat = $1`, later(time.Hour))
	told := w.count(`SELECT FROM task_events`)

	require.NoError(t, w.d.reapAll(t.Context(), found, later(90*time.Second)))
	for _, task := range tasks {
		if task.TaskID == heard.TaskID {
			require.Equal(t, "Running leased", w.task(task.TaskID))
		} else {
			require.Equal(t, "Failed lease_expired waiting:backoff", w.task(task.TaskID))
		}
	}
	require.Equal(t, told+2*(days-1), w.count(`SELECT FROM task_events`), "the beginning and the end of each is on the trail")
	w.check()
	require.NoError(t, w.d.reapAll(t.Context(), found, later(90*time.Second)), "once is enough")
	require.Equal(t, told+2*(days-1), w.count(`SELECT FROM task_events`))
}
