package builds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// A revision has passed a check if that very check, by its hash, passed on that very revision: what other checks, other
// revisions or other versions came to proves nothing. So before a version is ready, each revision that it would serve
// must have passed each of its error checks. Revisions that it computes are held until then; those that it reuses, and
// those that an earlier candidate computed, are checked here. The check tasks belong to the job's origin and carry the
// version's own job row: until the cutover, the checks of the version that serves decide what is published.

// uncheckedOutput is an output of a version with the revisions that have not passed all of its error checks.
type uncheckedOutput struct {
	job       *registry.Job // the version's own row
	output    int
	checks    []dag.Check
	revisions []registry.UncheckedRevision
}

// UncheckedOutputs finds the outputs of a version that have revisions which did not pass all of its error checks. A
// partition that a build takes over unchanged (forward-only) passed the checks of its time, and needs no others as long
// as its generation has not served.
func (bs *Builds) UncheckedOutputs(ctx context.Context, tx pgx.Tx, b registry.Build) ([]uncheckedOutput, error) {
	jobs, err := bs.registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return nil, err
	}

	var all []uncheckedOutput
	var demands []registry.Demand
	for _, job := range jobs {
		for output, o := range job.Outputs {
			checks := job.Def.ErrorChecks(output)
			if len(checks) == 0 {
				continue
			}
			demand := registry.Demand{Generation: o.Generation.Version}
			for _, c := range checks {
				demand.Checks = append(demand.Checks, c.Hash())
			}
			demands = append(demands, demand)
			all = append(all, uncheckedOutput{job: job, output: output, checks: checks})
		}
	}
	if len(demands) == 0 {
		return nil, nil
	}

	revisions, err := registry.Unchecked(ctx, tx, demands)
	if err != nil {
		return nil, err
	}
	of := map[uuid.UUID][]registry.UncheckedRevision{}
	for _, r := range revisions {
		of[r.Generation] = append(of[r.Generation], r)
	}
	for i := range all {
		all[i].revisions = of[demands[i].Generation]
	}
	return slices.DeleteFunc(all, func(o uncheckedOutput) bool { return len(o.revisions) == 0 }), nil
}

// newestUnchecked is the age below which a build does not wait for the check of a revision that came after the build
// began: otherwise a steady stream of revisions could keep a version from ever being ready.
const newestUnchecked = 5 * time.Second

// checkReused holds what a version would serve against those of its checks that it has not passed yet. It adds to the
// progress the revisions that wait for a decision and those that were rejected.
func (bs *Builds) checkReused(ctx context.Context, tx pgx.Tx, b registry.Build, p *Progress, now time.Time) error {
	outputs, err := bs.UncheckedOutputs(ctx, tx, b)
	if err != nil || len(outputs) == 0 {
		return err
	}

	var origins []uuid.UUID
	for _, o := range outputs {
		origins = append(origins, o.job.Origin)
	}
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return err
	}

	var wanted []tasks.Request
	for _, o := range outputs {
		missing, err := bs.CheckOutput(ctx, tx, b, o, p, now)
		if err != nil {
			return err
		}
		wanted = append(wanted, missing...)
	}
	bs.await(b, wanted)
	_, err = bs.tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted}, now)
	return err
}

// CheckOutput returns the check tasks that an output still needs, and adds to the progress the revisions that wait for
// a decision and those that were rejected.
func (bs *Builds) CheckOutput(
	ctx context.Context, tx pgx.Tx, b registry.Build, o uncheckedOutput, p *Progress, now time.Time,
) ([]tasks.Request, error) {

	var wanted []tasks.Request
	slots := make([]string, len(o.revisions))
	for i, r := range o.revisions {
		t, err := aheadTask(o, r)
		if err != nil {
			return nil, err
		}
		t.Dedupe += ":" + b.Started.UTC().Format(time.RFC3339Nano)
		wanted, slots[i] = append(wanted, t), t.Slot
	}

	decided, err := aheadStates(ctx, tx, o.job.Origin, slots)
	if err != nil {
		return nil, err
	}

	var missing []tasks.Request
	for i, r := range o.revisions {
		state := decided[slots[i]]
		switch {
		case state.passed:
		case state.open:
			p.Held++
		case state.failed != "" && !state.at.Before(b.Started):
			p.Rejected = append(p.Rejected, fmt.Sprintf("checks of %s fail on partition %s, which was made before: %s",
				o.job.Address(), r.Key, state.failed))
		default:
			missing = append(missing, wanted[i])
			if r.Materialized.After(b.Started) && now.Sub(r.Materialized) < newestUnchecked {
				continue
			}
			p.Held++
		}
	}
	return missing, nil
}

// aheadTask returns the request for a task that checks a published revision by the checks of a version that does not
// serve yet.
func aheadTask(o uncheckedOutput, r registry.UncheckedRevision) (tasks.Request, error) {
	t, err := dispatcher.CheckTask(o.job, o.output, r.Key, r.Revision, tasks.ClassBuild)
	if err != nil {
		return t, err
	}

	var names []string
	for _, c := range o.checks {
		if slices.Contains(r.Checks, c.Hash()) {
			names = append(names, c.Name)
		}
	}
	t.Payload, err = json.Marshal(dispatcher.CheckPayload{
		Output: o.output, Partition: r.Key, Revision: r.Revision,
		Ahead: &dispatcher.AheadOf{Job: o.job.ID, Checks: names},
	})
	if err != nil {
		return t, err
	}

	// Another definition of the checks is another slot.
	t.Slot = fmt.Sprintf("%s:%s", t.Slot, strings.Join(r.Checks, ","))
	t.Dedupe = t.Slot
	return t, nil
}

// aheadState is the state of the newest check task of a slot.
type aheadState struct {
	open, passed bool
	failed       string // what the check found, or why it could not run
	at           time.Time
}

// aheadStates returns the states of check tasks by slot. It relies on idx_tasks_job.
func aheadStates(
	ctx context.Context, tx pgx.Tx, origin uuid.UUID, slots []string,
) (map[string]aheadState, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (t.slot)
			t.slot, t.status, coalesce(t.error_message, t.reason, ''), coalesce(t.completed_at, now()), r.payload,
			EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason = 'dead')
		FROM tasks t LEFT JOIN task_results r ON r.task_id = t.id
		WHERE t.job_id = $1 AND t.kind = 'check' AND t.slot = ANY($2)
		ORDER BY t.slot, t.id DESC`, origin, slots)
	if err != nil {
		return nil, fmt.Errorf("find checks of %s: %w", origin, err)
	}

	states := map[string]aheadState{}
	var (
		slot, message string
		status        tasks.Status
		at            time.Time
		payload       []byte
		dead          bool
	)
	_, err = pgx.ForEachRow(rows, []any{&slot, &status, &message, &at, &payload, &dead}, func() error {
		s := aheadState{at: at}
		switch {
		case status == tasks.Completed:
			var result dispatcher.AheadResult
			if err := json.Unmarshal(payload, &result); err != nil {
				return fmt.Errorf("result of check %s: %w", slot, err)
			}
			s.failed = result.Failed
			s.passed = s.failed == ""
		case status == tasks.Canceled || dead:
			s.failed = "it could not be made: " + message
		default:
			s.open = true
		}
		states[slot] = s
		return nil
	})
	return states, err
}
