// Package queue gives a worker the tasks that the messages of an SQS queue name. A message says which task, and nothing
// else: the worker claims it from the server, so messages that come twice, late, out of order or never do no harm.
//
// Vocabulary: a message is hidden from others for a while when it is received, which is extended as long as its task runs;
// it is deleted once the server has decided on it. A message that nobody understands is left alone, so that the queue
// itself moves it to its dead-letter queue. It owns no tables.
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

// Config says which queue, and how it is reached. Credentials are found as AWS tools find them.
type Config struct {
	URL      string
	Endpoint string // of another server that speaks SQS; AWS where it is empty
	Region   string // as AWS tools find it where it is empty
	// Visibility is how long a received message stays hidden unless it is extended; 60 s where it is 0.
	Visibility time.Duration
	// IdleAfter is how long the queue must have been empty for the worker to count as idle; 5 min where it is 0.
	IdleAfter time.Duration
	HTTP      *http.Client // the SDK's own where it is nil
}

// Queue is a worker's source of tasks.
type Queue struct {
	cfg    Config
	client *sqs.Client
	worker *worker.Worker
	log    *slog.Logger
	filled time.Time // when it last had a message; one loop calls Next
	done   *batch.Batcher[*deletion]
}

const (
	defaultVisibility = time.Minute
	defaultIdleAfter  = 5 * time.Minute
	longPoll          = 20 // seconds, which is the longest that SQS allows
	atOnce            = 10 // messages, which are the most that SQS gives, and deletes, at once
)

// New reads the credentials and connects to nothing yet.
func New(ctx context.Context, w *worker.Worker, cfg Config) (*Queue, error) {
	if cfg.URL == "" {
		return nil, errors.New("queue: the URL is not given")
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

// Next receives messages and claims the tasks that they name.
func (q *Queue) Next(ctx context.Context, max int) ([]worker.Given, error) {
	received, err := q.client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &q.cfg.URL, MaxNumberOfMessages: int32(min(max, atOnce)),
		WaitTimeSeconds: longPoll, VisibilityTimeout: int32(q.cfg.Visibility / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameApproximateReceiveCount}})
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

// take claims the task of a message. Nil: there is nothing to run for it.
func (q *Queue) take(ctx context.Context, m types.Message) (*worker.Given, error) {
	var message protocol.Message
	log := q.log.With("message", aws.ToString(m.MessageId))
	if err := json.Unmarshal([]byte(aws.ToString(m.Body)), &message); err != nil || message.TaskID == [16]byte{} {
		log.Error("a message does not say which task; it is left to the dead-letter queue", "received", m.Attributes["ApproximateReceiveCount"])
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
		if err == nil || errors.Is(err, worker.ErrFenced) || errors.Is(err, worker.ErrConflict) || errors.Is(err, worker.ErrStopped) {
			q.delete(m, log) // decided, or given to others by the server itself
		}
	}}, nil
}

// keepHidden extends a message's visibility until ctx ends. One that shows itself all the same is claimed by nobody else
// as long as the lease is kept.
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
	_, err := q.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{QueueUrl: &q.cfg.URL, ReceiptHandle: m.ReceiptHandle,
		VisibilityTimeout: int32(d / time.Second)})
	return err
}

// callFor bounds a call that is made although the worker may be about to stop.
const callFor = 5 * time.Second

// release shows a message again soon: to another worker where this one stops. The pause keeps a server that refuses from
// using up the message's receives.
func (q *Queue) release(ctx context.Context, m types.Message, log *slog.Logger) {
	pause := time.Duration(0)
	if ctx.Err() == nil {
		pause = 10*time.Second + rand.N(20*time.Second)
	}
	if err := q.hide(context.WithoutCancel(ctx), m, pause); err != nil {
		log.Warn("a message could not be given back; it shows itself again by and by", "error", err)
	}
}
