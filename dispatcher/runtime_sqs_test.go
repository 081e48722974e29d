package dispatcher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testaws"
)

// parcels is a DAG whose tasks are asked for by hand, two jobs in a runtime of their own and one in the server's.
const parcels = `
name: parcels
jobs:
  - name: pack
    runtime: other
    operator: hook
    source: { kind: manual }
    outputs: 0
  - name: ship
    runtime: other
    operator: act
    source: { kind: manual }
    outputs: 0
  - name: here
    operator: hook
    source: { kind: manual }
    outputs: 0
`

// queued has the runtime `other` announce its tasks on queues.
func queued(t *testing.T, queues ...Backend) func(*Config) {
	for i := range queues {
		queues[i].Kind = SQS
	}
	return func(c *Config) {
		c.Runtimes, c.AWS, c.Backends = []string{"dispatcher"}, testaws.Config(t), RuntimeMap{"other": queues}
	}
}

// queuedWorld has a dispatcher with one queue.
func queuedWorld(t *testing.T) (*world, *testaws.Queues, string) {
	w, q := newWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.d = w.dispatcher("one", queued(t, Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.serve(parcels)
	return w, q, url
}

func (tn *tenant) ask(job string, n int) (ids []uuid.UUID) {
	tn.w.t.Helper()
	made, err := tn.w.d.Enqueue(tn.w.t.Context(), tn.caller, "parcels", job, make([]EnqueueItem, n))
	require.NoError(tn.w.t, err)
	for _, m := range made {
		ids = append(ids, m.ID)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// announce turns the loop that sends messages.
func (w *world) announce(now time.Time) {
	w.t.Helper()
	_, err := w.d.sendTasks(w.t.Context(), now)
	require.NoError(w.t, err)
}

func (w *world) review(now time.Time) {
	w.t.Helper()
	_, err := w.d.reviewMessages(w.t.Context(), now)
	require.NoError(w.t, err)
}

// messages takes everything out of a queue: the tasks that are announced, and of which orgs.
func messages(t *testing.T, q *testaws.Queues, url string) (tasks []uuid.UUID) {
	t.Helper()
	for {
		got := q.Receive(t, url, 0)
		if len(got) == 0 {
			slices.SortFunc(tasks, compareIDs)
			return tasks
		}
		for _, m := range got {
			var body map[string]uuid.UUID
			require.NoError(t, json.Unmarshal([]byte(*m.Body), &body))
			require.Len(t, body, 1, "the id and nothing else: %s", *m.Body)
			tasks = append(tasks, body["task_id"])
		}
		q.Delete(t, url, got...)
	}
}

// outbox tells how messages stand: "status attempts".
func (w *world) outbox() []string {
	w.t.Helper()
	return texts(w.t, w.pool, `SELECT concat_ws(' ', status, attempts) FROM outbox WHERE kind = 'enqueue_task' ORDER BY id`)
}

func TestEachReadyTaskOfAQueuedRuntimeIsAnnounced(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	w.ask("here", 3)
	asked := w.ask("pack", 23)
	require.Len(t, w.outbox(), 23)
	w.announce(later(0))
	require.Equal(t, asked, messages(t, q, url))
	w.announce(later(0))
	require.Empty(t, messages(t, q, url), "once is enough")
	require.Equal(t, 23.0, w.figuresOf(w.d)["messages_sent_total{runtime=other}"])
}

func TestATaskIsAnnouncedWhenItBecomesReadyAndNotBefore(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	soon := later(time.Hour)
	made, err := w.d.Enqueue(t.Context(), w.caller, "parcels", "pack", []EnqueueItem{{RunAt: &soon}})
	require.NoError(t, err)
	w.announce(later(0))
	require.Empty(t, messages(t, q, url))
	w.promote(soon.Add(time.Second))
	w.announce(later(0))
	require.Equal(t, []uuid.UUID{made[0].ID}, messages(t, q, url))

	// A retry is announced anew, though the first message's row is still there.
	task := w.oneOf("other")
	require.NoError(t, w.d.fail(t.Context(), task, reasonError, fmt.Errorf("no luck"), true, later(0)))
	w.announce(later(0))
	require.Empty(t, messages(t, q, url))
	w.promote(later(time.Hour))
	w.announce(later(0))
	require.Equal(t, []uuid.UUID{made[0].ID}, messages(t, q, url))
	require.Equal(t, []string{"Done 0"}, w.outbox())
}

// oneOf claims the one task that is ready in a runtime.
func (w *world) oneOf(runtime string) claimed {
	w.t.Helper()
	tasks, err := w.d.claim(w.t.Context(), []string{runtime}, "a worker", 10, time.Now())
	require.NoError(w.t, err)
	require.Len(w.t, tasks, 1)
	return tasks[0]
}

func TestALostMessageIsSentAgainWithBackOff(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	asked := w.ask("pack", 1)
	w.announce(later(0))
	require.Equal(t, asked, messages(t, q, url)) // it was received, deleted, and nobody claimed
	at := later(0)
	for _, gap := range []time.Duration{5, 10, 20, 40, 60, 60} {
		w.review(at.Add(gap*time.Minute - 10*time.Second))
		w.announce(at.Add(gap*time.Minute - 10*time.Second))
		require.Empty(t, messages(t, q, url))
		// markSent reads the clock: pretend that it was then.
		w.review(later(gap * time.Minute))
		w.announce(later(gap * time.Minute))
		require.Equal(t, asked, messages(t, q, url), "after %d minutes", gap)
	}
	w.oneOf("other")
	w.review(later(24 * time.Hour))
	require.Empty(t, w.outbox(), "what was claimed is done with")
}

func TestWhatIsNotReadyAnyMoreIsNotAnnounced(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	w.ask("pack", 1)
	w.oneOf("other") // another server's Lambda, say, or a poller
	w.announce(later(0))
	require.Empty(t, messages(t, q, url))
	require.Empty(t, w.outbox())
}

// A front between us and the queue spoils single messages: the server refuses those, and takes the others.
func TestMessagesThatAreRefusedDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	var spoiled atomic.Pointer[uuid.UUID]
	front := testaws.Front(t, q.Endpoint, func(_ *http.Request, body []byte) ([]byte, *http.Response) {
		if id := spoiled.Load(); id != nil {
			body = bytes.ReplaceAll(body, []byte(id.String()), []byte(`\u0001`))
		}
		return body, nil
	})
	w.d = w.dispatcher("one", queued(t, Backend{QueueURL: url, Endpoint: front}))
	w.serve(parcels)
	asked := w.ask("pack", 12)
	spoiled.Store(&asked[4])
	w.announce(later(0))
	require.Equal(t, slices.Concat(asked[:4], asked[5:]), messages(t, q, url))
	require.Contains(t, w.outbox(), "Pending 1")
	var cause string
	w.row(`SELECT last_error FROM outbox WHERE attempts > 0`)(&cause)
	require.Contains(t, cause, "InvalidMessageContents")

	for range outboxTries - 1 {
		w.exec(`UPDATE outbox SET available_at = now() WHERE attempts > 0`)
		w.announce(later(0))
	}
	require.Contains(t, w.outbox(), "Failed 20")
	figures := w.figuresOf(w.d)
	require.Equal(t, 20.0, figures["message_failures_total{runtime=other}"])
	require.Equal(t, 1.0, figures["messages_failed{runtime=other}"])

	spoiled.Store(nil) // somebody mended it
	w.exec(`UPDATE outbox SET available_at = now() WHERE status = 'Failed'`)
	w.review(later(0))
	w.announce(later(0))
	require.Equal(t, asked[4:5], messages(t, q, url))
}

func TestAQueueThatIsAwayIsTriedAgainAndKeepsNoOtherFromBeingTold(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.d = w.dispatcher("one", queued(t,
		Backend{QueueURL: "http://127.0.0.1:1/000000000000/away", Endpoint: "http://127.0.0.1:1", Region: "us-east-1", Operators: []string{"act"}},
		Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.serve(parcels)
	lost, asked := w.ask("ship", 15), w.ask("pack", 15)
	w.announce(later(0))
	require.Equal(t, asked, messages(t, q, url))
	require.Equal(t, 15, w.count(`SELECT FROM outbox WHERE kind = 'enqueue_task' AND status = 'Pending' AND attempts = 1`))

	w.d = w.dispatcher("two", queued(t, Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.announce(later(time.Minute))
	require.Equal(t, lost, messages(t, q, url))
}

func TestTasksGoToTheQueueOfTheirOperatorAndOrg(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	other := w.org("other")
	forAct, forOther, rest := q.New(t, nil), q.New(t, nil), q.New(t, nil)
	w.d = w.dispatcher("one", queued(t,
		Backend{QueueURL: forAct, Endpoint: q.Endpoint, Operators: []string{"act"}, Orgs: []string{"acme"}},
		Backend{QueueURL: forOther, Endpoint: q.Endpoint, Orgs: []string{"other"}},
		Backend{QueueURL: rest, Endpoint: q.Endpoint}))
	w.serve(parcels)
	other.serve(parcels)
	packed, shipped, theirs := w.ask("pack", 2), w.ask("ship", 2), other.ask("ship", 2)
	w.announce(later(0))
	require.Equal(t, shipped, messages(t, q, forAct))
	require.Equal(t, theirs, messages(t, q, forOther))
	require.Equal(t, packed, messages(t, q, rest))
}

func TestATaskThatNoQueueTakesSaysSo(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.d = w.dispatcher("one", queued(t, Backend{QueueURL: url, Endpoint: q.Endpoint, Operators: []string{"act"}}))
	w.serve(parcels)
	w.ask("pack", 1)
	shipped := w.ask("ship", 1)
	w.announce(later(0))
	require.Equal(t, shipped, messages(t, q, url))
	var cause string
	w.row(`SELECT last_error FROM outbox WHERE attempts > 0`)(&cause)
	require.Equal(t, "runtime other has no queue for operator hook of org acme", cause)
}

func TestMessagesAreGroupedByOrg(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	var groups atomic.Value
	front := testaws.Front(t, q.Endpoint, func(_ *http.Request, body []byte) ([]byte, *http.Response) {
		groups.Store(string(body))
		return body, nil
	})
	w.d = w.dispatcher("one", queued(t, Backend{QueueURL: url, Endpoint: front}))
	w.serve(parcels)
	w.ask("pack", 3)
	w.announce(later(0))
	require.Equal(t, 3, strings.Count(groups.Load().(string), fmt.Sprintf(`"MessageGroupId":"%s"`, w.caller.OrgID)))
	require.NotContains(t, groups.Load().(string), "Delay")
}

// Its runtime was of another kind when it became ready.
func TestTasksThatWereReadyBeforeThereWasAQueueAreAnnounced(t *testing.T) {
	t.Parallel()
	w, q := newWorld(t), testaws.SQS(t)
	w.serve(parcels)
	asked := w.ask("pack", 3)
	url := q.New(t, nil)
	w.d = w.dispatcher("two", queued(t, Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.announce(later(0))
	require.Empty(t, messages(t, q, url))
	_, err := w.d.announceUnannounced(t.Context(), later(0))
	require.NoError(t, err)
	w.announce(later(0))
	require.Equal(t, asked, messages(t, q, url))
}

func TestRunningDispatchersAnnounceByThemselves(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	w.start(w.d)
	w.start(w.dispatcher("two", queued(t, Backend{QueueURL: url, Endpoint: q.Endpoint})))
	asked := w.ask("pack", 50)
	var heard []uuid.UUID
	w.eventually("all are announced", func() bool {
		heard = append(heard, messages(t, q, url)...)
		return len(heard) >= 50
	})
	slices.SortFunc(heard, compareIDs)
	require.Equal(t, asked, heard)
}
