package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// A build retries the tasks that had failed before it began: that is what deploying a document again is for. Mostly an
// input was mended meanwhile. So a task is not retried while something that its inputs are made from is still to come,
// because it would fail on the old input once more; and a task that failed on revisions that are out of date does not
// fail the build, but gives way to one that reads the current revisions.

// retryOld retries the tasks that had failed before this build began, except those that wait for their inputs, which it
// returns.
func (bs *Builds) retryOld(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress, now time.Time,
) (later []uuid.UUID, err error) {
	origins, _ := filledBy(jobs)
	old, err := failedBefore(ctx, tx, b, origins)
	if err != nil || len(old) == 0 {
		return nil, err
	}
	coming, err := bs.coming(ctx, tx, jobs, origins, old)
	if err != nil {
		return nil, err
	}

	bare, err := awaitsColumns(ctx, tx, coming, jobs)
	if err != nil {
		return nil, err
	}

	var free []uuid.UUID
	waits := reachedFrom(coming, jobs)
	for id, slot := range old {
		if waits[slot] || bare[slot.Origin] || len(p.Unread) > 0 {
			later = append(later, id)
		} else {
			free = append(free, id)
		}
	}
	return later, bs.retry(ctx, tx, free, now)
}

func (bs *Builds) retry(ctx context.Context, tx pgx.Tx, dead []uuid.UUID, now time.Time) error {
	if len(dead) == 0 {
		return nil
	}
	_, err := bs.tasks.PromoteFailed(ctx, tx, `reason = 'dead' AND task_id = ANY($1)`, "SYSTEM", now, dead)
	return err
}

// failedBefore returns the tasks that had failed for good before a build began, with the partitions that they are for.
func failedBefore(
	ctx context.Context, tx pgx.Tx, b registry.Build, origins []uuid.UUID,
) (map[uuid.UUID]tasks.Slot, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.task_id, w.origin_job_id, coalesce(t.partitions[1], w.slot) FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = ANY($1) AND w.reason = 'dead' AND t.completed_at < $2`, origins, b.Started)
	if err != nil {
		return nil, fmt.Errorf("find tasks that failed before: %w", err)
	}

	old := map[uuid.UUID]tasks.Slot{}
	var (
		id   uuid.UUID
		slot tasks.Slot
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &slot.Origin, &slot.Key}, func() error { old[id] = slot; return nil })
	if err != nil {
		return nil, fmt.Errorf("find tasks that failed before: %w", err)
	}
	return old, nil
}

// coming returns the partitions that a build is still to make: those of open tasks, those of tasks that are to be
// retried, and those that are stale.
func (bs *Builds) coming(
	ctx context.Context, tx pgx.Tx, jobs []*registry.Job, origins []uuid.UUID, old map[uuid.UUID]tasks.Slot,
) (map[tasks.Slot]bool, error) {
	rows, err := tx.Query(ctx, `
		SELECT t.job_id, t.partitions[1] FROM tasks t
		WHERE t.partitions[1] IS NOT NULL AND t.id IN (
			SELECT task_id FROM waiting WHERE origin_job_id = ANY($1) AND reason <> 'dead' UNION ALL
			SELECT task_id FROM ready WHERE origin_job_id = ANY($1) UNION ALL
			SELECT task_id FROM leases WHERE origin_job_id = ANY($1))`, origins)
	if err != nil {
		return nil, fmt.Errorf("find what a build is to make: %w", err)
	}
	coming := map[tasks.Slot]bool{}
	var slot tasks.Slot
	_, err = pgx.ForEachRow(rows, []any{&slot.Origin, &slot.Key}, func() error { coming[slot] = true; return nil })
	if err != nil {
		return nil, fmt.Errorf("find what a build is to make: %w", err)
	}

	findings, err := bs.stale.ExamineAll(ctx, tx, jobs)
	if err != nil {
		return nil, err
	}
	for _, f := range findings {
		if f.Verdict == stale.Stale {
			coming[tasks.Slot{Origin: f.Job.Origin, Key: f.Key}] = true
		}
	}
	for _, slot := range old {
		coming[slot] = true
	}
	return coming, nil
}

// reachedFrom returns the partitions that are made from some others, directly or not.
func reachedFrom(from map[tasks.Slot]bool, jobs []*registry.Job) map[tasks.Slot]bool {
	type consumer struct {
		job *registry.Job
		in  registry.JobInput
	}
	producer, byOrigin := producersOf(jobs), map[uuid.UUID]*registry.Job{}
	consumers := map[uuid.UUID][]consumer{} // by the origin of what they read
	for _, job := range jobs {
		byOrigin[job.Origin] = job
		for _, in := range job.Inputs {
			if up, inside := producer[in.Dataset]; inside {
				consumers[up.Origin] = append(consumers[up.Origin], consumer{job, in})
			}
		}
	}

	var next []tasks.Slot
	for slot := range from {
		next = append(next, slot)
	}
	reached := map[tasks.Slot]bool{}
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		for _, c := range consumers[at.Origin] {
			keys, err := c.in.Def.Map.OutputKeys(byOrigin[at.Origin].Def.PartitionBy, c.job.Def.TasksBy(), at.Key)
			if err != nil {
				continue // no partition of the job is made from it
			}
			for _, key := range keys {
				if s := (tasks.Slot{Origin: c.job.Origin, Key: key}); !reached[s] {
					reached[s] = true
					next = append(next, s)
				}
			}
		}
	}
	return reached
}

// awaitsColumns returns the origins of the jobs with an input that has no columns yet and is to get its first
// partition: none of their tasks can do without it, whichever partition that is.
func awaitsColumns(
	ctx context.Context, tx pgx.Tx, coming map[tasks.Slot]bool, jobs []*registry.Job,
) (map[uuid.UUID]bool, error) {
	comes := map[uuid.UUID]bool{}
	for slot := range coming {
		comes[slot.Origin] = true
	}
	producer, readers := producersOf(jobs), map[uuid.UUID][]uuid.UUID{} // by the generation that they read
	for _, job := range jobs {
		for _, in := range job.Inputs {
			if up, inside := producer[in.Dataset]; inside && comes[up.Origin] {
				readers[in.Generation.Version] = append(readers[in.Generation.Version], job.Origin)
			}
		}
	}
	if len(readers) == 0 {
		return nil, nil
	}

	columns, err := registry.ColumnsOf(ctx, tx, slices.Collect(maps.Keys(readers)))
	if err != nil {
		return nil, err
	}
	awaits := map[uuid.UUID]bool{}
	for generation, origins := range readers {
		for _, origin := range origins {
			awaits[origin] = awaits[origin] || len(columns[generation]) == 0
		}
	}
	return awaits, nil
}

// deadTask is a task that failed for good while the build was under way.
type deadTask struct {
	tasks.Slot
	pins []registry.Pin // what its last attempt read
}

// renewDead makes tasks for the partitions whose tasks failed on other revisions than their inputs have now, in place
// of those, and ends the dead tasks whose partitions another task has made by now. It reports whether there were any.
func (bs *Builds) renewDead(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, now time.Time,
) (renewed, ended bool, err error) {
	byOrigin, origins := map[uuid.UUID]*registry.Job{}, []uuid.UUID{}
	for _, job := range jobs {
		byOrigin[job.Origin], origins = job, append(origins, job.Origin)
	}
	dead, err := deadReaders(ctx, tx, b, origins)
	if err != nil || len(dead) == 0 {
		return false, false, err
	}

	targets := make([]stale.Target, len(dead))
	for i, d := range dead {
		targets[i] = stale.Target{Job: byOrigin[d.Origin], Key: d.Key}
	}
	findings, err := bs.stale.Examine(ctx, tx, targets)
	if err != nil {
		return false, false, err
	}
	done, err := bs.dispatcher.EndDone(ctx, tx, findings, now)
	if err != nil {
		return false, false, err
	}

	var again []stale.Finding
	for i, f := range findings {
		if f.Verdict == stale.Stale && !stale.SamePins(stale.ComparedPins(f.Pins), stale.ComparedPins(dead[i].pins)) {
			again = append(again, f)
		}
	}
	if len(again) == 0 {
		return false, done > 0, nil
	}
	made, err := bs.dispatcher.CreateFound(ctx, tx, again, dispatcher.NewSurroundings(again, nil), now)
	return len(made.By) > 0, done > 0, err
}

// deadReaders returns the tasks for partitions that failed for good since the build began, up to the number that
// DeadTasks describes.
func deadReaders(ctx context.Context, tx pgx.Tx, b registry.Build, origins []uuid.UUID) ([]deadTask, error) {
	rows, err := tx.Query(ctx, `
		SELECT w.origin_job_id, w.slot, coalesce(t.input_versions, '[]')
		FROM waiting w JOIN tasks t ON t.id = w.task_id
		WHERE w.origin_job_id = ANY($1) AND w.reason = 'dead' AND t.completed_at >= $2
		  AND t.kind IN ('reactive', 'build')
		ORDER BY t.id LIMIT 10`, origins, b.Started)
	if err != nil {
		return nil, fmt.Errorf("find what dead tasks read: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d deadTask, err error) {
		var pins []byte
		if err := row.Scan(&d.Origin, &d.Key, &pins); err != nil {
			return d, err
		}
		return d, json.Unmarshal(pins, &d.pins)
	})
}
