package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

const kept = `
name: kept
jobs:
  - name: briefly
    operator: hook
    source: { kind: manual }
    outputs: 0
    task_retention: 1h
  - name: long
    operator: hook
    source: { kind: manual }
    outputs: 0
    task_retention: 8760h
  - name: usual
    operator: hook
    source: { kind: manual }
    outputs: 0
`

func TestFinishedTasksStayAsLongAsTheirJobSays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(kept)
	run := func(job string) uuid.UUID {
		t.Helper()
		made, err := w.d.Enqueue(t.Context(), w.caller, "kept", job, []EnqueueItem{{Payload: payload(1)}})
		require.NoError(t, err)
		w.work()
		return made[0].ID
	}
	w.probe.on("usual", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Result: []byte(`{"n": 1}`)}, nil
	})
	run("briefly")
	run("long")
	run("usual")
	left := func(after time.Duration) []string {
		t.Helper()
		require.NoError(t, w.d.sweepRetention(t.Context(), later(after)))
		return texts(t, w.pool, `SELECT j.name FROM tasks t JOIN jobs j ON j.id = t.job_id ORDER BY 1`)
	}
	require.Equal(t, []string{"briefly", "long", "usual"}, left(59*time.Minute))
	require.Equal(t, []string{"long", "usual"}, left(61*time.Minute))
	require.Equal(t, []string{"long"}, left(keepTasks+time.Hour))
	require.Zero(t, w.count(`SELECT FROM task_results`))
	require.Equal(t, []string{"long"}, left(8759*time.Hour))
	require.Empty(t, left(8761*time.Hour))
	require.Zero(t, w.count(`SELECT FROM task_events`))
}

// What is open stays, however old it is.
func TestRetentionSparesWhatIsOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(kept)
	_, err := w.d.Enqueue(t.Context(), w.caller, "kept", "briefly", []EnqueueItem{{Payload: payload(1)}})
	require.NoError(t, err)
	w.exec(`INSERT INTO outbox (org_id, kind, payload, status, created_at) VALUES ($1, 'notify', '{}', 'Failed', now()), ($1, 'notify', '{}', 'Pending', now())`, w.caller.OrgID)
	w.exec(`INSERT INTO bulk_actions (id, org_id, verb, filter, matched, status, paced_at, created_by, created_at, ended_at)
		SELECT uuid_v7(), $1, 'retry', '{}', 0, s, now(), 'x', now(), CASE s WHEN 'Running' THEN NULL ELSE now() END FROM unnest('{Running,Completed}'::text[]) AS s`, w.caller.OrgID)
	require.NoError(t, w.d.sweepRetention(t.Context(), later(2*365*24*time.Hour)))
	require.Equal(t, 1, w.count(`SELECT FROM ready`))
	require.Equal(t, 1, w.count(`SELECT FROM tasks`))
	require.Equal(t, []string{"Pending"}, texts(t, w.pool, `SELECT status FROM outbox`))
	require.Equal(t, []string{"Running"}, texts(t, w.pool, `SELECT status FROM bulk_actions`))
	w.check()
}

// A dataset that says for how long loses the partitions that are older, and nobody makes them again.
func TestPartitionsPastTheirRetentionGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	today := time.Now().UTC()
	day := func(before int) string { return today.AddDate(0, 0, -before).Format(time.DateOnly) }
	for _, before := range []int{1, 5, 20, 40} {
		w.probe.put("raw", day(before), "a")
	}
	w.serve(edit(pair, "publish:\n", "publish:\n  pair_raw: { from: { job: raw }, retention: 240h }\n"))
	require.Len(t, w.read("pair_raw"), 4)
	c := w.count(`SELECT FROM tasks`)
	require.NoError(t, w.d.sweepExpired(t.Context(), time.Now()))
	require.ElementsMatch(t, []string{day(1), day(5)}, keysOf(w.read("pair_raw")))
	require.Len(t, w.read("pair_made"), 4, "what was made of them stays: it has no retention")
	w.poll()
	w.settle()
	require.Equal(t, c, w.count(`SELECT FROM tasks`), "the source still lists them, and nobody reads them again")
	w.probe.put("raw", day(0), "a")
	w.poll()
	w.settle()
	require.Len(t, w.read("pair_raw"), 3)
	require.NoError(t, w.d.sweepExpired(t.Context(), later(6*24*time.Hour)))
	require.ElementsMatch(t, []string{day(0), day(1)}, keysOf(w.read("pair_raw")))
}

func keysOf(m map[string][]string) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

// While a task works with what is past its retention, it stays.
func TestRetentionWaitsForWhoReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(edit(pair, "publish:\n", "publish:\n  pair_raw: { from: { job: raw }, retention: 240h }\n"))
	w.probe.put("raw", firstDay, "b")
	w.poll()
	source := w.one(w.d)
	w.d.execute(t.Context(), source)
	w.route()
	reader := w.one(w.d)
	require.NoError(t, w.d.sweepExpired(t.Context(), time.Now()))
	require.Len(t, w.read("pair_raw"), 1)
	w.d.execute(t.Context(), reader)
	require.NoError(t, w.d.sweepExpired(t.Context(), time.Now()))
	require.Empty(t, w.read("pair_raw"))
	require.Equal(t, []string{"m(b)"}, w.read("pair_made")[firstDay])
	w.check()
}

func TestWhenAJobIsIdle(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for _, c := range []struct {
		timeout string
		work    work
		idle    bool
	}{
		{"5m", work{}, true},
		{"5m", work{open: true}, false},
		{"5m", work{last: ago(4 * time.Minute)}, false},
		{"5m", work{last: ago(5 * time.Minute)}, true},
		{"0", work{last: ago(0)}, true},
		{"0", work{open: true, last: ago(time.Hour)}, false},
		{"never", work{last: ago(time.Hour)}, false},
		{"never", work{}, false},
		{"", work{last: ago(0)}, true}, // a source
	} {
		require.Equal(t, c.idle, idleFor(&dag.Job{IdleTimeout: c.timeout}, c.work, now), "%+v", c)
	}
}

func TestIdleRuntimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.probe.put("raw", firstDay, "a")
	w.serve(edit(pair, "config: { tag: m }", "config: { tag: m }\n    runtime: other\n    idle_timeout: 10m"))
	worker := authz.Worker{TokenName: "w", Orgs: ids(w.caller.OrgID)}
	idle := func(after time.Duration) []string {
		t.Helper()
		found, err := w.d.IdleRuntimes(t.Context(), worker, []string{"dispatcher", "other", "unused"}, later(after))
		require.NoError(t, err)
		return found
	}
	require.Equal(t, []string{"dispatcher", "unused"}, idle(0), "what ran last ended a moment ago")
	require.Equal(t, []string{"dispatcher", "other", "unused"}, idle(11*time.Minute))
	w.probe.put("raw", firstDay, "b")
	w.poll()
	require.Equal(t, []string{"other", "unused"}, idle(12*time.Minute), "the source has a task")
	elsewhere := w.org("umbrella")
	worker.Orgs = ids(elsewhere.caller.OrgID)
	require.Equal(t, []string{"dispatcher", "other", "unused"}, idle(12*time.Minute), "another org's work is not this worker's")
}
