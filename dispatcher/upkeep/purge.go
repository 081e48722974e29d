package upkeep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry"
)

// PurgeRequest says what to delete and why.
type PurgeRequest struct {
	From        string `json:"from,omitempty" maxLength:"200" doc:"First partition, as text; default: the first that exists"`
	To          string `json:"to,omitempty" maxLength:"200" doc:"Last partition, which is deleted too; default: the last that exists"`
	Downstream  bool   `json:"downstream,omitempty" doc:"Also delete everything that was made from it, in other DAGs too"`
	Reason      string `json:"reason" minLength:"1" maxLength:"1000" doc:"Goes into the audit log"`
	BreakWindow bool   `json:"break_window,omitempty" doc:"Purge although a version in its rollback window needs the data, which a rollback to it then lacks"`
	DryRun      bool   `json:"dry_run,omitempty" doc:"Only say what would be deleted"`
}

// Purged is what a purge deleted, or would delete.
type Purged struct {
	DryRun     bool                       `json:"dry_run"`
	Partitions []registry.PurgedPartition `json:"partitions" nullable:"false"`
	Readers    []registry.PurgedReader    `json:"readers,omitempty" doc:"Jobs of other DAGs that read what goes"`
	Tasks      int                        `json:"tasks" doc:"Tasks whose payloads, results and errors were deleted, too"`
	Left       string                     `json:"left,omitempty" doc:"Why some of the bytes are still there. Nobody can read them through dagctl any more, and gc goes on removing them"`
}

// Purge deletes data of a dataset for good: rows and files in all generations, and the payloads, results and errors of
// the tasks that made them. When it returns, the partitions are gone for readers, and so are the bytes, unless the
// answer says what keeps some of them: the partitions do not come back then either, and gc goes on.
func (u *Upkeep) Purge(
	ctx context.Context, caller authz.Caller, name string, req PurgeRequest, now time.Time,
) (Purged, error) {
	dataset, err := u.registry.Dataset(ctx, caller, name)
	if err != nil {
		return Purged{}, err
	}

	if err := registry.RefuseReversed(req.From, req.To); err != nil {
		return Purged{}, fmt.Errorf("purge %s: %w", name, err)
	}

	scope := registry.PurgeScope{Dataset: dataset.ID, From: req.From, To: req.To, Downstream: req.Downstream}
	var (
		purged Purged
		tasks  []uuid.UUID
	)
	err = pg.InOrgTx(ctx, u.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		purged, err = u.purgeTx(ctx, tx, caller, scope, req, &tasks, now)
		return err
	})
	if errors.Is(err, pg.ErrDryRun) {
		purged.DryRun = true
		return purged, nil
	}
	if err != nil {
		return purged, fmt.Errorf("purge %s: %w", name, err)
	}

	u.log.Warn("purged", "dataset", dataset.Name, "partitions", len(purged.Partitions), "actor", caller.Actor)
	err = errors.Join(u.RemoveMarked(ctx, caller.OrgID, now), u.purgeStaging(ctx, caller.OrgID, tasks))
	if err != nil {
		u.log.Warn("the bytes of a purge are left to gc", "dataset", dataset.Name, "error", err)
		purged.Left = "an error on the server, which its log has"
		if fault.KindOf(err) != fault.Internal {
			purged.Left = fault.Text(err)
		}
	}
	return purged, nil
}

// purgeTx purges in one transaction everything but the bytes, and sets tasks to those whose contents went.
func (u *Upkeep) purgeTx(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, scope registry.PurgeScope, req PurgeRequest,
	tasks *[]uuid.UUID, now time.Time,
) (Purged, error) {
	gone, err := lockedForPurge(ctx, tx, caller.OrgID, scope)
	if err != nil {
		return Purged{}, err
	}

	purged := Purged{Partitions: gone}
	if purged.Readers, err = registry.PurgedReaders(ctx, tx, caller.OrgID, gone); err != nil {
		return purged, err
	}
	if err := registry.RefusePurge(ctx, tx, caller.OrgID, gone, req.BreakWindow, now); err != nil {
		return purged, err
	}
	if err := refuseWhileRunning(ctx, tx, caller.OrgID, gone); err != nil {
		return purged, err
	}

	made, err := registry.Erase(ctx, tx, caller.OrgID, gone, now)
	if err != nil {
		return purged, err
	}
	if scope.From == "" && scope.To == "" {
		if err := registry.MarkEmptied(ctx, tx, caller.OrgID, gone, now); err != nil {
			return purged, err
		}
	}
	if *tasks, err = forgetTasks(ctx, tx, caller.OrgID, made, gone); err != nil {
		return purged, err
	}
	purged.Tasks = len(*tasks)

	if req.DryRun {
		return purged, pg.ErrDryRun
	}
	detail := map[string]any{
		"reason": req.Reason, "from": req.From, "to": req.To, "downstream": req.Downstream,
		"break_window": req.BreakWindow, "partitions": len(gone), "tasks": purged.Tasks,
	}
	return purged, authz.Audit(ctx, tx, caller, "dataset.purge", scope.Dataset.String(), detail)
}

// lockedForPurge finds the partitions to purge, locks their DAGs, and finds the partitions once more.
func lockedForPurge(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, scope registry.PurgeScope,
) ([]registry.PurgedPartition, error) {
	if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '5s'`); err != nil {
		return nil, err
	}

	dagsOf := func(gone []registry.PurgedPartition) (dags []string) {
		for _, p := range gone {
			dags = append(dags, p.DAG)
		}
		return slices.Compact(dags)
	}

	seen, err := registry.PurgedPartitions(ctx, tx, org, scope)
	if err != nil {
		return nil, err
	}
	locked := dagsOf(seen)
	if err := registry.LockDAGs(ctx, tx, org, locked); err != nil {
		return nil, err
	}

	gone, err := registry.PurgedPartitions(ctx, tx, org, scope)
	if err != nil {
		return nil, err
	}
	if len(gone) == 0 {
		return nil, nothingToPurge(ctx, tx, org, scope)
	}

	for _, name := range dagsOf(gone) {
		if !slices.Contains(locked, name) {
			return nil, fault.New(fault.Conflict, "%s has just made more from it", name).WithHint("try again")
		}
	}
	return gone, nil
}

// nothingToPurge is the error of a purge of what is not there. The server may have been killed between a former purge
// and the removal of its bytes: whoever purges again learns of it.
func nothingToPurge(ctx context.Context, tx pgx.Tx, org uuid.UUID, scope registry.PurgeScope) error {
	left, err := registry.LeftOfPurges(ctx, tx, org, scope)
	switch {
	case err != nil:
		return err
	case left > 0:
		return fault.New(fault.NotFound, "there is no such partition any more, but bytes of %s, purged "+
			"before, are still there", plural.Of(left, "partition")).
			WithHint("nobody can read them through dagctl; the server removes them within the hour, and `dagctl gc` " +
				"at once")
	}
	return fault.New(fault.NotFound, "there is no such partition").
		WithHint("`dagctl datasets partitions` lists those there are")
}

// refuseWhileRunning returns an error if a task is at work on the data: it has read the data, and would write what it
// made of that after the purge.
func refuseWhileRunning(ctx context.Context, tx pgx.Tx, org uuid.UUID, gone []registry.PurgedPartition) error {
	use, err := inUse(ctx, tx, org)
	if err != nil {
		return err
	}

	busy := map[registry.Ref]bool{}
	for _, p := range use.Pins {
		busy[registry.Ref{Version: p.Version, Key: p.Key}] = true
	}

	for _, p := range gone {
		var refusal *fault.Error
		switch {
		case busy[registry.Ref{Version: p.Version, Key: p.Key}]:
			refusal = fault.New(fault.Conflict, "a task is at work on %s, partition %s", p.Dataset, p.Key)
		case slices.Contains(use.Origins, p.Origin):
			refusal = fault.New(fault.Conflict, "a task is at work of the job that makes %s, and may write any of its "+
				"partitions", p.Dataset)
		default:
			continue
		}
		return refusal.WithHint("wait for it or cancel it (`dagctl tasks list --status Running`), then purge")
	}
	return nil
}

// forgetTasks removes the payloads, results and errors of the tasks of purged partitions, and returns these tasks. Open
// tasks are left out: they still need their payloads.
func forgetTasks(
	ctx context.Context, tx pgx.Tx, org uuid.UUID, made []uuid.UUID, gone []registry.PurgedPartition,
) ([]uuid.UUID, error) {
	origins, keys := make([]uuid.UUID, len(gone)), make([]string, len(gone))
	for i, p := range gone {
		origins[i], keys[i] = p.Origin, p.Key
	}

	rows, err := tx.Query(ctx, `
		WITH concerned AS (
			SELECT t.id FROM tasks t
			WHERE t.org_id = $1 AND (t.id = ANY($2) OR EXISTS (
				SELECT FROM unnest($3::uuid[], $4::text[]) AS w(origin, key)
				WHERE t.job_id = w.origin AND w.key = ANY(t.partitions)))
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = t.id)
			  AND NOT EXISTS (SELECT FROM leases l WHERE l.task_id = t.id)
			  AND NOT EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason <> 'dead')),
		results AS (DELETE FROM task_results r USING concerned c WHERE r.task_id = c.id),
		attempts AS (UPDATE task_attempts a SET error = NULL FROM concerned c WHERE a.task_id = c.id),
		told AS (UPDATE task_events e SET state = NULL, detail = NULL FROM concerned c WHERE e.task_id = c.id),
		grouped AS (UPDATE waiting q SET error_group = NULL FROM concerned c WHERE q.task_id = c.id)
		UPDATE tasks t SET payload = NULL, error_message = NULL, outputs = NULL, metadata = '{}', state = 'purged'
		FROM concerned c WHERE t.id = c.id RETURNING t.id`, org, made, origins, keys)
	if err != nil {
		return nil, fmt.Errorf("purge tasks: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("purge tasks: %w", err)
	}
	return ids, nil
}

// purgeStaging removes at once what ended attempts of the tasks left at locations that no revision uses.
func (u *Upkeep) purgeStaging(ctx context.Context, org uuid.UUID, tasks []uuid.UUID) error {
	var ended []endedAttempt
	err := pg.InOrgTx(ctx, u.requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err := tx.Query(ctx, `
			SELECT a.task_id, a.attempt, a.staging FROM task_attempts a
			WHERE a.org_id = $1 AND a.task_id = ANY($2) AND a.staging <> '{}' AND a.ended_at IS NOT NULL`, org, tasks)
		if err != nil {
			return err
		}
		if ended, err = pgx.CollectRows(rows, pgx.RowToStructByPos[endedAttempt]); err != nil {
			return err
		}
		return leaveUncommitted(ctx, tx, org, ended)
	})
	if err != nil {
		return err
	}
	_, err = u.discardStaging(ctx, org, ended)
	return err
}
