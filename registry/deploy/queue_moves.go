package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// queue is a job whose tasks people or programs asked for one by one: computing something again replaces none of them.
type queue struct {
	origin uuid.UUID
	def    dag.Job
}

// QueueMove says where the open tasks of a queue go when a version is cut over to. A queue is matched by its job's
// name.
type QueueMove struct {
	Job      string    // as it is called now
	From, To uuid.UUID // origins
	Was      dag.Job
	Next     *dag.Job // nil: the job goes
}

// Partition returns the output partition that a task for the given one gets under the new definition ("": none); false
// if the new definition has no such partition, or the job goes.
func (m QueueMove) Partition(key string) (string, bool) {
	switch {
	case m.Next == nil:
		return "", false
	case len(m.Next.Outputs) == 0:
		return "", true
	case m.Next.TasksBy().Valid(key) == nil:
		return key, true
	case m.Next.TasksBy().Valid(dag.WholeKey) == nil:
		return dag.WholeKey, true
	}
	return "", false
}

// QueueMoves compares the queues of the version that serves with those of another one of the DAG. Those that stay with
// their origin are not listed.
func QueueMoves(ctx context.Context, tx pgx.Tx, org uuid.UUID, dagName string, version uuid.UUID) ([]QueueMove, error) {
	was, err := queuesOf(ctx, tx, `j.dag_version_id = (SELECT dag_version_id FROM dag_current_versions WHERE org_id = $1 AND dag_name = $2)
		AND `+isQueue, org, dagName)
	if err != nil || len(was) == 0 {
		return nil, err
	}
	origins := make([]uuid.UUID, len(was))
	for i, w := range was {
		origins[i] = w.origin
	}
	next, err := queuesOf(ctx, tx, `j.org_id = $1 AND j.dag_version_id = $2 AND (`+isQueue+` OR j.origin_job_id = ANY($3))`, org, version, origins)
	if err != nil {
		return nil, err
	}
	return queueMoves(was, next), nil
}

// queueMoves matches the queues of two versions. It is pure.
func queueMoves(was, next []queue) []QueueMove {
	var moves []QueueMove
	for _, w := range was {
		m := QueueMove{Job: w.def.Name, From: w.origin, Was: w.def}
		for i, n := range next {
			if n.origin == w.origin { // the same origin runs its open tasks, whatever else changed
				m.To = n.origin
				break
			}
			if n.def.Identity() == w.def.Identity() {
				m.To, m.Next = n.origin, &next[i].def
			}
		}

		if m.To != m.From {
			moves = append(moves, m)
		}
	}
	return moves
}

const isQueue = `j.source ->> 'kind' IN ('manual', 'timer', 'webhook')`

// queuesOf returns the queues that a condition on jobs selects.
func queuesOf(ctx context.Context, tx pgx.Tx, which string, args ...any) ([]queue, error) {
	rows, err := tx.Query(ctx, `SELECT j.origin_job_id, j.definition FROM jobs j WHERE `+which+` ORDER BY j.id`, args...)
	if err != nil {
		return nil, fmt.Errorf("queues: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (q queue, err error) {
		var definition []byte
		if err := row.Scan(&q.origin, &definition); err != nil {
			return q, err
		}
		return q, json.Unmarshal(definition, &q.def)
	})
}

// OriginsOfJob returns all origins that a job has had, under whatever name: what it remembers outlives its definitions.
func OriginsOfJob(ctx context.Context, tx pgx.Tx, job *registry.Job) ([]uuid.UUID, error) {
	// idx_jobs_one_origin; of jobs that were renamed before identities were kept, the job's own may have another one.
	rows, err := tx.Query(ctx, `
		SELECT id FROM jobs WHERE org_id = $1 AND dag_name = $2 AND identity = $3 AND id = origin_job_id UNION SELECT $4`,
		job.OrgID, job.DAG, job.Def.Identity(), job.Origin)
	if err != nil {
		return nil, fmt.Errorf("origins of %s: %w", job.Address(), err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// RowsOfJob returns the ids of a job's rows in all versions of its DAG, whatever its name was there. It relies on
// idx_jobs_origin.
func RowsOfJob(ctx context.Context, tx pgx.Tx, job *registry.Job) ([]uuid.UUID, error) {
	origins, err := OriginsOfJob(ctx, tx, job)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT id FROM jobs WHERE origin_job_id = ANY($1)`, origins)
	if err != nil {
		return nil, fmt.Errorf("rows of %s: %w", job.Address(), err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// CanceledByMoves counts, by queue, the open tasks that have nowhere to go.
func CanceledByMoves(ctx context.Context, tx pgx.Tx, moves []QueueMove) ([]registry.CanceledQueue, error) {
	if len(moves) == 0 {
		return nil, nil
	}

	by := map[uuid.UUID]int{}
	lost := make([]registry.CanceledQueue, len(moves))
	var origins []uuid.UUID
	for i, m := range moves {
		by[m.From] = i
		origins = append(origins, m.From)
		lost[i] = registry.CanceledQueue{Job: m.Job, Reason: "the job goes"}
		if m.Next != nil {
			lost[i].Reason = "its new definition has no such partitions"
		}
	}

	rows, err := tx.Query(ctx, `SELECT origin_job_id, partition_key, tasks FROM open_queue($1)`, origins)
	if err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}

	var (
		origin uuid.UUID
		key    string
		n      int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&origin, &key, &n}, func() error {
		if _, ok := moves[by[origin]].Partition(key); !ok {
			lost[by[origin]].Tasks += n
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("count open tasks: %w", err)
	}

	var some []registry.CanceledQueue
	for _, l := range lost {
		if l.Tasks > 0 {
			some = append(some, l)
		}
	}
	return some, nil
}

// RefuseLoss returns an error that refuses to cancel tasks unasked; nil if there are none to cancel.
func RefuseLoss(dagName string, lost []registry.CanceledQueue) error {
	if len(lost) == 0 {
		return nil
	}
	texts := make([]string, len(lost))
	for i, l := range lost {
		texts[i] = fmt.Sprintf("%d of %s/%s (%s)", l.Tasks, dagName, l.Job, l.Reason)
	}
	return fault.New(fault.Conflict, "open tasks would be canceled: %s", strings.Join(texts, ", ")).
		WithHint("have them done first, or pass --cancel-tasks")
}

// queues returns the tasks that the cutover to the version cancels, and refuses that unless the deploy asks for it.
func (d *deploy) queues(ctx context.Context, tx pgx.Tx, v registry.Version) ([]registry.CanceledQueue, error) {
	if v.Status == registry.Active {
		return nil, nil
	}

	moves, err := QueueMoves(ctx, tx, d.caller.OrgID, d.doc.Name, v.ID)
	if err != nil {
		return nil, err
	}
	lost, err := CanceledByMoves(ctx, tx, moves)
	if err != nil || d.planning {
		return lost, err
	}

	if !slices.Contains(d.given, registry.CancelTasks) {
		if err := RefuseLoss(d.doc.Name, lost); err != nil {
			return nil, err
		}
	}

	return lost, nil
}
