package upkeep

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
)

// A sweep walks a table in the order of its key and removes what is past its time. That makes nothing stale, because
// partitions decide that, never task rows. Ids begin with their time, so what is old is at one end of each index, and a
// sweep begins where the last one ended; once in wholeEvery it looks again at what it passed over.

// How long rows stay by default.
const (
	// KeepTasks is how long finished tasks stay, with their trails.
	KeepTasks = 30 * 24 * time.Hour
	// KeepEvents is how long events stay.
	KeepEvents = 30 * 24 * time.Hour
	// KeepVersions is how long versions stay that no longer serve, before only their records do.
	KeepVersions = 400 * 24 * time.Hour

	keepNotices = 30 * 24 * time.Hour // rows of the outbox that were given up
	keepActions = 90 * 24 * time.Hour // bulk actions, backfills, timers and invalidations that have ended
)

// sweepBatch is how many rows a step of a sweep looks at: few enough to hold no lock for long, and for vacuum to keep
// up.
const sweepBatch = 1000

// kindSweep is the kind of the work items of sweeps. The objects are the tables, and tasksOf with an origin for jobs
// that set how long their finished tasks stay.
const (
	kindSweep  = "retention"
	tasksOf    = "tasks of "
	sweepEvery = time.Hour
	wholeEvery = 24 * time.Hour
)

// walk is the sweep of a table by its id. seen is the SQL that selects id and what else the sweep needs of the rows
// after $1 and before $2, the lowest id of what stays anyway; remove removes those of the rows, called seen, that are
// older than $3, and returns a row for each.
type walk struct {
	keep         time.Duration
	seen, remove string
}

// walks are the sweeps by id. What people asked for stays as long as it is under way.
var walks = map[string]walk{
	"events": {KeepEvents, `SELECT id FROM events WHERE id > $1 AND id < $2 AND created_at < $3`, `
		c AS (DELETE FROM event_consumers USING seen WHERE event_id = seen.id),
		gone AS (DELETE FROM events USING seen WHERE events.id = seen.id RETURNING 1)`},
	"bulk_actions": {keepActions, `SELECT id, ended_at FROM bulk_actions WHERE id > $1 AND id < $2`, `
		old AS (SELECT id FROM seen WHERE ended_at < $3),
		t AS (DELETE FROM bulk_action_tasks USING old WHERE bulk_action_id = old.id),
		gone AS (DELETE FROM bulk_actions USING old WHERE bulk_actions.id = old.id RETURNING 1)`},
	"scheduled_events": {keepActions, `SELECT id, status, updated_at FROM scheduled_events WHERE id > $1 AND id < $2`, `
		gone AS (DELETE FROM scheduled_events e USING seen s WHERE e.id = s.id
			AND e.status IN ('COMPLETED', 'FAILED') AND e.updated_at < $3 RETURNING 1)`},
	// The highest epoch of a cursor is how often it was rewound, which its readers compare.
	"data_invalidations": {keepActions, `
		SELECT id, dataset_version, epoch, created_at FROM data_invalidations WHERE id > $1 AND id < $2`, `
		gone AS (DELETE FROM data_invalidations i USING seen s WHERE i.id = s.id AND s.created_at < $3
			AND (s.epoch IS NULL OR EXISTS (SELECT FROM data_invalidations later
				WHERE later.dataset_version = s.dataset_version AND later.epoch > s.epoch)) RETURNING 1)`},
}

// removeTasks removes the finished tasks among seen, with their attempts, trails and results.
var removeTasks = `
	old AS (SELECT * FROM seen WHERE status IN ('Completed', 'Canceled') AND completed_at < $3),
	o AS (` + dispatcher.KeepTriggered(`SELECT * FROM old`) + `),
	a AS (DELETE FROM task_attempts USING old WHERE task_id = old.id),
	e AS (DELETE FROM task_events USING old WHERE task_id = old.id),
	r AS (DELETE FROM task_results USING old WHERE task_id = old.id),
	gone AS (DELETE FROM tasks USING old WHERE tasks.id = old.id RETURNING 1)`

// sweeps is the work of all sweeps.
func (u *Upkeep) sweeps() workitems.Kind {
	return workitems.Kind{
		Name: kindSweep, Every: sweepEvery, Whole: wholeEvery, Begin: u.beginSweep,
		Objects: []string{"backfills", "bulk_actions", "data_invalidations", "deliveries", "effect_positions", "events",
			"limits", "outbox", "scheduled_events", "strays", "tasks", "versions"},
	}
}

// SweepRetention makes every sweep look at all rows now.
func (u *Upkeep) SweepRetention(ctx context.Context, now time.Time) error {
	own, err := u.ownRetention(ctx)
	if err != nil {
		return err
	}
	objects := u.sweeps().Objects
	for origin := range own {
		objects = append(objects, tasksOf+origin.String())
	}
	for _, object := range objects {
		if err := u.items.Pass(ctx, kindSweep, object, now); err != nil {
			return err
		}
	}
	return nil
}

func (u *Upkeep) beginSweep(ctx context.Context, object string, now time.Time) (workitems.Step, error) {
	if w, ok := walks[object]; ok {
		return u.walkStep(w.seen, w.remove, now.Add(-w.keep)), nil
	}
	if origin, ok := strings.CutPrefix(object, tasksOf); ok {
		return u.beginTasksOf(ctx, origin, now)
	}

	switch object {
	case "tasks":
		return u.beginTasks(ctx, now)
	case "outbox":
		return u.sweepOutbox(now.Add(-keepNotices)), nil
	case "backfills":
		return u.sweepBackfills(now.Add(-keepActions)), nil
	case "limits":
		return u.beginLimits(ctx)
	case "deliveries":
		return u.beginDeliveries(ctx, now.Add(-u.KeepDeliveries))
	case "effect_positions":
		return u.sweepEffects, nil
	case "versions":
		return u.shrinkVersions(now.Add(-u.KeepVersions), now), nil
	case "strays":
		return func(ctx context.Context, position string) (workitems.Progress, error) {
			return u.dispatcher.PlaceStrays(ctx, position, now)
		}, nil
	}
	return gone, nil // an older version's
}

// gone is the step of an item that is not needed any more.
func gone(context.Context, string) (workitems.Progress, error) {
	return workitems.Progress{Gone: true}, nil
}

// walkStep returns the step of a walk over rows that are older than a time.
func (u *Upkeep) walkStep(seen, remove string, before time.Time, args ...any) workitems.Step {
	sql := `WITH seen AS (` + seen + ` ORDER BY id LIMIT $4),` + remove + `
		SELECT (SELECT id FROM seen ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM seen), (SELECT count(*) FROM gone)`
	return func(ctx context.Context, position string) (done workitems.Progress, err error) {
		after, err := idAt(position)
		if err != nil {
			return done, err
		}
		var (
			last   *uuid.UUID
			looked int
		)
		err = u.pool.QueryRow(ctx, sql, append([]any{after, tasks.LowestIDAt(before), before, sweepBatch}, args...)...).
			Scan(&last, &looked, &done.Rows)
		if err != nil {
			return done, fmt.Errorf("retention: %w", err)
		}

		done.Position, done.Over = position, looked < sweepBatch
		if last != nil {
			done.Position = last.String()
		}
		return done, nil
	}
}

// idAt returns the id that a position names.
func idAt(position string) (id uuid.UUID, err error) {
	if position != "" {
		if id, err = uuid.Parse(position); err != nil {
			return id, fmt.Errorf("position of a sweep: %w", err)
		}
	}
	return id, nil
}

// behind returns the index of the first of sorted items that comes after the one at a position.
func behind[E, P any](all []E, position P, compare func(E, P) int) int {
	i, found := slices.BinarySearchFunc(all, position, compare)
	if found {
		i++
	}
	return i
}

const taskColumns = `SELECT id, org_id, job_id, dedupe_key, status, completed_at FROM tasks
	WHERE id > $1 AND id < $2 AND `

// beginTasks begins a turn of the sweep of tasks whose jobs do not say how long they stay, and makes the items of those
// whose jobs do.
func (u *Upkeep) beginTasks(ctx context.Context, now time.Time) (workitems.Step, error) {
	own, err := u.ownRetention(ctx)
	if err != nil {
		return nil, err
	}
	origins, objects := make([]uuid.UUID, 0, len(own)), make([]string, 0, len(own))
	for origin := range own {
		origins, objects = append(origins, origin), append(objects, tasksOf+origin.String())
	}
	if err := u.items.Add(ctx, kindSweep, objects); err != nil {
		return nil, err
	}
	before, err := u.countedBefore(ctx, KeepTasks, now)
	return u.walkStep(taskColumns+`job_id <> ALL($5)`, removeTasks, before, tasks.SortedIDs(origins)), err
}

// beginTasksOf begins a turn of the sweep of the tasks of a job that says how long they stay.
func (u *Upkeep) beginTasksOf(ctx context.Context, origin string, now time.Time) (workitems.Step, error) {
	id, err := idAt(origin)
	if err != nil {
		return nil, err
	}
	own, err := u.ownRetention(ctx)
	if err != nil {
		return nil, err
	}
	keep, ok := own[id]
	if !ok {
		return gone, nil
	}
	before, err := u.countedBefore(ctx, keep, now)
	return u.walkStep(taskColumns+`job_id = $5`, removeTasks, before, id), err
}

// countedBefore returns the time before which tasks must have ended to be removed: what they used has been counted.
func (u *Upkeep) countedBefore(ctx context.Context, keep time.Duration, now time.Time) (time.Time, error) {
	lag, err := u.usage.Lag(ctx)
	return now.Add(-max(keep, lag)), err
}

// ownRetention returns, for the origins whose jobs set it, how long finished tasks stay.
func (u *Upkeep) ownRetention(ctx context.Context) (map[uuid.UUID]time.Duration, error) {
	own := map[uuid.UUID]time.Duration{}
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := u.registry.JobsInWork(ctx, tx, nil)
		for origin, a := range acting {
			if a.Job.Def.TaskRetention > 0 {
				own[origin] = a.Job.Def.TaskRetention
			}
		}
		return err
	})
	return own, err
}

// sweepOutbox removes notices that were given up, and what no OpenLineage receiver took in all that time.
func (u *Upkeep) sweepOutbox(before time.Time) workitems.Step {
	return func(ctx context.Context, _ string) (workitems.Progress, error) {
		tag, err := u.pool.Exec(ctx, `
			DELETE FROM outbox WHERE id IN (
				SELECT id FROM outbox WHERE (status = 'Failed' OR kind = 'openlineage') AND created_at < $1 ORDER BY id LIMIT $2)`,
			before, sweepBatch)
		return workitems.Progress{Rows: tag.RowsAffected(), Over: tag.RowsAffected() < sweepBatch}, err
	}
}

// sweepBackfills removes backfills that have ended, the partitions first.
func (u *Upkeep) sweepBackfills(before time.Time) workitems.Step {
	return func(ctx context.Context, _ string) (workitems.Progress, error) {
		tag, err := u.pool.Exec(ctx, `
			WITH old AS (SELECT id FROM backfills WHERE status <> 'Running' AND ended_at < $1),
			few AS (SELECT p.backfill_id, p.partition_key FROM old CROSS JOIN LATERAL (
				SELECT * FROM backfill_partitions WHERE backfill_id = old.id LIMIT $2) AS p LIMIT $2)
			DELETE FROM backfill_partitions p USING few s
			WHERE p.backfill_id = s.backfill_id AND p.partition_key = s.partition_key`, before, sweepBatch)
		if err != nil || tag.RowsAffected() == sweepBatch {
			return workitems.Progress{Rows: tag.RowsAffected()}, err
		}

		ended, err := u.pool.Exec(ctx, `
			DELETE FROM backfills b WHERE b.status <> 'Running' AND b.ended_at < $1
			AND NOT EXISTS (SELECT FROM backfill_partitions p WHERE p.backfill_id = b.id)`, before)
		return workitems.Progress{Rows: tag.RowsAffected() + ended.RowsAffected(), Over: true}, err
	}
}

// sweepEffects removes the positions of jobs with effects at partitions that are gone. A revision that is made of such
// a partition later is new to the job in any case.
func (u *Upkeep) sweepEffects(ctx context.Context, position string) (done workitems.Progress, err error) {
	const key = `org_id, dag_name, job_name, dataset_uuid, partition_key`
	var looked int
	err = u.pool.QueryRow(ctx, `
		WITH seen AS (
			SELECT `+key+`, dataset_version FROM effect_positions
			WHERE (`+key+`) > (
				($1::jsonb->>0)::uuid, $1::jsonb->>1, $1::jsonb->>2, ($1::jsonb->>3)::uuid, $1::jsonb->>4)
			ORDER BY `+key+` LIMIT $2),
		gone AS (
			DELETE FROM effect_positions e USING seen s
			WHERE (e.org_id, e.dag_name, e.job_name, e.dataset_uuid, e.partition_key, e.dataset_version)
				= (s.org_id, s.dag_name, s.job_name, s.dataset_uuid, s.partition_key, s.dataset_version)
			AND NOT EXISTS (SELECT FROM partition_versions p
				WHERE p.dataset_version = s.dataset_version AND p.partition_key = s.partition_key) RETURNING 1)
		SELECT coalesce((
				SELECT jsonb_build_array(`+key+`) FROM seen
				ORDER BY org_id DESC, dag_name DESC, job_name DESC, dataset_uuid DESC, partition_key DESC LIMIT 1),
				$1::jsonb)::text,
			(SELECT count(*) FROM seen), (SELECT count(*) FROM gone)`,
		fromFirst(position, fmt.Sprintf(`["%[1]s", "", "", "%[1]s", ""]`, uuid.Nil)), sweepBatch).Scan(&done.Position, &looked, &done.Rows)
	if err != nil {
		return done, fmt.Errorf("retention of effect positions: %w", err)
	}
	done.Over = looked < sweepBatch
	return done, nil
}

// fromFirst returns a position, or the one before all rows.
func fromFirst(position, first string) string {
	if position == "" {
		return first
	}
	return position
}

// beginLimits begins a turn of the sweep of limits that nobody is under. Those of jobs in work stay.
func (u *Upkeep) beginLimits(ctx context.Context) (workitems.Step, error) {
	var used []string
	err := pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
		acting, err := u.registry.JobsInWork(ctx, tx, nil)
		for _, a := range acting {
			if a.Job.Def.MaxConcurrency > 0 {
				used = append(used, a.Job.OrgID.String()+" job:"+a.Job.Address())
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(used)

	return func(ctx context.Context, position string) (done workitems.Progress, err error) {
		err = pg.InTx(ctx, u.pool, func(ctx context.Context, tx pgx.Tx) error {
			done, err = sweepLimits(ctx, tx, position, used)
			return err
		})
		return done, err
	}, nil
}

// sweepLimits removes limits that have no holder and for which nobody waits. It locks them first and looks then:
// whoever comes to wait does so under the lock.
func sweepLimits(ctx context.Context, tx pgx.Tx, position string, used []string) (done workitems.Progress, err error) {
	var (
		looked int
		orgs   []uuid.UUID
		keys   []string
	)
	err = tx.QueryRow(ctx, `
		WITH seen AS (
			SELECT org_id, key, held FROM limits
			WHERE (org_id, key) > (left($1, 36)::uuid, substr($1, 38)) ORDER BY org_id, key LIMIT $2),
		locked AS (
			SELECT l.org_id, l.key FROM limits l JOIN seen s ON s.org_id = l.org_id AND s.key = l.key AND s.held = 0
			WHERE l.held = 0 AND NOT l.org_id || ' ' || l.key = ANY($3)
			ORDER BY l.org_id, l.key FOR UPDATE OF l SKIP LOCKED)
		SELECT coalesce((SELECT org_id || ' ' || key FROM seen ORDER BY org_id DESC, key DESC LIMIT 1), $1),
			(SELECT count(*) FROM seen), coalesce(array_agg(org_id), '{}'), coalesce(array_agg(key), '{}') FROM locked`,
		fromFirst(position, uuid.Nil.String()+" "), sweepBatch, used).Scan(&done.Position, &looked, &orgs, &keys)
	if err != nil {
		return done, fmt.Errorf("retention of limits: %w", err)
	}
	done.Over = looked < sweepBatch
	if len(keys) == 0 {
		return done, nil
	}

	tag, err := tx.Exec(ctx, `
		DELETE FROM limits l USING unnest($1::uuid[], $2::text[]) AS w(org, key)
		WHERE l.org_id = w.org AND l.key = w.key AND l.held = 0 AND NOT EXISTS (
			SELECT FROM waiting q WHERE q.org_id = l.org_id AND q.blocker = l.key AND q.reason = 'limit')`, orgs, keys)
	if err != nil {
		return done, fmt.Errorf("retention of limits: %w", err)
	}
	done.Rows = tag.RowsAffected()
	return done, nil
}
