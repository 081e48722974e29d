package timers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// world is a database with an org, a dispatcher that runs, and timers that the test delivers by hand.
type world struct {
	t              *testing.T
	pool, requests *pgxpool.Pool
	registry       *registry.Registry
	dispatcher     *service.Service
	timers         *Timers
	caller         authz.Caller
	told           *recorder
}

// recorder is an operator that records the payloads of its tasks.
type recorder struct {
	mu       sync.Mutex
	payloads []string
	refuses  bool
}

func (o *recorder) refuse(refuses bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuses = refuses
}

func (*recorder) Spec() dag.OperatorSpec {
	return dag.OperatorSpec{Name: "told", Version: "1.0.0", Source: true, Effect: dag.EffectExternal,
		ConfigSchema: json.RawMessage(`{}`)}
}

func (o *recorder) Run(_ context.Context, t *operators.Task) (operators.Result, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.refuses {
		return operators.Result{}, operators.Permanent(errors.New("the letter box is full"))
	}
	o.payloads = append(o.payloads, string(t.Payload))
	var asks struct {
		Ask []operators.EnqueuedTask `json:"ask"`
	}
	_ = json.Unmarshal(t.Payload, &asks) // other payloads ask for nothing
	return operators.Result{Tasks: asks.Ask}, nil
}

func (o *recorder) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.payloads)
}

const birthdays = `name: mail
jobs:
  - name: birthday
    operator: told
    source: { kind: timer }
    outputs: 0
    max_attempts: %d
    payload_schema: { type: [object, "null"], properties: { user: { type: integer } } }
  - { name: other, operator: told, source: { kind: manual }, outputs: 0 }
  - { name: signup, operator: told, source: { kind: manual }, outputs: 0, enqueues: [birthday, other] }
`

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, told: &recorder{}}
	url, log := testdb.URL(t), slog.New(slog.DiscardHandler)
	open := func(opener func(context.Context, string, ...pg.Option) (*pgxpool.Pool, error)) *pgxpool.Pool {
		pool, err := opener(t.Context(), url, pg.WithMaxConns(8))
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		return pool
	}
	w.pool, w.requests = open(pg.Open), open(pg.OpenRequests)
	store, err := storage.New(storage.Config{Root: t.TempDir(), Pool: w.pool, Rows: enginetest.Engines()})
	require.NoError(t, err)

	t.Cleanup(func() { require.NoError(t, store.Close()) })
	ops, err := operators.NewRegistry(enginetest.Engines(), w.told)
	require.NoError(t, err)
	w.registry, err = registry.New(registry.Config{Pool: w.pool, Requests: w.requests, Storage: store,
		Catalog: ops.Catalog([]string{"dispatcher"}), Log: log})
	require.NoError(t, err)
	w.dispatcher, err = service.New(service.Config{Config: dispatcher.Config{Pool: w.pool, Requests: w.requests,
		Registry:  w.registry,
		Operators: ops, Storage: store,
		Runner:   &operators.Runner{Registry: ops, Storage: store, ScratchDir: t.TempDir(), Log: log},
		Runtimes: []string{"dispatcher"}, WorkerID: "one", Poll: 50 * time.Millisecond, Log: log,
	}})
	require.NoError(t, err)

	w.timers, err = New(Config{Pool: w.pool, Requests: w.requests, Dispatcher: w.dispatcher.Dispatcher,
		Sources: w.dispatcher.Sources, Log: log})
	require.NoError(t, err)
	org, err := authz.CreateOrg(t.Context(), w.pool, "acme", "Acme")
	require.NoError(t, err)
	w.caller = authz.Caller{OrgID: org.ID, OrgSlug: "acme", Actor: "token:admin", Role: authz.RoleAdmin}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.dispatcher.Run(ctx) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-ended) })
	w.deploy(3)
	return w
}

func (w *world) deploy(attempts int) {
	w.t.Helper()
	w.serve(fmt.Sprintf(birthdays, attempts))
}

func (w *world) serve(yaml string) {
	w.t.Helper()
	deployed, err := deploy.New(w.registry).Deploy(w.t.Context(), w.caller, "mail", registry.DeployRequest{YAML: yaml})
	require.NoError(w.t, err)
	w.dispatcher.Wake()
	require.Eventually(w.t, func() bool {
		var status string
		err := w.pool.QueryRow(w.t.Context(), `SELECT status FROM dag_versions WHERE id = $1`,
			deployed.Version.ID).Scan(&status)
		return err == nil && status == "Active"
	}, time.Minute, 10*time.Millisecond)
}

func (w *world) create(n NewTimer, now time.Time) Timer {
	w.t.Helper()
	if n.DAG == "" {
		n.DAG, n.Job = "mail", "birthday"
	}
	made, err := w.timers.Create(w.t.Context(), w.caller, []NewTimer{n}, now)
	require.NoError(w.t, err)
	require.True(w.t, made[0].IsNew)
	return made[0].Timer
}

func (w *world) deliver(now time.Time) {
	w.t.Helper()
	for more := true; more; {
		var err error
		more, err = w.timers.deliverDue(w.t.Context(), now)
		require.NoError(w.t, err)
	}
}

func (w *world) get(id uuid.UUID) Timer {
	w.t.Helper()
	timer, err := w.timers.Get(w.t.Context(), w.caller, id)
	require.NoError(w.t, err)
	return timer
}

// settled waits until a timer has a status.
func (w *world) settled(id uuid.UUID, status string) (timer Timer) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		require.NoError(w.t, w.timers.items.Pass(w.t.Context(), kindSettle, "", time.Now()))
		timer = w.get(id)
		return timer.Status == status
	}, time.Minute, 10*time.Millisecond)
	return timer
}

func (w *world) made() (n int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(w.t.Context(), `SELECT count(*) FROM tasks WHERE kind = 'timer'`).Scan(&n))
	return n
}

func TestATimerFiresOnceAndRepeats(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	once := w.create(NewTimer{Local: "2027-03-14T02:30", Timezone: "America/New_York",
		Payload: json.RawMessage(`{"user": 1}`)}, now)
	every := w.create(NewTimer{Local: "1992-02-29T09:00", Timezone: "Europe/London", Repeat: "yearly",
		Payload: json.RawMessage(`{"user": 2}`)}, now)
	w.deliver(now)
	require.Zero(t, w.made())
	w.deliver(every.UTC)
	require.Equal(t, 1, w.made())
	w.deliver(once.UTC.Add(-time.Second))
	require.Equal(t, 1, w.made())
	w.deliver(once.UTC)
	w.deliver(once.UTC)
	w.deliver(now) // a clock put back
	require.Equal(t, 2, w.made())
	require.Eventually(t, func() bool { return w.told.count() == 2 }, time.Minute, 10*time.Millisecond)
	require.ElementsMatch(t, []string{`{"user": 1}`, `{"user": 2}`}, w.told.payloads)
	w.settled(once.ID, "COMPLETED")
	require.Equal(t, "Completed", w.get(once.ID).Task.Status)
	again := w.get(every.ID)
	require.Equal(t, "PENDING", again.Status)
	require.Equal(t, "2028-02-29T09:00:00", again.Local)

	// The timer survives an edit of its job.
	w.deploy(5)
	w.deliver(again.UTC)
	require.Equal(t, 3, w.made())
}

// Timers go with their job to a new name, and back with a rollback.
func TestTimersFollowARenamedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	first := w.create(NewTimer{Local: "2027-01-02T00:00", Timezone: "UTC", Payload: json.RawMessage(`{"user": 1}`)}, now)
	second := w.create(NewTimer{Local: "2027-01-03T00:00", Timezone: "UTC", Payload: json.RawMessage(`{"user": 2}`)}, now)
	renamed := strings.NewReplacer("- name: birthday", "- name: day\n    renamed_from: birthday",
		"[birthday, other]", "[day, other]").Replace(fmt.Sprintf(birthdays, 3))
	w.serve(renamed)
	require.Equal(t, "day", w.get(first.ID).Job)
	w.deliver(first.UTC)
	require.Equal(t, 1, w.made())
	w.settled(first.ID, "COMPLETED")

	// A new job under the old name has none of them.
	w.serve(strings.Replace(renamed, "\n    renamed_from: birthday", "", 1) +
		"  - { name: birthday, operator: told, source: { kind: timer }, outputs: 0 }\n")
	third := w.create(NewTimer{Local: "2027-01-04T00:00", Timezone: "UTC", Payload: json.RawMessage(`{"user": 3}`)}, now)
	require.Equal(t, "day", w.get(second.ID).Job)

	one := 1
	_, err := w.dispatcher.Builds.Rollback(t.Context(), w.caller, "mail", builds.RollbackRequest{To: &one})
	require.NoError(t, err)
	require.Equal(t, "birthday", w.get(second.ID).Job)
	w.deliver(second.UTC)
	require.Equal(t, 2, w.made())
	w.deliver(third.UTC)
	require.Equal(t, 2, w.made(), "its job does not serve")
}

func TestManyProcessesDeliverEachTimerOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	const n = 250
	for i := range n {
		w.create(NewTimer{Local: "2027-01-02T00:00", Timezone: "UTC",
			Payload: json.RawMessage(fmt.Sprintf(`{"user": %d}`, i))}, now)
	}
	due := at(t, "2027-01-02T00:00:00Z")
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for more := true; more; {
				var err error
				if more, err = w.timers.deliverDue(context.WithoutCancel(t.Context()), due); err != nil {
					t.Error(err)
				}
			}
		})
	}

	all.Wait()
	w.deliver(due)
	require.Equal(t, n, w.made())
	require.Eventually(t, func() bool { return w.told.count() == n }, time.Minute, 10*time.Millisecond)
	seen := map[string]bool{}
	for _, p := range w.told.payloads {
		require.False(t, seen[p], p)
		seen[p] = true
	}
}

func TestTimersAreIdempotentAndVersioned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	ask := NewTimer{DAG: "mail", Job: "birthday", Local: "2027-05-01T09:00", Timezone: "Europe/London",
		IdempotencyKey: "user-1/2027", Group: "user-1"}
	timer := w.create(ask, now)
	again, err := w.timers.Create(t.Context(), w.caller, []NewTimer{ask}, now)
	require.NoError(t, err)
	require.False(t, again[0].IsNew)
	require.Equal(t, timer.ID, again[0].ID)

	local := "2027-06-01T09:00"
	updated, err := w.timers.Update(t.Context(), w.caller, timer.ID, TimerChange{Local: &local}, rest.ETag("1"), now)
	require.NoError(t, err)
	require.Equal(t, 2, updated.Version)
	_, err = w.timers.Update(t.Context(), w.caller, timer.ID, TimerChange{Local: &local}, rest.ETag("1"), now)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.True(t, fault.Is(w.timers.Delete(t.Context(), w.caller, timer.ID, rest.ETag("1")), fault.Conflict))

	for name, n := range map[string]NewTimer{
		"a manual job": {DAG: "mail", Job: "other", Local: "2027-05-01T09:00", Timezone: "UTC"},
		"no job":       {DAG: "mail", Job: "nobody", Local: "2027-05-01T09:00", Timezone: "UTC"},
		"a bad payload": {DAG: "mail", Job: "birthday", Local: "2027-05-01T09:00", Timezone: "UTC",
			Payload: json.RawMessage(`{"user": "x"}`)},
	} {
		_, err := w.timers.Create(t.Context(), w.caller, []NewTimer{n}, now)
		require.Error(t, err, name)
		require.NotEqual(t, fault.Internal, fault.KindOf(err), "%s: %v", name, err)
	}
	// Another org sees no timer, and a reader sees no payload.
	org, err := authz.CreateOrg(t.Context(), w.pool, "other", "")
	require.NoError(t, err)
	stranger := authz.Caller{OrgID: org.ID, OrgSlug: "other", Actor: "token:x", Role: authz.RoleAdmin}
	_, err = w.timers.Get(t.Context(), stranger, timer.ID)
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.True(t, fault.Is(w.timers.Delete(t.Context(), stranger, timer.ID, ""), fault.NotFound))
	deleted, err := w.timers.DeleteGroup(t.Context(), stranger, "user-1")
	require.NoError(t, err)
	require.Zero(t, deleted)
	reader := w.caller
	reader.Role = authz.RoleReader
	seen, err := w.timers.Get(t.Context(), reader, timer.ID)
	require.NoError(t, err)
	require.Nil(t, seen.Payload)

	// The job writes nothing, so only those who work on its DAG look into it: groups and keys may be names of people.
	require.Empty(t, seen.Group+seen.IdempotencyKey+seen.EventType)
	require.Equal(t, updated.UTC, seen.UTC)
	for group, n := range map[string]int{"": 1, "user-1": 0} {
		list, err := w.timers.List(t.Context(), reader, Filter{Group: group}, rest.PageInput{Limit: 10})
		require.NoError(t, err)
		require.Len(t, list.Items, n, group)
	}
}

func TestAGroupIsMovedAndDeletedTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	mine := w.create(NewTimer{Local: "2027-07-01T09:00", Timezone: "America/New_York", Group: "user-1",
		Repeat: "yearly"}, now)
	late := w.create(NewTimer{Local: "2027-01-01T09:00", Timezone: "America/Los_Angeles", Group: "user-1"}, now)
	other := w.create(NewTimer{Local: "2027-07-01T09:00", Timezone: "America/New_York", Group: "user-2"}, now)
	moved, err := w.timers.MoveGroup(t.Context(), w.caller, "user-1", "Asia/Kathmandu", now)
	require.NoError(t, err)
	require.Equal(t, 2, moved)
	require.Equal(t, at(t, "2027-07-01T03:15:00Z"), w.get(mine.ID).UTC.UTC())
	require.Equal(t, mine.Local, w.get(mine.ID).Local)
	require.Equal(t, other.UTC, w.get(other.ID).UTC)
	// A timer whose time is past in the new zone fires at once, and only once.
	w.deliver(at(t, "2027-01-01T04:00:00Z"))
	require.Equal(t, 1, w.made())
	w.settled(late.ID, "COMPLETED")
	_, err = w.timers.MoveGroup(t.Context(), w.caller, "user-1", "Pacific/Honolulu", now)
	require.NoError(t, err)
	w.deliver(at(t, "2027-01-02T04:00:00Z"))
	require.Equal(t, 1, w.made(), "what has fired does not fire again by another clock")

	deleted, err := w.timers.DeleteGroup(t.Context(), w.caller, "user-1")
	require.NoError(t, err)
	require.Equal(t, 2, deleted)
	list, err := w.timers.List(t.Context(), w.caller, Filter{}, rest.PageInput{Limit: 10})
	require.NoError(t, err)
	require.Len(t, list.Items, 1)
	_, err = w.timers.MoveGroup(t.Context(), w.caller, "", "UTC", now)
	require.Error(t, err)
	_, err = w.timers.DeleteGroup(t.Context(), w.caller, "")
	require.Error(t, err)
}

func TestATimerThatCannotBeDelivered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	broken := w.create(NewTimer{Local: "2027-01-01T00:00", Timezone: "UTC"}, now)
	good := w.create(NewTimer{Local: "2027-01-01T00:00", Timezone: "UTC"}, now)
	_, err := w.pool.Exec(t.Context(), `UPDATE scheduled_events SET job_name = 'gone' WHERE id = $1`, broken.ID)
	require.NoError(t, err)
	w.deliver(now)
	require.NotNil(t, w.get(good.ID).Task, "one holds up no other")
	require.Equal(t, 1, w.get(broken.ID).RetryCount)
	require.Contains(t, w.get(broken.ID).FailureReason, "gone")

	w.deliver(now)
	require.Equal(t, 1, w.get(broken.ID).RetryCount, "not before its back-off")
	for range deliverTries {
		now = now.Add(longestWait)
		w.deliver(now)
	}
	require.Equal(t, "FAILED", w.get(broken.ID).Status)
	_, err = w.pool.Exec(t.Context(), `UPDATE scheduled_events SET job_name = 'birthday' WHERE id = $1`, broken.ID)
	require.NoError(t, err)
	local := "2027-01-05T00:00"
	_, err = w.timers.Update(t.Context(), w.caller, broken.ID, TimerChange{Local: &local}, "", now)
	require.NoError(t, err)
	w.deliver(at(t, "2027-01-05T00:00:00Z"))
	w.settled(broken.ID, "COMPLETED")
	require.Equal(t, 2, w.made())
}

// A timer has failed when its task has, says why, and completes once somebody's retry of the task does.
func TestATimerKnowsHowItsTaskEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := at(t, "2027-01-01T00:00:00Z")
	w.told.refuse(true)
	timer := w.create(NewTimer{Local: "2027-01-01T01:00", Timezone: "Europe/Berlin", IdempotencyKey: "k"}, now)
	every := w.create(NewTimer{Local: "2027-01-01T00:00", Timezone: "UTC", Repeat: "yearly"}, now)
	w.deliver(now)
	failed := w.settled(timer.ID, "FAILED")
	require.Equal(t, "its task failed: the letter box is full", failed.FailureReason)
	require.Equal(t, "Failed", failed.Task.Status)
	reader := w.caller
	reader.Role = authz.RoleReader
	seen, err := w.timers.Get(t.Context(), reader, timer.ID)
	require.NoError(t, err)
	require.Empty(t, seen.Task.Error+seen.FailureReason)

	// The task knows its timer.
	var known string
	require.NoError(t, w.pool.QueryRow(t.Context(), `SELECT format('%s %s %s', metadata -> 'timer' ->> 'id',
		metadata -> 'timer' ->> 'due_at', metadata -> 'timer' ->> 'timezone') FROM tasks WHERE id = $1`,
		failed.Task.ID).Scan(&known))
	require.Equal(t, timer.ID.String()+" 2027-01-01T00:00:00Z Europe/Berlin", known)

	w.told.refuse(false)
	_, err = w.dispatcher.Control.Retry(t.Context(), w.caller, failed.Task.ID)
	require.NoError(t, err)
	require.Empty(t, w.settled(timer.ID, "COMPLETED").FailureReason)
	require.Equal(t, "PENDING", w.get(every.ID).Status)
	require.Equal(t, "Failed", w.get(every.ID).Task.Status)

	// A canceled task is no delivery.
	canceled := w.create(NewTimer{Local: "2027-01-01T00:00", Timezone: "UTC"}, now)
	w.told.refuse(true)
	w.deliver(now)
	_, err = w.dispatcher.Control.Cancel(t.Context(), w.caller, w.settled(canceled.ID, "FAILED").Task.ID)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.get(canceled.ID).Task.Status == "Canceled" }, time.Minute,
		10*time.Millisecond)
	require.Equal(t, "FAILED", w.get(canceled.ID).Status)
}
