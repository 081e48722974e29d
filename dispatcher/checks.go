package dispatcher

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
	"github.com/dagctl/dagctl/dispatcher/notices"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/storage"
)

// A run in this process checks what it writes, and its completion records the outcomes with the revision: it publishes
// the revision, or rejects it if a check of the severity error failed. All other revisions of an output with checks get
// a check task: those of attempts elsewhere and of commits on the way, those whose checks could not run, and those that
// have yet to pass the checks of another version. If a check has the severity error, the revision is held until the
// task decides. If all checks only warn, the revision is published at once, and the task records the outcomes.

// CheckRuntime is the name under which check tasks wait; every dispatcher serves it, whatever runtimes it maps.
const CheckRuntime = "dispatcher"

// CheckPayload is the payload of a check task: the revision to check.
type CheckPayload struct {
	Output    int    `json:"output"`
	Partition string `json:"partition"`
	Revision  int64  `json:"revision"`

	Ahead *AheadOf `json:"ahead,omitempty"`
}

// AheadOf is set where a version that does not serve yet checks a published revision.
type AheadOf struct {
	Job    uuid.UUID `json:"job"` // the version's own row
	Checks []string  `json:"checks"`
}

// revisionCheck is a revision that is checked, with everything that the checks and the decision need.
type revisionCheck struct {
	CheckPayload
	ref      registry.Ref
	checks   []dag.Check
	attempt  storage.Attempt // that made the revision
	manifest storage.Manifest
	held     bool // when it was claimed
}

// ChecksOf returns the checks on an output; held reports whether a revision is held until they have passed.
func ChecksOf(job *registry.Job, output int) (checks []dag.Check, held bool) {
	for _, c := range job.Def.Checks {
		if c.Output == output {
			checks = append(checks, c)
			held = held || c.Severity == "error"
		}
	}
	return checks, held
}

// CheckTask returns the request for the task that checks a revision. Its slot is its own, so that it need not wait for
// other tasks of the output partition.
func CheckTask(
	job *registry.Job, output int, key string, revision int64, class tasks.Class,
) (tasks.Request, error) {
	payload, err := json.Marshal(CheckPayload{output, key, revision, nil})
	if err != nil {
		return tasks.Request{}, err
	}
	name := fmt.Sprintf("check:%d:%s@%d", output, key, revision)
	return tasks.Request{Job: job, Kind: tasks.KindCheck, Slot: name, Dedupe: name, Partition: key, Payload: payload,
		Runtime: CheckRuntime, Class: class}, nil
}

// assignCheck returns the revision that a check task checks, and assigns as inputs those that the revision was made
// from.
func (d *Dispatcher) assignCheck(
	ctx context.Context, tx pgx.Tx, a *operators.Assignment, job *registry.Job, c tasks.Taken,
) (*revisionCheck, error) {
	var check revisionCheck
	if err := json.Unmarshal(c.Payload, &check.CheckPayload); err != nil {
		return nil, fmt.Errorf("payload of check task %s: %w", c.Task, err)
	}

	if check.Ahead != nil {
		rows, err := d.Registry.Jobs(ctx, tx, []uuid.UUID{check.Ahead.Job})
		if err != nil {
			return nil, err
		}
		job = rows[check.Ahead.Job]
	}

	generation := job.Outputs[check.Output].Generation
	a.PartitionBy = job.Def.PartitionBy
	if err := setPartition(a, job, check.Partition); err != nil {
		return nil, err
	}
	check.ref = registry.Ref{Version: generation.Version, Key: check.Partition}
	check.checks, _ = ChecksOf(job, check.Output)
	if check.Ahead != nil {
		check.checks = slices.DeleteFunc(check.checks, func(c dag.Check) bool {
			return !slices.Contains(check.Ahead.Checks, c.Name)
		})
	}

	revision, err := registry.LoadRevision(ctx, tx, check.ref, check.Revision)
	if err != nil {
		return nil, err
	}
	check.manifest, check.held = revision.Manifest, revision.State == "Held"
	check.attempt = storage.Attempt{Generation: generation, Partition: stale.WrittenAt(job, check.Partition),
		Task: revision.TaskID, Number: revision.Attempt, Output: check.Output}

	pins, err := registry.PinsOf(ctx, tx, check.ref, check.Revision)
	if err != nil {
		return nil, err
	}

	// The generations of some inputs may have been replaced since the revision was made: those inputs are left out.
	read, err := d.Registry.InputGenerations(ctx, tx, job)
	if err != nil {
		return nil, err
	}

	generations := read[job.ID]
	pins = slices.DeleteFunc(pins, func(p registry.Pin) bool { return generations[p.Input].Version != p.Version })
	inputs := claimInputs{generations: read}
	if inputs.contents, err = registry.Contents(new(pg.Batch), pins).Get(ctx, tx); err != nil {
		return nil, err
	}
	reading := []tasks.Taken{{Job: job, Pins: pins}}
	if inputs.columns, err = columnsOfUnread(ctx, tx, reading, read, inputs.contents); err != nil {
		return nil, err
	}
	assignInputs(a, job, pins, inputs)
	return &check, nil
}

// runChecks runs the checks of a check task.
func (d *Dispatcher) runChecks(ctx context.Context, t Claimed) ([]operators.CheckOutcome, error) {
	task := operators.CheckTask{Generation: t.Check.attempt.Generation, Inputs: t.Assignment.Inputs,
		Checks: t.Check.checks, PartitionBy: t.Assignment.PartitionBy,
		Partition: t.Assignment.Partition, Now: clock.Now()}
	if t.Check.held {
		task.Held = &t.Check.manifest
	} else {
		task.Published = &storage.Partition{Key: t.Check.Partition, Revision: t.Check.Revision,
			Files: t.Check.manifest.Files}
	}
	return d.RunChecks(ctx, task)
}

// isMoot reports whether a revision that a check task was to check was replaced, purged or collected since. Rows in
// PostgreSQL are only those of the newest revision, so that the check of one before it cannot run any more.
func isMoot(ctx context.Context, tx pgx.Tx, check *revisionCheck) (bool, error) {
	if check == nil {
		return false, nil
	}
	wanted, err := registry.HeldOrPublished(ctx, tx, check.ref, check.Revision)
	return !wanted, err
}

// settle records the outcomes of a revision's checks and, if they hold it, publishes or rejects it, in the transaction
// that completes the task t, which ran them. It returns the state that the revision has got, or "" if it stays as it
// was, and the event of one that was published.
func (d *Dispatcher) settle(
	ctx context.Context, tx pgx.Tx, t Claimed, check revisionCheck, outcomes []operators.CheckOutcome, now time.Time,
) (state string, event *Event, err error) {
	if check.Ahead != nil {
		return "", nil, recordAhead(ctx, tx, t, check, outcomes)
	}

	results, passed := checkResults(check.checks, outcomes)
	if err := registry.RecordChecks(ctx, tx, t.Job.OrgID, check.ref, check.Revision, t.TaskID, results); err != nil {
		return "", nil, err
	}
	if err := notices.ChecksFailed(ctx, tx, t.Job, t.TaskID, registry.CheckedRevision{Version: check.ref.Version,
		Key: check.ref.Key, Revision: check.Revision}, results, now); err != nil {
		return "", nil, err
	}

	held, err := registry.LockHeld(ctx, tx, check.ref, check.Revision)
	if err != nil || !held {
		return "", nil, err
	}
	if !passed {
		return "Rejected", nil, registry.RejectHeld(ctx, tx, check.ref, check.Revision)
	}
	published, err := registry.PublishHeld(ctx, tx, check.ref, check.Revision)
	if err != nil || !published {
		return "Rejected", nil, err
	}
	e, err := d.publish(ctx, tx, t, check)
	return "Published", &e, err
}

// askActing asks for the rows by which jobs are run now whose own versions do not serve: another version, with other
// checks, may have come to serve while the task ran.
func (d *Dispatcher) askActing(b *pg.Batch, all []*Completing) *pg.Later[map[uuid.UUID]registry.Acting] {
	var rows []uuid.UUID
	for _, x := range all {
		if len(x.Outcome.Written) > 0 {
			rows = append(rows, x.Job.ID)
		}
	}
	if len(rows) == 0 {
		return pg.Known[map[uuid.UUID]registry.Acting](nil)
	}
	return d.Registry.ActingInstead(b, tasks.SortedIDs(rows))
}

// decides returns the job row whose checks decide about what a completion publishes: that by which the job is run now.
func (x *Completing) decides() *registry.Job {
	if x.acting != nil {
		return x.acting
	}
	return x.Job
}

// checked reports whether the run has run just those checks on a written output that decide about it. It has not if a
// version with others came to serve while it ran.
func (x *Completing) checked(w operators.Written) bool {
	if len(w.Checks) == 0 {
		return false
	}
	same := func(a, b dag.Check) bool { return a.Name == b.Name && a.Severity == b.Severity && a.Hash() == b.Hash() }
	ran, _ := ChecksOf(x.Job, w.Output)
	decide, _ := ChecksOf(x.decides(), w.Output)
	return slices.EqualFunc(ran, decide, same)
}

// decisions returns the revisions about which a completion decides, each with the outcomes of its checks.
func (x *Completing) decisions() (all []decision) {
	if x.Check != nil {
		return []decision{{*x.Check, x.checks, nil}}
	}
	if !x.publishes() {
		return nil
	}
	for i, w := range x.Outcome.Written {
		if x.checked(w) {
			all = append(all, decision{x.revision(i), w.Checks, &x.notes[i]})
		}
	}
	return all
}

// decision is a revision with the outcomes by which a completion decides about it.
type decision struct {
	revisionCheck
	outcomes []operators.CheckOutcome
	note     *tasks.OutputNote // of the run that made the revision; nil: a check task decides
}

// publish shows a revision to readers and returns its event. t is the task whose completion does so.
func (d *Dispatcher) publish(ctx context.Context, tx pgx.Tx, t Claimed, r revisionCheck) (Event, error) {
	if err := d.Storage.Publish(ctx, tx, r.attempt, r.Revision, r.manifest); err != nil {
		return Event{}, err
	}
	return AsSegment(ctx, tx, t.Job.Def.PartitionBy, Event{ID: uuid.Must(uuid.NewV7()), OrgID: t.Job.OrgID,
		Dataset: r.attempt.Generation.Dataset, Version: r.ref.Version, Key: r.ref.Key, Revision: r.Revision,
		Producer: r.attempt.Task, trace: d.tracing.published(ctx, t, r.ref.Key, r.Revision)})
}

// PublishWithheld shows readers a revision that is held or was rejected, and adds its event to b. It is a conflict if
// the revision is not withheld any more, or readers see a newer one. Until then, Postgres storage keeps its rows in the
// staging table of the attempt.
func (d *Dispatcher) PublishWithheld(
	ctx context.Context, tx pgx.Tx, b *pg.Batch, w registry.Withholding, now time.Time,
) error {
	number := w.Revision.Revision
	if err := deploy.HoldAgain(ctx, tx, w.Ref, number); err != nil {
		return err
	}
	held, err := registry.LockHeld(ctx, tx, w.Ref, number)
	if err != nil {
		return err
	}
	if !held {
		return fault.New(fault.Conflict, "revision %d is not held any more", number)
	}

	published, err := registry.PublishHeld(ctx, tx, w.Ref, number)
	if err != nil {
		return err
	}
	if !published {
		return fault.New(fault.Conflict, "a newer revision than %d is published", number)
	}
	attempt := storage.Attempt{
		Generation: w.Job.Outputs[w.Output].Generation, Partition: stale.WrittenAt(w.Job, w.Key),
		Task: w.TaskID, Number: w.Attempt, Output: w.Output,
	}
	if err := d.Storage.Publish(ctx, tx, attempt, number, w.Manifest); err != nil {
		return err
	}

	event, err := AsSegment(ctx, tx, w.Job.Def.PartitionBy, Event{
		ID: uuid.Must(uuid.NewV7()), OrgID: w.Job.OrgID, Dataset: w.Revision.Dataset,
		Version: w.Ref.Version, Key: w.Key, Revision: number, Producer: w.TaskID,
	})
	if err != nil {
		return err
	}
	Accept(b, []Event{event}, ByRouter, now)
	return nil
}

// checkResults returns the outcomes as they are stored, and reports whether the revision passed.
func checkResults(
	checks []dag.Check, outcomes []operators.CheckOutcome,
) (results []registry.CheckResult, passed bool) {
	hashes := map[string]string{}
	for _, c := range checks {
		hashes[c.Name] = c.Hash()
	}

	results, passed = make([]registry.CheckResult, len(outcomes)), true
	for i, o := range outcomes {
		outcome := "pass"
		switch {
		case o.Error != "":
			outcome = "error"
		case !o.Passed:
			outcome = "fail"
		}
		passed = passed && (outcome == "pass" || o.Severity != "error")
		results[i] = registry.CheckResult{Name: o.Name, Severity: o.Severity, Outcome: outcome, Failures: o.Failures,
			Sample: o.Sample, Error: o.Error, Hash: hashes[o.Name]}
	}
	return results, passed
}

// AheadResult is the result of a check task of a version that does not serve yet: counts, never rows.
type AheadResult struct {
	Failed string `json:"failed,omitempty"`
}

// recordAhead stores the results of checks of a version that does not serve yet. Readers of the dataset see them only
// if all checks passed: a failure concerns only the new version.
func recordAhead(
	ctx context.Context, tx pgx.Tx, t Claimed, check revisionCheck, outcomes []operators.CheckOutcome,
) error {
	results, passed := checkResults(check.checks, outcomes)
	var failed []string
	for _, r := range results {
		if r.Outcome != "pass" {
			failed = append(failed, r.Name+": "+r.Failed(check.checks))
		}
	}
	result := AheadResult{Failed: strings.Join(failed, "; ")}

	_, err := tx.Exec(ctx, `
		INSERT INTO task_results (task_id, org_id, payload) VALUES ($1, $2, $3)
		ON CONFLICT (task_id) DO UPDATE SET payload = EXCLUDED.payload, created_at = now()`,
		t.TaskID, t.Job.OrgID, result)
	if err != nil {
		return fmt.Errorf("record checks: %w", err)
	}
	if !passed {
		return nil
	}
	return registry.RecordChecks(ctx, tx, t.Job.OrgID, check.ref, check.Revision, t.TaskID, results)
}
