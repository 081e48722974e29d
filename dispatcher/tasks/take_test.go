package tasks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// backlog is a ready set that a test fills by hand.
type backlog struct {
	*dispatchertest.World
	model uuid.UUID // a task that all others are copies of
	names map[uuid.UUID]string
}

func newBacklog(t *testing.T) *backlog {
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	made := w.Enqueue("send", dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]string{"to": "a"})})
	b := &backlog{World: w, model: made[0].ID, names: map[uuid.UUID]string{}}
	w.Exec(`DELETE FROM ready`)
	return b
}

// queue queues n tasks that were asked for some time ago. needs is what all tasks of the model need unless it is given.
func (b *backlog) queue(n int, class tasks.Class, dag string, priority int, waited time.Duration, needs ...string) {
	b.T.Helper()
	rows, err := b.Pool.Query(b.T.Context(), `
		WITH made AS (
			INSERT INTO tasks SELECT c.* FROM tasks t, generate_series(1, $2) AS n,
				jsonb_populate_record(NULL::tasks, to_jsonb(t) || jsonb_build_object('id', gen_random_uuid(),
					'dedupe_key', NULL, 'input_hash', n::text, 'class', $3::int, 'priority', $5::int)) AS c
			WHERE t.id = $1 RETURNING id, org_id, job_id, runtime, needs)
		INSERT INTO ready (task_id, org_id, origin_job_id, slot, runtime, needs, class, turn, rank)
		SELECT id, org_id, job_id, id::text, runtime, coalesce(NULLIF($7, ''), needs), $3, $4,
			extract(epoch FROM clock_timestamp() - $6::interval) * 1000 - $5::bigint * 3600000 FROM made
		RETURNING task_id`,
		b.model, n, int(class), dag, priority, waited, strings.Join(needs, ""))
	require.NoError(b.T, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(b.T, err)
	for _, id := range ids {
		b.names[id] = fmt.Sprint(class, dag, priority)
	}
}

// take takes up to n tasks and returns how many there were of each name, which is class, DAG and priority.
func (b *backlog) take(n int) map[string]int {
	b.T.Helper()
	counts := map[string]int{}
	require.NoError(b.T, pgx.BeginFunc(b.T.Context(), b.Pool, func(tx pgx.Tx) error {
		taken, err := b.D.Tasks.TakeReady(b.T.Context(), tx, []string{"dispatcher"}, n, tasks.Holding{})
		for _, c := range taken {
			counts[b.names[c.Task]]++
		}
		return err
	}))
	return counts
}

func TestLiveWorkIsNotBehindABuild(t *testing.T) {
	t.Parallel()
	b := newBacklog(t)
	b.queue(1000, tasks.ClassBuild, "mail", 0, time.Hour)
	b.queue(5, tasks.ClassLive, "mail", 0, 0)
	require.Equal(t, map[string]int{"0mail0": 5, "1mail0": 3}, b.take(8), "what live work leaves goes to the build")

	b.queue(1, tasks.ClassLive, "mail", 0, 0)
	require.Equal(t, map[string]int{"0mail0": 1}, b.take(1))
}

func TestTheOrderOfABacklog(t *testing.T) {
	t.Parallel()
	b := newBacklog(t)
	for class := tasks.ClassLive; class <= tasks.ClassBranch; class++ {
		b.queue(300, class, "mail", 0, time.Hour)
	}
	got := map[string]int{}
	for range 24 {
		for name, n := range b.take(5) {
			got[name] += n
		}
	}
	require.Equal(t, map[string]int{"0mail0": 80, "1mail0": 20, "2mail0": 10, "3mail0": 10}, got, "classes by weight")

	b.Exec(`DELETE FROM ready`)
	b.queue(500, tasks.ClassBuild, "large", 0, time.Hour)
	b.queue(9, tasks.ClassBuild, "small", 0, 0)
	require.Equal(t, map[string]int{"1large0": 9, "1small0": 9}, b.take(18), "DAGs by turns")

	b.Exec(`DELETE FROM ready`)
	b.queue(10, tasks.ClassLive, "mail", 0, time.Hour)
	b.queue(10, tasks.ClassLive, "mail", 50, 0)
	require.Equal(t, map[string]int{"0mail50": 4}, b.take(4), "priority in a DAG")
	b.queue(1, tasks.ClassLive, "mail", -5, 56*time.Hour)
	require.Equal(t, map[string]int{"0mail-5": 1}, b.take(1), "no task waits for ever")

	b.Exec(`DELETE FROM ready`)
	b.queue(3, tasks.ClassLive, "mail", 1, 0, "sql@1")
	b.queue(3, tasks.ClassLive, "mail", 2, 0)
	b.queue(3, tasks.ClassLive, "mail", 3, 0, "http@1")
	require.Equal(t, map[string]int{"0mail3": 3, "0mail2": 2}, b.take(5), "priority goes before what the tasks need")
	require.Equal(t, map[string]int{"0mail2": 1, "0mail1": 3}, b.take(5))
	require.Empty(t, b.take(5))
}

// A claim reads the queues of its claimant, whatever others have queued.
func TestAClaimPassesByWhatNobodyServes(t *testing.T) {
	t.Parallel()
	b := newBacklog(t)
	b.queue(20_000, tasks.ClassLive, "mail", 0, time.Hour, "handler:other")
	b.queue(1, tasks.ClassLive, "mail", 0, 0, "handler:mine")
	b.Exec(`ANALYZE ready`)

	scope := tasks.Scope{Runtimes: []string{"dispatcher"}, Needs: []string{"handler:mine"},
		Orgs: []uuid.UUID{b.Caller.OrgID}}
	for _, want := range []int{1, 0} {
		var read int64
		require.NoError(t, pgx.BeginFunc(t.Context(), b.Pool, func(tx pgx.Tx) error {
			taken, err := b.D.Tasks.Take(t.Context(), tx, scope, 10)
			require.Len(t, taken, want)
			if err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), `SELECT pg_stat_get_xact_tuples_returned('ready'::regclass)
				+ pg_stat_get_xact_tuples_fetched('idx_ready_queue'::regclass)`).Scan(&read)
		}))
		require.Less(t, read, int64(50), "it reads no row of others")
	}
}
