package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
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

// Accept publishes the newest revision of a partition although its checks failed or have not decided. Once it commits,
// readers see the revision and consumers run.
func (ctl *Control) Accept(ctx context.Context, caller authz.Caller, name string, req DecideRequest) (Decided, error) {
	decided, err := ctl.decide(ctx, caller, name, req, "accept", ctl.acceptTx)
	if err != nil {
		return Decided{}, fmt.Errorf("accept partition %q of %s: %w", req.Partition, name, err)
	}
	return decided, nil
}

// Reject keeps readers from ever seeing the newest revision of a partition, on which its checks have not decided.
func (ctl *Control) Reject(ctx context.Context, caller authz.Caller, name string, req DecideRequest) (Decided, error) {
	decided, err := ctl.decide(ctx, caller, name, req, "reject", rejectTx)
	if err != nil {
		return Decided{}, fmt.Errorf("reject partition %q of %s: %w", req.Partition, name, err)
	}
	return decided, nil
}

// decide carries out act on the newest withheld revision of a partition, and records it. It runs on the owner's pool,
// because requests may not publish rows of Postgres storage, once a request has found the revision. It takes
// locks in the order of completions: the DAG, the task, the revision.
func (ctl *Control) decide(
	ctx context.Context, caller authz.Caller, name string, req DecideRequest, verb string,
	act func(context.Context, pgx.Tx, registry.Withholding, time.Time) error,
) (Decided, error) {
	var (
		decided Decided
		now     = clock.Now()
	)

	find := func(ctx context.Context, tx pgx.Tx) error {
		_, err := ctl.registry.WithheldRevision(ctx, tx, caller, name, req.Version, req.Partition)
		return err
	}
	if err := pg.InOrgTx(ctx, ctl.requests, caller.OrgID, find); err != nil {
		return Decided{}, err
	}

	err := pg.InOrgTx(ctx, ctl.pool, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		w, err := ctl.registry.WithheldRevision(ctx, tx, caller, name, req.Version, req.Partition)
		if err != nil {
			return err
		}
		if err := registry.LockDAGShared(ctx, tx, w.Job.OrgID, w.Job.DAG); err != nil {
			return err
		}
		if err := ctl.endChecks(ctx, tx, caller, w, now); err != nil {
			return err
		}

		// The checks may have decided, or a newer revision come, before the locks were held.
		again, err := ctl.registry.WithheldRevision(ctx, tx, caller, name, req.Version, req.Partition)
		if err != nil {
			return err
		}
		if again.Revision.Revision != w.Revision.Revision || again.State != w.State {
			return fault.New(fault.Conflict, "partition %q changed meanwhile", req.Partition).
				WithHint("look at it again")
		}

		why, err := refusedFor(ctx, tx, w)
		if err != nil {
			return err
		}
		if err := act(ctx, tx, w, now); err != nil {
			return err
		}

		decided = Decided{
			Dataset: w.Dataset.Name, Version: w.Ref.Version, Partition: w.Key, Revision: w.Revision.Revision, Why: why,
			State: map[string]string{"accept": "Published", "reject": "Rejected"}[verb],
		}
		detail := map[string]any{
			"dataset_version": w.Ref.Version, "revision": w.Revision.Revision,
			"before": w.State, "after": decided.State, "failed_checks": why, "reason": req.Reason,
		}
		return authz.Audit(ctx, tx, caller, "dataset."+verb, w.Dataset.Name+" "+w.Key, detail)
	})
	if err == nil {
		ctl.wake.Send(append(ctl.dispatcher.Progressed(), wakeup.Route)...)
	}
	return decided, err
}

// refusedFor says which checks keep a revision back. Checks of a version on its way leave no results of a revision that
// readers see, so these are only named.
func refusedFor(ctx context.Context, tx pgx.Tx, w registry.Withholding) (string, error) {
	if w.State != "Published" {
		return deploy.FailedChecks(ctx, tx, w.Job, w.Output, w.Ref, w.Revision.Revision)
	}
	checks, hashes := errorChecks(w)
	open, err := registry.Unchecked(ctx, tx, []registry.Demand{{Generation: w.Ref.Version, Checks: hashes}})
	if err != nil {
		return "", err
	}

	var names []string
	for _, r := range open {
		for _, c := range checks {
			if r.Key == w.Key && slices.Contains(r.Checks, c.Hash()) {
				names = append(names, c.Name)
			}
		}
	}
	if len(names) == 0 {
		return "", fault.New(fault.Conflict, "revision %d of partition %q of %s is Published, and no check of the "+
			"version on its way refuses it", w.Revision.Revision, w.Key, w.Dataset.Name).
			WithHint("`dagctl datasets get %s` lists what is withheld", w.Dataset.Name)
	}
	return strings.Join(names, ", "), nil
}

// errorChecks returns the checks that hold a revision back, and their hashes.
func errorChecks(w registry.Withholding) (checks []dag.Check, hashes []string) {
	all, _ := dispatcher.ChecksOf(w.Job, w.Output)
	for _, c := range all {
		if c.Severity == "error" {
			checks, hashes = append(checks, c), append(hashes, c.Hash())
		}
	}
	return checks, hashes
}

// endChecks cancels the check tasks of a revision that do not run, because a person decides in their place. A running
// check finds that the revision is decided, and only records its result.
func (ctl *Control) endChecks(
	ctx context.Context, tx pgx.Tx, caller authz.Caller, w registry.Withholding, now time.Time,
) error {
	if err := tasks.LockOrigins(ctx, tx, []uuid.UUID{w.Job.Origin}); err != nil {
		return err
	}

	check, err := dispatcher.CheckTask(w.Job, w.Output, w.Key, w.Revision.Revision, tasks.ClassLive)
	if err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `
		SELECT id FROM tasks
		WHERE org_id = $1 AND job_id = $2 AND slot = $3 AND kind = 'check' AND status IN ('Queued', 'Failed')
		ORDER BY id`,
		caller.OrgID, w.Job.Origin, check.Slot)
	if err != nil {
		return fmt.Errorf("find checks: %w", err)
	}
	open, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("find checks: %w", err)
	}

	for _, id := range open {
		row, err := tasks.LockTask(ctx, tx, tasks.Fence{TaskID: id})
		if err != nil {
			return err
		}
		if row.Status != tasks.Queued && row.Status != tasks.Failed {
			continue
		}
		ended := []tasks.Ended{{Row: row, Ending: tasks.Ending{
			Status: tasks.Canceled, Reason: tasks.ReasonSkipped, Message: "a person decided", Actor: caller.Actor,
		}}}
		if err := ctl.tasks.Finish(ctx, tx, new(pg.Batch), ended, nil, now); err != nil {
			return err
		}
	}
	return nil
}

// rejectTx rejects a revision that is held.
func rejectTx(ctx context.Context, tx pgx.Tx, w registry.Withholding, _ time.Time) error {
	switch w.State {
	case "Rejected":
		return fault.New(fault.Conflict, "revision %d is already rejected", w.Revision.Revision)
	case "Published":
		return fault.New(fault.Conflict, "readers see revision %d: only a held revision can be rejected",
			w.Revision.Revision)
	}
	return registry.RejectHeld(ctx, tx, w.Ref, w.Revision.Revision)
}

// acceptTx publishes a revision that is held or was rejected. Gc removes its rows long after a rejection, and then
// nothing is left to accept. One that readers see counts from now on as having passed the checks of the version on its
// way, which is then resumed.
func (ctl *Control) acceptTx(ctx context.Context, tx pgx.Tx, w registry.Withholding, now time.Time) error {
	number := w.Revision.Revision
	if w.State == "Published" {
		var b pg.Batch
		_, hashes := errorChecks(w)
		registry.RecordPassed(&b, w.Ref, number, hashes)
		return b.Send(ctx, tx)
	}
	if err := ctl.storage.Verify(ctx, w.Manifest); err != nil {
		if fault.Is(err, fault.NotFound) {
			return fault.New(fault.Conflict, "the rows of revision %d are gone: %w", number, err).
				WithHint("run the task again")
		}
		return err
	}

	if err := stale.MayContinue(ctx, tx, w); err != nil {
		return err
	}

	var b pg.Batch
	if err := ctl.dispatcher.PublishWithheld(ctx, tx, &b, w, now); err != nil {
		return err
	}

	// What a person accepts counts as having passed the checks that held it.
	var hashes []string
	checks, _ := dispatcher.ChecksOf(w.Job, w.Output)
	for _, c := range checks {
		hashes = append(hashes, c.Hash())
	}
	registry.RecordPassed(&b, w.Ref, number, hashes)
	return b.Send(ctx, tx)
}
