package dispatcher

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
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// A version may bring new error checks for outputs that it does not rebuild. Their published revisions are checked by
// them before the version is ready, by tasks of the reused job that carry the version's own job row: until the cutover
// the checks that decide over publication are those of the version that serves.

// reusedOutput is an output that a version takes over as it is, with the checks it has not been held against.
type reusedOutput struct {
	job    *registry.Job // the version's own row
	output int
	checks []dag.Check
	live   bool
}

// newChecks are the error checks of an output that are not among those it was held against before. It is pure.
func newChecks(job *registry.Job, output int, before []*registry.Job) (added []dag.Check) {
	checks, _ := checksOf(job, output)
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

// uncheckedOutputs finds the outputs of a version that were filled by others, under other checks. What serves was held
// against the checks of the active version; what served before, against those of any version that did.
func (d *Dispatcher) uncheckedOutputs(ctx context.Context, tx pgx.Tx, b registry.Build) ([]reusedOutput, error) {
	jobs, err := d.Registry.VersionJobs(ctx, tx, b.ID)
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
	served, err := d.Registry.ServedJobs(ctx, tx, origins)
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

// newestUnchecked is how young a revision may be and not be waited for, if it came after the build began: otherwise a
// steady stream of them could keep a version from ever being ready.
const newestUnchecked = 5 * time.Second

// checkReused holds what a version reuses against its new checks, and adds to the progress what is still to be decided
// and what has failed.
func (d *Dispatcher) checkReused(ctx context.Context, tx pgx.Tx, b registry.Build, p *progress, now time.Time) error {
	outputs, err := d.uncheckedOutputs(ctx, tx, b)
	if err != nil || len(outputs) == 0 {
		return err
	}
	var origins []uuid.UUID
	for _, o := range outputs {
		origins = append(origins, o.job.Origin)
	}
	if err := lockOrigins(ctx, tx, origins); err != nil {
		return err
	}
	var wanted []newTask
	for _, o := range outputs {
		tasks, err := d.checkOutput(ctx, tx, b, o, p, now)
		if err != nil {
			return err
		}
		wanted = append(wanted, tasks...)
	}
	_, err = d.create(ctx, tx, wanted, now)
	return err
}

func (d *Dispatcher) checkOutput(ctx context.Context, tx pgx.Tx, b registry.Build, o reusedOutput, p *progress, now time.Time) ([]newTask, error) {
	generation := o.job.Outputs[o.output].Generation.Version
	revisions, err := registry.PublishedRevisions(ctx, tx, generation)
	if err != nil {
		return nil, err
	}
	var wanted []newTask
	slots := make([]string, len(revisions))
	for i, r := range revisions {
		t, err := aheadTask(o, r)
		if err != nil {
			return nil, err
		}
		t.dedupe += ":" + b.Started.UTC().Format(time.RFC3339Nano)
		wanted, slots[i] = append(wanted, t), t.slot
	}
	decided, err := aheadStates(ctx, tx, o.job.Origin, slots)
	if err != nil {
		return nil, err
	}
	var missing []newTask
	for i, r := range revisions {
		if !o.live && !r.Materialized.Before(b.Started) {
			continue // made for this build, and held against its checks then
		}
		state := decided[slots[i]]
		switch {
		case state.passed:
		case state.open:
			p.held++
		case state.failed != "" && !state.at.Before(b.Started):
			p.rejected = append(p.rejected, fmt.Sprintf("new checks of %s fail on partition %s, which is reused: %s", o.job.Address(), r.Key, state.failed))
		default:
			missing = append(missing, wanted[i])
			if r.Materialized.After(b.Started) && now.Sub(r.Materialized) < newestUnchecked {
				continue
			}
			p.held++
		}
	}
	return missing, nil
}

// aheadTask asks for the task that checks a published revision by the checks of a version that does not serve yet.
func aheadTask(o reusedOutput, r registry.PublishedRevision) (newTask, error) {
	t, err := checkTask(o.job, o.output, r.Key, r.Revision, classBuild)
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
	if t.payload, err = json.Marshal(checkPayload{o.output, r.Key, r.Revision, &aheadOf{o.job.ID, names}}); err != nil {
		return t, err
	}
	t.slot = fmt.Sprintf("%s:%x", t.slot, sha256.Sum256(definition))
	t.dedupe = t.slot
	return t, nil
}

// aheadState is how far the newest check task of a slot is.
type aheadState struct {
	open, passed bool
	failed       string // what it found, or why it could not be made
	at           time.Time
}

// aheadStates relies on idx_tasks_job.
func aheadStates(ctx context.Context, tx pgx.Tx, origin uuid.UUID, slots []string) (map[string]aheadState, error) {
	rows, err := tx.Query(ctx, `
		SELECT DISTINCT ON (t.slot) t.slot, t.status, coalesce(t.error_message, t.reason, ''), coalesce(t.completed_at, now()), r.payload,
			EXISTS (SELECT FROM waiting q WHERE q.task_id = t.id AND q.reason = 'dead')
		FROM tasks t LEFT JOIN task_results r ON r.task_id = t.id
		WHERE t.job_id = $1 AND t.kind = 'check' AND t.slot = ANY($2)
		ORDER BY t.slot, t.id DESC`, origin, slots)
	if err != nil {
		return nil, fmt.Errorf("find checks of %s: %w", origin, err)
	}
	states := map[string]aheadState{}
	var (
		slot, status, message string
		at                    time.Time
		payload               []byte
		dead                  bool
	)
	_, err = pgx.ForEachRow(rows, []any{&slot, &status, &message, &at, &payload, &dead}, func() error {
		s := aheadState{at: at}
		switch {
		case status == "Completed":
			var result aheadResult
			if err := json.Unmarshal(payload, &result); err != nil {
				return fmt.Errorf("result of check %s: %w", slot, err)
			}
			s.failed = result.Failed
			s.passed = s.failed == ""
		case status == "Canceled" || dead:
			s.failed = "it could not be made: " + message
		default:
			s.open = true
		}
		states[slot] = s
		return nil
	})
	return states, err
}

// aheadResult is the result of such a check task: counts, never rows.
type aheadResult struct {
	Failed string `json:"failed,omitempty"`
}

// recordAhead stores what the checks of a version found that does not serve yet. Readers of the dataset see it only where
// all passed: otherwise nothing that concerns them has happened.
func recordAhead(ctx context.Context, tx pgx.Tx, t claimed, outcomes []operators.CheckOutcome) error {
	results, passed := checkResults(outcomes)
	var result aheadResult
	for _, r := range results {
		if r.Outcome == "pass" {
			continue
		}
		if result.Failed != "" {
			result.Failed += "; "
		}
		if result.Failed += r.Name + ": "; r.Error != "" {
			result.Failed += r.Error
		} else {
			result.Failed += fmt.Sprintf("%d rows", r.Failures)
		}
	}
	if _, err := tx.Exec(ctx, `INSERT INTO task_results (task_id, org_id, payload) VALUES ($1, $2, $3)
		ON CONFLICT (task_id) DO UPDATE SET payload = EXCLUDED.payload, created_at = now()`, t.TaskID, t.job.OrgID, result); err != nil {
		return fmt.Errorf("record checks: %w", err)
	}
	if !passed {
		return nil
	}
	return registry.RecordChecks(ctx, tx, t.job.OrgID, t.check.ref, t.check.Revision, t.TaskID, results)
}
