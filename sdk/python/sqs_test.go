package python_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testaws"
)

const queueDAG = `name: queued
jobs:
  - name: work
    runtime: queue
    operator: handler
    source: { kind: manual }
    outputs: 0
    config: { handler: "queue:work" }
`

// Messages come twice, name nothing, or tasks that are done; the queue ends up empty, and each task has run once.
func TestSQS(t *testing.T) {
	t.Parallel()
	queues := testaws.SQS(t)
	url, dlq := queues.NewWithDLQ(t, 2, map[string]string{"VisibilityTimeout": "2"})
	w := newWorld(t, fmt.Sprintf("queue: { kind: sqs, queue_url: %q, endpoint: %q, region: us-east-1, "+
		"tasks_per_message: 10 }", url,
		queues.Endpoint))
	w.serve(t, queueDAG)
	worker := w.worker(t, "sqs.py", "QUEUE_URL="+url, "SQS_ENDPOINT="+queues.Endpoint, "AWS_ACCESS_KEY_ID=AKIATEST",
		"AWS_SECRET_ACCESS_KEY=secret")

	// One that takes longer than its message is invisible for.
	gate := filepath.Join(t.TempDir(), "gate")
	began := time.Now()
	long := w.run(t, "queued/work", fmt.Sprintf(`{"n": 100, "gate": %q}`, gate))
	worker.says(t, "begins 100\n")

	send := func(body string) {
		_, err := queues.Client.SendMessage(t.Context(), &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body})
		require.NoError(t, err)
	}
	const tasks = 20
	var ids []string
	for n := range tasks {
		ids = append(ids, w.run(t, "queued/work", fmt.Sprintf(`{"n": %d}`, n)))
		send(fmt.Sprintf(`{"task_id": %q}`, ids[n]))
	}

	block, err := json.Marshal(map[string]any{"task_ids": ids}) // more than there are slots for
	require.NoError(t, err)
	send(string(block))
	send(string(block))
	poison := []string{`{`, `{"task_id": "nonsense"}`, `{"task_ids": []}`, `{"task_ids": ["nonsense"]}`}
	for _, body := range poison {
		send(body)
	}
	send(`{"task_id": "0190c0de-0000-7000-8000-000000000001"}`) // of no task: it is done with
	for n, id := range ids {
		task := w.ended(t, id, "Completed")
		require.Equal(t, 1, task.Attempt)
		require.Equal(t, fmt.Sprint(n), string(task.Result))
		// Its threads write the ends of their lines apart from the rest.
		require.Len(t, regexp.MustCompile(fmt.Sprintf(`begins %d(\D|$)`, n)).FindAllString(worker.said(), -1), 1)
		send(fmt.Sprintf(`{"task_id": %q}`, id)) // long after
	}

	var dead []string
	processtest.Eventually(t, "the poison is set aside", func() bool {
		got, err := queues.Client.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &dlq,
			MaxNumberOfMessages: 10, VisibilityTimeout: 600})
		require.NoError(t, err)
		for _, m := range got.Messages {
			dead = append(dead, *m.Body)
		}
		return len(dead) == len(poison)
	})
	require.ElementsMatch(t, poison, dead)

	processtest.Eventually(t, "more than two visibility timeouts have gone by", func() bool {
		return time.Since(began) > 5*time.Second
	})
	require.Equal(t, 1, strings.Count(worker.said(), "begins 100"), "its message was kept from others")
	require.True(t, attempt(1, "Running")(w.task(t, long)))
	require.NoError(t, touch(gate))

	w.ended(t, long, "Completed")
	processtest.Eventually(t, "the queue is empty", func() bool {
		got, err := queues.Client.GetQueueAttributes(t.Context(),
			&sqs.GetQueueAttributesInput{QueueUrl: aws.String(url),
				AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll}})
		require.NoError(t, err)
		return got.Attributes["ApproximateNumberOfMessages"] == "0" &&
			got.Attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
	})

	var all []views.Task
	w.decode(t, &all, "tasks", "list", "--job", "work", "--limit", "1000")
	require.Len(t, all, tasks+1)

	for _, task := range all {
		require.Equal(t, 1, task.Attempt)
	}
}

// The function is invoked with a claim, as a server invokes it, and has no token but the claim's.
func TestLambda(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, strings.NewReplacer("runtime: queue", "runtime: python", "queued", "invoked").Replace(queueDAG))
	id := w.run(t, "invoked/work", `{"to": "ada"}`)
	claim := w.asWorker(t, "/internal/task-claim", map[string]any{"task_id": id, "worker_id": "lambda",
		"handlers": []string{"queue:work"}})
	require.Equal(t, "Claimed", claim["status"], "%v", claim)

	shown := programs(t, "../../docs/workers.md")
	function := strings.Replace(shown[len(shown)-1].text, "email:send", "queue:work", 1)
	event, err := json.Marshal(claim)
	require.NoError(t, err)

	said := w.python(t, function+"\nimport json, sys\nprint(json.dumps(handler(json.load(sys.stdin), None)))\n",
		string(event))
	require.JSONEq(t, fmt.Sprintf(`{"task_id": %q, "attempt": 1, "status": "Completed"}`, id), said)
	require.JSONEq(t, `{"sent": "ada"}`, string(w.ended(t, id, "Completed").Result))
}
