package builds

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// A version may bring new error checks for outputs that it does not rebuild. The published revisions of those outputs
// must pass the new checks before the version is ready. The check tasks belong to the reused job and carry the
// version's own job row: until the cutover, the checks of the version that serves decide what is published.

// reusedOutput is an output that a version takes over unchanged, with the checks that it has not passed yet.
type reusedOutput struct {
	job    *registry.Job // the version's own row
	output int
	checks []dag.Check
	live   bool
}

// newChecks returns the error checks of an output that none of the jobs before had.
func newChecks(job *registry.Job, output int, before []*registry.Job) (added []dag.Check) {
	checks, _ := dispatcher.ChecksOf(job, output)
	for _, check := range checks {
		known := slices.ContainsFunc(before, func(b *registry.Job) bool {
			return slices.ContainsFunc(b.Def.Checks, func(c dag.Check) bool { return reflect.DeepEqual(c, check) })
		})
		if check.Severity == "error" && !known {
			added = append(added, check)
		}
	}
	return added
}

// UncheckedOutputs finds the outputs of a version that other versions filled under other checks. An output that serves
// was held against the checks of the active version; one that served before, against those of every version in which it
// served.
func (bs *Builds) UncheckedOutputs(ctx context.Context, tx pgx.Tx, b registry.Build) ([]reusedOutput, error) {
	jobs, err := bs.registry.VersionJobs(ctx, tx, b.ID)
	if err != nil {
		return nil, err
	}
	jobs = slices.DeleteFunc(jobs, func(job *registry.Job) bool {
		return !slices.ContainsFunc(job.Def.Checks, func(c dag.Check) bool { return c.Severity == "error" })
	})

	origins := make([]uuid.UUID, len(jobs))
	for i, job := range jobs {
		origins[i] = job.Origin
	}
	served, err := bs.registry.ServedJobs(ctx, tx, origins)
	if err != nil {
		return nil, err
	}

	var found []reusedOutput
	for _, job := range jobs {
		before := served[job.Origin]
		if len(before) == 0 {
			continue // filled by this version, under these checks
		}
		live := before[0].Live
		if live {
			before = before[:1]
		}

		rows := make([]*registry.Job, len(before))
		for i, a := range before {
			rows[i] = a.Job
		}
		for output := range job.Outputs {
			if added := newChecks(job, output, rows); len(added) > 0 {
				found = append(found, reusedOutput{job, output, added, live})
			}
		}
	}
	return found, nil
}

// newestUnchecked is the age below which a build does not wait for the check of a revision that came after the build
// began: otherwise a steady stream of revisions could keep a version from ever being ready.
const newestUnchecked = 5 * time.Second

// checkReused holds what a version reuses against its new checks. It adds to the progress the revisions that wait for a
// decision and those that were rejected.
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
	_, err = bs.tasks.Create(ctx, tx, tasks.Creation{Wanted: wanted}, now)
	return err
}

// CheckOutput returns the check tasks that a reused output still needs, and adds to the progress the revisions that
// wait for a decision and those that were rejected.
func (bs *Builds) CheckOutput(
	ctx context.Context, tx pgx.Tx, b registry.Build, o reusedOutput, p *Progress, now time.Time,
) ([]tasks.Request, error) {
	generation := o.job.Outputs[o.output].Generation.Version
	revisions, err := registry.PublishedRevisions(ctx, tx, generation)
	if err != nil {
		return nil, err
	}

	var wanted []tasks.Request
	slots := make([]string, len(revisions))
	for i, r := range revisions {
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
	for i, r := range revisions {
		if !o.live && !r.Materialized.Before(b.Started) {
			continue // made for this build, and checked then
		}

		state := decided[slots[i]]
		switch {
		case state.passed:
		case state.open:
			p.Held++
		case state.failed != "" && !state.at.Before(b.Started):
			p.Rejected = append(p.Rejected, fmt.Sprintf("new checks of %s fail on partition %s, which is reused: %s",
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
func aheadTask(o reusedOutput, r registry.PublishedRevision) (tasks.Request, error) {
	t, err := dispatcher.CheckTask(o.job, o.output, r.Key, r.Revision, tasks.ClassBuild)
	if err != nil {
		return t, err
	}

	names := make([]string, len(o.checks))
	for i, c := range o.checks {
		names[i] = c.Name
	}

	definition, err := json.Marshal(o.checks)
	if err != nil {
		return t, err
	}
	t.Payload, err = json.Marshal(dispatcher.CheckPayload{
		Output: o.output, Partition: r.Key, Revision: r.Revision,
		Ahead: &dispatcher.AheadOf{Job: o.job.ID, Checks: names},
	})
	if err != nil {
		return t, err
	}

	// Another definition of the checks is another slot.
	t.Slot = fmt.Sprintf("%s:%x", t.Slot, sha256.Sum256(definition))
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
