package backends_test

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

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/testaws"
)

// parcels is a DAG of manual jobs: two on a runtime of their own and one on the server's.
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

// queued makes the runtime `other` announce its tasks on queues.
func queued(t *testing.T, queues ...backends.Backend) func(*service.Config) {
	for i := range queues {
		queues[i].Kind = backends.SQS
	}
	return func(c *service.Config) {
		c.Runtimes, c.AWS, c.Backends = []string{"dispatcher"}, testaws.Config(t), backends.RuntimeMap{"other": queues}
	}
}

// queuedWorld returns a world whose dispatcher has one queue.
func queuedWorld(t *testing.T) (*dispatchertest.World, *testaws.Queues, string) {
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.Serve(parcels)
	return w, q, url
}

func ask(tn *dispatchertest.Tenant, job string, n int) (ids []uuid.UUID) {
	tn.W.T.Helper()
	made, err := tn.W.D.Enqueue(tn.W.T.Context(), tn.Caller, "parcels", job, make([]dispatcher.EnqueueItem, n))
	require.NoError(tn.W.T, err)
	for _, m := range made {
		ids = append(ids, m.ID)
	}
	slices.SortFunc(ids, compareIDs)
	return ids
}

func compareIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// announce runs the loop that sends messages once.
func announce(w *dispatchertest.World, now time.Time) {
	w.T.Helper()
	_, err := w.D.Backends.SendTasks(w.T.Context(), now)
	require.NoError(w.T, err)
}

func review(w *dispatchertest.World, now time.Time) {
	w.T.Helper()
	_, err := w.D.Backends.ReviewMessages(w.T.Context(), now)
	require.NoError(w.T, err)
}

// messages empties a queue and returns the announced tasks.
func messages(t *testing.T, q *testaws.Queues, url string) (tasks []uuid.UUID) {
	t.Helper()
	for _, body := range bodies(t, q, url) {
		require.Len(t, body, 1, "the id and nothing else: %s", body)
		tasks = append(tasks, uuid.MustParse(body["task_id"].(string)))
	}
	slices.SortFunc(tasks, compareIDs)
	return tasks
}

// bodies empties a queue and returns what its messages say.
func bodies(t *testing.T, q *testaws.Queues, url string) (all []map[string]any) {
	t.Helper()
	for {
		got := q.Receive(t, url, 0)
		if len(got) == 0 {
			return all
		}
		for _, m := range got {
			var body map[string]any
			require.NoError(t, json.Unmarshal([]byte(*m.Body), &body))
			all = append(all, body)
		}
		q.Delete(t, url, got...)
	}
}

// outbox returns the state of each message as "status attempts".
func outbox(w *dispatchertest.World) []string {
	w.T.Helper()
	return dispatchertest.Texts(w.T, w.Pool, `SELECT concat_ws(' ', status, attempts) FROM outbox
		WHERE kind = 'enqueue_task' ORDER BY id`)
}

func TestEachReadyTaskOfAQueuedRuntimeIsAnnounced(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	ask(w.Tenant, "here", 3)
	asked := ask(w.Tenant, "pack", 23)
	require.Len(t, outbox(w), 23)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, asked, messages(t, q, url))
	announce(w, dispatchertest.Later(0))
	require.Empty(t, messages(t, q, url), "once is enough")
	require.Equal(t, 23.0, w.FiguresOf(w.D)["messages_sent_total{runtime=other}"])
}

func TestATaskIsAnnouncedWhenItBecomesReadyAndNotBefore(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	soon := dispatchertest.Later(time.Hour)
	made, err := w.D.Enqueue(t.Context(), w.Caller, "parcels", "pack", []dispatcher.EnqueueItem{{RunAt: &soon}})
	require.NoError(t, err)
	announce(w, dispatchertest.Later(0))
	require.Empty(t, messages(t, q, url))
	w.Promote(soon.Add(time.Second))
	announce(w, dispatchertest.Later(0))
	require.Equal(t, []uuid.UUID{made[0].ID}, messages(t, q, url))

	// A retry is announced with a new message, although the first one's row is still there.
	task := oneOf(w, "other")
	require.NoError(t, w.D.Fail(t.Context(), task, tasks.ReasonError, fmt.Errorf("no luck"), true,
		dispatchertest.Later(0)))
	announce(w, dispatchertest.Later(0))
	require.Empty(t, messages(t, q, url))
	w.Promote(dispatchertest.Later(time.Hour))
	announce(w, dispatchertest.Later(0))
	require.Equal(t, []uuid.UUID{made[0].ID}, messages(t, q, url))
	require.Equal(t, []string{"Done 0"}, outbox(w))
}

// oneOf claims the one task that is ready in a runtime.
func oneOf(w *dispatchertest.World, runtime string) dispatcher.Claimed {
	w.T.Helper()
	tasks, err := w.D.Claim(w.T.Context(), []string{runtime}, "a worker", 10, time.Now())
	require.NoError(w.T, err)
	require.Len(w.T, tasks, 1)
	return tasks[0]
}

func TestALostMessageIsSentAgainWithBackOff(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	asked := ask(w.Tenant, "pack", 1)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, asked, messages(t, q, url)) // the first message was deleted, but nobody claimed
	at := dispatchertest.Later(0)
	for _, gap := range []time.Duration{5, 10, 20, 40, 60, 60} {
		review(w, at.Add(gap*time.Minute-10*time.Second))
		announce(w, at.Add(gap*time.Minute-10*time.Second))
		require.Empty(t, messages(t, q, url))
		// markSent uses the current time, so set an earlier one.
		review(w, dispatchertest.Later(gap*time.Minute))
		announce(w, dispatchertest.Later(gap*time.Minute))
		require.Equal(t, asked, messages(t, q, url), "after %d minutes", gap)
	}
	oneOf(w, "other")
	review(w, dispatchertest.Later(24*time.Hour))
	require.Empty(t, outbox(w), "what was claimed is done with")
}

func TestWhatIsNotReadyAnyMoreIsNotAnnounced(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	ask(w.Tenant, "pack", 1)
	oneOf(w, "other") // as another server or a polling worker would
	announce(w, dispatchertest.Later(0))
	require.Empty(t, messages(t, q, url))
	require.Empty(t, outbox(w))
}

// A proxy before the queue damages single messages: the queue refuses those, and accepts the others.
func TestMessagesThatAreRefusedDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	var spoiled atomic.Pointer[uuid.UUID]
	front := testaws.Front(t, q.Endpoint, func(_ *http.Request, body []byte) ([]byte, *http.Response) {
		if id := spoiled.Load(); id != nil {
			body = bytes.ReplaceAll(body, []byte(id.String()), []byte(`\u0001`))
		}
		return body, nil
	})
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: front}))
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 12)
	spoiled.Store(&asked[4])
	announce(w, dispatchertest.Later(0))
	require.Equal(t, slices.Concat(asked[:4], asked[5:]), messages(t, q, url))
	require.Contains(t, outbox(w), "Pending 1")
	var cause string
	w.Row(`SELECT last_error FROM outbox WHERE attempts > 0`)(&cause)
	require.Contains(t, cause, "InvalidMessageContents")

	for range tasks.OutboxTries - 1 {
		w.Exec(`UPDATE outbox SET available_at = now() WHERE attempts > 0`)
		announce(w, dispatchertest.Later(0))
	}
	require.Contains(t, outbox(w), "Failed 20")
	figures := w.FiguresOf(w.D)
	require.Equal(t, 20.0, figures["message_failures_total{runtime=other}"])
	require.Equal(t, 1.0, figures["messages_failed{runtime=other}"])

	spoiled.Store(nil) // the message is no longer damaged
	w.Exec(`UPDATE outbox SET available_at = now() WHERE status = 'Failed'`)
	review(w, dispatchertest.Later(0))
	announce(w, dispatchertest.Later(0))
	require.Equal(t, asked[4:5], messages(t, q, url))
}

func TestAQueueThatIsAwayIsTriedAgainAndKeepsNoOtherFromBeingTold(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.D = w.Dispatcher("one", queued(t,
		backends.Backend{QueueURL: "http://127.0.0.1:1/000000000000/away", Endpoint: "http://127.0.0.1:1",
			Region: "us-east-1", Operators: []string{"act"}},
		backends.Backend{QueueURL: url, Endpoint: q.Endpoint}))
	w.Serve(parcels)
	lost, asked := ask(w.Tenant, "ship", 15), ask(w.Tenant, "pack", 15)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, asked, messages(t, q, url))
	require.Equal(t, 15, w.Count(`SELECT FROM outbox WHERE kind = 'enqueue_task' AND status = 'Pending'
		AND attempts = 1`))
	waits := w.WhyTask(w.Caller, lost[0]).Reasons[0]
	require.Equal(t, why.WhyQueued, waits.Code)
	require.Contains(t, waits.Because[0].Text, "the queue of runtime other did not take it (1 time), and is asked ")
	require.Regexp(t, "connection refused|deadline exceeded", waits.Because[0].Text)

	w.D = w.Dispatcher("two", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint}))
	announce(w, dispatchertest.Later(time.Minute))
	require.Equal(t, lost, messages(t, q, url))
}

func TestTasksGoToTheQueueOfTheirOperatorAndOrg(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	other := w.Org("other")
	forAct, forOther, rest := q.New(t, nil), q.New(t, nil), q.New(t, nil)
	w.D = w.Dispatcher("one", queued(t,
		backends.Backend{QueueURL: forAct, Endpoint: q.Endpoint, Operators: []string{"act"}, Orgs: []string{"acme"}},
		backends.Backend{QueueURL: forOther, Endpoint: q.Endpoint, Orgs: []string{"other"}},
		backends.Backend{QueueURL: rest, Endpoint: q.Endpoint}))
	w.Serve(parcels)
	other.Serve(parcels)
	packed, shipped, theirs := ask(w.Tenant, "pack", 2), ask(w.Tenant, "ship", 2), ask(other, "ship", 2)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, shipped, messages(t, q, forAct))
	require.Equal(t, theirs, messages(t, q, forOther))
	require.Equal(t, packed, messages(t, q, rest))
}

func TestATaskThatNoQueueTakesSaysSo(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint,
		Operators: []string{"act"}}))
	w.Serve(parcels)
	ask(w.Tenant, "pack", 1)
	shipped := ask(w.Tenant, "ship", 1)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, shipped, messages(t, q, url))
	var cause string
	w.Row(`SELECT last_error FROM outbox WHERE attempts > 0`)(&cause)
	require.Equal(t, "runtime other has no queue for operator hook of org acme", cause)
}

func TestMessagesAreGroupedByOrg(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	var groups atomic.Value
	front := testaws.Front(t, q.Endpoint, func(_ *http.Request, body []byte) ([]byte, *http.Response) {
		groups.Store(string(body))
		return body, nil
	})
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: front}))
	w.Serve(parcels)
	ask(w.Tenant, "pack", 3)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, 3, strings.Count(groups.Load().(string), fmt.Sprintf(`"MessageGroupId":"%s"`, w.Caller.OrgID)))
	require.NotContains(t, groups.Load().(string), "Delay")
}

// Its runtime was of another kind when the task became ready.
func TestTasksThatWereReadyBeforeThereWasAQueueAreAnnounced(t *testing.T) {
	t.Parallel()
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 3)
	url := q.New(t, nil)
	w.D = w.Dispatcher("two", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint}))
	announce(w, dispatchertest.Later(0))
	require.Empty(t, messages(t, q, url))
	_, err := w.D.Backends.AnnounceUnannounced(t.Context(), dispatchertest.Later(0))
	require.NoError(t, err)
	announce(w, dispatchertest.Later(0))
	require.Equal(t, asked, messages(t, q, url))
}

func TestRunningDispatchersAnnounceByThemselves(t *testing.T) {
	t.Parallel()
	w, q, url := queuedWorld(t)
	w.Start(w.D)
	w.Start(w.Dispatcher("two", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint})))
	asked := ask(w.Tenant, "pack", 50)
	var heard []uuid.UUID
	w.Eventually("all are announced", func() bool {
		heard = append(heard, messages(t, q, url)...)
		return len(heard) >= 50
	})
	slices.SortFunc(heard, compareIDs)
	require.Equal(t, asked, heard)
}
