package why

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/backends"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// placed is a task with the set that holds it.
type placed struct {
	id, origin                    uuid.UUID
	kind                          tasks.Kind
	status                        tasks.Status
	reason                        tasks.Reason
	state                         string
	slot, partition, runtime, err string
	failures, maxAttempts         int
	runAt, started, ended         *time.Time

	ready bool

	waiting   tasks.Wait
	blocker   string
	available *time.Time

	worker    string // of its lease; empty: it has none
	expires   *time.Time
	beat      *time.Time // when the worker was last heard of; nil: it is not registered
	canceling bool
	progress  int
}

// placedColumns selects a placed from tasks or shown_tasks t and placedJoins.
const placedColumns = `
	t.id, t.job_id, t.kind, t.status, coalesce(t.reason, ''),
	coalesce(CASE WHEN t.slot IS NOT NULL THEN l.state END, t.state, ''), coalesce(t.slot, ''), coalesce(t.partitions[1], ''), t.runtime, coalesce(t.error_message, ''),
	t.failures, t.max_attempts, t.run_at, t.started_at, t.completed_at,
	r.task_id IS NOT NULL,
	coalesce(w.reason, ''), coalesce(w.blocker, ''), w.available_at,
	coalesce(l.worker_id, ''), l.expires_at, k.last_heartbeat,
	coalesce(l.cancel_requested, false), coalesce(l.progress, 0)`

func (p *placed) columns() []any {
	return []any{
		&p.id, &p.origin, &p.kind, &p.status, &p.reason, &p.state,
		&p.slot, &p.partition, &p.runtime, &p.err, &p.failures, &p.maxAttempts, &p.runAt, &p.started, &p.ended,
		&p.ready, &p.waiting, &p.blocker, &p.available,
		&p.worker, &p.expires, &p.beat, &p.canceling, &p.progress,
	}
}

const placedJoins = `
	LEFT JOIN ready r ON r.task_id = t.id
	LEFT JOIN waiting w ON w.task_id = t.id
	LEFT JOIN leases l ON l.task_id = t.id
	LEFT JOIN workers k ON k.id = l.worker_id AND k.token = l.worker_token AND k.incarnation = l.incarnation`

func collectPlaced(rows pgx.Rows, err error) ([]placed, error) {
	if err != nil {
		return nil, fmt.Errorf("tasks to explain: %w", err)
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p placed, err error) {
		return p, row.Scan(p.columns()...)
	})
	if err != nil {
		return nil, fmt.Errorf("tasks to explain: %w", err)
	}
	return found, nil
}

// tasksByID loads tasks in the order of their ids, without those of other orgs.
func (e *explainer) tasksByID(ctx context.Context, tasks ...uuid.UUID) ([]placed, error) {
	return collectPlaced(e.tx.Query(ctx, `SELECT `+placedColumns+` FROM shown_tasks t `+placedJoins+`
		WHERE t.org_id = $1 AND t.id = ANY($2) ORDER BY t.id`, e.caller.OrgID, tasks))
}

// openOf loads up to limit open tasks of origins (running tasks first, then waiting, then ready ones) and counts them
// all. slot limits it to one slot. It reads the three sets, never history.
func (e *explainer) openOf(
	ctx context.Context, origins []uuid.UUID, slot *string, limit int,
) (found []placed, all int, err error) {
	const sets = `(
		SELECT task_id, 0 AS n FROM leases
		WHERE org_id = $1 AND origin_job_id = ANY($2) AND ($3::text IS NULL OR slot = $3) UNION ALL
		SELECT task_id, CASE reason WHEN 'dead' THEN 1 ELSE 2 END FROM waiting
		WHERE org_id = $1 AND origin_job_id = ANY($2) AND ($3::text IS NULL OR slot = $3) UNION ALL
		SELECT task_id, 3 FROM ready
		WHERE org_id = $1 AND origin_job_id = ANY($2) AND ($3::text IS NULL OR slot = $3)) AS o`
	if err := e.tx.QueryRow(ctx, `SELECT count(*) FROM `+sets, e.caller.OrgID, origins, slot).Scan(&all); err != nil {
		return nil, 0, fmt.Errorf("count open tasks: %w", err)
	}
	if all == 0 {
		return nil, 0, nil
	}

	found, err = collectPlaced(e.tx.Query(ctx, `SELECT `+placedColumns+`
		FROM (SELECT task_id, n FROM `+sets+` ORDER BY n, task_id LIMIT $4) AS first
		JOIN shown_tasks t ON t.id = first.task_id `+placedJoins+` ORDER BY first.n, t.id`,
		e.caller.OrgID, origins, slot, limit))
	return found, all, err
}

// tasks explains tasks, each by one reason.
func (e *explainer) tasks(ctx context.Context, list []placed) ([]Reason, error) {
	var reasons []Reason
	for _, p := range list {
		r, err := e.task(ctx, p, true)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, r)
	}
	return reasons, nil
}

// task explains one task: where it is, and what put it there. Where behind is set, the tasks that it waits for are
// behind the reason.
func (e *explainer) task(ctx context.Context, p placed, behind bool) (Reason, error) {
	job, err := e.job(ctx, p.origin)
	if err != nil {
		return Reason{}, err
	}

	id := p.id
	r := Reason{Task: &id, Partition: p.partition, Runtime: p.runtime}
	switch {
	case p.ready:
		err = e.queued(ctx, p, job, &r)
	case p.worker != "":
		leased(p, &r, e.now)
	case p.waiting != "":
		err = e.waits(ctx, p, job, &r, behind)
	default:
		err = e.ended(ctx, p, job, &r)
	}
	if err != nil {
		return Reason{}, err
	}
	return e.about(ctx, job, r)
}

// queued says how many tasks are before one that is ready, among those of its DAG that the same workers run, and who
// would run it. It relies on idx_ready_queue.
func (e *explainer) queued(ctx context.Context, p placed, job *registry.Job, r *Reason) error {
	r.Code = WhyQueued
	err := e.tx.QueryRow(ctx, `
		SELECT count(*) FROM (
			SELECT FROM ready r JOIN ready own ON own.task_id = $1
			WHERE r.runtime = own.runtime AND r.needs = own.needs AND r.org_id = own.org_id AND r.class = own.class
				AND r.turn = own.turn AND (r.rank, r.task_id) < (own.rank, own.task_id)
			LIMIT 1000000) AS before`, p.id).Scan(&r.Count)
	if err != nil {
		return fmt.Errorf("count tasks before %s: %w", p.id, err)
	}

	backend, _ := e.d.backends.Backend(p.runtime, job.Def.Operator, job.OrgSlug)
	if backend.Kind == backends.Lambda && p.runtime != dispatcher.CheckRuntime {
		return nil // a function needs no worker
	}
	if sending, err := tasks.Unsent(ctx, e.tx, p.id); err != nil {
		return err
	} else if sending != nil {
		r.Because = append(r.Because, Reason{Code: whyNotSent, Runtime: p.runtime, Count: sending.Tries,
			Until: &sending.Again, Error: sending.Cause})
		return nil
	}

	needs := tasks.NeedsOf(&job.Def, p.kind)
	operator := tasks.OperatorOf(needs)
	offer, handler := operator, "" // as in the registry of workers, where operators have no version
	if operator == dag.Handler {
		offer, handler = needs, strings.TrimPrefix(needs, dag.Handler+":")
	}

	var workers, slots, taken, unfit, barred int
	var reason string
	err = e.tx.QueryRow(ctx, `
		SELECT count(*) FILTER (WHERE fit), coalesce(sum(pool_size) FILTER (WHERE fit), 0),
			coalesce(sum(current_tasks) FILTER (WHERE fit), 0), count(unfit) FILTER (WHERE may),
			coalesce(max(unfit) FILTER (WHERE may), ''), count(*) FILTER (WHERE NOT may)
		FROM (SELECT *, unfit IS NULL AND may AS fit FROM workers
			CROSS JOIN LATERAL (SELECT coalesce(only_for -> $5::text ? $6::text, true) AS may) AS m) AS w
		WHERE $1 = ANY(runtimes) AND last_heartbeat > $2 AND drained_at IS NULL AND (orgs IS NULL OR $3 = ANY(orgs))
			AND ($4::text = 'check' OR operators = '{}' OR $4 = ANY(operators))`,
		p.runtime, e.now.Add(-tasks.WorkerDeadAfter), e.caller.OrgID, offer, tasks.RunsAsOf(needs),
		job.OrgSlug).Scan(&workers, &slots, &taken, &unfit, &reason, &barred)
	if err != nil {
		return fmt.Errorf("workers for %s: %w", p.runtime, err)
	}

	switch {
	case workers == 0 && unfit > 0:
		r.Because = append(r.Because, Reason{Code: WhyStorageAway, Runtime: p.runtime, Count: unfit, Detail: reason})
	case workers == 0 && barred > 0:
		refused := Reason{Code: WhyNotAllowed, Runtime: p.runtime, Count: barred}
		if may, err := e.mayRead(ctx, job); err != nil {
			return err
		} else if may {
			refused.Operator = operator
		}
		r.Because = append(r.Because, refused)
	case workers == 0:
		missing := Reason{Code: WhyNoWorker, Runtime: p.runtime}
		if may, err := e.mayRead(ctx, job); err != nil {
			return err
		} else if may && needs != tasks.NeedCheck {
			missing.Operator, missing.Handler = operator, handler
			missing.Command = e.d.workerCommand(backend, p.runtime, operator)
		}
		r.Because = append(r.Because, missing)
	case taken >= slots:
		r.Because = append(r.Because, Reason{Code: whyWorkersBusy, Runtime: p.runtime, Count: taken, Max: slots})
	}
	return nil
}

// workerCommand returns a shell command that starts a worker for tasks of a runtime and operator. Words in capitals
// stand for what the server does not know.
func (y *Explainer) workerCommand(b backends.Backend, runtime, operator string) string {
	if b.Kind == backends.InProcess || b.Kind == "" {
		return "" // the server runs it
	}
	token := y.workerToken
	if token == "" {
		token = "dagctl tokens create NAME --kind worker --runtime " + runtime
	}

	command := fmt.Sprintf("DAGCTL_URL=%s DAGCTL_TOKEN=$(%s)", cmp.Or(y.baseURL, "URL"), token)
	switch {
	case operator == dag.Handler:
		return command + " PROGRAM"
	case b.Kind == backends.SQS:
		return command + " dagctl worker --runtime " + runtime + " --queue QUEUE_URL"
	}
	return command + " dagctl worker --runtime " + runtime
}

// leased explains a task that has a lease. It is pure.
func leased(p placed, r *Reason, now time.Time) {
	r.Code, r.Worker, r.Since, r.Until = WhyRunning, p.worker, p.started, p.expires
	r.Count, r.Detail = p.progress, p.state
	switch {
	case p.expires != nil && !p.expires.After(now):
		r.Code = WhyLeaseLost
	case p.beat != nil && !p.beat.After(now.Add(-tasks.WorkerDeadAfter)):
		r.Code = WhySilent
	case p.canceling:
		r.Code = WhyCanceling
	}
}

// waits explains a task in the waiting set.
func (e *explainer) waits(ctx context.Context, p placed, job *registry.Job, r *Reason, behind bool) error {
	switch p.waiting {
	case tasks.WaitSibling:
		r.Code = WhySibling
		if blocker, err := uuid.Parse(p.blocker); err == nil && behind {
			return e.blockedBy(ctx, r, blocker)
		}
	case tasks.WaitLimit:
		r.Code, r.Limit = WhyLimit, p.blocker
		return e.limited(ctx, p, r, behind)
	case tasks.WaitBackoff:
		if p.reason == tasks.ReasonHandedBack {
			r.Code, r.Until, r.Detail = WhyHandedBack, p.available, p.state
			return nil
		}

		r.Code, r.Until, r.Count, r.Max, r.Error = WhyBackoff, p.available, p.failures, p.maxAttempts, p.err
	case tasks.WaitRunAt:
		if p.blocker == tasks.OfPartition {
			r.Code, r.Until, r.Error = WhyUnknownKey, p.available, p.state
			return nil
		}
		r.Code, r.Until = WhyRunAt, p.available
		// One of the two times is rounded, the other cut.
		if p.runAt == nil || p.available == nil || p.available.Sub(*p.runAt).Abs() > time.Millisecond {
			r.Code = WhyHeldBack // nobody asked for that time: see holdLive
		}
	case tasks.WaitPaused:
		if p.blocker == tasks.OfAuthority {
			return e.noAuthority(ctx, job, r)
		}
		pauses, err := e.pauses(ctx)
		if err != nil {
			return err
		}
		*r = pausedReason(tasks.WidestPause(pauses, job.DAG, job.Name), *r)
	case tasks.WaitDead:
		r.Code, r.Count, r.Max, r.Error, r.Since = WhyDead, p.failures, p.maxAttempts, p.err, p.ended
	default:
		return fmt.Errorf("task %s waits for %q", p.id, p.waiting)
	}
	return nil
}

// noAuthority says whose authority a job's version has lost, if it still has.
func (e *explainer) noAuthority(ctx context.Context, job *registry.Job, r *Reason) error {
	lost, err := registry.LostAuthorityIn(ctx, e.tx, e.caller.OrgID, job.VersionID)
	if err != nil {
		return err
	}
	r.Code = WhyNoAuthority
	if l, is := lost[job.VersionID]; is {
		r.Version, r.Actor = l.Version, l.Who()
	}
	return nil
}

// pausedReason adds the pause to a reason, if it still holds. It is pure.
func pausedReason(p *tasks.Pause, r Reason) Reason {
	r.Code = WhyPaused
	if p != nil {
		at := p.At
		r.Actor, r.Detail, r.Since, r.Command = p.Actor, p.Reason, &at, p.Resume()
	}
	return r
}

// pauseOf says who has paused a job, if anybody has: one reason, or none.
func (e *explainer) pauseOf(ctx context.Context, job *registry.Job) ([]Reason, error) {
	pauses, err := e.pauses(ctx)
	if err != nil {
		return nil, err
	}
	p := tasks.WidestPause(pauses, job.DAG, job.Name)
	if p == nil {
		return nil, nil
	}
	r, err := e.about(ctx, job, pausedReason(p, Reason{}))
	if err != nil {
		return nil, err
	}
	return []Reason{r}, nil
}

// heldBy bounds how many of the tasks that hold a limit are named.
const heldBy = 5

// limited explains a limit: how full it is, how many tasks wait for it before this one, and which hold it.
func (e *explainer) limited(ctx context.Context, p placed, r *Reason, behind bool) error {
	err := e.tx.QueryRow(ctx, `
		SELECT l.max, l.held, (
			SELECT count(*) FROM waiting q, waiting own
			WHERE own.task_id = $3 AND q.org_id = $1 AND q.blocker = $2 AND q.reason = 'limit'
			AND (q.rank, q.task_id) < (own.rank, own.task_id))
		FROM limits l WHERE l.org_id = $1 AND l.key = $2`,
		e.caller.OrgID, p.blocker, p.id).Scan(&r.Max, &r.Held, &r.Count)
	if err != nil {
		return fmt.Errorf("limit %s: %w", p.blocker, err)
	}
	if !behind {
		return nil
	}

	rows, err := e.tx.Query(ctx, `
		SELECT t.id FROM (
			SELECT task_id FROM leases WHERE org_id = $1 UNION ALL SELECT task_id FROM ready WHERE org_id = $1) AS o
		JOIN tasks t ON t.id = o.task_id AND $2 = ANY(t.limits) LIMIT $3`,
		e.caller.OrgID, p.blocker, min(r.Held, heldBy))
	if err != nil {
		return fmt.Errorf("holders of limit %s: %w", p.blocker, err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("holders of limit %s: %w", p.blocker, err)
	}
	return e.blockedBy(ctx, r, holders...)
}

// blockedBy puts other tasks behind a reason, without the reasons behind those.
func (e *explainer) blockedBy(ctx context.Context, r *Reason, tasks ...uuid.UUID) error {
	list, err := e.tasksByID(ctx, tasks...)
	if err != nil {
		return err
	}
	for _, p := range list {
		other, err := e.task(ctx, p, false)
		if err != nil {
			return err
		}
		r.Because = append(r.Because, other)
	}
	return nil
}

// skippedFor returns the reason for which somebody skipped a task: see doTx.
func (p placed) skippedFor() string { return strings.TrimPrefix(p.err, "skipped: ") }

// ended explains how a task ended and, where readers do not see what it made, why not.
func (e *explainer) ended(ctx context.Context, p placed, job *registry.Job, r *Reason) error {
	r.Since, r.Detail = p.ended, p.state

	switch p.status {
	case tasks.Completed:
		r.Code = WhyCompleted
		if p.partition == "" || p.kind == tasks.KindCheck {
			return nil
		}
		withheld, err := e.withheld(ctx, job, p.partition)
		r.Because = withheld
		return err
	case tasks.Canceled:
		r.Code = WhyCanceled
		switch {
		case p.reason == tasks.ReasonSkipped:
			r.Code, r.Detail = whySkipped, p.skippedFor()
		case p.reason.Revivable():
			r.Code = WhySuperseded
		}
	default:
		r.Code, r.Error, r.Count, r.Max = WhyFailed, p.err, p.failures, p.maxAttempts
	}
	return nil
}
