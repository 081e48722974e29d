package queue

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/google/uuid"
)

// message is a received message. It is hidden from others until all of its tasks are settled, or until it is left.
type message struct {
	queue *Queue
	log   *slog.Logger
	text  types.Message

	extended sync.WaitGroup // the goroutine that extends its visibility
	reveal   func()         // ends it
	forget   func() bool    // the end of the worker's claims is of no interest any more

	mu      sync.Mutex
	open    int  // tasks on which the server has not decided
	waiting int  // of these, the ones that wait for a slot
	left    bool // it is left to others, or to itself: it is not deleted here
}

// named is a task that a message names.
type named struct {
	task uuid.UUID
	of   *message
}

// hold begins to hide a message of so many tasks, which wait for slots.
func (q *Queue) hold(ctx context.Context, text types.Message, tasks int, log *slog.Logger) *message {
	m := &message{queue: q, log: log, text: text, open: tasks, waiting: tasks}
	hidden, reveal := context.WithCancel(context.WithoutCancel(ctx))
	m.reveal = reveal
	m.extended.Go(func() { m.keepHidden(hidden) })

	m.mu.Lock() // stop may be called at once
	defer m.mu.Unlock()
	m.forget = context.AfterFunc(ctx, m.stop)
	return m
}

// isLeft reports whether the message was left, so that its tasks wait here no more.
func (m *message) isLeft() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left
}

// take notes that a task of the message waits no more.
func (m *message) take() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting--
}

// stop leaves the message to other workers, where this one claims no more and tasks wait for a slot.
func (m *message) stop() {
	m.mu.Lock()
	waits := m.waiting > 0 && !m.left
	m.left = m.left || waits
	m.mu.Unlock()
	if waits {
		m.show(0)
	}
}

// release leaves the message to others after a claim that failed: at once if this worker stops. Otherwise a pause keeps
// a server that refuses claims from using up the message's receives.
func (m *message) release(ctx context.Context) {
	m.mu.Lock()
	before := m.left
	m.left = true
	m.mu.Unlock()
	if before {
		return
	}

	pause := time.Duration(0)
	if ctx.Err() == nil {
		pause = 10*time.Second + rand.N(20*time.Second)
	}
	m.show(pause)
}

// show makes the message visible after a pause.
func (m *message) show(pause time.Duration) {
	m.end()
	if err := m.hide(context.Background(), pause); err != nil {
		m.log.Warn("a message could not be released; it reappears when its visibility ends", "error", err)
	}
}

// settle notes what became of a task. The message is deleted once the server has decided on all of them; if it has not
// on one, the message reappears by itself.
func (m *message) settle(decided bool) {
	m.mu.Lock()
	m.open--
	m.left = m.left || !decided
	left, settled := m.left, m.open == 0
	m.mu.Unlock()

	if left || settled {
		m.end()
	}
	if settled && !left {
		m.queue.delete(m.text, m.log)
	}
}

// end ends the extension of the message's visibility.
func (m *message) end() {
	m.forget()
	m.reveal()
	m.extended.Wait()
}

// keepHidden extends the message's visibility until ctx ends. Should it reappear nevertheless, nobody else can claim
// its tasks as long as their leases are kept.
func (m *message) keepHidden(ctx context.Context) {
	tick := time.NewTicker(m.queue.cfg.Visibility / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := m.hide(ctx, m.queue.cfg.Visibility); err != nil && ctx.Err() == nil {
			m.log.Warn("a message could not be kept hidden", "error", err)
		}
	}
}

// callFor bounds a call that a stopping worker still makes.
const callFor = 5 * time.Second

func (m *message) hide(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	_, err := m.queue.client.ChangeMessageVisibility(ctx, &sqs.ChangeMessageVisibilityInput{
		QueueUrl: &m.queue.cfg.URL, ReceiptHandle: m.text.ReceiptHandle, VisibilityTimeout: int32(d / time.Second)})
	return err
}
