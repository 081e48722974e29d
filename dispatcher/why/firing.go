package why

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/pressure"
	"github.com/dagctl/dagctl/dispatcher/sources"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// firing is the state of a source.
type firing struct {
	kind       string     // cron, poll, manual, ...
	registered bool       // its DAG's version serves, so that it fires
	next       *time.Time // when it fires next
	failed     string     // the error of the last time
	read       *time.Time // when this version last read it in full
	units      int        // how many partitions it found then
	left       string     // what it found then and left out
}

// source explains why a source does not bring a partition or, where key is empty, anything.
func (e *explainer) source(ctx context.Context, job *registry.Job, key string) ([]Reason, error) {
	pauses, err := e.pauses(ctx)
	if err != nil {
		return nil, err
	}
	f, err := e.firing(ctx, job)
	if err != nil {
		return nil, err
	}

	reasons := sourceReasons(f, key != "")
	if p := tasks.WidestPause(pauses, job.DAG, job.Name); p != nil && key != "" {
		reasons = append([]Reason{pausedReason(p, Reason{})}, reasons...)
	}
	held, err := e.pressure(ctx, job.DAG)
	if err != nil {
		return nil, err
	}
	reasons = append(held, reasons...)

	for i := range reasons {
		if reasons[i], err = e.about(ctx, job, reasons[i]); err != nil {
			return nil, err
		}
		if !e.inspects(job.DAG) {
			reasons[i].Error = "" // it may quote paths and rows
		}
	}
	return reasons, nil
}

// pressure returns the reasons for which everything waits that brings a DAG more work: too much is queued, or a quota
// of the org is used up.
func (e *explainer) pressure(ctx context.Context, dagName string) (reasons []Reason, err error) {
	p, err := pressure.Current(ctx, e.tx, e.caller.OrgID, dagName)
	if err != nil {
		return nil, err
	}
	for _, q := range p.Runtimes {
		if q.On() {
			reasons = append(reasons, Reason{Code: whyBackpressure, Since: q.Since, Count: int(q.Queued),
				Detail: "runtime " + q.Runtime})
		}
	}

	usage, err := authz.UsageOf(ctx, e.tx, e.caller, e.now)
	if err != nil {
		return nil, err
	}
	for _, u := range usage {
		if u.Holds() {
			reasons = append(reasons, Reason{Code: whyQuota, Limit: string(u.Quota), Detail: u.Text})
		}
	}
	return reasons, nil
}

// sourceReasons returns the reasons why a source brings nothing now. It is pure.
func sourceReasons(f firing, wanted bool) []Reason {
	var reasons []Reason
	if f.failed != "" {
		reasons = append(reasons, Reason{Code: whySourceFailed, Error: f.failed})
	}
	switch {
	case wanted && f.read != nil:
		reasons = append(reasons, Reason{Code: whySourceLacks, Since: f.read, Count: f.units, Error: f.left})
	case f.read != nil && f.left != "":
		reasons = append(reasons, Reason{Code: whySourceLeftOut, Since: f.read, Error: f.left})
	}

	switch {
	case f.kind == dag.SourceDeploy:
		return append(reasons, Reason{Code: whySourceIdle, Detail: f.kind})
	case f.kind == "manual":
		return append(reasons, Reason{Code: whySourceManual})
	case !f.registered && f.failed != "":
		return reasons
	case !f.registered && wanted && f.read != nil:
		return reasons
	case !f.registered:
		return append(reasons, Reason{Code: whySourcePending, Since: f.read, Count: f.units})
	case f.next == nil:
		return append(reasons, Reason{Code: whySourceIdle, Detail: f.kind})
	}
	return append(reasons, Reason{Code: whySourceWaits, Until: f.next})
}

func (e *explainer) firing(ctx context.Context, job *registry.Job) (firing, error) {
	f := firing{kind: job.Def.Source.Kind}
	err := e.tx.QueryRow(ctx, `
		SELECT true, next_fire_at, coalesce(error, '') FROM sources
		WHERE org_id = $1 AND dag_name = $2 AND job_name = $3`,
		e.caller.OrgID, job.DAG, job.Name).Scan(&f.registered, &f.next, &f.failed)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return f, fmt.Errorf("source %s: %w", job.Address(), err)
	}

	var at *time.Time
	var unread string // why a build could not read it
	err = e.tx.QueryRow(ctx, `
		SELECT enumerated_at, units, coalesce(error, ''), coalesce(left_out, '') FROM enumerations
		WHERE org_id = $1 AND job_id = $2`, e.caller.OrgID, job.ID).Scan(&at, &f.units, &unread, &f.left)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return f, fmt.Errorf("enumeration of %s: %w", job.Address(), err)
	}
	if unread == "" {
		f.read = at
	} else if !f.registered {
		f.failed = unread
	}
	return f, nil
}

// calendar explains when a source that is asked for its partitions is asked for one of them, which it has made or not.
func (e *explainer) calendar(ctx context.Context, job *registry.Job, key string, made bool) ([]Reason, error) {
	by, source := job.Def.PartitionBy, job.Def.Source
	start, end, err := by.Bounds(key)
	if err != nil {
		return nil, err
	}
	first, _, err := by.Bounds(source.FirstPartition)
	if err != nil {
		return nil, err
	}

	r := Reason{Partition: key, Max: source.Lookback}
	switch {
	case start.Before(first):
		r.Code, r.Detail = whyBeforeFirst, source.FirstPartition
	case end.After(e.now):
		r.Code, r.Until = whyNotEnded, &end
	default:
		if err := e.askedBefore(ctx, job, made, &r); err != nil || r.Code == "" {
			reasons, more := e.source(ctx, job, "")
			return reasons, errors.Join(err, more)
		}
	}
	if r, err = e.about(ctx, job, r); err != nil {
		return nil, err
	}
	reasons, err := e.pauseOf(ctx, job)
	return append(reasons, r), err
}

// askedBefore says whether a source is asked again for a partition that it was asked for. It leaves a reason without a
// code if the source has not been asked yet, or is that of a version that does not serve.
func (e *explainer) askedBefore(ctx context.Context, job *registry.Job, made bool, r *Reason) error {
	f, err := e.firing(ctx, job)
	if err != nil {
		return err
	}
	if !f.registered {
		return nil
	}
	if f.next != nil && r.Max > 0 {
		again, err := sources.LooksBackAt(ctx, e.tx, job, r.Partition, later(*f.next, e.now))
		if err != nil {
			return err
		}
		if again {
			r.Code, r.Until = whyAskedAgain, f.next
			return nil
		}
	}

	again := fmt.Sprintf("dagctl backfill %[1]s --from %[2]s --to %[2]s --existing all", job.Address(), r.Partition)
	if r.Command, err = e.resumed(ctx, job, again); err != nil {
		return err
	}
	if made {
		r.Code = whyNotAskedAgain
		return nil
	}
	var ended *time.Time
	err = e.tx.QueryRow(ctx, `
		SELECT max(completed_at) FROM shown_tasks
		WHERE org_id = $1 AND job_id = $2 AND partitions = ARRAY[$3] AND status = 'Completed'`,
		e.caller.OrgID, job.Origin, r.Partition).Scan(&ended)
	if err != nil {
		return fmt.Errorf("when %s was asked for %s: %w", job.Address(), r.Partition, err)
	}
	if ended != nil {
		r.Code, r.Since = whyGaveNothing, ended
	}
	return nil
}

// later returns the later one of two times.
func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
