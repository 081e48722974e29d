package testaws

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/dagctl/dagctl/internal/testserver"
)

// Queues is the SQS server of this test process.
type Queues struct {
	Endpoint string
	Client   *sqs.Client
}

var started struct {
	sync.Mutex
	endpoint string
}

// SQS starts the server, once in a process.
func SQS(t testing.TB) *Queues {
	t.Helper()
	started.Lock()
	defer started.Unlock()
	if started.endpoint == "" {
		endpoint, stop, err := ServeSQS()
		if err != nil {
			t.Fatal(err)
		}
		started.endpoint = endpoint
		keepOpen = append(keepOpen, stop)
	}
	endpoint := started.endpoint
	return &Queues{Endpoint: endpoint, Client: sqs.NewFromConfig(Config(t), func(o *sqs.Options) {
		o.BaseEndpoint = &endpoint
	})}
}

// keepOpen holds the pipes whose closing ends a server, until this process is gone.
var keepOpen []any

// ServeSQS starts a server of the caller's own, which stop ends.
func ServeSQS() (endpoint string, stop func() error, err error) {
	cmd, life, err := testserver.Node("fauxqs")
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, fmt.Errorf("start fauxqs: %w", err)
	}

	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start fauxqs: %w", err)
	}
	stop = func() error { return errors.Join(life.Close(), cmd.Wait()) }
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("start fauxqs: it said no address: %w", err), stop())
	}
	return strings.TrimSpace(line), stop, nil
}

// New creates a queue of the test's own and returns its URL.
func (q *Queues) New(t testing.TB, attributes map[string]string) string {
	t.Helper()
	made, err := q.Client.CreateQueue(t.Context(),
		&sqs.CreateQueueInput{QueueName: aws.String("test-" + strings.ToLower(rand.Text())), Attributes: attributes})
	if err != nil {
		t.Fatalf("create a queue: %v", err)
	}
	return *made.QueueUrl
}

// NewWithDLQ creates a queue whose messages move to another one after they were received too often.
func (q *Queues) NewWithDLQ(t testing.TB, receives int, attributes map[string]string) (queue, dlq string) {
	t.Helper()
	dlq = q.New(t, nil)
	policy, err := json.Marshal(map[string]string{"deadLetterTargetArn": q.ARN(t, dlq),
		"maxReceiveCount": fmt.Sprint(receives)})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{"RedrivePolicy": string(policy)}
	for name, value := range attributes {
		all[name] = value
	}
	return q.New(t, all), dlq
}

// ARN returns the name of a queue in policies.
func (q *Queues) ARN(t testing.TB, url string) string {
	t.Helper()
	got, err := q.Client.GetQueueAttributes(t.Context(), &sqs.GetQueueAttributesInput{QueueUrl: &url,
		AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameQueueArn}})
	if err != nil {
		t.Fatalf("attributes of %s: %v", url, err)
	}
	return got.Attributes[string(types.QueueAttributeNameQueueArn)]
}

// Receive returns up to ten messages of a queue. It waits up to some seconds for the first.
func (q *Queues) Receive(t testing.TB, url string, seconds int) []types.Message {
	t.Helper()
	got, err := q.Client.ReceiveMessage(t.Context(),
		&sqs.ReceiveMessageInput{QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: int32(seconds),
			MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameAll}})
	if err != nil {
		t.Fatalf("receive from %s: %v", url, err)
	}
	return got.Messages
}

// Delete removes received messages.
func (q *Queues) Delete(t testing.TB, url string, messages ...types.Message) {
	t.Helper()
	for _, m := range messages {
		if _, err := q.Client.DeleteMessage(t.Context(),
			&sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle}); err != nil {
			t.Fatalf("delete from %s: %v", url, err)
		}
	}
}
