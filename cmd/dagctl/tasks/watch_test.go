package tasks

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// A watch of what a pause holds would say nothing for ever.
func TestAWatchSaysThatAPauseHoldsAll(t *testing.T) {
	t.Parallel()
	var out, err bytes.Buffer
	c := &cli.CLI{Environment: cli.Environment{Out: &out, Err: &err, Getenv: func(string) string { return "" }}}
	w := causedWatch{c: c, last: map[uuid.UUID]string{}, found: map[uuid.UUID]bool{}}
	task := func(status, waiting string) views.CausedTask {
		return views.CausedTask{Task: views.Task{ID: uuid.New(), DAG: "pay", Job: "slips", Status: status,
			Waiting: waiting}}
	}

	held, running := task("Queued", "paused"), task("Running", "")
	w.show(views.Caused{Open: true, Tasks: []views.CausedTask{held, running}}, time.Now())
	require.Empty(t, err.String(), "one of them goes on")
	for range 2 {
		w.show(views.Caused{Open: true, Tasks: []views.CausedTask{held, task("Completed", "")}}, time.Now())
	}
	require.Equal(t, 1, strings.Count(err.String(), "`dagctl resume pay/slips`"), "it is said once")
	require.Contains(t, err.String(), "Ctrl-C ends the watching alone")
}
