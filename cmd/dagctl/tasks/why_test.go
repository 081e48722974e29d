package tasks

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/why"
)

// The end of a lease, which is renewed, read as the end of the task.
func TestATaskThatRunsHasNoTimeToCome(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	then := now.Add(time.Minute)
	var out bytes.Buffer
	c := &cli.CLI{Environment: cli.Environment{Out: &out, Getenv: func(string) string { return "" }}}
	writeReasons(c, &out, []why.Reason{
		{Code: why.WhyRunning, Text: "it runs", Until: &then},
		{Code: why.WhyRunAt, Text: "it is due", Until: &then},
	}, "", now)
	require.Equal(t, "├─ it runs\n└─ it is due (in 1m)\n", out.String())
}
