package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
)

func TestTasksPurgeOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)
	must(t, env, "run", "readings/note", "--payload", `{"text": "secret"}`, "--metadata", `{"by": "ann"}`,
		"--max-attempts", "2", "--run-at", "2020-01-01")
	var note views.Task
	eventually(t, "it has run", func() (bool, error) {
		note = decode[[]views.Task](t, env, "tasks", "list", "--job", "note")[0]
		return note.Status == "Completed", nil
	})
	require.Equal(t, 2, note.MaxAttempts)
	purge := []string{"tasks", "purge", "--where", "payload.text=secret", "--reason", "erasure"}
	require.Contains(t, dagctl(t, env, append(purge, "--yes")...).err, "admin")
	adminEnv := w.env(t, admin)
	require.Equal(t, "1 task to purge.\n", must(t, adminEnv, append(purge, "--dry-run")...))
	require.Contains(t, dagctl(t, adminEnv, purge...).err, "pass --yes")
	require.Equal(t, "Deleted the data of 1 task.\n", must(t, adminEnv, append(purge, "--yes")...))
	require.NotContains(t, must(t, env, "tasks", "get", note.ID.String()), "secret")
	require.NotZero(t, dagctl(t, adminEnv, "tasks", "purge", "--where", "payload.text", "--reason", "x", "--yes").code)
}
