package dispatcher

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// shareQueue takes the locks under which tasks of a manual, timer or webhook job are made, by several at a time, and finds
// the job.
func (d *Dispatcher) shareQueue(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string) (*registry.Job, error) {
	job, err := d.lockedJob(ctx, tx, org, dagName, jobName)
	if err != nil {
		return nil, err
	}
	return job, shareOrigins(ctx, tx, ids(job.Origin))
}

// lockedJob finds a job of the version that serves, under the DAG's lock, because a cutover may just have given it another
// origin.
func (d *Dispatcher) lockedJob(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName, jobName string) (*registry.Job, error) {
	if err := registry.LockDAGShared(ctx, tx, org, dagName); err != nil {
		return nil, err
	}
	return d.Registry.ActiveJob(ctx, tx, org, dagName, jobName)
}

// queueMoves tells, before the pointers move, where the open tasks of queues will go, and refuses to lose any unasked.
func queueMoves(ctx context.Context, tx pgx.Tx, b registry.Build) ([]registry.QueueMove, error) {
	moves, err := registry.QueueMoves(ctx, tx, b.OrgID, b.DAG, b.ID)
	if err != nil || b.CancelTasks {
		return moves, err
	}
	lost, err := registry.CanceledByMoves(ctx, tx, moves)
	if err != nil {
		return nil, err
	}
	return moves, registry.RefuseLoss(b.DAG, lost)
}

// carryQueue has the open tasks of a job whose tasks are each somebody's own follow it to its new origin: its mail is not
// lost because it was edited. What has no partition there stays, and is canceled with the origin. The caller has the
// DAG's lock, so no task is added meanwhile; but tasks move between the sets, so they are gone through until all are met.
func (d *Dispatcher) carryQueue(ctx context.Context, tx pgx.Tx, m registry.QueueMove, now time.Time) error {
	if m.Next == nil {
		return nil
	}
	for again := 1; again >= 0; again-- {
		keys, next, err := fitting(ctx, tx, m)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			continue
		}
		moved := int64(0)
		needs := needsOf(m.Next, "")
		for _, set := range []string{"waiting s SET job_id = $2", "ready s SET job_id = $2, needs = $5"} { // in the direction in which tasks move, sets before tasks as claimers do
			tag, err := tx.Exec(ctx, `
				WITH moved AS (
					UPDATE `+set+`
					FROM tasks t JOIN unnest($3::text[], $4::text[]) AS f(key, next) ON f.key = coalesce(t.partitions[1], '')
					WHERE s.job_id = $1 AND t.id = s.task_id AND `+carried+`
					RETURNING s.task_id, f.next)
				UPDATE tasks t SET job_id = $2, needs = $5, partitions = CASE WHEN m.next <> '' THEN ARRAY[m.next] END
				FROM moved m WHERE t.id = m.task_id`, m.From, m.To, keys, next, needs)
			if err != nil {
				return fmt.Errorf("carry tasks of %s over: %w", m.Job, err)
			}
			moved += tag.RowsAffected()
		}
		running, err := carryRunning(ctx, tx, m, keys, next)
		if err != nil {
			return err
		}
		if err := d.startOver(ctx, tx, m, running, now); err != nil {
			return err
		}
		if moved > 0 || len(running) > 0 {
			again = 1 // what was on its way to a set that was done with is met in the next round
		}
	}
	return nil
}

// carried are the tasks that go with their job: its own, unless the new origin has their idempotency key, from when a job
// of the name was of another kind.
const carried = `t.kind IN ('manual', 'timer', 'source') AND starts_with(t.slot, 'task:')
	AND NOT EXISTS (SELECT FROM tasks o WHERE o.job_id = $2 AND o.dedupe_key = t.dedupe_key)`

// fitting maps the partitions of open tasks to those that they have at the new definition.
func fitting(ctx context.Context, tx pgx.Tx, m registry.QueueMove) (keys, next []string, err error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT coalesce(t.partitions[1], '') FROM tasks t
		WHERE t.id IN (SELECT task_id FROM waiting WHERE job_id = $1 UNION ALL SELECT task_id FROM ready WHERE job_id = $1
			UNION ALL SELECT task_id FROM leases WHERE job_id = $1)`, m.From)
	if err != nil {
		return nil, nil, fmt.Errorf("open tasks of %s: %w", m.Job, err)
	}
	var key string
	_, err = pgx.ForEachRow(rows, []any{&key}, func() error {
		if to, ok := m.Partition(key); ok {
			keys, next = append(keys, key), append(next, to)
		}
		return nil
	})
	return keys, next, err
}

// carryRunning moves running tasks, with their leases: tasks before leases, as completions lock them.
func carryRunning(ctx context.Context, tx pgx.Tx, m registry.QueueMove, keys, next []string) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT t.id FROM tasks t JOIN leases l ON l.task_id = t.id
		WHERE l.job_id = $1 AND coalesce(t.partitions[1], '') = ANY($3) AND `+carried+` ORDER BY t.id FOR UPDATE OF t`, m.From, m.To, keys)
	if err != nil {
		return nil, fmt.Errorf("running tasks of %s: %w", m.Job, err)
	}
	running, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(running) == 0 {
		return nil, err
	}
	rows, err = tx.Query(ctx, `
		WITH moved AS (UPDATE leases SET job_id = $2 WHERE task_id = ANY($1) RETURNING task_id)
		UPDATE tasks t SET job_id = $2, needs = $5, partitions = CASE WHEN f.next <> '' THEN ARRAY[f.next] END
		FROM moved m, unnest($3::text[], $4::text[]) AS f(key, next)
		WHERE t.id = m.task_id AND f.key = coalesce(t.partitions[1], '')
		RETURNING t.id`, running, m.To, keys, next, needsOf(m.Next, ""))
	if err != nil {
		return nil, fmt.Errorf("carry running tasks of %s over: %w", m.Job, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// startOver fences off attempts that run for a generation which is replaced: what they write would be seen by nobody, so
// the tasks run once more. What writes nothing goes on, and is done when it is done.
func (d *Dispatcher) startOver(ctx context.Context, tx pgx.Tx, m registry.QueueMove, running []uuid.UUID, now time.Time) error {
	if len(m.Was.Outputs) == 0 || len(running) == 0 {
		return nil
	}
	rows, err := lockTasks(ctx, tx, running)
	if err != nil {
		return err
	}
	var over []ended
	for _, id := range running {
		r := rows[id]
		if r.status == "Running" {
			over = append(over, ended{r, r.unlessCanceled(ending{status: "Failed", reason: reasonHandedBack, actor: "SYSTEM", retryAt: &now,
				message: "the job was deployed with another definition of its output: the task runs for that"})})
		}
	}
	if len(over) == 0 {
		return nil
	}
	return d.finishAll(ctx, tx, over, now)
}
