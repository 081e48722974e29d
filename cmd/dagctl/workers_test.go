package main

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
)

func TestWorkersAreListedAndDrained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	var id string
	eventually(t, "the server is registered and leads", func() (bool, error) {
		list := decode[[]dispatcher.Worker](t, env, "workers", "list")
		if len(list) == 0 || !list[0].IsLeader {
			return false, nil
		}
		id = list[0].ID
		return true, nil
	})
	require.Regexp(t, id+` +live +yes +0 of 4`, must(t, env, "workers", "list"))
	_, page := w.send(t, admin, http.MethodGet, "/workers", "", nil)
	require.Contains(t, page, id)
	require.Contains(t, page, `href="/workers/`+id+`/drain?`)

	r := dagctl(t, env, "workers", "drain", id, "--yes")
	require.Equal(t, 1, r.code)
	require.Contains(t, r.err, "--database-url", "acme is not alone on this server")
	require.Contains(t, must(t, env, "workers", "drain", id, "--yes", "--database-url", w.pool.Config().ConnString()),
		"claims no more")
	eventually(t, "the page shows it", func() (bool, error) {
		_, page := w.send(t, admin, http.MethodGet, "/workers", "", nil)
		return decode[[]dispatcher.Worker](t, env, "workers", "list")[0].State == "drained" &&
			!strings.Contains(page, "/drain"), nil
	})
	require.NotZero(t, dagctl(t, w.env(t, writer), "workers", "list").code)
}

// A worker's flag for programs was a boolean; the old form says what it is now.
func TestWorkerRefusesTheOldFormOfAllowCommand(t *testing.T) {
	t.Parallel()
	env := map[string]string{"DAGCTL_TOKEN": "dagctl_worker_x", "HOME": t.TempDir()}
	for _, args := range [][]string{{"--allow-command=true"}, {"--allow-command", "--idle-exit"}} {
		r := dagctl(t, env, append([]string{"worker", "--url", "http://127.0.0.1:1", "--runtime", "x"}, args...)...)
		require.NotZero(t, r.code)
		require.Contains(t, r.err, "--allow-command is a list of orgs now", args)
	}
}
