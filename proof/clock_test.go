package proof_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// Servers whose clocks are five minutes slow and fast share leases, due times and schedules: nobody loses what it
// holds, and nothing begins early or late.
func TestServersWithWrongClocksAgree(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	w := newWorldOn(t, url)
	writePrograms(t, w.landing)
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "proof",
		Role: authz.RoleAdmin})
	require.NoError(t, err)
	members := servers(t, 3, "--config", unlimited(t), "--database-url", url, "--storage-root", w.root, "--file-root",
		"acme="+w.landing, "--allow-command", "acme", "--pool-size", "4")
	for i, m := range members {
		m.env = []string{fmt.Sprintf("DAGCTL_CLOCK_SKEW=%dm", 5*(i-1))}
	}
	fleet := startFleet(t, members)
	w.eventually("the servers to be ready", func() bool { since, _ := fleet.working(); return !since.IsZero() })
	w.serve(limitedYAML(t.TempDir(), []limitedJob{{"free", 0, "dispatcher", "2", 1}}))

	due := w.databaseTime().Add(4 * time.Second)
	items := make([]dispatcher.EnqueueItem, 24) // twice what the three can run at once, half of it later
	for i := range items {
		items[i] = dispatcher.EnqueueItem{IdempotencyKey: fmt.Sprint(i), Payload: []byte(`{}`)}
		if i%2 == 0 {
			items[i].RunAt = &due
		}
	}
	var made rest.List[dispatcher.Enqueued]
	require.NoError(t, newServer("http://"+members[0].address, secret).call(t.Context(), http.MethodPost,
		"/v1/jobs/limited/free/tasks", map[string]any{"items": items}, &made))
	require.Len(t, made.Items, len(items))

	w.eventually("the tasks to end", func() bool {
		return w.count(`SELECT FROM tasks WHERE status = 'Completed'`) == len(items)
	})
	require.Zero(t, w.count(`SELECT FROM tasks WHERE attempt > 1 OR failures > 0`), "no lease was lost")
	require.Equal(t, 3, w.count(`SELECT DISTINCT worker_id FROM tasks`), "all servers worked")
	require.Zero(t, w.count(`SELECT FROM tasks WHERE started_at < run_at OR started_at > run_at + interval '30 s'`))
	require.Zero(t, w.count(`SELECT FROM workers WHERE abs(extract(epoch FROM now() - last_heartbeat)) > 30`))
}

// databaseTime returns the time of the database.
func (w *world) databaseTime() (now time.Time) {
	w.t.Helper()
	w.one(`SELECT clock_timestamp()`)(&now)
	return now
}
