package worker_test

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/worker/protocol"
	"github.com/dagctl/dagctl/workerapi/workerapitest"
)

const beatMany, beatOne = "/v1/tasks/heartbeat", "/v1/task/heartbeat"

// held begins a crowd of tasks that run until their contexts end.
func (w *world) held(t *testing.T) (ids []uuid.UUID) {
	t.Helper()
	ids = w.actAll(t)
	w.Eventually(t, "all run", func() bool {
		var running int
		require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM leases`).Scan(&running))
		return running == crowd
	})
	return ids
}

// Each lease is renewed again and again, and a cancel arrives.
func TestLeasesOfManyTasksAreRenewedByOneCall(t *testing.T) {
	t.Parallel()
	w := start(t, waits, ofACrowd)
	ids := w.held(t)
	w.Eventually(t, "many calls", func() bool { return w.Calls(beatMany) >= 4 })
	since := time.Now()
	w.Eventually(t, "each lease is renewed", func() bool {
		var renewed int
		require.NoError(t, w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM leases WHERE heartbeat_at > $1`, since).
			Scan(&renewed))
		return renewed == crowd
	})

	for _, id := range ids {
		w.Do(t, "POST", "/v1/tasks/"+id.String()+":cancel", nil, nil)
	}
	for _, id := range ids {
		w.Ended(t, id, protocol.Canceled)
	}
}

// A server from before the call answers that there is no such route, and is not asked again.
func TestAnOlderServerGetsEachHeartbeatByItself(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed} {
		w := &world{Server: workerapitest.New(t)}
		w.Deploy(t, "work", document)
		w.Refuse(beatMany, 1_000_000, status)
		w.begin(t, waits, ofACrowd)
		w.held(t)
		w.Eventually(t, "each by itself", func() bool { return w.Calls(beatOne) >= crowd })
		asked := w.Calls(beatMany)
		require.Positive(t, asked)
		before := w.Calls(beatOne)
		w.Eventually(t, "each again", func() bool { return w.Calls(beatOne) >= before+crowd })
		require.Equal(t, asked, w.Calls(beatMany))
	}
}

// Whatever becomes of the call, the leases are kept: by a call for each.
func TestAFailingCallForManyLosesNoLease(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	w := &world{Server: workerapitest.New(t)}
	w.Deploy(t, "work", document)
	w.Break(func(response http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != beatMany {
			return false
		}
		switch calls.Add(1) {
		case 1:
			response.WriteHeader(http.StatusServiceUnavailable)
			return true
		case 2: // it takes effect, and its answer is lost
			w.API.Handler().ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		return false
	})
	w.begin(t, waits, ofACrowd)
	ids := w.held(t)
	w.Eventually(t, "calls for many again", func() bool { return w.Calls(beatMany) >= 5 })
	require.Positive(t, w.Calls(beatOne))
	for _, id := range ids {
		require.Equal(t, "Running", string(w.Task(t, id).Status))
	}
}
