package control

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
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// BackfillRequest selects the partitions of a job to compute, and says what to do with those that exist.
type BackfillRequest struct {
	Job  string `json:"job" maxLength:"63"`
	From string `json:"from" maxLength:"200" doc:"First partition"`
	To   string `json:"to" maxLength:"200" doc:"Last partition, which is computed too"`

	Existing  string `json:"existing,omitempty" enum:"skip,failed,all" doc:"Compute the partitions that do not exist (skip, the default), these and those that failed for good (failed), or all"`
	Propagate string `json:"propagate,omitempty" enum:"none,once,each" doc:"Consumers follow each partition (each, the default), once at the end (once), or not at all (none)"`

	Concurrency int `json:"concurrency,omitempty" minimum:"1" maximum:"1000" doc:"Tasks at once; default 4"`

	DryRun bool `json:"dry_run,omitempty" doc:"Only count the partitions: pending in the answer, which has no id then"`
}

// Backfill is one tracked computation of a job's partitions.
type Backfill struct {
	ID          uuid.UUID  `json:"id,omitzero" doc:"Absent after a dry run"`
	DAG         string     `json:"dag"`
	Job         string     `json:"job"`
	From        string     `json:"from"`
	To          string     `json:"to"`
	Existing    string     `json:"existing"`
	Propagate   string     `json:"propagate"`
	Concurrency int        `json:"concurrency"`
	Status      string     `json:"status" enum:"Running,Completed,Failed,Canceled" doc:"Empty after a dry run"`
	CreatedBy   string     `json:"created_by"`
	CreatedAt   time.Time  `json:"created_at"`
	EndedAt     *time.Time `json:"ended_at,omitempty"`
	Reason      string     `json:"reason,omitempty" doc:"Why it ended before it was through"`
	Pending     int        `json:"pending" doc:"Partitions without a task; of a backfill that has ended, they get none"`
	Open        int        `json:"open" doc:"Partitions whose task is queued, running or waiting for a retry"`
	Done        int        `json:"done"`
	Skipped     int        `json:"skipped" doc:"Partitions whose task was canceled, or had nothing to read"`
	Failed      int        `json:"failed" doc:"Partitions whose task failed for good"`
}

// wantedPartition is a partition to compute, with the payload of its task.
type wantedPartition struct {
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// StartBackfill begins to compute partitions of a job of the active version, a few at a time, after live work and
// builds. A dry run begins nothing, and returns how many there are.
func (ctl *Control) StartBackfill(
	ctx context.Context, caller authz.Caller, dagName string, req BackfillRequest, now time.Time,
) (Backfill, error) {
	req.Existing, req.Propagate = cmp.Or(req.Existing, "skip"), cmp.Or(req.Propagate, "each")
	req.Concurrency = cmp.Or(req.Concurrency, 4)
	id := uuid.Must(uuid.NewV7())

	var job *registry.Job
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err := registry.RequireShown(ctx, tx, caller, dagName, req.Job); err != nil {
			return err
		}
		job, err = ctl.registry.ActiveJob(ctx, tx, caller.OrgID, dagName, req.Job)
		return err
	})

	var wanted []wantedPartition
	if err == nil {
		wanted, err = ctl.backfillable(ctx, job, req, now)
	}
	if err != nil {
		return Backfill{}, fmt.Errorf("backfill %s/%s: %w", dagName, req.Job, err)
	}

	var left []wantedPartition
	var begun Backfill // as the transaction sees it: after it, its job may be hidden from the caller
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockDAGShared(ctx, tx, job.OrgID, job.DAG); err != nil {
			return err
		}
		if active, err := ctl.registry.ActiveJob(ctx, tx, caller.OrgID, dagName, req.Job); err != nil {
			return err
		} else if active.Origin != job.Origin {
			return fault.New(fault.Conflict, "the job has just been changed").WithHint("try again")
		}
		if left, err = leftToBackfill(ctx, tx, job, wanted, req.Existing); err != nil || req.DryRun {
			return err
		}
		if err := insertBackfill(ctx, tx, caller, id, job, req, left, now); err != nil {
			return err
		}
		detail := map[string]any{"id": id, "request": req, "partitions": len(left)}
		if err := authz.Audit(ctx, tx, caller, "job.backfill", job.Address(), detail); err != nil {
			return err
		}
		begun, err = backfillOf(ctx, tx, caller, dagName, id)
		return err
	})
	if err != nil {
		return Backfill{}, fmt.Errorf("backfill %s/%s: %w", dagName, req.Job, err)
	}
	if req.DryRun {
		return Backfill{DAG: dagName, Job: req.Job, From: req.From, To: req.To, Existing: req.Existing,
			Propagate: req.Propagate, Concurrency: req.Concurrency, CreatedBy: caller.Actor, CreatedAt: now,
			Pending: len(left)}, nil
	}
	return begun, nil
}

// backfillable lists the partitions between two keys that the job can compute: those that its source has, that its
// schedule would have made, or that its inputs feed.
func (ctl *Control) backfillable(
	ctx context.Context, job *registry.Job, req BackfillRequest, now time.Time,
) (all []wantedPartition, err error) {
	if err := req.check(job, now); err != nil {
		return nil, err
	}

	by := job.Def.PartitionBy
	op, enumerable := ctl.sources.Enumerator(job)
	switch {
	case enumerable:
		all, err = ctl.enumeratedPartitions(ctx, job, op, now)
	case job.Def.Source != nil && job.Def.Source.Kind == "cron" && by.Kind == dag.ByTime:
		all, err = scheduledPartitions(by, req)
	case job.Def.Source != nil:
		err = fault.New(fault.Invalid, "the source of %s keeps nothing that could be read again", job.Address()).
			WithHint("%s; `first_partition` says from which one on it makes those that it is asked for", givenBy(job))
	default:
		all, err = ctl.fedPartitions(ctx, job)
	}
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p wantedPartition) bool {
		return !views.Between(by, req.From, req.To, p.Key)
	})
	return all, req.refuseMany(int64(len(all)))
}

// givenBy says what makes the partitions of a source that lists none. It is pure.
func givenBy(job *registry.Job) string {
	switch job.Def.Source.Kind {
	case "manual":
		return fmt.Sprintf("a person makes each: `dagctl run %s --partition K`", job.Address())
	case "timer":
		return fmt.Sprintf("timers make them: `dagctl timers create %s`", job.Address())
	}
	return "its partitions come from what it is given: a delivery for each"
}

// maxBackfill is how many partitions one backfill computes at most: all hours of eleven years. They are listed in
// memory and written in one transaction.
const maxBackfill = 100_000

// refuseMany refuses a backfill of too many partitions.
func (req BackfillRequest) refuseMany(count int64) error {
	if count <= maxBackfill {
		return nil
	}
	return fault.New(fault.Invalid, "there are %d partitions from %s to %s, and one backfill computes %d at most",
		count, req.From, req.To, maxBackfill).
		WithHint("look for a mistyped year, or split the range into several backfills, one after the other")
}

// check returns what keeps a job from being backfilled as requested.
func (req BackfillRequest) check(job *registry.Job, now time.Time) error {
	by := job.Def.PartitionBy
	for _, key := range []string{req.From, req.To} {
		if err := by.Valid(key); err != nil {
			return err
		}
	}
	if reversed, err := by.Precedes(req.To, req.From); err == nil && reversed { // no error: there are partitions
		return fault.New(fault.Invalid, "the first partition, %s, comes after the last one, %s", req.From, req.To).
			WithHint("swap --from and --to")
	}
	for _, key := range []string{req.From, req.To} {
		if err := job.Def.RefuseAsking(key, now); err != nil {
			return err
		}
	}

	switch {
	case len(job.Outputs) == 0 || job.Def.Effect == dag.EffectExternal:
		return fault.New(fault.Invalid, "%s acts outside dagctl, which no backfill does", job.Address()).
			WithHint("`dagctl invalidate` makes a partition of its input newer, and it runs for that, as all " +
				"readers do")
	case job.Def.Splits():
		hint := "`dagctl rematerialize` makes all of them again"
		if job.Def.Source != nil {
			hint = fmt.Sprintf("`dagctl run %s` reads it now, and %s", job.Address(), hint)
		}
		return fault.New(fault.Invalid, "its rows are split: one task makes all partitions").WithHint("%s", hint)
	case by.Kind == dag.ByCursor:
		return fault.New(fault.Invalid, "its segments follow each other, and are not made one by one").
			WithHint("`dagctl invalidate` makes it read those from a position on again")
	case stale.ReadsNew(job) && req.Existing == "all":
		return fault.New(fault.Invalid, "it appends what it has not read yet, so there is nothing to compute again").
			WithHint("`dagctl rematerialize` computes the whole dataset again")
	}
	return nil
}

// enumeratedPartitions lists what the source of a job has.
func (ctl *Control) enumeratedPartitions(
	ctx context.Context, job *registry.Job, op operators.Enumerator, now time.Time,
) (all []wantedPartition, err error) {
	units, err := ctl.sources.Units(ctx, job, op, now)
	if err != nil {
		return nil, err
	}
	for _, u := range units {
		all = append(all, wantedPartition{u.Partition, u.Payload})
	}
	return all, nil
}

// scheduledPartitions lists what a schedule would have made between the two keys of a request.
func scheduledPartitions(by dag.Partitioning, req BackfillRequest) (all []wantedPartition, err error) {
	count, err := by.CountBetween(req.From, req.To)
	if err != nil {
		return nil, err
	}
	if err := req.refuseMany(count); err != nil {
		return nil, err
	}
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
	return all, nil
}

// fedPartitions lists what the inputs of a job feed.
func (ctl *Control) fedPartitions(ctx context.Context, job *registry.Job) (all []wantedPartition, err error) {
	var targets []stale.Target
	err = pg.InTx(ctx, ctl.pool, func(ctx context.Context, tx pgx.Tx) (err error) {
		targets, err = ctl.stale.AllTargets(ctx, tx, job)
		return err
	})
	for _, t := range targets {
		all = append(all, wantedPartition{Key: t.Key})
	}
	return all, err
}

// leftToBackfill removes the partitions that exist and that a request does not want again.
func leftToBackfill(
	ctx context.Context, tx pgx.Tx, job *registry.Job, wanted []wantedPartition, existing string,
) ([]wantedPartition, error) {
	if existing == "all" {
		return wanted, nil
	}

	generation := job.Outputs[0].Generation.Version
	published, err := registry.Published(new(pg.Batch), []uuid.UUID{generation}).Get(ctx, tx)
	if err != nil {
		return nil, err
	}
	rows, err := tx.Query(ctx, `SELECT slot FROM waiting WHERE origin_job_id = $1 AND reason = 'dead'`, job.Origin)
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

func insertBackfill(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, id uuid.UUID, job *registry.Job, req BackfillRequest,
	wanted []wantedPartition, now time.Time,
) error {
	generations := make([]uuid.UUID, len(job.Outputs))
	for i, o := range job.Outputs {
		generations[i] = o.Generation.Version
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO backfills (id, org_id, dag_name, job_name, job_id, dataset_versions,
			from_key, to_key, existing, propagate, concurrency, created_by, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`,
		id, caller.OrgID, job.DAG, job.Name, job.Origin, generations,
		req.From, req.To, req.Existing, req.Propagate, req.Concurrency, caller.Actor, now); err != nil {
		return fmt.Errorf("insert backfill: %w", err)
	}

	_, err := tx.Exec(ctx, `
		INSERT INTO backfill_partitions (backfill_id, org_id, partition_key, payload)
		SELECT $1, $2, w.key, NULLIF(w.payload, 'null') FROM jsonb_to_recordset($3) AS w(key text, payload jsonb)`,
		id, caller.OrgID, list(wanted))
	if err != nil {
		return fmt.Errorf("insert backfill: %w", err)
	}
	return nil
}

// list returns wanted, never nil, so that it is an array in JSON.
func list(wanted []wantedPartition) []wantedPartition {
	if wanted == nil {
		return []wantedPartition{}
	}
	return wanted
}

// jobOfBackfill is the name that the job of a backfill b has now, which may have been renamed.
const jobOfBackfill = `coalesce(split_part(job_address(b.job_id), '/', 2), b.job_name)`

const backfillColumns = `b.id, b.dag_name, ` + jobOfBackfill + `, b.from_key, b.to_key, b.existing, b.propagate,
	b.concurrency, b.status, b.created_by, b.created_at, b.ended_at, coalesce(b.reason, ''),
	n.pending, n.open, n.done, n.skipped, n.failed`

// backfillCounts counts the partitions of a backfill b. Nobody notes any more how the tasks end that a backfill leaves
// behind when it is canceled, so they are asked; retention removes only those that have ended.
const backfillCounts = ` CROSS JOIN LATERAL (
	SELECT count(*) FILTER (WHERE state = 'Pending') AS pending, count(*) FILTER (WHERE state = 'Open') AS open,
	       count(*) FILTER (WHERE state = 'Done') AS done, count(*) FILTER (WHERE state = 'Skipped') AS skipped,
	       count(*) FILTER (WHERE state = 'Failed') AS failed
	FROM (
		SELECT CASE WHEN p.state <> 'Open' OR b.status = 'Running' THEN p.state
			WHEN t.id IS NULL OR t.status = 'Completed' THEN 'Done' WHEN t.status = 'Canceled' THEN 'Skipped'
			WHEN EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason = 'dead') THEN 'Failed'
			ELSE 'Open' END AS state
		FROM backfill_partitions p LEFT JOIN tasks t ON p.state = 'Open' AND t.id = p.task_id
		WHERE p.backfill_id = b.id) AS p) AS n`

// Backfill returns a backfill of a DAG with its progress.
func (ctl *Control) Backfill(
	ctx context.Context, caller authz.Caller, dagName string, id uuid.UUID,
) (b Backfill, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) (err error) {
		b, err = backfillOf(ctx, tx, caller, dagName, id)
		return err
	})
	if err != nil {
		return b, fmt.Errorf("backfill: %w", err)
	}
	return b, nil
}

func backfillOf(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, dagName string, id uuid.UUID,
) (b Backfill, err error) {
	rows, err := tx.Query(ctx, `SELECT `+backfillColumns+` FROM backfills b`+backfillCounts+`
		WHERE b.org_id = $1 AND b.dag_name = $2 AND b.id = $3`, caller.OrgID, dagName, id)
	if err != nil {
		return b, err
	}
	b, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Backfill])
	if errors.Is(err, pgx.ErrNoRows) {
		return b, noBackfill(dagName, id)
	}
	if err != nil {
		return b, err
	}

	hidden, err := registry.IsHidden(ctx, tx, caller, dagName, b.Job)
	if err == nil && hidden {
		err = noBackfill(dagName, id)
	}
	return b, err
}

// Backfills lists a DAG's backfills older than an id, the newest first. It relies on idx_backfills_dag.
func (ctl *Control) Backfills(
	ctx context.Context, caller authz.Caller, dagName string, before uuid.UUID, limit int,
) (found []Backfill, err error) {
	err = pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT `+backfillColumns+` FROM backfills b`+backfillCounts+`
			WHERE b.org_id = $1 AND b.dag_name = $2 AND ($3 OR b.id < $4) ORDER BY b.id DESC LIMIT $5`,
			caller.OrgID, dagName, before == uuid.Nil, before, limit)
		if err != nil {
			return err
		}

		if found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Backfill]); err != nil {
			return err
		}
		found, err = outlined(ctx, tx, caller, found)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list backfills of %s: %w", dagName, err)
	}
	return found, nil
}

// outlined returns backfills of which those of hidden jobs tell only that they are, as tasks of hidden jobs do.
func outlined(ctx context.Context, tx pgx.Tx, caller authz.Caller, all []Backfill) ([]Backfill, error) {
	var dags, jobs []string
	for _, b := range all {
		dags, jobs = append(dags, b.DAG), append(jobs, b.Job)
	}
	hidden, err := registry.HiddenNames(ctx, tx, caller, dags, jobs)
	for i, b := range all {
		if hidden[b.DAG+"/"+b.Job] {
			all[i] = Backfill{ID: b.ID, DAG: b.DAG, Job: b.Job, Existing: b.Existing, Propagate: b.Propagate,
				Status: b.Status, CreatedAt: b.CreatedAt, EndedAt: b.EndedAt}
		}
	}
	return all, err
}

// noBackfill is the error about a backfill that does not exist, or whose job is hidden from the caller.
func noBackfill(dagName string, id uuid.UUID) error {
	return fault.New(fault.NotFound, "%s has no backfill %s", dagName, id)
}

// DAGOfBackfill returns the DAG of a backfill, named by both, for routes that act on backfills; see authz.Finder.
func (ctl *Control) DAGOfBackfill(ctx context.Context, caller authz.Caller, values ...string) (dag string, err error) {
	id, err := uuid.Parse(values[1])
	if err != nil {
		return values[0], nil // the handler says what is wrong with it
	}
	b, err := ctl.Backfill(ctx, caller, values[0], id)
	return b.DAG, err
}

// CancelBackfill stops making tasks for a backfill; its open tasks still run.
func (ctl *Control) CancelBackfill(
	ctx context.Context, caller authz.Caller, dagName string, id uuid.UUID, now time.Time,
) (Backfill, error) {
	var canceled Backfill
	err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := backfillOf(ctx, tx, caller, dagName, id); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `UPDATE backfills SET status = 'Canceled', ended_at = $4, reason = $5
			WHERE org_id = $1 AND dag_name = $2 AND id = $3 AND status = 'Running'`, caller.OrgID, dagName, id, now,
			"by "+caller.Actor)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return fault.New(fault.Conflict, "no backfill %s of %s is running", id, dagName)
		}

		if err := authz.Audit(ctx, tx, caller, "job.backfill_cancel", id.String(),
			authz.Change{Before: statusRunning, After: statusCanceled}); err != nil {
			return err
		}
		canceled, err = backfillOf(ctx, tx, caller, dagName, id)
		return err
	})
	if err != nil {
		return Backfill{}, fmt.Errorf("cancel backfill: %w", err)
	}
	return canceled, nil
}
