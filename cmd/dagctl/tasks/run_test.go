package tasks

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
)

func commandLine(input string) *cli.CLI {
	return &cli.CLI{Environment: cli.Environment{In: strings.NewReader(input)}}
}

func TestItemsOfOneTask(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mail.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"to": "a@example.com"}`), 0o600))
	flags := runFlags{payload: "@" + path, metadata: `{"by": "ann"}`, runAt: "2026-01-31T09:00:00Z", priority: 3,
		item: dispatcher.EnqueueItem{IdempotencyKey: "one"}}

	items, err := flags.items(commandLine(""), true)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.JSONEq(t, `{"to": "a@example.com"}`, string(items[0].Payload))
	require.JSONEq(t, `{"by": "ann"}`, string(items[0].Metadata))
	require.Equal(t, time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC), items[0].RunAt.UTC())
	require.Equal(t, 3, *items[0].Priority)
	require.Equal(t, "one", items[0].IdempotencyKey)

	items, err = new(runFlags).items(commandLine(""), false)
	require.NoError(t, err)
	require.Equal(t, []dispatcher.EnqueueItem{{}}, items, "without flags everything is as the job says")
	_, err = (&runFlags{payload: "{"}).items(commandLine(""), false)
	require.ErrorContains(t, err, "is not JSON")
}

func TestItemsOfABatch(t *testing.T) {
	t.Parallel()
	flags := runFlags{batch: "-"}
	items, err := flags.items(commandLine("{\"payload\": 1, \"idempotency_key\": \"a\"}\n\n{\"payload\": 2}\n"), false)
	require.NoError(t, err)
	require.Len(t, items, 2)
	require.Equal(t, "a", items[0].IdempotencyKey)
	require.Equal(t, "2", string(items[1].Payload))

	for input, want := range map[string]string{
		"":                             "no tasks in it",
		"{}\n{\"paylod\": 1}\n":        "-:2",
		"{\"payload\": 1}\nnot JSON\n": "-:2",
	} {
		_, err := flags.items(commandLine(input), false)
		require.ErrorContains(t, err, want, input)
	}
}
