// Package queue lets a worker take tasks from the messages of an SQS queue. A message only names a task, which the
// worker claims from the server. So messages that come twice, late, out of order or never do no harm.
//
// Vocabulary: a received message is hidden from others for a while, which is extended as long as its task runs; it is
// deleted once the server has decided on it. The worker leaves a message that it does not understand to the queue,
// which moves it to its dead-letter queue. It owns no tables.
package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
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
	filled time.Time // when it last had a message; only one loop calls Next
	done   *batch.Batcher[*deletion]
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

	q := &Queue{cfg: cfg, client: client, worker: w, log: w.Log(), filled: time.Now()}
	q.done = batch.New(atOnce, deleteLanes, q.deleteAll)
	return q, nil
}

// Next implements worker.Source: it receives messages and claims the tasks that they name.
func (q *Queue) Next(ctx context.Context, max int) ([]worker.Given, error) {
	received, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.cfg.URL,
		MaxNumberOfMessages: int32(min(max, atOnce)), WaitTimeSeconds: longPoll,
		VisibilityTimeout:           int32(q.cfg.Visibility / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{receiveCount}})
	if err != nil {
		return nil, fmt.Errorf("receive messages: %w", err)
	}
	if len(received.Messages) == 0 {
		if time.Since(q.filled) >= q.cfg.IdleAfter {
			return nil, worker.ErrIdle
		}
		return nil, nil
	}

	q.filled = time.Now()

	var (
		mu    sync.Mutex
		given []worker.Given
		wrong error
		all   sync.WaitGroup
	)
	for _, m := range received.Messages {
		all.Go(func() {
			g, err := q.take(ctx, m)
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

// take claims the task that a message names. It returns nil if there is nothing to run.
func (q *Queue) take(ctx context.Context, m types.Message) (*worker.Given, error) {
	var message protocol.Message
	log := q.log.With("message", aws.ToString(m.MessageId))
	if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &message); err != nil || message.TaskID == [16]byte{} {
		log.Error("a message names no task; it is left to the dead-letter queue", "received",
			m.Attributes[string(receiveCount)])
		return nil, nil
	}

	hidden, reveal := context.WithCancel(context.WithoutCancel(ctx))
	var keeping sync.WaitGroup
	keeping.Go(func() { q.keepHidden(hidden, m, log) })
	stop := func() { reveal(); keeping.Wait() }

	claim, err := q.worker.Claim(ctx, message.TaskID)
	if err != nil {
		stop()
		q.release(ctx, m, log)
		return nil, fmt.Errorf("claim task %s: %w", message.TaskID, err)
	}
	if claim.Status != protocol.Claimed || claim.Task == nil {
		stop()
		log.Debug("a message's task was not claimed", "task", message.TaskID, "reason", claim.Reason)
		q.delete(m, log)
		return nil, nil
	}

	return &worker.Given{Claim: claim, Done: func(err error) {
		stop()
		if err == nil || errors.Is(err, worker.ErrFenced) || errors.Is(err, worker.ErrConflict) ||
			errors.Is(err, worker.ErrStopped) {
			q.delete(m, log) // the server has decided, or gives the task to others by itself
		}
	}}, nil
}

// keepHidden extends a message's visibility until ctx ends. Should the message reappear nevertheless, nobody else can
// claim its task as long as the lease is kept.
func (q *Queue) keepHidden(ctx context.Context, m types.Message, log *slog.Logger) {
	tick := time.NewTicker(q.cfg.Visibility / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := q.hide(ctx, m, q.cfg.Visibility); err != nil && ctx.Err() == nil {
			log.Warn("a message could not be kept hidden", "error", err)
		}
	}
}

func (q *Queue) hide(ctx context.Context, m types.Message, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err := q.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &q.cfg.URL,
		ReceiptHandle:     m.ReceiptHandle,
		VisibilityTimeout: int32(d / time.Second)})
	return err
}

// callFor bounds a call that a stopping worker still makes.
const callFor = 5 * time.Second

// release makes a message visible again soon, for another worker if this one stops. The pause keeps a server that
// refuses claims from using up the message's receives.
func (q *Queue) release(ctx context.Context, m types.Message, log *slog.Logger) {
	pause := time.Duration(0)
	if ctx.Err() == nil {
		pause = 10*time.Second + rand.N(20*time.Second)
	}
	if err := q.hide(context.WithoutCancel(ctx), m, pause); err != nil {
		log.Warn("a message could not be released; it reappears when its visibility ends", "error", err)
	}
}
