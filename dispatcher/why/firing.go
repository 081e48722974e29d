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
	if wanted && f.read != nil {
		reasons = append(reasons, Reason{Code: whySourceLacks, Since: f.read, Count: f.units, Error: f.left})
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
