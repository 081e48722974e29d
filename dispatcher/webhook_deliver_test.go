package dispatcher_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/webhook"
)

const greetings = `
name: greetings
jobs:
  - name: due
    operator: file_source
    source: { kind: poll, every: 1h }
    partition_by: key
    config: { path: ".", pattern: "{key}.csv", format: csv, types: { person: INTEGER, text: VARCHAR } }
  - name: sent
    operator: webhook_deliver
    inputs: [{ from: { job: due } }]
    execution_strategy: PerPartition
    update_strategy: append
    unique_key: key
    max_attempts: 3
    config: { url: "%s/hook", key: [person], max_tries: 2, request_timeout_seconds: 1 }
publish:
  greetings_sent: { from: { job: sent } }
`

// receiver is a server of somebody else's, which counts what it is sent.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []*http.Request
	bodies []string
	answer func(w http.ResponseWriter, r *http.Request, body string, before int) // nil: 200; before: of the same key
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	re := &receiver{}
	re.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		re.mu.Lock()
		before := 0
		for _, asked := range re.asked {
			if asked.Header.Get("Idempotency-Key") == r.Header.Get("Idempotency-Key") {
				before++
			}
		}
		re.asked, re.bodies = append(re.asked, r), append(re.bodies, string(body))
		answer := re.answer
		re.mu.Unlock()
		if answer != nil {
			answer(w, r, string(body), before)
		}
	}))
	t.Cleanup(re.Close)
	return re
}

func (re *receiver) answers(f func(w http.ResponseWriter, r *http.Request, body string, before int)) {
	re.mu.Lock()
	defer re.mu.Unlock()
	re.answer = f
}

// got returns the bodies that were received since the last call, sorted.
func (re *receiver) got() []string {
	re.mu.Lock()
	defer re.mu.Unlock()
	got := slices.Sorted(slices.Values(re.bodies))
	re.bodies = nil
	return got
}

// keys returns how often each Idempotency-Key was received.
func (re *receiver) keys() map[string]int {
	re.mu.Lock()
	defer re.mu.Unlock()
	times := map[string]int{}
	for _, r := range re.asked {
		times[r.Header.Get("Idempotency-Key")]++
	}
	return times
}

// statuses returns the first columns of the deliveries of a partition: key, status, attempts.
func statuses(w *dispatchertest.World, partition string) (found []string) {
	for _, row := range w.Read("greetings_sent")[partition] {
		found = append(found, strings.Join(strings.Split(row, ",")[:3], ","))
	}
	return found
}

func drop(w *dispatchertest.World, name, rows string) {
	w.Drop(name+".csv", "person,text\n"+rows)
	w.Poll()
	w.Settle()
}

// Each key is delivered once, whatever revisions and partitions have it, and after a rollback and a rename, too.
func TestWhatIsDeliveredIsNotDeliveredAgain(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	w := dispatchertest.NewWorld(t)
	yaml := fmt.Sprintf(greetings, re.URL)
	w.Serve(yaml)
	drop(w, "a", "1,hi\n2,hi\n2,twice\n")
	require.Equal(t, []string{`{"person":1,"text":"hi"}`, `{"person":2,"text":"hi"}`}, re.got())
	require.Equal(t, []string{"1,delivered,1", "2,delivered,1"}, statuses(w, "a"))

	drop(w, "a", "1,changed\n3,hi\n")
	require.Equal(t, []string{`{"person":3,"text":"hi"}`}, re.got(), "another revision")
	require.Equal(t, []string{"1,delivered,1", "2,delivered,1", "3,delivered,1"}, statuses(w, "a"))
	drop(w, "b", "3,hi\n4,hi\n")
	require.Equal(t, []string{`{"person":4,"text":"hi"}`}, re.got(), "another partition")
	require.Equal(t, []string{"3,delivered,1", "4,delivered,1"}, statuses(w, "b"))

	w.Serve(dispatchertest.Edit(yaml, "max_tries: 2", "max_tries: 2, columns: [text]"))
	require.Empty(t, re.got(), "a deploy delivers nothing")
	drop(w, "a", "1,again\n5,hi\n")
	require.Equal(t, []string{`{"text":"hi"}`}, re.got())
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "greetings", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	drop(w, "a", "1,again\n2,again\n5,again\n6,hi\n")
	require.Equal(t, []string{`{"person":6,"text":"hi"}`}, re.got(), "the ledger does not go back")
	require.Contains(t, statuses(w, "a"), "5,delivered,1")

	w.Serve(dispatchertest.Edit(yaml, "- name: sent", "- name: posted\n    renamed_from: sent",
		"job: sent", "job: posted"))
	drop(w, "a", "1,again\n7,hi\n")
	require.Equal(t, []string{`{"person":7,"text":"hi"}`}, re.got(), "a renamed job knows what it has delivered")
}

// What fails for now is sent again under the same key, within the attempt and by the next one. What the receiver
// refuses is a row that says so, and other rows do not wait for it.
func TestDeliveriesByTheStatusOfTheAnswer(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	re.answers(func(w http.ResponseWriter, r *http.Request, body string, before int) {
		switch {
		case strings.Contains(body, "busy") && before == 0:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case strings.Contains(body, "broken") && before < 3: // more than the tries of an attempt
			w.WriteHeader(http.StatusBadGateway)
		case strings.Contains(body, "dropped") && before == 0:
			panic(http.ErrAbortHandler)
		case strings.Contains(body, "slow") && before == 0:
			<-r.Context().Done()
		case strings.Contains(body, "wrong"):
			w.WriteHeader(http.StatusUnprocessableEntity)
		case strings.Contains(body, "moved"):
			http.Redirect(w, r, "/elsewhere", http.StatusPermanentRedirect)
		}
	})

	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(greetings, re.URL))
	drop(w, "a", "1,fine\n2,busy\n3,broken\n4,dropped\n5,slow\n6,wrong\n7,moved\n")
	require.Empty(t, w.Read("greetings_sent")["a"], "one delivery is left to the next attempt")
	var says string
	w.Row(`SELECT error_message FROM tasks WHERE error_message IS NOT NULL`)(&says)
	require.Contains(t, says, "4 are delivered, 2 have failed for good, and at least 1 are to be tried again")
	require.Contains(t, says, "answered 502 Bad Gateway")

	re.got()
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.Equal(t, []string{`{"person":3,"text":"broken"}`, `{"person":3,"text":"broken"}`}, re.got(),
		"the next attempt sends nothing else")
	require.Equal(t, []string{"1,delivered,1", "2,delivered,2", "3,delivered,4", "4,delivered,2", "5,delivered,2",
		"6,failed,1", "7,failed,1"}, statuses(w, "a"))
	require.Len(t, re.keys(), 7)
	rows := w.Read("greetings_sent")["a"]
	require.Contains(t, rows[5], "answered 422 Unprocessable Entity")
	require.Contains(t, rows[6], "redirects are not followed")

	re.answers(nil)
	drop(w, "a", "3,broken\n6,mended\n")
	require.Equal(t, []string{`{"person":6,"text":"mended"}`}, re.got(), "another task tries what failed for good")
	require.Contains(t, statuses(w, "a"), "6,delivered,2")
}

// A receiver that is down is left alone after a few deliveries, and one that wants to be asked much later is not waited
// for.
func TestAReceiverThatIsDownIsLeftAlone(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	re.answers(func(w http.ResponseWriter, _ *http.Request, _ string, _ int) {
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	rows := ""
	for i := range 100 {
		rows += fmt.Sprintf("%d,hi\n", i)
	}
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(greetings, re.URL))
	drop(w, "a", rows)
	require.LessOrEqual(t, len(re.got()), 2*(5+4), "five in a row, while three others are on their way")

	re.answers(func(w http.ResponseWriter, _ *http.Request, _ string, _ int) {
		w.Header().Set("Retry-After", "7200")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	w.Promote(dispatchertest.Later(time.Hour))
	w.Settle()
	require.LessOrEqual(t, len(re.got()), 4, "those on their way at once")
	var says string
	w.Row(`SELECT error_message FROM tasks WHERE error_message IS NOT NULL`)(&says)
	require.Contains(t, says, "it is to be asked again in 2h0m0s")

	re.answers(nil)
	w.Promote(dispatchertest.Later(4 * time.Hour))
	w.Settle()
	require.Len(t, re.got(), 100)
	require.Len(t, re.keys(), 100)
}

// An attempt that counts no more begins no delivery, and what it had under way is neither lost nor taken away from the
// next attempt.
func TestAFencedAttemptDeliversNothingMore(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	arrived, leave := make(chan struct{}, 10), make(chan struct{})
	re.answers(func(_ http.ResponseWriter, r *http.Request, body string, before int) {
		if strings.Contains(body, "first") && before == 0 {
			arrived <- struct{}{}
			<-leave
		}
	})
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(fmt.Sprintf(greetings, re.URL), "request_timeout_seconds: 1",
		"request_timeout_seconds: 30, concurrency: 1"))
	w.Drop("a.csv", "person,text\n1,first\n2,second\n")
	w.Poll()
	var zombie dispatcher.Claimed
	w.Eventually("a claim", func() bool {
		w.Route()
		w.FanOut()
		for _, task := range w.Claim(w.D) {
			if task.Job.Name == "sent" {
				zombie = task
				return true
			}
			dispatchertest.Execute(t.Context(), w.D, task)
		}
		return false
	})
	ended := make(chan error, 1)
	go func() { ended <- w.D.RunTask(t.Context(), &zombie, new(dispatcher.ProgressNote)).Outcome.Err }()
	<-arrived

	w.Reap(dispatchertest.Later(time.Hour))
	w.Promote(dispatchertest.Later(2 * time.Hour))
	w.Settle()
	require.Equal(t, []string{"1,delivered,2", "2,delivered,1"}, statuses(w, "a"))
	close(leave)
	require.ErrorContains(t, <-ended, "went on without attempt 1")
	require.Len(t, re.got(), 3, "the second row is sent by the second attempt only")
	require.Len(t, re.keys(), 2)
}

// Two tasks that have the same key at the same time send it once.
func TestTwoPartitionsWithOneKeyAtOnce(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(greetings, re.URL))
	stop := w.Start(w.Dispatcher("two"))
	defer stop()
	for _, name := range []string{"a", "b", "c", "d"} {
		w.Drop(name+".csv", "person,text\n1,hi\n2,hi\n")
	}
	w.Exec(`UPDATE sources SET next_fire_at = now() WHERE next_fire_at IS NOT NULL`)
	w.Eventually("four partitions", func() bool { return len(w.Read("greetings_sent")) == 4 })
	require.Equal(t, []string{`{"person":1,"text":"hi"}`, `{"person":2,"text":"hi"}`}, re.got())
	for _, name := range []string{"a", "b", "c", "d"} {
		require.Equal(t, []string{"1,delivered,1", "2,delivered,1"}, statuses(w, name))
	}
}

// Secrets go into headers and signatures, to the host that they are bound to, and into no row.
func TestDeliveriesAreSigned(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	w := dispatchertest.NewWorld(t)
	bound := authz.Binding{AddJobs: []string{"greetings/sent"}, AddHosts: []string{re.URL}}
	w.Secret("HOOK_TOKEN", "token-of-the-hook", bound)
	w.Secret("HOOK_KEY", "key-that-signs-things", bound)
	w.Serve(dispatchertest.Edit(fmt.Sprintf(greetings, re.URL), "max_tries: 2", "max_tries: 2, "+
		"headers: { X-Token: { secret: HOOK_TOKEN } }, sign: { secret: HOOK_KEY }"))
	drop(w, "a", "1,hi\n")

	require.Len(t, re.asked, 1)
	header, body := re.asked[0].Header, re.got()[0]
	id := header.Get("Idempotency-Key")
	require.Regexp(t, `^[0-9a-f]{32}$`, id)
	require.Equal(t, "token-of-the-hook", header.Get("X-Token"))
	require.Equal(t, id, header.Get("webhook-id"))
	require.Equal(t, webhook.Sign("key-that-signs-things", id, header.Get("webhook-timestamp"), []byte(body)),
		header.Get("webhook-signature"))
	require.NotContains(t, fmt.Sprint(w.Read("greetings_sent")), "token")
}

// A DAG that is deleted leaves nothing of what it delivered.
func TestADeletedDAGForgetsItsDeliveries(t *testing.T) {
	t.Parallel()
	re := newReceiver(t)
	w := dispatchertest.NewWorld(t)
	w.Serve(fmt.Sprintf(greetings, re.URL))
	drop(w, "a", "1,hi\n")
	require.Equal(t, 1, w.Count(`SELECT FROM deliveries`))
	_, err := w.D.Upkeep.DeleteDAG(t.Context(), w.Caller, "greetings", nil, time.Now())
	require.NoError(t, err)
	require.Zero(t, w.Count(`SELECT FROM deliveries`))
}
