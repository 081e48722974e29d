package proof_test

import (
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

// Servers whose URL names the machines of PostgreSQL and of its standby go on with the one that leads, by themselves:
// what was answered is there, and what was asked for is done.
func TestServersFollowWhoLeads(t *testing.T) {
	t.Parallel()
	database := startPostgres(t)
	require.NoError(t, migrations.Up(t.Context(), database.through(database.plain)))
	database.follow(t.Context())
	w := newWorldOn(t, database.through(database.plain))
	writePrograms(t, w.landing)
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller,
		authz.NewToken{Name: "proof", Role: authz.RoleAdmin})
	require.NoError(t, err)

	both, err := url.Parse(database.server.LoopbackURL())
	require.NoError(t, err)
	standby, err := url.Parse(database.standby.LoopbackURL())
	require.NoError(t, err)
	both.Host += "," + standby.Host
	both.RawQuery += "&target_session_attrs=read-write"
	members := servers(t, 2, "--config", unlimited(t), "--database-url", both.String(), "--storage-root", w.root,
		"--file-root", "acme="+w.landing, "--allow-command", "acme")
	fleet := startFleet(t, members)
	w.eventually("the servers to be ready", func() bool { since, _ := fleet.working(); return !since.IsZero() })
	w.serve(limitedYAML(t.TempDir(), []limitedJob{{"free", 0, "dispatcher", "0.2", 1}}))

	ask := func(name string) {
		items := make([]dispatcher.EnqueueItem, 40)
		for i := range items {
			items[i] = dispatcher.EnqueueItem{IdempotencyKey: fmt.Sprint(name, i), Payload: []byte(`{}`)}
		}
		w.eventually("an answer", func() bool { // the same question may be asked again
			var made rest.List[dispatcher.Enqueued]
			err := newServer("http://"+members[0].address, secret).call(t.Context(), http.MethodPost,
				"/v1/jobs/limited/free/tasks", map[string]any{"items": items}, &made)
			return err == nil && len(made.Items) == len(items)
		})
	}
	ask("before")
	database.failOver(t.Context())
	w.pool.Reset()
	ask("after")
	w.eventually("the tasks to end", func() bool {
		return w.count(`SELECT FROM tasks WHERE status = 'Completed'`) == 80
	})
	require.Equal(t, 80, w.count(`SELECT FROM tasks`))
	require.Zero(t, members[0].deaths+members[1].deaths, "no server ended")
}
