package dispatcher

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
	"github.com/dagctl/dagctl/registry"
)

// PurgeRequest says what to delete and why.
type PurgeRequest struct {
	From        string `json:"from,omitempty" maxLength:"200" doc:"First partition, as text; the first there is where it is left out"`
	To          string `json:"to,omitempty" maxLength:"200" doc:"Last partition, which is deleted too; the last there is where it is left out"`
	Downstream  bool   `json:"downstream,omitempty" doc:"And whatever was made from it, in other DAGs too"`
	Reason      string `json:"reason" minLength:"1" maxLength:"1000" doc:"Goes into the audit log"`
	BreakWindow bool   `json:"break_window,omitempty" doc:"Even where that ends the possibility of a rollback"`
	DryRun      bool   `json:"dry_run,omitempty" doc:"Only say what would be deleted"`
}

// Purged is what a purge deleted, or would delete.
type Purged struct {
	DryRun     bool                       `json:"dry_run"`
	Partitions []registry.PurgedPartition `json:"partitions" nullable:"false"`
	Tasks      int                        `json:"tasks" doc:"Tasks whose payloads, results and errors went with them"`
}

var errDryRun = errors.New("dry run")

// Purge deletes data of a dataset for good: rows and files in all generations, with what the tasks that made them were
// given, returned and failed with. Readers see the partitions gone when it returns, and the bytes are gone too.
func (d *Dispatcher) Purge(ctx context.Context, caller authz.Caller, name string, req PurgeRequest, now time.Time) (Purged, error) {
	dataset, err := d.Registry.Dataset(ctx, caller, name)
	if err != nil {
		return Purged{}, err
	}
	scope := registry.PurgeScope{Dataset: dataset.ID, From: req.From, To: req.To, Downstream: req.Downstream}
	var (
		purged Purged
		tasks  []uuid.UUID
	)
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		purged, err = d.purgeTx(ctx, tx, caller, scope, req, &tasks, now)
		return err
	})
	if errors.Is(err, errDryRun) {
		purged.DryRun = true
		return purged, nil
	}
	if err != nil {
		return purged, fmt.Errorf("purge %s: %w", name, err)
	}
	d.Log.Warn("purged", "dataset", dataset.Name, "partitions", len(purged.Partitions), "actor", caller.Actor)
	if err := errors.Join(d.removeMarked(ctx, caller.OrgID, now), d.discardStaging(ctx, caller.OrgID, tasks)); err != nil {
		return purged, fmt.Errorf("purge %s: nobody can read it any more, but not all of its bytes are gone; gc goes on with them: %w", name, err)
	}
	return purged, nil
}

func (d *Dispatcher) purgeTx(ctx context.Context, tx pgx.Tx, caller authz.Caller, scope registry.PurgeScope, req PurgeRequest,
	tasks *[]uuid.UUID, now time.Time) (Purged, error) {
	gone, err := lockedForPurge(ctx, tx, caller.OrgID, scope)
	if err != nil {
		return Purged{}, err
	}
	purged := Purged{Partitions: gone}
	if err := registry.RefusePurge(ctx, tx, caller.OrgID, gone, req.BreakWindow, now); err != nil {
		return purged, err
	}
	if err := refuseWhileRunning(ctx, tx, caller.OrgID, gone); err != nil {
		return purged, err
	}
	made, err := registry.Purge(ctx, tx, caller.OrgID, gone, now)
	if err != nil {
		return purged, err
	}
	if *tasks, err = forgetTasks(ctx, tx, caller.OrgID, made, gone); err != nil {
		return purged, err
	}
	purged.Tasks = len(*tasks)
	if req.DryRun {
		return purged, errDryRun
	}
	object := scope.Dataset.String()
	return purged, authz.Audit(ctx, tx, caller, "dataset.purge", object, map[string]any{"reason": req.Reason, "from": req.From, "to": req.To,
		"downstream": req.Downstream, "break_window": req.BreakWindow, "partitions": len(gone), "tasks": purged.Tasks})
}

// lockedForPurge finds what goes, and finds it once more under the locks of all DAGs that it is of.
func lockedForPurge(ctx context.Context, tx pgx.Tx, org uuid.UUID, scope registry.PurgeScope) ([]registry.PurgedPartition, error) {
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
		return nil, fault.New(fault.NotFound, "there is no such partition").WithHint("`dagctl datasets partitions` lists those there are")
	}
	for _, name := range dagsOf(gone) {
		if !slices.Contains(locked, name) {
			return nil, fault.New(fault.Conflict, "%s has just made more from it", name).WithHint("try again")
		}
	}
	return gone, nil
}

// refuseWhileRunning keeps a task that has read the data from writing what it made of it after the purge.
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
		if busy[registry.Ref{Version: p.Version, Key: p.Key}] || slices.Contains(use.Origins, p.Origin) {
			return fault.New(fault.Conflict, "a task is at work on %s, partition %s", p.Dataset, p.Key).
				WithHint("wait for it or cancel it (`dagctl tasks list --status Running`), then purge")
		}
	}
	return nil
}

// forgetTasks removes what the tasks of purged partitions were given, returned and failed with. Those that are still to run
// keep their payload: it is what they are to work on.
func forgetTasks(ctx context.Context, tx pgx.Tx, org uuid.UUID, made []uuid.UUID, gone []registry.PurgedPartition) ([]uuid.UUID, error) {
	origins, keys := make([]uuid.UUID, len(gone)), make([]string, len(gone))
	for i, p := range gone {
		origins[i], keys[i] = p.Origin, p.Key
	}
	rows, err := tx.Query(ctx, `
		WITH concerned AS (
			SELECT t.id FROM tasks t
			WHERE t.org_id = $1 AND (t.id = ANY($2) OR EXISTS (
				SELECT FROM unnest($3::uuid[], $4::text[]) AS w(origin, key) WHERE t.job_id = w.origin AND w.key = ANY(t.partitions)))
			  AND NOT EXISTS (SELECT FROM ready r WHERE r.task_id = t.id) AND NOT EXISTS (SELECT FROM leases l WHERE l.task_id = t.id)
			  AND NOT EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason <> 'dead')),
		results AS (DELETE FROM task_results r USING concerned c WHERE r.task_id = c.id),
		attempts AS (UPDATE task_attempts a SET error = NULL FROM concerned c WHERE a.task_id = c.id),
		told AS (UPDATE task_events e SET state = NULL, detail = NULL FROM concerned c WHERE e.task_id = c.id)
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

// discardStaging removes at once what ended attempts of the tasks left, where no revision is at its location any more.
func (d *Dispatcher) discardStaging(ctx context.Context, org uuid.UUID, tasks []uuid.UUID) error {
	var ended []endedAttempt
	committed := map[string]bool{}
	err := pg.InOrgTx(ctx, d.Requests, org, func(ctx context.Context, tx pgx.Tx) (err error) {
		rows, err := tx.Query(ctx, `
			SELECT a.task_id, a.attempt, a.staging FROM task_attempts a
			WHERE a.org_id = $1 AND a.task_id = ANY($2) AND a.staging <> '{}' AND a.ended_at IS NOT NULL`, org, tasks)
		if err != nil {
			return err
		}
		if ended, err = pgx.CollectRows(rows, pgx.RowToStructByPos[endedAttempt]); err != nil {
			return err
		}
		committed, err = registry.Committed(ctx, tx, org, tasks)
		return err
	})
	if err != nil {
		return err
	}
	for _, e := range ended {
		for _, location := range e.Staging {
			if location != "" && !committed[location] {
				if err := d.Storage.Discard(ctx, location); err != nil {
					return err
				}
			}
		}
	}
	return d.forgetStaging(ctx, org, ended)
}
