package runevents_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/runevents"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/lineage/openlineage/openlineagetest"
	"github.com/dagctl/dagctl/operators"
)

// receiver takes events, checks each, and answers in turn as answers say: "" takes the event.
type receiver struct {
	*httptest.Server
	mu      sync.Mutex
	answers []string
	asked   int
	invalid []error
	took    []string // TYPE JOB of events that were taken
	bodies  []string // of all
	tokens  []string
}

func newReceiver(t *testing.T, answers ...string) *receiver {
	r := &receiver{answers: answers}
	r.Server = httptest.NewServer(http.HandlerFunc(r.take))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) take(out http.ResponseWriter, in *http.Request) {
	body, err := io.ReadAll(in.Body)
	var e openlineage.Event
	err = errors.Join(err, openlineagetest.Check(body), json.Unmarshal(body, &e))

	r.mu.Lock()
	answer := ""
	if len(r.answers) > 0 {
		answer = r.answers[r.asked%len(r.answers)]
	}
	r.asked++
	if err != nil {
		r.invalid = append(r.invalid, err)
	}
	r.bodies, r.tokens = append(r.bodies, string(body)), append(r.tokens, in.Header.Get("Authorization"))
	if answer == "" || answer == "drop" { // drop: it took the event, and its answer is lost
		r.took = append(r.took, fmt.Sprintf("%s %s", e.Type, e.Job.Name))
	}
	r.mu.Unlock()

	switch answer {
	case "fail":
		out.WriteHeader(http.StatusServiceUnavailable)
	case "redirect":
		http.Redirect(out, in, "/elsewhere", http.StatusTemporaryRedirect)
	case "hang":
		<-in.Context().Done()
	case "drop":
		panic(http.ErrAbortHandler)
	}
}

// told returns the distinct events that were taken, sorted.
func (r *receiver) told(t *testing.T) []string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.invalid)
	took := slices.Clone(r.took)
	slices.Sort(took)
	return slices.Compact(took)
}

// worldWith returns a world whose dispatcher has receivers.
func worldWith(t *testing.T, to runevents.Receivers) *dispatchertest.World {
	w := dispatchertest.NewWorld(t)
	dialer, err := dial.New(dial.Config{Allowed: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	w.D = w.Dispatcher("told", func(c *service.Config) {
		c.OpenLineage, c.NoticeDialer, c.NoticeTimeout = to, dialer, 300*time.Millisecond
	})
	return w
}

// deliver tries until nothing waits, skipping the times between the tries.
func deliver(w *dispatchertest.World) {
	w.T.Helper()
	for range 30 {
		if w.Count(`SELECT FROM outbox WHERE kind = 'openlineage' AND status = 'Pending'`) == 0 {
			return
		}
		_, err := w.D.Runs.Send(w.T.Context(), time.Now().Add(time.Hour))
		require.NoError(w.T, err)
	}
	require.Fail(w.T, "not delivered")
}

const chain = `name: shop
jobs:
` + dispatchertest.Raw + `  - name: doubled
    operator: sql
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT *, 'hush hush' AS note FROM raw" }
  - name: total
    operator: sql
    inputs: [{ from: { job: doubled } }]
    execution_strategy: PerPartition
    config: { query: "SELECT count(*) AS n, max(note) AS note FROM doubled WHERE note <> 'hush hush too'" }
`

// Whatever a receiver does, each end of a chain's attempts arrives, and each event is valid.
func TestEveryEventArrives(t *testing.T) {
	t.Parallel()
	r := newReceiver(t, "fail", "", "redirect", "", "drop", "", "hang", "", "")
	w := worldWith(t, runevents.Receivers{"acme": {URL: r.URL + "/api/v1/lineage"}})
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Serve(chain)
	w.Settle()
	settled, err := w.D.Views.Settled(t.Context(), w.Caller.OrgID)
	require.NoError(t, err)
	require.True(t, settled, "what is to be told is no work")
	deliver(w)

	require.Equal(t, []string{"COMPLETE shop.doubled", "COMPLETE shop.raw", "COMPLETE shop.total",
		"START shop.doubled", "START shop.raw", "START shop.total"}, r.told(t))
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'openlineage'`))
	var columns, revisions bool
	for _, body := range r.bodies {
		require.NotContains(t, body, "hush", "no statement, no literal")
		var e openlineage.Event
		require.NoError(t, json.Unmarshal([]byte(body), &e))
		require.Equal(t, "dagctl://acme", e.Job.Namespace)
		if e.Type == openlineage.Complete && e.Job.Name == "shop.doubled" {
			require.Equal(t, "shop/raw/0", e.Inputs[0]["name"])
			require.Equal(t, "shop/doubled/0", e.Outputs[0]["name"])
			facets := e.Outputs[0]["facets"].(map[string]any)
			columns = facets["columnLineage"] != nil && facets["schema"] != nil
			made := facets["dagctl_revisions"].(map[string]any)["revisions"].([]any)[0].(map[string]any)
			read := e.Inputs[0]["facets"].(map[string]any)["dagctl_revisions"].(map[string]any)["revisions"].([]any)
			revisions = made["partition"] == "2024-01-01" && read[0].(map[string]any)["partition"] == "2024-01-01"
		}
	}
	require.True(t, columns)
	require.True(t, revisions)
}

// fail makes a task of orders fail for good.
func fail(w *dispatchertest.World) {
	w.T.Helper()
	w.Serve("name: shop\njobs:\n" +
		"  - { name: orders, operator: hook, source: { kind: manual }, max_attempts: 1, outputs: 0 }\n")
	w.Probe.On("orders", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, errors.New("row 7 says classified")
	})
	_, err := w.D.Enqueue(w.T.Context(), w.Caller, "shop", "orders", []dispatcher.EnqueueItem{{}})
	require.NoError(w.T, err)
	w.Settle()
}

func TestAFailureIsTold(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	w := worldWith(t, runevents.Receivers{"acme": {URL: r.URL, Secret: "MARQUEZ", Namespace: "prod"}})
	fail(w)
	_, err := w.D.Runs.Send(t.Context(), time.Now())
	require.NoError(t, err)
	var last string
	w.Row(`SELECT last_error || payload::text FROM outbox WHERE kind = 'openlineage' AND attempts = 1`)(&last)
	require.Contains(t, last, "MARQUEZ")
	require.Zero(t, r.asked, "nothing without its token")

	w.Secret("MARQUEZ", "key123", authz.Binding{AddJobs: []string{runevents.SecretUser}, AddHosts: []string{r.URL}})
	deliver(w)
	require.Equal(t, []string{"FAIL shop.orders", "START shop.orders"}, r.told(t))
	require.Equal(t, []string{"Bearer key123", "Bearer key123"}, r.tokens)
	require.Contains(t, r.bodies[1], `"namespace":"prod"`)
	require.Contains(t, r.bodies[1], "failed: error")
	for _, hidden := range []string{"classified", "key123"} {
		require.NotContains(t, r.bodies[0]+r.bodies[1]+last, hidden)
	}
}

// Each org's receiver hears of that org alone, and of one without a receiver nothing is written.
func TestNothingLeaksOverOrgs(t *testing.T) {
	t.Parallel()
	mine, theirs := newReceiver(t), newReceiver(t)
	w := worldWith(t, runevents.Receivers{"acme": {URL: mine.URL}, "globex": {URL: theirs.URL}})
	globex, initech := w.Org("globex"), w.Org("initech")
	for i, tn := range []*dispatchertest.Tenant{w.Tenant, globex, initech} {
		tn.Serve(fmt.Sprintf("name: dag%d\njobs:\n"+
			"  - { name: orders, operator: hook, source: { kind: manual }, outputs: 0 }\n", i))
		_, err := w.D.Enqueue(t.Context(), tn.Caller, fmt.Sprintf("dag%d", i), "orders", []dispatcher.EnqueueItem{{}})
		require.NoError(t, err)
	}
	w.Settle()
	require.Equal(t, 2, w.Count(`SELECT FROM outbox WHERE kind = 'openlineage'`))
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'openlineage' AND org_id = $1`, initech.Caller.OrgID))
	deliver(w)
	require.Equal(t, []string{"COMPLETE dag0.orders", "START dag0.orders"}, mine.told(t))
	require.Equal(t, []string{"COMPLETE dag1.orders", "START dag1.orders"}, theirs.told(t))
}

func TestNothingIsWrittenWithoutAReceiver(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	fail(w)
	require.Equal(t, 1, w.Attempts("orders"))
	require.Zero(t, w.Count(`SELECT FROM outbox WHERE kind = 'openlineage'`))
}

func TestAPrivateAddressIsNotReached(t *testing.T) {
	t.Parallel()
	r := newReceiver(t)
	w := worldWith(t, runevents.Receivers{"acme": {URL: r.URL}})
	fail(w)
	public, err := runevents.New(runevents.Config{Pool: w.Pool, Tasks: w.D.Tasks, Registry: w.D.Registry,
		Receivers: runevents.Receivers{"acme": {URL: r.URL}}})
	require.NoError(t, err)
	_, err = public.Send(t.Context(), time.Now())
	require.NoError(t, err)
	var last string
	w.Row(`SELECT last_error FROM outbox WHERE kind = 'openlineage'`)(&last)
	require.Contains(t, last, "is not public")
	require.Zero(t, r.asked)
}
