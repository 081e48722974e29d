package python_test

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
)

// block is a fenced block of a page: what follows the fence on its first line, and what is inside.
type block struct{ info, text string }

var fenced = regexp.MustCompile("(?ms)^```([^\n]+)\n(.*?)^```$")

func blocks(t *testing.T, page string) []block {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	var found []block
	for _, match := range fenced.FindAllStringSubmatch(string(text), -1) {
		found = append(found, block{match[1], match[2]})
	}
	require.NotEmpty(t, found, page)
	return found
}

// The protocol's examples have the fields of the protocol and no others.
func TestExamplesOfTheProtocol(t *testing.T) {
	t.Parallel()
	shapes := map[string][2]func() any{
		"POST /internal/task-poll":        {as[protocol.PollRequest], as[protocol.PollResponse]},
		"POST /internal/task-claim":       {as[protocol.ClaimRequest], as[protocol.Claim]},
		"POST /internal/worker-heartbeat": {as[protocol.WorkerHeartbeat], as[protocol.WorkerOrders]},
		"POST /v1/task/heartbeat":         {as[protocol.Heartbeat], as[protocol.HeartbeatAnswer]},
		"POST /v1/task/events":            {as[protocol.Events], as[protocol.EventsAnswer]},
		"POST /v1/task/logs":              {as[protocol.Logs], as[protocol.LogsAnswer]},
		"POST /v1/task/complete":          {as[protocol.Completion], as[protocol.TaskState]},
	}
	asked, seen := "", map[string]bool{}
	for _, b := range blocks(t, "../../docs/workers.md") {
		name, isJSON := bytes.CutPrefix([]byte(b.info), []byte("json "))
		if !isJSON {
			continue
		}
		side := 1
		if string(name) != "answer" {
			asked, side = string(name), 0
		}
		shape, known := shapes[asked]
		require.True(t, known, asked)
		decoder := json.NewDecoder(bytes.NewReader([]byte(b.text)))
		decoder.DisallowUnknownFields()
		require.NoError(t, decoder.Decode(shape[side]()), "%s\n%s", b.info, b.text)
		seen[asked] = true
	}
	require.Len(t, seen, len(shapes))
}

func as[T any]() any { return new(T) }
