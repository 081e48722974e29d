package builds

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// queueMoves returns, before the pointers move, where the open tasks of queues will go. It refuses to cancel any,
// unless the deploy allows that.
func queueMoves(ctx context.Context, tx pgx.Tx, b registry.Build) ([]deploy.QueueMove, error) {
	moves, err := deploy.QueueMoves(ctx, tx, b.OrgID, b.DAG, b.ID)
	if err != nil || b.Allows(registry.CancelTasks) {
		return moves, err
	}
	lost, err := deploy.CanceledByMoves(ctx, tx, moves)
	if err != nil {
		return nil, err
	}
	return moves, deploy.RefuseLoss(b.DAG, lost)
}

// carryQueue moves the open tasks of an edited job to its new origin. It does so for jobs whose tasks were each asked
// for by somebody, and so cannot be made again from data. A task whose partition does not exist at the new definition
// stays, and is canceled with the old origin. The caller holds the DAG's lock, so no task is added meanwhile; but tasks
// move between the sets, so carryQueue goes through the sets until it finds no more.
func (bs *Builds) carryQueue(ctx context.Context, tx pgx.Tx, m deploy.QueueMove, now time.Time) error {
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
		needs := tasks.NeedsOf(m.Next, "")
		// The sets come in the direction in which tasks move, and before tasks, as claimers lock them.
		for _, set := range []string{"waiting s SET origin_job_id = $2", "ready s SET origin_job_id = $2, needs = $5"} {
			tag, err := tx.Exec(ctx, `
				WITH moved AS (
					UPDATE `+set+`
					FROM tasks t
					JOIN unnest($3::text[], $4::text[]) AS f(key, next) ON f.key = coalesce(t.partitions[1], '')
					WHERE s.origin_job_id = $1 AND t.id = s.task_id AND `+carried+`
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
		if err := bs.startOver(ctx, tx, m, running, now); err != nil {
			return err
		}
		if moved > 0 || len(running) > 0 {
			again = 1 // a task that moved to a set after this round's look at it is found in the next
		}
	}
	return nil
}

// carried is the condition that a task t follows its job. Tasks that somebody asked for do, unless the new origin has a
// task with the same idempotency key, from a time when the job of that name was of another kind.
const carried = `t.kind IN ('manual', 'timer', 'source') AND starts_with(t.slot, 'task:')
	AND NOT EXISTS (SELECT FROM tasks o WHERE o.job_id = $2 AND o.dedupe_key = t.dedupe_key)`

// fitting lists the partitions of open tasks, and for each its partition at the new definition. Partitions that do not
// exist there are left out.
func fitting(ctx context.Context, tx pgx.Tx, m deploy.QueueMove) (keys, next []string, err error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT coalesce(t.partitions[1], '') FROM tasks t
		WHERE t.id IN (
			SELECT task_id FROM waiting WHERE origin_job_id = $1 UNION ALL
			SELECT task_id FROM ready WHERE origin_job_id = $1 UNION ALL
			SELECT task_id FROM leases WHERE origin_job_id = $1)`, m.From)
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

// carryRunning moves running tasks with their leases, and returns them. It locks tasks before leases, as completions
// do.
func carryRunning(ctx context.Context, tx pgx.Tx, m deploy.QueueMove, keys, next []string) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, `
		SELECT t.id FROM tasks t JOIN leases l ON l.task_id = t.id
		WHERE l.origin_job_id = $1 AND coalesce(t.partitions[1], '') = ANY($3) AND `+carried+`
		ORDER BY t.id FOR UPDATE OF t`, m.From, m.To, keys)
	if err != nil {
		return nil, fmt.Errorf("running tasks of %s: %w", m.Job, err)
	}
	running, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil || len(running) == 0 {
		return nil, err
	}

	rows, err = tx.Query(ctx, `
		WITH moved AS (UPDATE leases SET origin_job_id = $2 WHERE task_id = ANY($1) RETURNING task_id)
		UPDATE tasks t SET job_id = $2, needs = $5, partitions = CASE WHEN f.next <> '' THEN ARRAY[f.next] END
		FROM moved m, unnest($3::text[], $4::text[]) AS f(key, next)
		WHERE t.id = m.task_id AND f.key = coalesce(t.partitions[1], '')
		RETURNING t.id`, running, m.To, keys, next, tasks.NeedsOf(m.Next, ""))
	if err != nil {
		return nil, fmt.Errorf("carry running tasks of %s over: %w", m.Job, err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// startOver fences off attempts that write to a generation which is being replaced: nobody would see what they write,
// so the tasks run once more. Attempts of jobs without outputs go on.
func (bs *Builds) startOver(
	ctx context.Context, tx pgx.Tx, m deploy.QueueMove, running []uuid.UUID, now time.Time,
) error {
	if len(m.Was.Outputs) == 0 || len(running) == 0 {
		return nil
	}

	rows, err := tasks.LockTasks(new(pg.Batch), running).Get(ctx, tx)
	if err != nil {
		return err
	}

	var over []tasks.Ended
	for _, id := range running {
		r := rows[id]
		if r.Status == tasks.Running {
			over = append(over, tasks.Ended{Row: r, Ending: r.UnlessCanceled(tasks.Ending{
				Status: tasks.Failed, Reason: tasks.ReasonHandedBack, Actor: "SYSTEM", RetryAt: &now,
				Message: "the job was deployed with another definition of its output: the task runs for that",
			})})
		}
	}

	if len(over) == 0 {
		return nil
	}
	return bs.tasks.Finish(ctx, tx, new(pg.Batch), over, nil, now)
}
