// Package queue lets a worker take tasks from the messages of an SQS queue. A message only names a task or a block of
// tasks, which the worker claims from the server. So messages that come twice, late, out of order or never do no harm.
//
// Vocabulary: a received message is hidden from others for a while, which is extended as long as a task of it runs or
// waits for a free slot; it is deleted once the server has decided on all of them. The worker leaves a message that it
// does not understand to the queue, which moves it to its dead-letter queue. It owns no tables.
package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/dagctl/dagctl/internal/batch"
	"github.com/dagctl/dagctl/worker"
	"github.com/dagctl/dagctl/worker/protocol"
)

// Config names a queue. The AWS SDK finds the credentials where AWS tools do.
type Config struct {
	URL      string
	Endpoint string // of another server that speaks SQS; empty: AWS
	Region   string // empty: as AWS tools find it
	// Visibility is how long a received message stays hidden unless that is extended; default 60 s.
	Visibility time.Duration
	// IdleAfter is how long the queue must have been empty for the worker to count as idle; default 5 min.
	IdleAfter time.Duration
	HTTP      *http.Client // nil: the SDK's own
}

// Queue is a worker's source of tasks.
type Queue struct {
	cfg    Config
	client *sqs.Client
	worker *worker.Worker
	log    *slog.Logger
	done   *batch.Batcher[*deletion]

	// Only one loop calls Next, which has these.
	filled  time.Time // when it last had a message
	blocks  int       // tasks of the largest message of the last receive
	waiting []named   // tasks of received messages for which there was no slot yet
}

const (
	defaultVisibility = time.Minute
	defaultIdleAfter  = 5 * time.Minute
	longPoll          = 20 // seconds; SQS allows no more
	atOnce            = 10 // messages; SQS returns and deletes no more in one call
	receiveCount      = types.MessageSystemAttributeNameApproximateReceiveCount
)

// New finds the credentials. It does not connect yet.
func New(ctx context.Context, w *worker.Worker, cfg Config) (*Queue, error) {
	if cfg.URL == "" {
		return nil, errors.New("queue: the config has no URL")
	}
	cfg.Visibility, cfg.IdleAfter = cmp.Or(cfg.Visibility, defaultVisibility), cmp.Or(cfg.IdleAfter, defaultIdleAfter)

	var options []func(*config.LoadOptions) error
	if cfg.Region != "" {
		options = append(options, config.WithRegion(cfg.Region))
	}
	if cfg.HTTP != nil {
		options = append(options, config.WithHTTPClient(cfg.HTTP))
	}
	account, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("queue: AWS settings: %w", err)
	}

	client := sqs.NewFromConfig(account, func(o *sqs.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
	})

	q := &Queue{cfg: cfg, client: client, worker: w, log: w.Log(), filled: time.Now(),
		blocks: atOnce}
	q.done = batch.New(atOnce, deleteLanes, q.deleteAll)
	return q, nil
}

// Next implements worker.Source: it claims the tasks that messages name. Those for which there was no slot before come
// first, then those of messages that it receives.
func (q *Queue) Next(ctx context.Context, max int) ([]worker.Given, error) {
	q.waiting = slices.DeleteFunc(q.waiting, func(n named) bool { return n.of.isLeft() })
	if len(q.waiting) == 0 {
		if err := q.receive(ctx, max); err != nil {
			return nil, err
		}
	}

	some := q.waiting[:min(max, len(q.waiting))]
	q.waiting = q.waiting[len(some):]
	var (
		mu    sync.Mutex
		given []worker.Given
		wrong error
		all   sync.WaitGroup
	)
	for _, n := range some {
		all.Go(func() {
			g, err := q.take(ctx, n)
			mu.Lock()
			defer mu.Unlock()
			if g != nil {
				given = append(given, *g)
			}
			wrong = errors.Join(wrong, err)
		})
	}
	all.Wait()
	return given, wrong
}

// receive receives messages and has their tasks wait. It asks for no more of them than have a slot, as far as the last
// ones tell: what a worker keeps waiting, another one could run.
func (q *Queue) receive(ctx context.Context, slots int) error {
	received, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.cfg.URL,
		MaxNumberOfMessages: int32(min(max(1, slots/q.blocks), atOnce)), WaitTimeSeconds: longPoll,
		VisibilityTimeout:           int32(q.cfg.Visibility / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{receiveCount}})
	if err != nil {
		return fmt.Errorf("receive messages: %w", err)
	}
	if len(received.Messages) == 0 {
		if time.Since(q.filled) >= q.cfg.IdleAfter {
			return worker.ErrIdle
		}
		return nil
	}

	q.filled, q.blocks = time.Now(), 1
	for _, m := range received.Messages {
		tasks := q.read(ctx, m)
		q.waiting, q.blocks = append(q.waiting, tasks...), max(q.blocks, len(tasks))
	}
	return nil
}

// read returns the tasks that a message names.
func (q *Queue) read(ctx context.Context, m types.Message) (tasks []named) {
	var text protocol.Message
	log := q.log.With("message", aws.ToString(m.MessageId))
	if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &text); err != nil || len(text.Named()) == 0 {
		log.Error("a message names no task; it is left to the dead-letter queue", "received",
			m.Attributes[string(receiveCount)])
		return nil
	}

	of := q.hold(ctx, m, len(text.Named()), log)
	for _, id := range text.Named() {
		tasks = append(tasks, named{id, of})
	}
	return tasks
}

// take claims a task. It returns nil if there is nothing to run.
func (q *Queue) take(ctx context.Context, n named) (*worker.Given, error) {
	n.of.take()
	claim, err := q.worker.Claim(ctx, n.task)
	if err != nil {
		n.of.release(ctx)
		n.of.settle(false)
		return nil, fmt.Errorf("claim task %s: %w", n.task, err)
	}
	if claim.Status != protocol.Claimed || claim.Task == nil {
		n.of.log.Debug("a message's task was not claimed", "task", n.task, "reason", claim.Reason)
		n.of.settle(true)
		return nil, nil
	}

	return &worker.Given{Claim: claim, Done: func(err error) {
		// Either the server has decided, or it gives the task to others by itself.
		n.of.settle(err == nil || errors.Is(err, worker.ErrFenced) || errors.Is(err, worker.ErrConflict) ||
			errors.Is(err, worker.ErrStopped))
	}}, nil
}
