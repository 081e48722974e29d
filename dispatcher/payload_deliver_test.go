package dispatcher_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
)

const notices = `
name: mail
jobs:
  - name: notice
    operator: webhook_deliver
    source: { kind: manual }
    outputs: 0
    max_attempts: 3
    payload_schema: { type: object, required: [order] }
    config: { url: "%s/hook", key: [order], max_tries: 1, request_timeout_seconds: 1 }
`

// The payload of a task is sent once for its key, and its answer decides how the task ends.
func TestPayloadsAreDeliveredOncePerKey(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	re.answers(func(w http.ResponseWriter, _ *http.Request, body string, before int) {
		if strings.Contains(body, "busy") && before == 0 || strings.Contains(body, "wrong") && before == 0 {
			w.WriteHeader(map[bool]int{true: 503, false: 422}[strings.Contains(body, "busy")])
		}
	})
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(notices, re.URL))
	ask := func(payload string) string {
		t.Helper()
		made := w.Enqueue("notice", dispatcher.EnqueueItem{Payload: json.RawMessage(payload)})
		w.Settle()
		return w.Task(made[0].ID)
	}

	require.Equal(t, "Completed", ask(`{"order": 1, "text": "é \"<&>\""}`))
	var sent map[string]any
	require.NoError(t, json.Unmarshal([]byte(re.got()[0]), &sent))
	require.Equal(t, map[string]any{"order": 1.0, "text": `é "<&>"`}, sent)
	require.Equal(t, "Completed", ask(`{"order": 1.0, "text": "the same key"}`))
	require.Empty(t, re.got())

	require.Equal(t, "Failed error waiting:backoff", ask(`{"order": "2", "text": "busy"}`))
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, 3, w.Count(`SELECT FROM tasks WHERE status = 'Completed'`))
	require.Len(t, re.got(), 2)

	require.Equal(t, "Failed error waiting:dead", ask(`{"order": 3, "text": "wrong"}`))
	require.Equal(t, 1, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`), "what is refused is not tried again")
	require.Equal(t, "Completed", ask(`{"order": 3, "text": "wrong"}`), "another task tries it once more")
	require.Equal(t, "Failed error waiting:dead", ask(`{"order": null}`))
	var says string
	w.Row(`SELECT error_message FROM tasks ORDER BY id DESC LIMIT 1`)(&says)
	require.Contains(t, says, "the payload has no order, which is of the key")
	require.Len(t, re.keys(), 3)
	w.Check()
}

// problemsOf returns the texts of the problems that refuse a plan.
func problemsOf(t *testing.T, err error) string {
	t.Helper()
	var f *fault.Error
	if err == nil {
		return ""
	}
	require.ErrorAs(t, err, &f)
	return fmt.Sprintf("%+v", f.Problems)
}

// A job that sends payloads needs a source of them, no output, no partition, and a payload that has the key.
func TestJobsThatSendPayloadsAreChecked(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	good := fmt.Sprintf(notices, "https://example.com")
	for want, edit := range map[string][2]string{
		"of kind manual or timer only":    {"{ kind: manual }", "{ kind: poll, every: 1h }"},
		"give the job `outputs: 0`":       {"    outputs: 0\n", ""},
		"have no partition":               {"/hook", "/{partition}"},
		"the payload may be without user": {"key: [order]", "key: [order, user]"},
		"without target_timestamp_utc":    {"key: [order]", "key: [order, target_timestamp_utc]"},
	} {
		yaml := strings.Replace(good, edit[0], edit[1], 1)
		if strings.Contains(want, "kind manual") {
			yaml = strings.Replace(yaml, "    payload_schema: { type: object, required: [order] }\n", "", 1)
		}
		_, err := w.TryPlan(yaml)
		require.Contains(t, problemsOf(t, err), want)
	}
	_, err := w.TryPlan(strings.NewReplacer("kind: manual", "kind: timer", "key: [order]",
		"key: [order, target_timestamp_utc]").Replace(good))
	require.NoError(t, err)
}

// A column that the input does not have is found by the plan.
func TestDeliveriesByColumnsThatAreGone(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	yaml := fmt.Sprintf(greetings, newReceiver(t).URL)
	_, err := w.TryPlan(strings.Replace(yaml, "key: [person]", "key: [gone]", 1))
	require.NoError(t, err, "nobody knows the columns yet")
	w.Serve(yaml)
	drop(w, "a", "1,hi\n")
	for want, changed := range map[string]string{
		`job sent: config.key: the input has no column "gone"`:     "key: [person, gone]",
		`job sent: config.key: the input has no column "Person"`:   "key: [Person]",
		`job sent: config.columns: the input has no column "gone"`: "key: [person], columns: [text, gone]",
	} {
		_, err := w.TryPlan(dispatchertest.Edit(yaml, "key: [person]", changed))
		require.Contains(t, problemsOf(t, err), want)
	}
}

// What was delivered of payloads is forgotten after a time. What was delivered of rows stays, and is not sent anew.
func TestDeliveriesOfPayloadsAreForgotten(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(notices, re.URL))
	w.Serve(fmt.Sprintf(greetings, re.URL))
	w.Enqueue("notice", dispatcher.EnqueueItem{Payload: json.RawMessage(`{"order": 1}`)})
	w.Settle()
	drop(w, "a", "1,hi\n")
	require.Len(t, re.got(), 2)

	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(),
		dispatchertest.Later(upkeep.KeepDeliveries-time.Hour)))
	require.Equal(t, 2, w.Count(`SELECT FROM deliveries`))
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(),
		dispatchertest.Later(upkeep.KeepDeliveries+time.Hour)))
	require.Equal(t, []string{"greetings"}, dispatchertest.Texts(t, w.Pool, `SELECT dag_name FROM deliveries`))
	drop(w, "a", "1,again\n")
	require.Empty(t, re.got())
}
