package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// DecideRequest is what a person decides over the newest revision of a partition, in place of its checks.
type DecideRequest struct {
	Partition string `json:"partition" minLength:"1" maxLength:"200"`
	Version   string `json:"version,omitempty" maxLength:"64" doc:"live (default), candidate, the number of a DAG version, or a dataset version"`
	Reason    string `json:"reason" minLength:"1" maxLength:"500" doc:"Kept in the audit log"`
}

// Decided is a revision that a person decided over.
type Decided struct {
	Dataset   string    `json:"dataset"`
	Version   uuid.UUID `json:"dataset_version"`
	Partition string    `json:"partition"`
	Revision  int64     `json:"revision"`
	State     string    `json:"state" enum:"Published,Rejected"`
	Why       string    `json:"why,omitempty" doc:"The checks that had failed"`
}

// Accept publishes the newest revision of a partition although its checks failed, or have not decided: from its commit on
// readers see it and consumers are told.
func (d *Dispatcher) Accept(ctx context.Context, caller authz.Caller, name string, req DecideRequest) (Decided, error) {
	decided, err := d.decide(ctx, caller, name, req, "accept", d.acceptTx)
	if err != nil {
		return Decided{}, fmt.Errorf("accept partition %q of %s: %w", req.Partition, name, err)
	}
	return decided, nil
}

// Reject keeps the newest revision of a partition, which its checks have not decided over, from ever being seen.
func (d *Dispatcher) Reject(ctx context.Context, caller authz.Caller, name string, req DecideRequest) (Decided, error) {
	decided, err := d.decide(ctx, caller, name, req, "reject", func(ctx context.Context, tx pgx.Tx, w registry.Withholding, _ time.Time) error {
		if w.State == "Rejected" {
			return fault.New(fault.Conflict, "revision %d is rejected already", w.Revision.Revision)
		}
		return registry.RejectHeld(ctx, tx, w.Ref, w.Revision.Revision)
	})
	if err != nil {
		return Decided{}, fmt.Errorf("reject partition %q of %s: %w", req.Partition, name, err)
	}
	return decided, nil
}

// decide runs on the owner's pool: to publish rows of Postgres storage takes rights that requests do not have. Locks are
// taken in the order of completions: the DAG, the task, the revision.
func (d *Dispatcher) decide(ctx context.Context, caller authz.Caller, name string, req DecideRequest, verb string,
	act func(context.Context, pgx.Tx, registry.Withholding, time.Time) error) (Decided, error) {
	var (
		decided Decided
		now     = time.Now()
	)
	err := pg.InOrgTx(ctx, d.Pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		w, err := d.Registry.WithheldRevision(ctx, tx, caller, name, req.Version, req.Partition)
		if err != nil {
			return err
		}
		if err := registry.LockDAGsShared(ctx, tx, []string{w.Job.LockKey()}); err != nil {
			return err
		}
		if err := d.endChecks(ctx, tx, caller, w, now); err != nil {
			return err
		}
		// It may have been decided, or followed by another, before the locks were held.
		if again, err := d.Registry.WithheldRevision(ctx, tx, caller, name, req.Version, req.Partition); err != nil {
			return err
		} else if again.Revision.Revision != w.Revision.Revision || again.State != w.State {
			return fault.New(fault.Conflict, "partition %q changed meanwhile", req.Partition).WithHint("look at it again")
		}
		why, err := registry.FailedChecks(ctx, tx, w.Ref, w.Revision.Revision)
		if err != nil {
			return err
		}
		if err := act(ctx, tx, w, now); err != nil {
			return err
		}
		decided = Decided{Dataset: w.Dataset.Name, Version: w.Ref.Version, Partition: w.Key, Revision: w.Revision.Revision, Why: why,
			State: map[string]string{"accept": "Published", "reject": "Rejected"}[verb]}
		return authz.Audit(ctx, tx, caller, "dataset."+verb, w.Dataset.Name+" "+w.Key, map[string]any{"dataset_version": w.Ref.Version,
			"revision": w.Revision.Revision, "before": w.State, "after": decided.State, "failed_checks": why, "reason": req.Reason})
	})
	if err == nil {
		d.wake.send(append(d.progressed(), topicRoute)...)
	}
	return decided, err
}

// endChecks gives up the check of a revision that is not running: a person decides. One that runs will find that there is
// nothing left to decide, and records what it found.
func (d *Dispatcher) endChecks(ctx context.Context, tx pgx.Tx, caller authz.Caller, w registry.Withholding, now time.Time) error {
	if err := lockOrigins(ctx, tx, ids(w.Job.Origin)); err != nil {
		return err
	}
	check, err := checkTask(w.Job, w.Output, w.Key, w.Revision.Revision, classLive)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT id FROM tasks WHERE org_id = $1 AND job_id = $2 AND slot = $3 AND kind = 'check' AND status IN ('Queued', 'Failed') ORDER BY id`,
		caller.OrgID, w.Job.Origin, check.slot)
	if err != nil {
		return fmt.Errorf("find checks: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find checks: %w", err)
	}
	for _, id := range open {
		row, err := lockTask(ctx, tx, Fence{TaskID: id})
		if err != nil {
			return err
		}
		if row.status != "Queued" && row.status != "Failed" {
			continue
		}
		if err := d.finish(ctx, tx, row, ending{status: "Canceled", reason: reasonSkipped, message: "a person decided", actor: caller.Actor}, now); err != nil {
			return err
		}
	}
	return nil
}

// acceptTx publishes a revision that is held, or was rejected. Postgres storage has its rows in the attempt's staging table
// until then; where gc has taken them, long after the rejection, there is nothing left to accept.
func (d *Dispatcher) acceptTx(ctx context.Context, tx pgx.Tx, w registry.Withholding, now time.Time) error {
	number := w.Revision.Revision
	if err := d.Storage.Verify(ctx, w.Manifest); err != nil {
		if fault.Is(err, fault.NotFound) {
			return fault.New(fault.Conflict, "the rows of revision %d are gone: %w", number, err).WithHint("run the task again")
		}
		return err
	}
	if err := mayContinue(ctx, tx, w); err != nil {
		return err
	}
	if err := registry.HoldAgain(ctx, tx, w.Ref, number); err != nil {
		return err
	}
	if _, held, err := registry.LockHeld(ctx, tx, w.Ref, number); err != nil || !held {
		return errors.Join(err, fault.New(fault.Conflict, "revision %d is not held any more", number))
	}
	published, err := registry.PublishHeld(ctx, tx, w.Ref, number)
	if err != nil {
		return err
	}
	if !published {
		return fault.New(fault.Conflict, "a newer revision than %d is published", number)
	}
	attempt := storage.Attempt{Generation: w.Job.Outputs[w.Output].Generation, Partition: writtenAt(w.Job, w.Key), Task: w.TaskID, Number: w.Attempt, Output: w.Output}
	if err := d.Storage.Publish(ctx, tx, attempt, number, w.Manifest); err != nil {
		return err
	}
	e, err := asSegment(ctx, tx, w.Job.Def.PartitionBy, Event{ID: uuid.Must(uuid.NewV7()), OrgID: w.Job.OrgID, Dataset: w.Revision.Dataset,
		Version: w.Ref.Version, Key: w.Key, Revision: number, Producer: w.TaskID})
	if err != nil {
		return err
	}
	return accept(ctx, tx, []Event{e}, now)
}
