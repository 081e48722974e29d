package proof_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// watch looks at the database again and again. Each look is one statement, so it sees the state of one moment.
type watch struct {
	pool     *pgxpool.Pool
	database *postgres
	fleet    *fleet
	load     *load

	looks    int
	wrong    []string       // limits that were exceeded, or whose count differed from their tasks
	peak     map[string]int // by limit, the most tasks that held a lease at once
	recovery time.Duration  // the longest time that a lease stayed after it had expired
	worst    string
}

func (w *watch) run(ctx context.Context) {
	w.peak = map[string]int{}
	for tick := time.NewTicker(50 * time.Millisecond); ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-tick.C:
			w.look(ctx)
		}
	}
}

// look does nothing while PostgreSQL is down.
func (w *watch) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rows, err := w.pool.Query(ctx, `
		WITH open AS (SELECT task_id, true AS running FROM leases UNION ALL SELECT task_id, false FROM ready),
		used AS (
			SELECT key, count(*) AS n, count(*) FILTER (WHERE running) AS running
			FROM open JOIN tasks t ON t.id = open.task_id, unnest(t.limits) AS key GROUP BY key)
		SELECT l.key, l.max, l.held, coalesce(u.n, 0), coalesce(u.running, 0) FROM limits l LEFT JOIN used u USING (key)
		WHERE u.n > 0 OR l.held > 0
		UNION ALL SELECT 'function', $1, count(*), count(*), count(*) FROM leases
			WHERE worker_id = 'lambda:proof'`, calledAtOnce)
	if err != nil {
		return
	}

	var (
		key                     string
		most, held, of, running int
	)
	if _, err := pgx.ForEachRow(rows, []any{&key, &most, &held, &of, &running}, func() error {
		if held > most || held != of {
			w.wrong = append(w.wrong, fmt.Sprintf("%s: %d held of %d, %d tasks hold it", key, held, most, of))
		}
		w.peak[key] = max(w.peak[key], running)
		return nil
	}); err != nil {
		return
	}

	var open int64
	var earliest *time.Time
	if err := w.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM leases) + (SELECT count(*) FROM ready) + (SELECT count(*)
			FROM waiting) + (SELECT count(*) FROM outbox WHERE status <> 'Done'),
			(SELECT min(expires_at) FROM leases)`).Scan(&open, &earliest); err != nil {
		return
	}

	w.load.open.Store(open)
	w.looks++
	// Time counts only while a server can recover leases; a stopped one may hold locks that others wait for.
	working, stopped := w.fleet.working()
	up := w.database.since()
	if earliest == nil || working.IsZero() || up.IsZero() || stopped {
		return
	}

	from := slices.MaxFunc([]time.Time{*earliest, working, up}, time.Time.Compare)
	if late := time.Since(from); late > w.recovery {
		w.recovery = late
		w.worst = fmt.Sprintf("at %s: lease until %s, a server since %s, PostgreSQL since %s", time.Now().
			Format(time.TimeOnly), earliest.Format(time.TimeOnly),
			working.Format(time.TimeOnly), up.Format(time.TimeOnly))
	}
}

// mark is the beginning or the end of a run, as the program itself recorded it.
type mark struct {
	at    time.Time
	begin bool
}

// mostAtOnce returns the highest number of runs of a job at once. A run counts while its attempt holds its lease:
// later it is fenced and no longer counts. The number comes from the programs' own marks, not from the database.
func mostAtOnce(runs map[attemptOf][2]time.Time, lost map[attemptOf]time.Time) int {
	var marks []mark
	for a, r := range runs {
		begin, end := r[0], r[1]
		// A file's time is that of the kernel's last tick, up to 10 ms earlier.
		if gone, ok := lost[a]; ok && (end.IsZero() || gone.Add(-10*time.Millisecond).Before(end)) {
			end = gone.Add(-10 * time.Millisecond)
		}
		if begin.Before(end) {
			marks = append(marks, mark{begin, true}, mark{end, false})
		}
	}

	slices.SortFunc(marks, func(a, b mark) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return cmp.Compare(strconv.FormatBool(a.begin), strconv.FormatBool(b.begin)) // ends come before beginnings
	})

	now, most := 0, 0
	for _, m := range marks {
		if !m.begin {
			now--
			continue
		}
		now++
		most = max(most, now)
	}
	return most
}

// attemptOf names one attempt of a task.
type attemptOf struct {
	task   uuid.UUID
	number int
}

// runsOf reads the marks of the programs.
func (w *world) runsOf(dir string) map[attemptOf][2]time.Time {
	w.t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(w.t, err)

	runs := map[attemptOf][2]time.Time{}
	for _, entry := range entries {
		parts := strings.Split(entry.Name(), ".")
		require.Len(w.t, parts, 3, entry.Name())
		number, err := strconv.Atoi(parts[1])
		require.NoError(w.t, err)
		info, err := entry.Info()
		require.NoError(w.t, err)
		a := attemptOf{uuid.MustParse(parts[0]), number}
		times := runs[a]
		times[map[string]int{"begin": 0, "end": 1}[parts[2]]] = info.ModTime()
		runs[a] = times
	}
	return runs
}

// checkLimits compares the marks with the limits, and returns the highest number of runs at once by job.
func (w *world) checkLimits(dir string, jobs []limitedJob) map[string]int {
	w.t.Helper()
	rows, err := w.pool.Query(w.t.Context(),
		`SELECT task_id, attempt, ended_at FROM task_attempts WHERE outcome <> 'Completed'`)
	require.NoError(w.t, err)

	lost := map[attemptOf]time.Time{}
	var (
		a  attemptOf
		at time.Time
	)

	_, err = pgx.ForEachRow(rows, []any{&a.task, &a.number, &at}, func() error { lost[a] = at; return nil })
	require.NoError(w.t, err)
	all := w.runsOf(dir)
	found := map[string]int{}
	for _, job := range jobs {
		rows, err := w.pool.Query(w.t.Context(),
			`SELECT t.id FROM tasks t JOIN jobs j ON j.id = t.job_id WHERE j.name = $1`, job.name)
		require.NoError(w.t, err)

		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		require.NoError(w.t, err)
		runs := map[attemptOf][2]time.Time{}
		of := map[uuid.UUID]bool{}
		for _, id := range ids {
			of[id] = true
		}

		ran := map[uuid.UUID]bool{}
		for a, r := range all {
			if of[a.task] {
				runs[a], ran[a.task] = r, true
			}
		}
		require.Len(w.t, ran, len(ids), "every task of %s ran", job.name)

		found[job.name] = mostAtOnce(runs, lost)
		if job.limit == 0 {
			continue
		}
		require.LessOrEqual(w.t, found[job.name], job.limit, "more tasks of %s ran at once, by their own marks",
			job.name)
	}
	return found
}

// none requires that a query finds nothing.
func (w *world) none(what, sql string, args ...any) {
	w.t.Helper()
	require.Empty(w.t, w.texts(`SELECT q::text FROM (`+sql+`) AS q LIMIT 20`, args...), what)
}

// checkAccounts checks the database after everything has settled.
func (w *world) checkAccounts(l *load) {
	w.t.Helper()
	ids := make([]uuid.UUID, 0, len(l.acked))
	for _, id := range l.acked {
		ids = append(ids, id)
	}

	// Every acknowledged task was done, once, and there are no others.
	w.none("a task that was acknowledged and is not completed", `
		SELECT w.id, t.status, t.reason, t.error_message FROM unnest($1::uuid[]) AS w(id) LEFT
			JOIN tasks t ON t.id = w.id
		WHERE t.status IS DISTINCT FROM 'Completed'`, ids)
	require.Equal(w.t, len(ids), w.count(`SELECT FROM tasks WHERE kind = 'manual'`),
		"there are no unacknowledged tasks")

	w.none("a task without a terminal result",
		`SELECT id, status, reason FROM tasks WHERE status NOT IN ('Completed', 'Canceled')`)
	w.none("a canceled task that nothing stands for",
		`SELECT id, reason, state FROM tasks WHERE status = 'Canceled' AND reason NOT IN ('superseded', 'merged')`)
	w.none("a task without exactly one result on its trail", `
		SELECT t.id, t.status, count(e.id) FROM tasks t LEFT JOIN task_events e ON e.task_id = t.id
			AND e.to_status = 'Completed'
		GROUP BY t.id HAVING count(e.id) <> CASE t.status WHEN 'Completed' THEN 1 ELSE 0 END`)

	w.none("a result that is not the last attempt's", `
		SELECT t.id, t.attempt, e.attempt FROM tasks t JOIN task_events e ON e.task_id = t.id
		WHERE e.to_status = 'Completed' AND (e.attempt <> t.attempt OR EXISTS (
			SELECT FROM task_events later WHERE later.task_id = t.id AND later.attempt > e.attempt))`)

	// Nothing is under way, and no capacity is lost.
	for _, set := range []string{"ready", "leases", "waiting", "outbox"} {
		w.none("an open row of "+set, `SELECT * FROM `+set)
	}
	w.none("a limit that is held by nobody", `SELECT key, held FROM limits WHERE held <> 0`)

	// Every partition was committed once, and the totals have no gap.
	w.none("a revision beside its neighbours", `
		SELECT dataset_version, partition_key, array_agg(revision ORDER BY revision) FROM partition_versions
		GROUP BY dataset_version, partition_key
		HAVING count(*) <> max(revision) OR min(revision) <> 1 OR count(*) FILTER (WHERE state = 'Published') <> 1
			OR max(revision) FILTER (WHERE state = 'Published') <> max(revision)`)

	w.none("a task that committed twice", `
		SELECT task_id, dataset_version, count(*) FROM partition_versions GROUP BY task_id, dataset_version
			HAVING count(*) > 1`)
	w.none("a revision that no completed task made", `
		SELECT p.task_id FROM partition_versions p LEFT JOIN tasks t ON t.id = p.task_id
		WHERE t.status IS DISTINCT FROM 'Completed' OR t.attempt <> p.attempt`)

	for flow, keys := range l.keys {
		dag := fmt.Sprintf("flow%d", flow)
		for _, job := range []string{"landed", "copied"} {
			made := w.texts(`
				SELECT p.partition_key || '@' || p.revision FROM partition_versions p
				JOIN dag_version_datasets d ON d.dataset_version = p.dataset_version
				JOIN dag_versions v ON v.id = d.dag_version_id WHERE v.dag_name = $1 AND d.job_name = $2
					ORDER BY 1`, dag, job)
			want := []string{}
			for _, key := range keysOf(keys) {
				want = append(want, key+"@1")
			}
			slices.Sort(want)
			require.Equal(w.t, want, made, "%s of %s: each partition once", job, dag)
		}
		if len(keys) > 0 {
			require.Equal(w.t, []string{strconv.Itoa(len(keys))}, w.read(fmt.Sprintf("total%d", flow)),
				"what is read in the end")
		}
	}

	w.none("an event whose consumer never heard of it", `
		SELECT e.id, e.partition_key, e.revision, consumer.name FROM events e
		JOIN dag_version_datasets d ON d.dataset_version = e.dataset_version
		JOIN jobs consumer ON consumer.dag_version_id = d.dag_version_id
		JOIN job_inputs i ON i.job_id = consumer.id AND i.dataset_uuid = e.dataset_uuid
		WHERE NOT EXISTS (SELECT FROM event_outcomes c WHERE c.event_id = e.id AND c.job_id = consumer.origin_job_id)`)
}

// TestMostAtOnce shows that the checker finds what it looks for.
func TestMostAtOnce(t *testing.T) {
	t.Parallel()
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	a, b := attemptOf{uuid.New(), 1}, attemptOf{uuid.New(), 1}
	again := attemptOf{a.task, 2}
	for name, c := range map[string]struct {
		runs map[attemptOf][2]time.Time
		lost map[attemptOf]time.Time
		want int
	}{
		"one after the other": {map[attemptOf][2]time.Time{a: {at(1), at(2)}, b: {at(2), at(3)}}, nil, 1},
		"two at once":         {map[attemptOf][2]time.Time{a: {at(1), at(3)}, b: {at(2), at(4)}}, nil, 2},
		"one that lost its lease before": {map[attemptOf][2]time.Time{a: {at(1), at(9)}, again: {at(6), at(7)}},
			map[attemptOf]time.Time{a: at(5)}, 1},
		"one that lost its lease too late": {map[attemptOf][2]time.Time{a: {at(1), at(9)}, again: {at(6), at(7)}},
			map[attemptOf]time.Time{a: at(8)}, 2},
		"killed, so that it never ended": {map[attemptOf][2]time.Time{a: {at(1)}, again: {at(6), at(7)}},
			map[attemptOf]time.Time{a: at(5)}, 1},
		"begun when its lease was gone": {map[attemptOf][2]time.Time{a: {at(8), at(9)}, again: {at(6), at(10)}},
			map[attemptOf]time.Time{a: at(5)}, 1},
		"nothing": {nil, nil, 0},
	} {
		require.Equal(t, c.want, mostAtOnce(c.runs, c.lost), name)
	}
}
