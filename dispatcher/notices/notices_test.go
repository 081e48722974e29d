package notices_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/operators"
)

// receiver is a webhook that keeps the notices it receives.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	answer http.HandlerFunc
	got    []notices.Notice
	heads  []http.Header
}

func newReceiver(t *testing.T, w *dispatchertest.World) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		body, err := io.ReadAll(in.Body)
		if err != nil || sources.CheckSignature("thekey", sources.Delivery{ID: in.Header.Get("webhook-id"),
			Timestamp: in.Header.Get("webhook-timestamp"),
			Signature: in.Header.Get("webhook-signature"), Body: body}, time.Now()) != "" {
			http.Error(out, "not signed", http.StatusForbidden)
			return
		}
		var n notices.Notice
		if err := json.Unmarshal(body, &n); err != nil {
			http.Error(out, "no notice", http.StatusBadRequest)
			return
		}
		r.mu.Lock()
		r.got, r.heads = append(r.got, n), append(r.heads, in.Header)
		answer := r.answer
		r.mu.Unlock()
		if answer != nil {
			answer(out, in)
		}
	}))
	t.Cleanup(r.Close)
	w.Secret("HOOK", r.URL+"/notices?token=hush#thekey", authz.Binding{AddJobs: []string{"shop"},
		AddHosts: []string{r.URL}})
	return r
}

func (r *receiver) answerWith(f http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = f
}

// notices returns the received notices with their headers, however they were answered.
func (r *receiver) notices() ([]notices.Notice, []http.Header) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got), slices.Clone(r.heads)
}

// local is a dispatcher that may reach the receivers of a test.
func local(w *dispatchertest.World) *service.Service {
	w.T.Helper()
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(w.T, err)
	return w.Dispatcher("local", func(c *service.Config) { c.NoticeDialer, c.NoticeTimeout = dialer, time.Second })
}

const noticedDAG = `name: shop
jobs:
  - name: orders
    operator: hook
    source: { kind: manual }
    max_attempts: 1
    outputs: 0
notify: [{ on: [dead, late, failed_deploy, failed_check], webhook: { secret: HOOK } }]
`

// die makes a task of orders fail for good.
func die(w *dispatchertest.World) {
	w.T.Helper()
	w.Probe.On("orders", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("row 7 says classified")
	})
	_, err := w.D.Enqueue(w.T.Context(), w.Caller, "shop", "orders", []dispatcher.EnqueueItem{{}})
	require.NoError(w.T, err)
	w.Settle()
}

func sendNotices(w *dispatchertest.World, d *service.Service, now time.Time) {
	w.T.Helper()
	require.NoError(w.T, d.Notices.Send(w.T.Context(), now.Add(6*time.Second))) // gathered by then
}

func TestADeadTaskIsTold(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	r := newReceiver(t, w)
	w.Serve(noticedDAG)
	die(w)
	d := local(w)
	r.answerWith(func(out http.ResponseWriter, _ *http.Request) { out.WriteHeader(http.StatusInternalServerError) })
	now := time.Now()
	sendNotices(w, d, now)
	sendNotices(w, d, now)
	got, _ := r.notices()
	require.Len(t, got, 1, "not before its back-off")
	var stored string
	w.Row(`SELECT payload::text || last_error FROM outbox WHERE kind = 'notify' AND attempts = 1`)(&stored)
	require.Contains(t, stored, "answered 500")
	r.answerWith(nil)
	sendNotices(w, d, time.Now().Add(10*time.Second))
	got, heads := r.notices()
	require.Len(t, got, 2)
	require.Equal(t, got[0], got[1], "the same notice")
	n := got[1]
	require.Equal(t, n.ID, heads[1].Get("Idempotency-Key"))
	require.Equal(t, []any{"dead", "acme", "shop", "orders", "error"}, []any{n.Type, n.Data.Org, n.Data.DAG, n.Data.Job,
		n.Data.Reason})
	said, err := json.Marshal(n)
	require.NoError(t, err)
	require.Equal(t, "row 7 says classified", n.Data.Error)
	require.NotContains(t, stored, "classified", "errors stay where purges find them")
	for _, hidden := range []string{"hush", "thekey"} {
		require.NotContains(t, string(said)+stored, hidden)
	}
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`))
	settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled)
}

// A notice is signed with the newest value alone, and neither value is deleted while a DAG notifies with it.
func TestANoticeIsSignedWithTheNewestValue(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	r := newReceiver(t, w)
	_, err := w.Vault.SetSecret(t.Context(), w.Caller, "HOOK", r.URL+"/old#another-key")
	require.NoError(t, err)
	_, err = w.Vault.ReplaceSecret(t.Context(), w.Caller, "HOOK", r.URL+"/notices#thekey", time.Hour)
	require.NoError(t, err)
	w.Serve(noticedDAG)
	die(w)
	sendNotices(w, local(w), time.Now())
	got, _ := r.notices()
	require.Len(t, got, 1, "the receiver has checked the signature")

	err = w.Vault.DeleteSecret(t.Context(), w.Caller, "HOOK", false)
	require.ErrorContains(t, err, "secret HOOK is used by shop")
}

func TestReceiversThatMisbehave(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		public bool   // the dispatcher may reach only public addresses
		unbind bool   // an admin removes the binding
		says   string // last_error of the outbox row
	}{
		"redirects": {answer: func(out http.ResponseWriter, in *http.Request) {
			http.Redirect(out, in, "/elsewhere", http.StatusTemporaryRedirect)
		}, says: "answered 307"},
		"hangs": {answer: func(_ http.ResponseWriter, in *http.Request) { <-in.Context().Done() },
			says: "Timeout exceeded"},
		"private": {public: true, says: "is not public"},
		"unbound": {unbind: true, says: "is not bound to shop"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			r := newReceiver(t, w)
			w.Serve(noticedDAG)
			die(w)
			r.answerWith(c.answer)
			d := local(w)
			if c.public {
				d = w.D
			}
			if c.unbind {
				_, err := w.Vault.BindSecret(t.Context(), w.Caller, "HOOK", authz.Binding{RemoveJobs: []string{"shop"}})
				require.NoError(t, err)
			}
			sendNotices(w, d, time.Now())
			var last string
			w.Row(`SELECT last_error FROM outbox WHERE kind = 'notify' AND status = 'Pending' AND attempts = 1`)(&last)
			require.Contains(t, last, c.says)
			require.NotContains(t, last, "hush")
			got, _ := r.notices()
			require.LessOrEqual(t, len(got), 1)

			w.Exec(`UPDATE outbox SET attempts = 19, available_at = now()`)
			sendNotices(w, d, time.Now().Add(time.Minute))
			require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE kind = 'notify' AND status = 'Failed'`),
				"given up after 20")
		})
	}
}

// lateDAG has a dataset that is late soon.
const lateDAG = `name: shop
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: { time: month }
    config: { list: raw }
publish: { raw: { from: { job: raw }, due: { within: 1s } } }
notify: [{ on: [late], webhook: { secret: HOOK } }]
`

func TestLatenessIsToldOnce(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	newReceiver(t, w)
	w.Probe.Put("raw", "2024-01", "a")
	w.Serve(lateDAG)
	told := func() int {
		return w.Count(`SELECT FROM outbox WHERE kind = 'notify' AND payload #>> '{notice,type}' = 'late'`)
	}
	now := time.Now()
	for range 2 {
		_, err := w.D.Notices.AnnounceLate(t.Context(), now)
		require.NoError(t, err)
		require.Equal(t, 1, told())
	}
	w.Serve(strings.Replace(lateDAG, "list: raw", "list: raw, tag: other", 1))
	_, err := w.D.Notices.AnnounceLate(t.Context(), now)
	require.NoError(t, err)
	require.Equal(t, 1, told(), "not again by a cutover to another generation")
}

func TestAFailedDeployIsTold(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	newReceiver(t, w)
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Probe.On("made", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("no")
	})
	v := w.Deploy(strings.NewReplacer("name: letters", "name: shop", "PerPartition\n",
		"PerPartition\n    max_attempts: 1\n").Replace(dispatchertest.Upkept) +
		"notify: [{ on: [failed_deploy], webhook: { secret: HOOK } }]\n")
	w.Settle()
	status, _ := w.Status(v.Version.ID)
	require.Equal(t, "Failed", string(status))
	require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE kind = 'notify'
		AND payload #>> '{notice,type}' = 'failed_deploy'`))
	require.Equal(t, 1, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`), "and what it did not ask for is not")
}

func TestAFailedCheckIsTold(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	newReceiver(t, w)
	w.Probe.Put("raw", "2024-01-01", "ab")
	w.Serve(strings.Replace(dispatchertest.Checked, "name: checked", "name: shop", 1) +
		"notify: [{ on: [failed_check], webhook: { secret: HOOK } }]\n")
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'notify'`))
	w.Probe.Put("raw", "2024-01-01", "abcdef")
	w.Poll()
	w.Settle()
	var said string
	w.Row(`SELECT payload #>> '{notice,data}' FROM outbox WHERE kind = 'notify'`)(&said)
	require.Contains(t, said, `"checks": [{"name": "short", "found": "1 row", "outcome": "fail", "failures": 1, "severity": "error"}]`)
	require.NotContains(t, said, "abcdef")
}
