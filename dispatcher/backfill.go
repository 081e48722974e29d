package dispatcher

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// BackfillRequest says which partitions of a job to compute, and what with those that are there.
type BackfillRequest struct {
	Job         string `json:"job" maxLength:"63"`
	From        string `json:"from" maxLength:"200" doc:"First partition"`
	To          string `json:"to" maxLength:"200" doc:"Last partition, which is computed too"`
	Existing    string `json:"existing,omitempty" enum:"skip,failed,all" doc:"Compute what is not there (skip, the default), that and what failed for good (failed), or all"`
	Propagate   string `json:"propagate,omitempty" enum:"none,once,each" doc:"Consumers follow each partition (each, the default), once at the end, or not at all"`
	Concurrency int    `json:"concurrency,omitempty" minimum:"1" maximum:"1000" doc:"Tasks at once; 4 where it is left out"`
}

// Backfill is one tracked computation of a job's partitions.
type Backfill struct {
	ID          uuid.UUID  `json:"id"`
	DAG         string     `json:"dag"`
	Job         string     `json:"job"`
	From        string     `json:"from"`
	To          string     `json:"to"`
	Existing    string     `json:"existing"`
	Propagate   string     `json:"propagate"`
	Concurrency int        `json:"concurrency"`
	Status      string     `json:"status" enum:"Running,Completed,Failed,Canceled"`
	CreatedBy   string     `json:"created_by"`
	CreatedAt   time.Time  `json:"created_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	Pending     int        `json:"pending" doc:"Partitions without a task yet"`
	Open        int        `json:"open" doc:"Partitions whose task is queued, running or waiting for a retry"`
	Done        int        `json:"done"`
	Skipped     int        `json:"skipped" doc:"Partitions whose task was canceled, or had nothing to read"`
	Failed      int        `json:"failed" doc:"Partitions whose task failed for good"`
}

// wantedPartition is a partition to be computed, with what its task is given.
type wantedPartition struct {
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// StartBackfill has partitions of a job of the active version computed, a few at a time, after live work and builds.
func (d *Dispatcher) StartBackfill(ctx context.Context, caller authz.Caller, dagName string, req BackfillRequest, now time.Time) (Backfill, error) {
	req.Existing, req.Propagate = cmp.Or(req.Existing, "skip"), cmp.Or(req.Propagate, "each")
	req.Concurrency = cmp.Or(req.Concurrency, 4)
	id := uuid.Must(uuid.NewV7())
	var job *registry.Job
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		job, err = d.Registry.ActiveJob(ctx, tx, caller.OrgID, dagName, req.Job)
		return err
	})
	var wanted []wantedPartition
	if err == nil {
		wanted, err = d.backfillable(ctx, job, req, now)
	}
	if err != nil {
		return Backfill{}, fmt.Errorf("backfill %s/%s: %w", dagName, req.Job, err)
	}
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAGsShared(ctx, tx, []string{job.LockKey()}); err != nil {
			return err
		}
		if active, err := d.Registry.ActiveJob(ctx, tx, caller.OrgID, dagName, req.Job); err != nil {
			return err
		} else if active.Origin != job.Origin {
			return fault.New(fault.Conflict, "the job has just been changed").WithHint("try again")
		}
		left, err := leftToBackfill(ctx, tx, job, wanted, req.Existing)
		if err != nil {
			return err
		}
		if err := insertBackfill(ctx, tx, caller, id, job, req, left, now); err != nil {
			return err
		}
		return authz.Audit(ctx, tx, caller, "job.backfill", job.Address(), map[string]any{"id": id, "request": req, "partitions": len(left)})
	})
	if err != nil {
		return Backfill{}, fmt.Errorf("backfill %s/%s: %w", dagName, req.Job, err)
	}
	return d.Backfill(ctx, caller, dagName, id)
}

// backfillable lists the partitions between two keys that the job can compute: what its source has, what its schedule would
// have made, or what its inputs feed.
func (d *Dispatcher) backfillable(ctx context.Context, job *registry.Job, req BackfillRequest, now time.Time) ([]wantedPartition, error) {
	by := job.Def.PartitionBy
	for _, key := range []string{req.From, req.To} {
		if err := by.Valid(key); err != nil {
			return nil, err
		}
	}
	if len(job.Outputs) == 0 || job.Def.Effect == dag.EffectExternal {
		return nil, fault.New(fault.Invalid, "what it does is done outside, and is not done again")
	}
	if by.Kind == dag.ByCursor {
		return nil, fault.New(fault.Invalid, "its segments follow each other, and are not made one by one").
			WithHint("`dagctl invalidate` has those from a position on read again")
	}
	if readsNew(job) && req.Existing == "all" {
		return nil, fault.New(fault.Invalid, "it appends what it has not read yet, so there is nothing to compute again").
			WithHint("`dagctl rematerialize` computes the dataset anew as a whole")
	}
	var all []wantedPartition
	op, enumerable := d.enumerator(job)
	switch {
	case enumerable:
		units, err := op.Enumerate(ctx, operators.Enumeration{Config: job.Def.Config, PartitionBy: by, Roots: d.Roots(job.OrgSlug, job.DAG), Now: now})
		if err != nil {
			return nil, fmt.Errorf("enumerate: %w", err)
		}
		for _, u := range units {
			all = append(all, wantedPartition{u.Partition, u.Payload})
		}
	case job.Def.Source != nil && job.Def.Source.Kind == "cron" && by.Kind == dag.ByTime:
		start, _, err := by.Bounds(req.From)
		if err != nil {
			return nil, err
		}
		_, end, err := by.Bounds(req.To)
		if err != nil {
			return nil, err
		}
		for _, key := range by.KeysBetween(start, end) {
			_, at, err := by.Bounds(key)
			if err != nil {
				return nil, err
			}
			payload, err := json.Marshal(map[string]string{"scheduled_at": at.UTC().Format(time.RFC3339)})
			if err != nil {
				return nil, err
			}
			all = append(all, wantedPartition{key, payload})
		}
	case job.Def.Source != nil:
		return nil, fault.New(fault.Invalid, "what it read is past: its source keeps nothing that could be read again")
	default:
		var targets []target
		err := pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) (err error) {
			targets, err = d.allTargets(ctx, tx, job)
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, t := range targets {
			all = append(all, wantedPartition{Key: t.key})
		}
	}
	return slices.DeleteFunc(all, func(p wantedPartition) bool { return !between(by, req.From, req.To, p.Key) }), nil
}

// between compares keys as what they name: ranges by number, the others as text, which is the order of time for times.
func between(by dag.Partitioning, from, to, key string) bool {
	if by.Kind != dag.ByRange && by.Kind != dag.ByCursor {
		return from <= key && key <= to
	}
	first, _, err1 := by.Range(from)
	_, last, err2 := by.Range(to)
	start, end, err3 := by.Range(key)
	return errors.Join(err1, err2, err3) == nil && first <= start && end <= last
}

// leftToBackfill leaves out what is there already, as far as existing says so.
func leftToBackfill(ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []wantedPartition, existing string) ([]wantedPartition, error) {
	if existing == "all" {
		return wanted, nil
	}
	generation := job.Outputs[0].Generation.Version
	published, err := registry.Published(ctx, tx, []uuid.UUID{generation})
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT slot FROM waiting WHERE job_id = $1 AND reason = 'dead'`, job.Origin)
	if err != nil {
		return nil, fmt.Errorf("find dead tasks: %w", err)
	}
	dead, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("find dead tasks: %w", err)
	}
	return slices.DeleteFunc(wanted, func(p wantedPartition) bool {
		if slices.Contains(dead, p.Key) {
			return existing == "skip"
		}
		_, there := published[generation][p.Key]
		return there
	}), nil
}

func insertBackfill(ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID, job *registry.Job, req BackfillRequest, wanted []wantedPartition, now time.Time) error {
	generations := make([]uuid.UUID, len(job.Outputs))
	for i, o := range job.Outputs {
		generations[i] = o.Generation.Version
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO backfills (id, org_id, dag_name, job_name, job_id, dataset_versions, from_key, to_key, existing, propagate, concurrency, created_by, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`, id, caller.OrgID, job.DAG, job.Name, job.Origin, generations,
		req.From, req.To, req.Existing, req.Propagate, req.Concurrency, caller.Actor, now); err != nil {
		return fmt.Errorf("insert backfill: %w", err)
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO backfill_partitions (backfill_id, org_id, partition_key, payload)
		SELECT $1, $2, w.key, NULLIF(w.payload, 'null') FROM jsonb_to_recordset($3) AS w(key text, payload jsonb)`, id, caller.OrgID, list(wanted))
	if err != nil {
		return fmt.Errorf("insert backfill: %w", err)
	}
	return nil
}

func list(wanted []wantedPartition) []wantedPartition {
	if wanted == nil {
		return []wantedPartition{}
	}
	return wanted
}

const backfillColumns = `b.id, b.dag_name, b.job_name, b.from_key, b.to_key, b.existing, b.propagate, b.concurrency, b.status, b.created_by, b.created_at, b.ended_at,
	n.pending, n.open, n.done, n.skipped, n.failed`

const backfillCounts = ` CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE state = 'Pending') AS pending, count(*) FILTER (WHERE state = 'Open') AS open, count(*) FILTER (WHERE state = 'Done') AS done,
	       count(*) FILTER (WHERE state = 'Skipped') AS skipped, count(*) FILTER (WHERE state = 'Failed') AS failed
	FROM backfill_partitions p WHERE p.backfill_id = b.id) AS n`

// Backfill tells how one stands.
func (d *Dispatcher) Backfill(ctx context.Context, caller authz.Caller, dagName string, id uuid.UUID) (b Backfill, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+backfillColumns+` FROM backfills b`+backfillCounts+`
			WHERE b.org_id = $1 AND b.dag_name = $2 AND b.id = $3`, caller.OrgID, dagName, id)
		if err != nil {
			return err
		}
		b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Backfill])
		if errors.Is(err, pgx.ErrNoRows) {
			return fault.New(fault.NotFound, "%s has no backfill %s", dagName, id)
		}
		return err
	})
	if err != nil {
		return b, fmt.Errorf("backfill: %w", err)
	}
	return b, nil
}

// Backfills lists a DAG's, the newest first, beginning before an id.
func (d *Dispatcher) Backfills(ctx context.Context, caller authz.Caller, dagName string, before uuid.UUID, limit int) (found []Backfill, err error) {
	err = pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+backfillColumns+` FROM backfills b`+backfillCounts+`
			WHERE b.org_id = $1 AND b.dag_name = $2 AND ($3 OR b.id < $4) ORDER BY b.id DESC LIMIT $5`, // idx_backfills_dag
			caller.OrgID, dagName, before == uuid.Nil, before, limit)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Backfill])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list backfills of %s: %w", dagName, err)
	}
	return found, nil
}

// CancelBackfill makes no more tasks of it; those that are open come to their end.
func (d *Dispatcher) CancelBackfill(ctx context.Context, caller authz.Caller, dagName string, id uuid.UUID, now time.Time) (Backfill, error) {
	err := pg.InOrgTx(ctx, d.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE backfills SET status = 'Canceled', ended_at = $4
			WHERE org_id = $1 AND dag_name = $2 AND id = $3 AND status = 'Running'`, caller.OrgID, dagName, id, now)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.Conflict, "no backfill %s of %s is running", id, dagName)
		}
		return authz.Audit(ctx, tx, caller, "job.backfill_cancel", id.String(), nil)
	})
	if err != nil {
		return Backfill{}, fmt.Errorf("cancel backfill: %w", err)
	}
	return d.Backfill(ctx, caller, dagName, id)
}
