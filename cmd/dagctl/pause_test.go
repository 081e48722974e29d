package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
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
	require.NotContains(t, must(t, env, "sources"), "Paused")
	must(t, env, "pause", "readings/landing")
	require.Regexp(t, `readings/landing +poll +Paused `, must(t, env, "sources"))
	must(t, env, "resume", "readings/landing")
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

// What people have to act on shows where they look first: rejected partitions, and jobs that are paused.
func TestStatusShowsWhatIsWithheldAndPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)
	bad := filepath.Join(w.roots, "landing", "2026-01-02.csv")
	require.NoError(t, os.WriteFile(bad, []byte("station,celsius\n,3.5\n"), 0o600))
	must(t, env, "pause", "readings/note")
	eventually(t, "the bad day is rejected", func() (bool, error) {
		status := must(t, env, "status")
		return regexp.MustCompile(`(?m)^readings +v1 .* 1 +[^ ]+( ago)? +1 job *$`).MatchString(status), errors.New(status)
	})

	list := decode[[]views.DAGStatus](t, env, "status")
	require.Equal(t, int64(1), list[0].Withheld)
	require.Equal(t, 1, list[0].PausedJobs)
	detail := decode[views.DAGDetail](t, env, "status", "readings")
	require.Equal(t, int64(1), detail.Withheld)
	for _, j := range detail.Jobs {
		require.Equal(t, j.Name == "daily", j.Withheld == 1, j.Name)
	}
}
