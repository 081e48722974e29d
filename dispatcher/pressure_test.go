package dispatcher

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

func TestThresholdsHaveHysteresis(t *testing.T) {
	t.Parallel()
	on := new(time.Time)
	for _, c := range []struct {
		limits  Thresholds
		since   *time.Time
		queued  int64
		oldest  float64
		exceeds bool
	}{
		{Thresholds{}, nil, 1 << 40, 1e9, false},
		{Thresholds{MaxQueued: 100}, nil, 100, 0, false},
		{Thresholds{MaxQueued: 100}, nil, 101, 0, true},
		{Thresholds{MaxQueued: 100}, on, 51, 0, true},
		{Thresholds{MaxQueued: 100}, on, 50, 0, false},
		{Thresholds{MaxAge: time.Minute}, nil, 1 << 40, 60, false},
		{Thresholds{MaxAge: time.Minute}, nil, 0, 61, true},
		{Thresholds{MaxAge: time.Minute}, on, 0, 31, true},
		{Thresholds{MaxAge: time.Minute}, on, 0, 30, false},
		{Thresholds{MaxQueued: 100, MaxAge: time.Minute}, on, 50, 31, true},
	} {
		require.Equal(t, c.exceeds, c.limits.exceeds(Pressure{Since: c.since, Queued: c.queued, Oldest: c.oldest}) != "", "%+v", c)
	}
	require.Equal(t, int64(200), Thresholds{MaxQueued: 100}.refuseAt())
	require.Equal(t, int64(150), Thresholds{MaxQueued: 100, RefuseAt: 150}.refuseAt())
}

// Too much is queued: what brings more work waits, says so, and goes on by itself with nothing lost.
func TestBackpressure(t *testing.T) {
	t.Parallel()
	w := monthWorld(t, "01", "02", "03")
	w.secret("ORDERS", "hunter22", boundTo("shop/orders"))
	w.serve(hookDAG)
	w.serve(mail)
	first := time.Now()
	look := func(after time.Duration) Pressure {
		t.Helper()
		_, err := w.d.reviewPressure(t.Context(), first.Add(after))
		require.NoError(t, err)
		p, err := w.d.Pressure(t.Context(), authz.Caller{OrgID: w.caller.OrgID, Role: authz.RoleReader})
		require.NoError(t, err)
		return p
	}
	deliver := func(id string) error {
		t.Helper()
		_, err := w.d.AcceptHook(t.Context(), signed("hunter22", id, time.Now(), `{"order": 1}`), time.Now())
		return err
	}
	w.d.Thresholds = Thresholds{MaxQueued: 4, RefuseAt: 8}
	require.Nil(t, look(0).Since)
	to := payload(map[string]string{"to": "a"})
	for range 5 {
		w.enqueue("send", EnqueueItem{Payload: to})
	}
	require.Nil(t, look(time.Millisecond).Since, "it is measured once a second")
	p := look(2 * time.Second)
	require.NotNil(t, p.Since)
	require.Equal(t, int64(5), p.Queued)

	// Sources, a backfill and a build wait.
	w.probe.put("raw", "2024-01-04", "04")
	w.poll()
	b := w.backfill(BackfillRequest{Job: "made", From: "2024-01-01", To: "2024-01-03", Existing: "all", Propagate: "none"})
	_, err := w.d.advanceBackfills(t.Context(), time.Now())
	require.NoError(t, err)
	changed := w.deploy(edit(january, "config: { tag: m }", "config: { tag: changed }"))
	w.advance()
	require.Equal(t, 5, w.count(`SELECT FROM ready`), "nothing was added")
	require.Contains(t, codesIn(w.whyJob("letters", "raw").Reasons), "backpressure")
	require.Contains(t, codesIn(w.whyNot("letters_made", "2024-01-04").Reasons), "waits_for_inputs/input_missing/backpressure")
	why, err := w.d.DatasetWhy(t.Context(), w.caller, "letters_made", time.Now())
	require.NoError(t, err)
	require.Contains(t, codesIn(why.Reasons), "gate/backpressure")
	require.Equal(t, 1.0, w.figuresOf(w.d)["backpressure{}"])

	// What is handed over is taken as long as there is room, and then refused with the time to come again.
	for i := range 3 {
		require.NoError(t, deliver(fmt.Sprint("m", i)))
	}
	look(4 * time.Second)
	refused := deliver("late")
	require.True(t, fault.Is(refused, fault.Unavailable), "%v", refused)
	require.Equal(t, "30", rest.ProblemOf(refused).GetHeaders().Get("Retry-After"))
	_, err = w.d.Enqueue(t.Context(), w.caller, "mail", "send", []EnqueueItem{{Payload: to}})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)

	// It lasts until half of it is done.
	one, err := w.d.claim(t.Context(), w.d.inProcessRuntimes(), "one", 5, time.Now())
	require.NoError(t, err)
	require.Len(t, one, 5)
	for _, c := range one {
		w.d.execute(t.Context(), c)
	}
	require.NotNil(t, look(6*time.Second).Since, "three are left of the four that may be: more than half")
	w.work()
	require.Nil(t, look(8*time.Second).Since)
	require.NotContains(t, codesIn(w.whyJob("letters", "raw").Reasons), "backpressure")
	require.NoError(t, deliver("late"))
	w.settle()
	w.follow(b)
	status, reason := w.status(changed.Version.ID)
	require.Equal(t, registry.Active, status, reason)
	require.Len(t, w.read("letters_made"), 4, "the source was read once there was room")
}

// The next in line of a runtime that nobody serves has waited for ever, and no producer is to blame.
func TestTheAgeOfWhatIsNext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	w.d.Thresholds = Thresholds{MaxAge: time.Minute}
	priority := 3
	w.enqueue("send", EnqueueItem{Payload: payload(map[string]string{"to": "a"}), Priority: &priority})
	age := func(at time.Time) time.Duration {
		t.Helper()
		longest, err := w.d.waitOfNext(t.Context(), at)
		require.NoError(t, err)
		return longest
	}
	require.Less(t, age(later(0)), 10*time.Second)
	w.exec(`UPDATE workers SET last_heartbeat = now() + interval '1 hour'`)
	require.InDelta(t, 120, age(later(2*time.Minute)).Seconds(), 10)
	_, err := w.d.reviewPressure(t.Context(), later(2*time.Minute))
	require.NoError(t, err)
	require.True(t, w.d.underPressure())
	w.exec(`UPDATE workers SET last_heartbeat = now() + interval '1 hour', runtimes = '{elsewhere}'`)
	require.Zero(t, age(later(2*time.Minute)))
}
