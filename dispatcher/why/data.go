package why

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// partition explains why an output partition of a job is as it is: what withholds it, the tasks that are open for it
// and, upstream as far as it goes, what it is waiting for.
func (e *explainer) partition(ctx context.Context, job *registry.Job, key string) ([]Reason, error) {
	if !e.step(job.ID, key) {
		return nil, nil
	}

	reasons, err := e.withheld(ctx, job, key)
	if err != nil {
		return nil, err
	}

	slot := key
	if job.Def.Splits() { // one task makes all partitions
		slot = dag.WholeKey
	}
	open, _, err := e.openOf(ctx, []uuid.UUID{job.Origin}, &slot, 2) // one queued, one running
	if err != nil {
		return nil, err
	}
	tasks, err := e.tasks(ctx, open)
	if err != nil {
		return nil, err
	}
	reasons = append(reasons, tasks...)

	var more []Reason
	switch {
	case job.Def.Activation == dag.ActivationReactive:
		more, err = e.target(ctx, stale.Target{Job: job, Key: slot}, len(reasons) > 0)
	case len(reasons) == 0:
		more, err = e.notBrought(ctx, job, key)
	}
	return append(reasons, more...), err
}

// notBrought explains why a source does not bring a partition or, where it has brought it, anything more: which ones it
// lists now is not kept, but for those that it is asked for.
func (e *explainer) notBrought(ctx context.Context, job *registry.Job, key string) ([]Reason, error) {
	made := false
	if len(job.Outputs) > 0 {
		ref := registry.Ref{Version: job.Outputs[0].Generation.Version, Key: key}
		err := e.decide(ctx, func() error {
			found, err := registry.PublishedAt(new(pg.Batch), []registry.Ref{ref}).Get(ctx, e.tx)
			made = len(found) > 0
			return err
		})
		if err != nil {
			return nil, err
		}
	}

	switch {
	case job.Def.Asked():
		return e.calendar(ctx, job, key, made)
	case made:
		key = ""
	}
	return e.source(ctx, job, key)
}

// doneAgain returns the command by which a job that acts outside does its work for what was there before it.
func doneAgain(job *registry.Job) string {
	if job.Def.Effect != dag.EffectExternal {
		return ""
	}
	return "dagctl invalidate DATASET --partition KEY"
}

// withheld says what keeps the newest revision of a job's output partition from its readers.
func (e *explainer) withheld(ctx context.Context, job *registry.Job, key string) (reasons []Reason, err error) {
	for i, o := range job.Outputs {
		ref := registry.Ref{Version: o.Generation.Version, Key: key}
		newest, err := registry.LastMade(new(pg.Batch), []registry.Ref{ref}, nil).Get(ctx, e.tx)
		if err != nil {
			return nil, err
		}
		made, ok := newest[ref]
		if !ok {
			continue
		}

		r := Reason{Partition: key}
		switch made.State {
		case "Held":
			r.Code = whyChecksPending
			err = e.checking(ctx, job, i, ref, made.Revision, &r)
		case "Rejected":
			r.Code = whyRejected
			if e.inspects(job.DAG) {
				r.Error, err = deploy.FailedChecks(ctx, e.tx, job, i, ref, made.Revision)
			}
		case "Purged":
			var dataset string
			if dataset, err = registry.NameOf(ctx, e.tx, e.caller.OrgID, o.Generation.Dataset); err == nil {
				r, err = e.comeBack(ctx, job, dataset, key)
				r.Code = whyPurged
			}
		default:
			continue
		}

		if err == nil {
			r, err = e.about(ctx, job, r)
		}
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, r)
	}
	return reasons, nil
}

// allWithheld lists the partitions of a job's outputs whose newest revision readers do not see.
func (e *explainer) allWithheld(ctx context.Context, job *registry.Job, limit int) (reasons []Reason, err error) {
	var generations []uuid.UUID
	for _, o := range job.Outputs {
		generations = append(generations, o.Generation.Version)
	}

	undecided, err := deploy.Unsettled(ctx, e.tx, generations)
	if err != nil {
		return nil, err
	}
	for _, u := range undecided[:min(len(undecided), limit)] {
		r, err := e.withheld(ctx, job, u.Key)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, r...)
	}
	return reasons, nil
}

// checking puts the check task behind a revision that waits for it.
func (e *explainer) checking(
	ctx context.Context, job *registry.Job, output int, ref registry.Ref, revision int64, r *Reason,
) error {
	loaded, err := registry.LoadRevision(ctx, e.tx, ref, revision)
	if err != nil {
		return gone(err)
	}
	r.Since = &loaded.Materialized

	check, err := dispatcher.CheckTask(job, output, ref.Key, revision, tasks.ClassLive)
	if err != nil {
		return err
	}
	open, _, err := e.openOf(ctx, []uuid.UUID{job.Origin}, &check.Slot, 1)
	if err != nil {
		return err
	}
	r.Because, err = e.tasks(ctx, open)
	return err
}

// target explains a partition of a reactive job by the verdict on it.
func (e *explainer) target(ctx context.Context, t stale.Target, explained bool) ([]Reason, error) {
	f, inputs, err := e.verdict(ctx, t)
	if err != nil {
		return nil, err
	}

	r := Reason{Partition: t.Key}
	switch f.Verdict {
	case stale.Incomplete:
		r.Code, r.Trigger = whyWaits, string(t.Job.Def.Trigger)
		if slices.ContainsFunc(inputs, func(in stale.InputFacts) bool { return in.Unknown }) {
			r.Detail = "its statement needs the columns of every input"
		}
		if r.Because, err = e.conditions(ctx, t.Job, inputs); err != nil {
			return nil, err
		}
	case stale.Blocked:
		return e.blocked(ctx, t.Job)
	case stale.Current:
		if explained {
			return nil, nil
		}
		r.Code, r.Command = whyUpToDate, doneAgain(t.Job)
		if r.Because, err = e.deadBehind(ctx, t.Job, inputs); err != nil {
			return nil, err
		}
	case stale.Stale:
		if explained {
			return nil, nil
		}
		known, err := e.known(ctx, []stale.Finding{f})
		if err != nil {
			return nil, err
		}
		if r = unmade(f, known); r.Code == whyUndecided {
			if r.Count, err = e.unrouted(ctx); err != nil {
				return nil, err
			}
		}
	}

	r, err = e.about(ctx, t.Job, r)
	return []Reason{r}, err
}

// verdict decides on a target, and returns what of each input it decided by.
func (e *explainer) verdict(ctx context.Context, t stale.Target) (f stale.Finding, in []stale.InputFacts, err error) {
	targets := []stale.Target{t}
	err = e.decide(ctx, func() error {
		wants, err := e.d.stale.Wants(ctx, e.tx, targets)
		if err != nil {
			return err
		}
		facts, err := e.d.stale.Facts(new(pg.Batch), targets, wants).Get(ctx, e.tx)
		if err != nil {
			return err
		}
		f, in = stale.DecideAll(targets, facts)[0], wants[0]
		return nil
	})
	return f, in, err
}

// blocked lists the inputs of a job that cannot be mapped to its partitions any more.
func (e *explainer) blocked(ctx context.Context, job *registry.Job) (reasons []Reason, err error) {
	reads, err := e.d.registry.InputGenerations(ctx, e.tx, job)
	if err != nil {
		return nil, err
	}
	for i, in := range job.Inputs {
		unmapped := stale.Unmapped(job, in, reads[job.ID][i].PartitionBy)
		if unmapped == "" {
			continue
		}
		names, err := e.d.registry.ReadableNames(ctx, e.tx, e.caller, []uuid.UUID{in.Dataset})
		if err != nil {
			return nil, err
		}

		r := Reason{Code: whyBlockedInput, Hidden: true}
		if name := names[in.Dataset]; name != "" {
			r = Reason{Code: whyBlockedInput, Input: in.Def.As, Dataset: name, Detail: unmapped}
		}
		if r, err = e.about(ctx, job, r); err != nil {
			return nil, err
		}
		reasons = append(reasons, r)
	}
	return reasons, nil
}

// workOf names a unit of work, independent of the task that did it or will do it.
type workOf struct {
	origin uuid.UUID
	dedupe string
}

// known finds the tasks that there are, open or ended, for what findings call for.
func (e *explainer) known(ctx context.Context, findings []stale.Finding) (found map[workOf]placed, err error) {
	err = e.decide(ctx, func() error {
		found, err = e.knownTasks(ctx, findings)
		return err
	})
	return found, err
}

func (e *explainer) knownTasks(ctx context.Context, findings []stale.Finding) (map[workOf]placed, error) {
	origins, keys := make([]uuid.UUID, len(findings)), make([]string, len(findings))
	for i, f := range findings {
		origins[i], keys[i] = f.Job.Origin, f.Dedupe
	}

	rows, err := e.tx.Query(ctx, `SELECT t.dedupe_key, `+placedColumns+`
		FROM unnest($2::uuid[], $3::text[]) AS f(job_id, dedupe_key)
		JOIN tasks t ON t.job_id = f.job_id AND t.dedupe_key = f.dedupe_key `+placedJoins+` WHERE t.org_id = $1`, e.caller.OrgID, origins, keys)
	if err != nil {
		return nil, fmt.Errorf("tasks known: %w", err)
	}
	tasks := map[workOf]placed{}
	var (
		dedupe string
		p      placed
	)
	_, err = pgx.ForEachRow(rows, append([]any{&dedupe}, p.columns()...), func() error {
		tasks[workOf{p.origin, dedupe}] = p
		return nil
	})
	return tasks, err
}

// unmade says why something that is wanted has no open task: its task is known and ended, or it is yet to be made. It
// is pure.
func unmade(f stale.Finding, known map[workOf]placed) Reason {
	r := Reason{Code: whyUndecided, Partition: f.Key}
	p, ok := known[workOf{f.Job.Origin, f.Dedupe}]
	switch {
	case !ok:
		return r
	case p.status == tasks.Completed:
		r.Code = whyUnchanged
	case p.status == tasks.Canceled && p.reason == tasks.ReasonSkipped:
		r.Code, r.Detail, r.Since = whySkipped, p.skippedFor(), p.ended
	case p.status == tasks.Canceled && !p.reason.Revivable():
		r.Code, r.Detail, r.Since = WhyCanceled, p.state, p.ended
	default:
		return r
	}

	r.Task = &p.id
	return r
}

// unrouted is how many events of the org wait for a router.
func (e *explainer) unrouted(ctx context.Context) (n int, err error) {
	err = e.tx.QueryRow(ctx, `SELECT count(*) FROM outbox WHERE org_id = $1 AND kind = 'route_event' AND status IN ('Pending', 'Processing')`,
		e.caller.OrgID).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count events to route: %w", err)
	}
	return n, nil
}

// missingKeys is how many of an input's missing partitions are followed upstream.
const missingKeys = 2

// examined is how many partitions of a job are compared with their inputs to explain it, the last ones.
const examined = 500

// activity explains what a job does, or why it does nothing: its open tasks, what of it is withheld, its source, and
// what it waits for.
func (e *explainer) activity(ctx context.Context, job *registry.Job, limit int) (reasons []Reason, err error) {
	if !e.step(job.ID, "") {
		return nil, nil
	}

	if reasons, err = e.pauseOf(ctx, job); err != nil {
		return nil, err
	}

	open, all, err := e.openOf(ctx, []uuid.UUID{job.Origin}, nil, limit)
	if err != nil {
		return nil, err
	}
	tasks, err := e.tasks(ctx, open)
	if err != nil {
		return nil, err
	}
	if reasons = append(reasons, tasks...); all > len(open) {
		reasons = append(reasons, Reason{Code: whyMore, Count: all - len(open)})
	}

	more, err := e.allWithheld(ctx, job, limit)
	if err != nil {
		return nil, err
	}
	reasons = append(reasons, more...)

	if job.Def.Activation == dag.ActivationReactive {
		more, err = e.targets(ctx, job, limit, len(reasons) > 0)
	} else {
		more, err = e.source(ctx, job, "")
	}
	return append(reasons, more...), err
}

// targets explains the last partitions of a reactive job that are not made from what their inputs have and have no
// task.
func (e *explainer) targets(
	ctx context.Context, job *registry.Job, limit int, busy bool,
) (reasons []Reason, err error) {
	if reasons, err = e.blocked(ctx, job); err != nil || len(reasons) > 0 {
		return reasons, err
	}
	all, findings, err := e.examine(ctx, job)
	if err != nil {
		return nil, err
	}
	skipped := all - len(findings)

	open, err := views.OpenPartitions(ctx, e.tx, e.caller.OrgID, []uuid.UUID{job.Origin})
	if err != nil {
		return nil, err
	}
	findings = slices.DeleteFunc(findings, func(f stale.Finding) bool {
		return f.Verdict == stale.Current || slices.Contains(open[job.Origin], f.Key) // its task says it
	})
	slices.Reverse(findings) // the last ones first

	for _, f := range findings[:min(len(findings), limit)] {
		because, err := e.target(ctx, f.Target, false)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, because...)
	}

	if len(reasons) == 0 && !busy {
		r := Reason{Code: whyUpToDate, Command: doneAgain(job)}
		if all == 0 {
			r.Code = whyNotFed
			r.Because, err = e.unfed(ctx, job)
		} else {
			r.Because, err = e.deadBehind(ctx, job, allInputs(job))
		}
		if err != nil {
			return nil, err
		}
		if r, err = e.about(ctx, job, r); err != nil {
			return nil, err
		}
		reasons = append(reasons, r)
	}

	if skipped > 0 {
		reasons = append(reasons, Reason{Code: whyNotExamined, Count: skipped})
	}
	return reasons, nil
}

// examine compares the last partitions of a job with its inputs, and returns how many there are.
func (e *explainer) examine(ctx context.Context, job *registry.Job) (all int, findings []stale.Finding, err error) {
	err = e.decide(ctx, func() error {
		targets, err := e.d.stale.AllTargets(ctx, e.tx, job)
		if err != nil {
			return err
		}
		all = len(targets)
		findings, err = e.d.stale.Examine(ctx, e.tx, targets[max(all-examined, 0):])
		return err
	})
	return all, findings, err
}
