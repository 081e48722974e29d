package backends_test

import (
	"bytes"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/testaws"
)

// blocks empties a queue and returns how many tasks each message names, the largest first, and all tasks.
func blocks(t *testing.T, q *testaws.Queues, url string) (sizes []int, named []uuid.UUID) {
	t.Helper()
	for _, body := range bodies(t, q, url) {
		require.Len(t, body, 1, "%s", body)
		if id, ok := body["task_id"]; ok { // one task is named as for workers that know nothing else
			sizes, named = append(sizes, 1), append(named, uuid.MustParse(id.(string)))
			continue
		}
		ids := body["task_ids"].([]any)
		require.Greater(t, len(ids), 1)
		sizes = append(sizes, len(ids))
		for _, id := range ids {
			named = append(named, uuid.MustParse(id.(string)))
		}
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	slices.SortFunc(named, compareIDs)
	return sizes, named
}

// blockWorld returns a world whose runtime `other` has a queue with up to ten tasks in a message.
func blockWorld(t *testing.T) (*dispatchertest.World, *testaws.Queues, string) {
	w, q := dispatchertest.NewWorld(t), testaws.SQS(t)
	url := q.New(t, nil)
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: q.Endpoint, TasksPerMessage: 10}))
	w.Serve(parcels)
	return w, q, url
}

func TestAMessageNamesABlockOfTasks(t *testing.T) {
	t.Parallel()
	w, q, url := blockWorld(t)
	other := w.Org("other")
	other.Serve(parcels)
	asked := slices.Concat(ask(w.Tenant, "pack", 18), ask(w.Tenant, "ship", 5))
	announce(w, dispatchertest.Later(0))
	sizes, named := blocks(t, q, url)
	require.Equal(t, []int{10, 10, 3}, sizes)
	slices.SortFunc(asked, compareIDs)
	require.Equal(t, asked, named)
	require.Equal(t, 23, w.Count(`SELECT FROM outbox WHERE kind = 'enqueue_task' AND status = 'Done'`),
		"each task has its row")
	require.Equal(t, 3.0, w.FiguresOf(w.D)["messages_sent_total{runtime=other}"])

	mine, theirs := ask(w.Tenant, "pack", 1), ask(other, "pack", 2)
	announce(w, dispatchertest.Later(0))
	sizes, named = blocks(t, q, url)
	require.Equal(t, []int{2, 1}, sizes, "orgs share no message")
	all := slices.Concat(mine, theirs)
	slices.SortFunc(all, compareIDs)
	require.Equal(t, all, named)
}

// Of a block whose message is lost, each task that nobody claimed is announced again.
func TestALostBlockIsSentAgainWithoutWhatWasClaimed(t *testing.T) {
	t.Parallel()
	w, q, url := blockWorld(t)
	asked := ask(w.Tenant, "pack", 10)
	announce(w, dispatchertest.Later(0))
	sizes, _ := blocks(t, q, url)
	require.Equal(t, []int{10}, sizes)

	claimed, err := w.D.Claim(t.Context(), []string{"other"}, "a worker", 4, time.Now())
	require.NoError(t, err)
	require.Len(t, claimed, 4)
	review(w, dispatchertest.Later(5*time.Minute))
	announce(w, dispatchertest.Later(5*time.Minute))
	sizes, named := blocks(t, q, url)
	require.Equal(t, []int{6}, sizes)
	for _, c := range claimed {
		require.Contains(t, asked, c.TaskID)
		require.NotContains(t, named, c.TaskID)
	}
	require.Len(t, outbox(w), 6)
}

// A proxy before the queue damages the message of a block: its tasks are announced one by one from then on, so that one
// holds up no other.
func TestARefusedBlockIsSentAgainTaskByTask(t *testing.T) {
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
	w.D = w.Dispatcher("one", queued(t, backends.Backend{QueueURL: url, Endpoint: front, TasksPerMessage: 4}))
	w.Serve(parcels)
	asked := ask(w.Tenant, "pack", 8)
	spoiled.Store(&asked[2])
	announce(w, dispatchertest.Later(0))
	sizes, _ := blocks(t, q, url)
	require.Equal(t, []int{4}, sizes, "the other block is sent")

	require.Contains(t, w.WhyTask(w.Caller, asked[2]).Reasons[0].Because[0].Text,
		"the queue of runtime other did not take it (1 time), and is asked ")
	announce(w, dispatchertest.Later(time.Minute))
	sizes, named := blocks(t, q, url)
	require.Equal(t, []int{1, 1, 1}, sizes)
	require.NotContains(t, named, asked[2])
}
