package upkeep

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// Garbage is what a collection removed, or would remove.
type Garbage struct {
	DryRun        bool                         `json:"dry_run"`
	Generations   []registry.GarbageGeneration `json:"generations" nullable:"false" doc:"Dataset versions that nothing can reach any more"`
	Revisions     int                          `json:"revisions" doc:"Replaced and rejected revisions that nobody reads"`
	RevisionBytes int64                        `json:"revision_bytes" doc:"Size of those revisions, with the files that they share with others"`
	Staging       int                          `json:"staging" doc:"Locations with data that attempts wrote and did not commit"`
	Uploads       int                          `json:"uploads" doc:"Ended attempts that left uploads"`
}

// stagingGrace is how long the data of an attempt stays after the attempt ended: a worker that was fenced off may not
// know that yet, and still write.
const stagingGrace = 24 * time.Hour

// gcBatch is how many rows a collection holds in memory at most.
const gcBatch = 500

// CollectGarbage removes the data of the caller's org that nothing can reach. With dryRun it only returns what it would
// remove.
func (u *Upkeep) CollectGarbage(
	ctx context.Context, caller authz.Caller, dryRun bool, now time.Time,
) (Garbage, error) {
	if dryRun {
		return u.findGarbage(ctx, caller.OrgID, now)
	}

	c := u.newCollection(caller.OrgID, now)
	if err := workitems.Step(c.step).Whole(ctx); err != nil {
		return c.found, err
	}

	found := c.found
	detail := map[string]any{
		"generations": len(found.Generations), "revisions": found.Revisions,
		"staging": found.Staging, "uploads": found.Uploads,
	}
	return found, pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		return authz.Audit(ctx, tx, caller, "gc.run", caller.OrgSlug, detail)
	})
}

// findGarbage returns what a collection would remove.
func (u *Upkeep) findGarbage(ctx context.Context, org uuid.UUID, now time.Time) (Garbage, error) {
	found := Garbage{DryRun: true, Generations: []registry.GarbageGeneration{}}
	err := pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		use, err := inUse(ctx, tx, org)
		if err != nil {
			return err
		}

		generations, err := registry.UnreachableGenerations(ctx, tx, org, "", use, now)
		if err != nil {
			return err
		}
		found.Generations = append(found.Generations, generations...)

		gone := make([]uuid.UUID, len(generations)) // a generation that goes takes its revisions along
		for i, g := range generations {
			gone[i] = g.Version
		}
		revisions, err := registry.GarbageRevisions(ctx, tx, org, use, gone, now)
		found.Revisions, found.RevisionBytes = len(revisions), 0
		for _, r := range revisions {
			found.RevisionBytes += r.Bytes
		}
		return err
	})
	for from, more := "", true; err == nil && more; more = from != "" {
		var locations int
		locations, from, err = u.sweepStaging(ctx, org, now, from, true)
		found.Staging += locations
	}
	if err == nil {
		found.Uploads, err = u.sweepUploads(ctx, org, now, false)
	}
	if err != nil {
		return found, fmt.Errorf("find garbage: %w", err)
	}
	return found, nil
}

// dagsWithGarbage returns the DAGs that have unreachable generations, sorted.
func (u *Upkeep) dagsWithGarbage(ctx context.Context, org uuid.UUID, now time.Time) (dags []string, err error) {
	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		use, err := inUse(ctx, tx, org)
		if err != nil {
			return err
		}
		candidates, err := registry.UnreachableGenerations(ctx, tx, org, "", use, now)
		dags = []string{}
		for _, c := range candidates {
			dags = append(dags, c.DAG)
		}
		return err
	})
	slices.Sort(dags)
	return slices.Compact(dags), err
}

// markGenerations marks the unreachable generations of a DAG. It finds them once more under the DAG's lock, so that no
// deploy, rollback or completion comes in between.
func (u *Upkeep) markGenerations(
	ctx context.Context, org uuid.UUID, dagName string, now time.Time,
) (marked []registry.GarbageGeneration, err error) {
	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		if err := tasks.LockDAGBriefly(ctx, tx, org, dagName); err != nil {
			return err
		}

		use, err := inUse(ctx, tx, org)
		if err != nil {
			return err
		}
		if marked, err = registry.UnreachableGenerations(ctx, tx, org, dagName, use, now); err != nil {
			return err
		}

		ids := make([]uuid.UUID, len(marked))
		for i, g := range marked {
			ids[i] = g.Version
		}
		return registry.MarkPurged(ctx, tx, org, ids, now)
	})
	return marked, err
}

// inUse returns what tasks hold: running ones, and those whose lease ran out, for their completion may still come. It
// also returns the revisions that open checks decide on. Open tasks are in one of three sets, and are looked up one by
// one by their primary key: a join may read the tasks of years.
func inUse(ctx context.Context, tx pgx.Tx, org uuid.UUID) (use registry.InUse, err error) {
	rows, err := tx.Query(ctx, `
		SELECT t.job_id, open.leased OR (t.reason = 'lease_expired') IS TRUE, coalesce(t.input_versions, '[]'),
			CASE WHEN t.kind = 'check' THEN t.payload END
		FROM (
			SELECT task_id, true FROM leases WHERE org_id = $1
			UNION ALL SELECT task_id, false FROM ready WHERE org_id = $1
			UNION ALL SELECT task_id, false FROM waiting WHERE org_id = $1) AS open(task_id, leased),
			LATERAL (SELECT * FROM tasks WHERE id = open.task_id OFFSET 0) AS t
		WHERE open.leased OR t.reason = 'lease_expired' OR t.kind = 'check'`, org)
	if err != nil {
		return use, fmt.Errorf("find what tasks hold: %w", err)
	}

	var (
		origin          uuid.UUID
		holds           bool
		pinned, payload []byte
	)
	if _, err := pgx.ForEachRow(rows, []any{&origin, &holds, &pinned, &payload}, func() error {
		if holds {
			var pins []registry.Pin
			if err := json.Unmarshal(pinned, &pins); err != nil {
				return err
			}
			use.Origins, use.Pins = append(use.Origins, origin), append(use.Pins, pins...)
		}
		if payload == nil {
			return nil
		}

		var p dispatcher.CheckPayload
		err := json.Unmarshal(payload, &p)
		use.Checks = append(use.Checks, registry.Checked{Origin: origin, Key: p.Partition, Revision: p.Revision})
		return err
	}); err != nil {
		return use, fmt.Errorf("find what tasks hold: %w", err)
	}
	use.Origins = tasks.SortedIDs(use.Origins)
	return use, nil
}

// RemoveMarked removes the bytes of the marked revisions and generations, and then their rows.
func (u *Upkeep) RemoveMarked(ctx context.Context, org uuid.UUID, now time.Time) error {
	for {
		more, err := u.removeRevisions(ctx, org)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}

	for {
		more, err := u.removeGenerations(ctx, org, now)
		if err != nil || !more {
			return err
		}
	}
}

// removeRevisions removes a batch of marked revisions, and reports whether there may be more.
func (u *Upkeep) removeRevisions(ctx context.Context, org uuid.UUID) (more bool, err error) {
	var marked []registry.MarkedRevision
	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
		marked, err = registry.MarkedRevisions(ctx, tx, org, gcBatch)
		return err
	})
	if err != nil {
		return false, err
	}

	for _, m := range marked {
		if m.Whole {
			if err := u.storage.Forget(ctx, m.Generation, m.Key, m.Revision); err != nil {
				return false, err
			}
		}
		if err := u.storage.Discard(ctx, m.Location); err != nil {
			return false, err
		}
	}

	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		for _, m := range marked {
			if err := registry.ClearRevision(ctx, tx, m); err != nil {
				return err
			}
		}
		return nil
	})
	return len(marked) == gcBatch, err
}

// removeGenerations removes a batch of marked generations, and reports whether there may be more.
func (u *Upkeep) removeGenerations(ctx context.Context, org uuid.UUID, now time.Time) (more bool, err error) {
	const batch = 20 // each may have thousands of locations
	var marked []registry.MarkedGeneration
	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
		marked, err = registry.MarkedGenerations(ctx, tx, org, batch)
		return err
	})
	if err != nil {
		return false, err
	}

	for _, m := range marked {
		if err := u.narrowViews(ctx, m); err != nil {
			return false, err
		}
		if err := u.storage.DropGeneration(ctx, m.Generation, m.Locations); err != nil {
			return false, err
		}

		err := pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `
				DELETE FROM dataset_cursors WHERE org_id = $1 AND dataset_version = $2`, org, m.Version); err != nil {
				return err
			}
			return registry.ClearGeneration(ctx, tx, org, m.Version, now)
		})
		if err != nil {
			return false, err
		}
	}
	return len(marked) == batch, nil
}

// narrowViews removes a purged generation from the stable views that may be defined over it. It holds the DAG's lock: a
// swap that came in between would find its new generation missing from the view.
func (u *Upkeep) narrowViews(ctx context.Context, m registry.MarkedGeneration) error {
	if m.Kind != storage.Postgres {
		return nil
	}

	return pg.InOrgTx(ctx, u.requests, m.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := tasks.LockDAGBriefly(ctx, tx, m.OrgID, m.DAG); err != nil {
			return err
		}

		views, err := registry.ViewsWithout(ctx, tx, m)
		if err != nil {
			return err
		}
		return pg.WhileAlive(ctx, tx, func() error { // readers may use them
			for _, v := range views {
				if err := u.storage.NarrowView(ctx, v); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// sweepStaging removes what some ended attempts wrote and did not commit, at the locations recorded at their claims,
// and returns the number of these locations. It begins after the attempt that from names, and returns the last one that
// it looked at, if more may follow. A dry run only counts. It leaves attempts whose completion may still come, and
// those whose data it cannot remove.
func (u *Upkeep) sweepStaging(
	ctx context.Context, org uuid.UUID, now time.Time, from string, dryRun bool,
) (locations int, next string, err error) {
	after, err := parseAttempt(from)
	if err != nil {
		return 0, "", err
	}
	var ended []endedAttempt
	err = pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
		if ended, err = endedAttempts(ctx, tx, org, after, now.Add(-stagingGrace)); err != nil {
			return err
		}
		return leaveUncommitted(ctx, tx, org, ended)
	})
	if err != nil {
		return 0, "", err
	}

	if len(ended) == gcBatch {
		next = ended[gcBatch-1].String()
	}
	if !dryRun {
		ended, err = u.discardStaging(ctx, org, ended)
	}
	for _, e := range ended {
		locations += len(e.Staging)
	}
	return locations, next, err
}

// leaveUncommitted removes from the attempts' locations those that they have committed.
func leaveUncommitted(ctx context.Context, tx pgx.Tx, org uuid.UUID, ended []endedAttempt) error {
	tasks := make([]uuid.UUID, len(ended))
	for i, e := range ended {
		tasks[i] = e.Task
	}
	committed, err := registry.Committed(ctx, tx, org, tasks)
	if err != nil {
		return err
	}
	for i := range ended {
		ended[i].Staging = slices.DeleteFunc(ended[i].Staging, func(location string) bool {
			return location == "" || committed[location]
		})
	}
	return nil
}

// discardStaging removes what is at the attempts' locations, and forgets and returns the attempts that have nothing
// left. Its error names the others.
func (u *Upkeep) discardStaging(
	ctx context.Context, org uuid.UUID, ended []endedAttempt,
) (removed []endedAttempt, err error) {
	var failed []error
	for _, e := range ended {
		if err := u.storage.Discard(ctx, e.Staging...); err != nil {
			failed = append(failed, fmt.Errorf("what attempt %d of task %s wrote: %w", e.Attempt, e.Task, err))
			continue
		}
		removed = append(removed, e)
	}
	failed = append(failed, u.forgetStaging(ctx, org, removed))
	return removed, errors.Join(failed...)
}

// endedAttempt is an attempt that can commit no more, with the locations that it wrote to.
type endedAttempt struct {
	Task    uuid.UUID
	Attempt int
	Staging []string
}

func (e endedAttempt) String() string { return fmt.Sprint(e.Task, " ", e.Attempt) }

// parseAttempt returns the attempt that a text names; empty: one before all others.
func parseAttempt(text string) (e endedAttempt, err error) {
	if text != "" {
		if _, err = fmt.Sscan(text, &e.Task, &e.Attempt); err != nil {
			return e, fmt.Errorf("position in the attempts: %w", err)
		}
	}
	return e, nil
}

// endedAttempts lists the attempts that ended before a time and can commit no more, in the order of the primary key and
// after the given one.
func endedAttempts(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, after endedAttempt, before time.Time,
) ([]endedAttempt, error) {
	rows, err := tx.Query(ctx, `
		SELECT a.task_id, a.attempt, a.staging
		FROM task_attempts a LEFT JOIN tasks t ON t.id = a.task_id
		WHERE a.org_id = $1 AND (a.task_id, a.attempt) > ($2, $3) AND a.staging <> '{}'
		  AND coalesce(a.ended_at, a.started_at) < $4
		  AND (t.id IS NULL OR a.attempt < t.attempt OR t.status IN ('Completed', 'Canceled')
		       OR t.status IN ('Queued', 'Failed') AND t.reason IS DISTINCT FROM 'lease_expired')
		ORDER BY a.task_id, a.attempt LIMIT $5`, org, after.Task, after.Attempt, before, gcBatch)
	if err != nil {
		return nil, fmt.Errorf("find ended attempts: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[endedAttempt])
}

// forgetStaging clears the recorded locations of attempts.
func (u *Upkeep) forgetStaging(ctx context.Context, org uuid.UUID, ended []endedAttempt) error {
	return pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) error {
		tasks, attempts := make([]uuid.UUID, len(ended)), make([]int, len(ended))
		for i, e := range ended {
			tasks[i], attempts[i] = e.Task, e.Attempt
		}
		_, err := tx.Exec(ctx, `
			UPDATE task_attempts a SET staging = '{}' FROM unnest($2::uuid[], $3::int[]) AS w(task, attempt)
			WHERE a.org_id = $1 AND a.task_id = w.task AND a.attempt = w.attempt`, org, tasks, attempts)
		return err
	})
}
