package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// A revision of an output with checks is followed by a check task. Where a check is an error, the revision is held
// until the task has decided over it; where all only warn, it is published already and the task just records.

// checkPayload says which revision a check task is about.
type checkPayload struct {
	Output    int    `json:"output"`
	Partition string `json:"partition"`
	Revision  int64  `json:"revision"`

	Ahead *aheadOf `json:"ahead,omitempty"`
}

// aheadOf says that a check is one of a version that does not serve yet, on a revision that is published.
type aheadOf struct {
	Job    uuid.UUID `json:"job"` // the version's own row
	Checks []string  `json:"checks"`
}

// revisionCheck is a check task with what its run needs.
type revisionCheck struct {
	checkPayload
	ref      registry.Ref
	checks   []dag.Check
	attempt  storage.Attempt // the one that made the revision
	manifest storage.Manifest
	held     bool
}

// checksOf lists the checks on an output; held tells whether they decide over publication.
func checksOf(job *registry.Job, output int) (checks []dag.Check, held bool) {
	for _, c := range job.Def.Checks {
		if c.Output == output {
			checks = append(checks, c)
			held = held || c.Severity == "error"
		}
	}
	return checks, held
}

// checkTask asks for the task that checks a revision. It is exempt from the rule of one per output partition.
func checkTask(job *registry.Job, output int, key string, revision int64, class int) (newTask, error) {
	payload, err := json.Marshal(checkPayload{output, key, revision, nil})
	if err != nil {
		return newTask{}, err
	}
	name := fmt.Sprintf("check:%d:%s@%d", output, key, revision)
	return newTask{job: job, kind: "check", slot: name, dedupe: name, partition: key, payload: payload, runtime: CheckRuntime, class: class}, nil
}

// CheckRuntime is the name under which check tasks wait; every dispatcher serves it, whatever runtimes it maps.
const CheckRuntime = "dispatcher"

// assignCheck gives a check task the revision it is about, and as inputs what the run that made it has read.
func (d *Dispatcher) assignCheck(ctx context.Context, tx pgx.Tx, a *operators.Assignment, job *registry.Job, c claimable) (*revisionCheck, error) {
	var check revisionCheck
	if err := json.Unmarshal(c.Payload, &check.checkPayload); err != nil {
		return nil, fmt.Errorf("payload of check task %s: %w", c.Task, err)
	}
	if check.Ahead != nil {
		rows, err := d.Registry.Jobs(ctx, tx, ids(check.Ahead.Job))
		if err != nil {
			return nil, err
		}
		job = rows[check.Ahead.Job]
	}
	generation := job.Outputs[check.Output].Generation
	if err := setPartition(a, job, check.Partition); err != nil {
		return nil, err
	}
	check.ref = registry.Ref{Version: generation.Version, Key: check.Partition}
	check.checks, _ = checksOf(job, check.Output)
	if check.Ahead != nil {
		check.checks = slices.DeleteFunc(check.checks, func(c dag.Check) bool { return !slices.Contains(check.Ahead.Checks, c.Name) })
	}
	revision, err := registry.LoadRevision(ctx, tx, check.ref, check.Revision)
	if err != nil {
		return nil, err
	}
	check.manifest, check.held = revision.Manifest, revision.State == "Held"
	check.attempt = storage.Attempt{Generation: generation, Partition: writtenAt(job, check.Partition), Task: revision.TaskID, Number: revision.Attempt, Output: check.Output}
	pins, err := registry.PinsOf(ctx, tx, check.ref, check.Revision)
	if err != nil {
		return nil, err
	}
	// A revision read its inputs at generations that may have been replaced since; only those still pinned are offered.
	read, err := d.Registry.InputGenerations(ctx, tx, job)
	if err != nil {
		return nil, err
	}
	generations := read[job.ID]
	pins = slices.DeleteFunc(pins, func(p registry.Pin) bool { return generations[p.Input].Version != p.Version })
	contents, err := registry.Contents(ctx, tx, pins)
	if err != nil {
		return nil, err
	}
	assignInputs(a, job, pins, generations, contents)
	return &check, nil
}

// runChecks runs the checks of a check task.
func (d *Dispatcher) runChecks(ctx context.Context, t claimed) ([]operators.CheckOutcome, error) {
	task := operators.CheckTask{Generation: t.check.attempt.Generation, Inputs: t.assignment.Inputs, Checks: t.check.checks,
		Partition: t.assignment.Partition, Now: time.Now()}
	if t.check.held {
		task.Held = &t.check.manifest
	} else {
		task.Published = &storage.Partition{Key: t.check.Partition, Revision: t.check.Revision, Files: t.check.manifest.Files}
	}
	return d.Runner.Check(ctx, task)
}

// decideHeld publishes or rejects the revision a check task is about, in the transaction that completes the task, and
// returns the event of what was published.
func (d *Dispatcher) decideHeld(ctx context.Context, tx pgx.Tx, t claimed, outcomes []operators.CheckOutcome, now time.Time) (*Event, error) {
	check := t.check
	if check.Ahead != nil {
		return nil, recordAhead(ctx, tx, t, outcomes)
	}
	results, passed := checkResults(outcomes)
	if err := registry.RecordChecks(ctx, tx, t.job.OrgID, check.ref, check.Revision, t.TaskID, results); err != nil {
		return nil, err
	}
	if err := announceChecks(ctx, tx, t, outcomes, now); err != nil {
		return nil, err
	}
	held, still, err := registry.LockHeld(ctx, tx, check.ref, check.Revision)
	if err != nil || !still {
		return nil, err
	}
	if !passed {
		return nil, registry.RejectHeld(ctx, tx, check.ref, check.Revision)
	}
	published, err := registry.PublishHeld(ctx, tx, check.ref, check.Revision)
	if err != nil || !published {
		return nil, err
	}
	if err := d.Storage.Publish(ctx, tx, check.attempt, check.Revision, held.Manifest); err != nil {
		return nil, err
	}
	e, err := asSegment(ctx, tx, t.job.Def.PartitionBy, Event{ID: uuid.Must(uuid.NewV7()), OrgID: t.job.OrgID, Dataset: held.Dataset,
		Version: check.ref.Version, Key: check.ref.Key, Revision: check.Revision, Producer: held.TaskID})
	return &e, err
}

// checkResults are the outcomes as they are stored, and whether they let a revision pass.
func checkResults(outcomes []operators.CheckOutcome) (results []registry.CheckResult, passed bool) {
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
		results[i] = registry.CheckResult{Name: o.Name, Severity: o.Severity, Outcome: outcome, Failures: o.Failures, Sample: o.Sample, Error: o.Error}
	}
	return results, passed
}
