package upkeep_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
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
	w := dispatchertest.NewWorld(t)
	w.Serve(kept)
	run := func(job string) uuid.UUID {
		t.Helper()
		made, err := w.D.Enqueue(t.Context(), w.Caller, "kept", job,
			[]dispatcher.EnqueueItem{{Payload: dispatchertest.Payload(1)}})
		require.NoError(t, err)
		w.Work()
		return made[0].ID
	}
	w.Probe.On("usual", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{Result: []byte(`{"n": 1}`)}, nil
	})
	run("briefly")
	run("long")
	run("usual")
	left := func(after time.Duration) []string {
		t.Helper()
		require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(after)))
		return dispatchertest.Texts(t, w.Pool, `SELECT j.name FROM tasks t JOIN jobs j ON j.id = t.job_id ORDER BY 1`)
	}
	require.Equal(t, []string{"briefly", "long", "usual"}, left(59*time.Minute))
	require.Equal(t, []string{"long", "usual"}, left(61*time.Minute))
	require.Equal(t, []string{"long"}, left(upkeep.KeepTasks+time.Hour))
	require.Zero(t, w.Count(`SELECT FROM task_results`))
	require.Equal(t, []string{"long"}, left(8759*time.Hour))
	require.Empty(t, left(8761*time.Hour))
	require.Zero(t, w.Count(`SELECT FROM task_events`))
}

// Open tasks stay, however old they are.
func TestRetentionSparesWhatIsOpen(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(kept)
	_, err := w.D.Enqueue(t.Context(), w.Caller, "kept", "briefly",
		[]dispatcher.EnqueueItem{{Payload: dispatchertest.Payload(1)}})
	require.NoError(t, err)
	w.Exec(`INSERT INTO outbox (org_id, kind, payload, status, created_at)
		VALUES ($1, 'notify', '{}', 'Failed', now()), ($1, 'notify', '{}', 'Pending', now())`, w.Caller.OrgID)
	w.Exec(`INSERT INTO bulk_actions (id, org_id, verb, filter, matched, status, paced_at, created_by, created_at,
		ended_at)
		SELECT uuid_v7(), $1, 'retry', '{}', 0, s, now(), 'x', now(), CASE s WHEN 'Running' THEN NULL ELSE now() END
		FROM unnest('{Running,Completed}'::text[]) AS s`, w.Caller.OrgID)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*365*24*time.Hour)))
	require.Equal(t, 1, w.Count(`SELECT FROM ready`))
	require.Equal(t, 1, w.Count(`SELECT FROM tasks`))
	require.Equal(t, []string{"Pending"}, dispatchertest.Texts(t, w.Pool, `SELECT status FROM outbox`))
	require.Equal(t, []string{"Running"}, dispatchertest.Texts(t, w.Pool, `SELECT status FROM bulk_actions`))
	w.Check()
}

// A dataset with a retention loses older partitions, and nothing creates them again.
func TestPartitionsPastTheirRetentionGo(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	today := time.Now().UTC()
	day := func(before int) string { return today.AddDate(0, 0, -before).Format(time.DateOnly) }
	for _, before := range []int{1, 5, 20, 40} {
		w.Probe.Put("raw", day(before), "a")
	}
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "publish:\n",
		"publish:\n  pair_raw: { from: { job: raw }, retention: 240h }\n"))
	require.Len(t, w.Read("pair_raw"), 4)
	c := w.Count(`SELECT FROM tasks`)
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), time.Now()))
	require.ElementsMatch(t, []string{day(1), day(5)}, keysOf(w.Read("pair_raw")))
	require.Len(t, w.Read("pair_made"), 4, "what was made of them stays: it has no retention")
	w.Poll()
	w.Settle()
	require.Equal(t, c, w.Count(`SELECT FROM tasks`), "the source still lists them, and nobody reads them again")
	w.Probe.Put("raw", day(0), "a")
	w.Poll()
	w.Settle()
	require.Len(t, w.Read("pair_raw"), 3)
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), dispatchertest.Later(6*24*time.Hour)))
	require.ElementsMatch(t, []string{day(0), day(1)}, keysOf(w.Read("pair_raw")))
}

func keysOf(m map[string][]string) (keys []string) {
	for key := range m {
		keys = append(keys, key)
	}
	return keys
}

// Data past its retention stays while a task uses it.
func TestRetentionWaitsForWhoReads(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "publish:\n",
		"publish:\n  pair_raw: { from: { job: raw }, retention: 240h }\n"))
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	source := w.One(w.D)
	dispatchertest.Execute(t.Context(), w.D, source)
	w.Route()
	reader := w.One(w.D)
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), time.Now()))
	require.Len(t, w.Read("pair_raw"), 1)
	dispatchertest.Execute(t.Context(), w.D, reader)
	require.NoError(t, w.D.Upkeep.RemoveAll(t.Context(), time.Now()))
	require.Empty(t, w.Read("pair_raw"))
	require.Equal(t, []string{"m(b)"}, w.Read("pair_made")[dispatchertest.FirstDay])
	w.Check()
}

func TestWhenAJobIsIdle(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	for _, c := range []struct {
		timeout string
		work    dispatcher.Work
		idle    bool
	}{
		{"5m", dispatcher.Work{}, true},
		{"5m", dispatcher.Work{Open: true}, false},
		{"5m", dispatcher.Work{Last: ago(4 * time.Minute)}, false},
		{"5m", dispatcher.Work{Last: ago(5 * time.Minute)}, true},
		{"0", dispatcher.Work{Last: ago(0)}, true},
		{"0", dispatcher.Work{Open: true, Last: ago(time.Hour)}, false},
		{"never", dispatcher.Work{Last: ago(time.Hour)}, false},
		{"never", dispatcher.Work{}, false},
		{"", dispatcher.Work{Last: ago(0)}, true}, // a source
	} {
		require.Equal(t, c.idle, dispatcher.IdleFor(&dag.Job{IdleTimeout: c.timeout}, c.work, now), "%+v", c)
	}
}

func TestIdleRuntimes(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", dispatchertest.FirstDay, "a")
	w.Serve(dispatchertest.Edit(dispatchertest.Pair, "config: { tag: m }",
		"config: { tag: m }\n    runtime: other\n    idle_timeout: 10m"))
	worker := authz.Worker{TokenName: "w", Orgs: []uuid.UUID{w.Caller.OrgID}}
	idle := func(after time.Duration) []string {
		t.Helper()
		found, err := w.D.IdleRuntimes(t.Context(), worker, []string{"dispatcher", "other", "unused"},
			dispatchertest.Later(after))
		require.NoError(t, err)
		return found
	}
	require.Equal(t, []string{"dispatcher", "unused"}, idle(0), "what ran last ended a moment ago")
	require.Equal(t, []string{"dispatcher", "other", "unused"}, idle(11*time.Minute))
	w.Probe.Put("raw", dispatchertest.FirstDay, "b")
	w.Poll()
	require.Equal(t, []string{"other", "unused"}, idle(12*time.Minute), "the source has a task")
	elsewhere := w.Org("umbrella")
	worker.Orgs = []uuid.UUID{elsewhere.Caller.OrgID}
	require.Equal(t, []string{"dispatcher", "other", "unused"}, idle(12*time.Minute),
		"another org's work is not this worker's")
}

// What people asked for stays for ninety days after its end, and as long as it is under way.
func TestWhatHasEndedGoes(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(kept)
	w.Exec(`INSERT INTO scheduled_events (id, org_id, dag_name, job_name, event_type, status, target_timestamp_utc,
			target_timestamp_local, target_timezone, anchor_local, idempotency_key, delivery_payload)
		SELECT uuid_v7(), $1, 'kept', 'usual', 'x', s, now(), now(), 'UTC', now(), s, '{}'
		FROM unnest('{PENDING,COMPLETED,FAILED,PROCESSING}'::text[]) AS s`, w.Caller.OrgID)
	w.Exec(`WITH b AS (
		INSERT INTO backfills (id, org_id, dag_name, job_name, job_id, dataset_versions, from_key, to_key, existing,
			propagate, concurrency, status, created_by, created_at, ended_at)
		SELECT uuid_v7(), $1, 'kept', 'usual', (SELECT min(id::text)::uuid FROM jobs), '{}', 'a', 'b', 'all', 'none', 1,
			s, 'x', now(), CASE s WHEN 'Running' THEN NULL ELSE now() END
		FROM unnest('{Running,Completed}'::text[]) AS s RETURNING id, status)
		INSERT INTO backfill_partitions (backfill_id, org_id, partition_key, state)
		SELECT id, $1, n::text, 'Done' FROM b, generate_series(1, 2500) AS n`, w.Caller.OrgID)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(89*24*time.Hour)))
	require.Equal(t, 4, w.Count(`SELECT FROM scheduled_events`))
	require.Equal(t, 2, w.Count(`SELECT FROM backfills`))

	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(91*24*time.Hour)))
	require.Equal(t, []string{"PENDING", "PROCESSING"},
		dispatchertest.Texts(t, w.Pool, `SELECT status FROM scheduled_events ORDER BY 1`))
	require.Equal(t, []string{"Running"}, dispatchertest.Texts(t, w.Pool, `SELECT status FROM backfills`))
	require.Equal(t, 2500, w.Count(`SELECT FROM backfill_partitions`))
}

// A limit goes when nobody is under it; that of a job in work, whose bound it holds, stays.
func TestLimitsThatNobodyIsUnderGo(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Edit(kept, "    task_retention: 1h\n",
		"    task_retention: 1h\n    scaling: { max_concurrency: 2 }\n    concurrency_key: \"one-{payload.n}\"\n"))
	enqueue := func(n int) {
		t.Helper()
		_, err := w.D.Enqueue(t.Context(), w.Caller, "kept", "briefly",
			[]dispatcher.EnqueueItem{{Payload: dispatchertest.Payload(map[string]int{"n": n})}})
		require.NoError(t, err)
	}
	for n := range 3 {
		enqueue(n)
		w.Work()
	}
	enqueue(3)
	enqueue(3)
	w.Exec(`INSERT INTO limits (org_id, key, max) SELECT $1, 'key:old ' || n, 1 FROM generate_series(1, 2500) AS n`,
		w.Caller.OrgID)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), time.Now()))
	require.Equal(t, []string{"job:kept/briefly 1", "key:one-3 1"},
		dispatchertest.Texts(t, w.Pool, `SELECT key || ' ' || held FROM limits ORDER BY 1`))
	w.Check()
	w.Work()
	require.Zero(t, w.Count(`SELECT FROM waiting`))
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), time.Now()))
	require.Equal(t, []string{"job:kept/briefly 0 of 2"},
		dispatchertest.Texts(t, w.Pool, `SELECT key || ' ' || held || ' of ' || max FROM limits ORDER BY 1`))
	enqueue(3)
	w.Check()
}

// The epoch of a cursor is how often it was rewound, whenever that was.
func TestOldInvalidationsGoAndTheEpochStays(t *testing.T) {
	t.Parallel()
	w := dispatchertest.PairWorld(t)
	w.Exec(`INSERT INTO data_invalidations (id, org_id, dataset_version, scope, epoch, reason, created_by)
		SELECT uuid_v7(), $1, (SELECT id FROM dataset_versions ORDER BY id LIMIT 1), 'range', epoch, 'reorg', 'x'
		FROM unnest('{1,2,NULL,3}'::bigint[]) AS epoch`, w.Caller.OrgID)
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(89*24*time.Hour)))
	require.Equal(t, 4, w.Count(`SELECT FROM data_invalidations`))
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(91*24*time.Hour)))
	require.Equal(t, []string{"3"}, dispatchertest.Texts(t, w.Pool, `SELECT epoch::text FROM data_invalidations`))
}

// Tasks of a job that says how long they stay are an item of their own, which goes with the job's wish.
func TestItemsOfJobsThatSetTheirRetention(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(kept)
	loops := w.D.Upkeep.Loops()
	at := slices.IndexFunc(loops, func(l dispatcher.Loop) bool { return l.Name == "background" })
	require.NotNil(t, loops[at].End)
	begins := time.Now()
	background := func() int {
		t.Helper()
		w.Exec(`UPDATE work_items SET due_at = now()`)
		begins = begins.Add(time.Minute)
		_, err := loops[at].Body(t.Context(), begins)
		require.NoError(t, err)
		loops[at].End()
		return w.Count(`SELECT FROM work_items WHERE object LIKE 'tasks of %'`)
	}
	require.Equal(t, 2, background())
	w.Serve(dispatchertest.Edit(kept, "    task_retention: 1h\n", ""))
	require.Equal(t, 1, background())
	require.Zero(t, w.Count(`SELECT FROM work_items WHERE failures > 0 OR lease_token IS NOT NULL`))
}
