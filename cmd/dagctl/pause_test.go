package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

func TestPauseOnTheCommandLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)
	require.Equal(t, "readings/daily is paused\n",
		must(t, env, "pause", "readings/daily", "--reason", "the disk is full"))
	w.land(t, "2026-01-02")
	eventually(t, "its task waits", func() (bool, error) {
		tasks := decode[[]views.Task](t, env, "tasks", "list", "--dag", "readings", "--job",
			"daily", "--status", "Queued")
		return len(tasks) == 1 && tasks[0].Waiting == "paused", nil
	})
	require.Regexp(t, `daily .* ago: the disk is full`, must(t, env, "status", "readings"))
	require.Equal(t, []string{"2026-01-01"}, w.partitions(t, "daily_highest"))
	require.Equal(t, "readings/daily is resumed\n", must(t, env, "resume", "readings/daily"))
	eventually(t, "it goes on", func() (bool, error) { return len(w.partitions(t, "daily_highest")) == 2, nil })

	for _, c := range []struct {
		who  string
		code int
		args []string
	}{
		{writer, cli.ExitFailed, []string{"resume", "readings/daily"}},
		{writer, cli.ExitFailed, []string{"pause", "--org"}},
		{writer, cli.ExitFailed, []string{"pause"}},
		{writer, cli.ExitFailed, []string{"pause", "readings", "--org"}},
		{writer, cli.ExitFailed, []string{"pause", "readings/"}},
		{reader, cli.ExitFailed, []string{"pause", "readings"}},
		{foreign, cli.ExitFailed, []string{"pause", "readings"}},
		{writer, cli.ExitOK, []string{"pause", "readings"}},
		{admin, cli.ExitOK, []string{"pause", "--org", "--reason", "night"}},
		{admin, cli.ExitOK, []string{"resume", "--org"}},
		{writer, cli.ExitOK, []string{"resume", "readings"}},
	} {
		require.Equal(t, c.code, dagctl(t, w.env(t, c.who), c.args...).code, "%s: %v", c.who, c.args)
	}
}
