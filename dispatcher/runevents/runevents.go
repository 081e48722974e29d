// Package runevents tells OpenLineage receivers of the attempts that ended. It notes the end of an attempt in the
// outbox, in the transaction of that end and only for orgs that have a receiver, and delivers the events from there, at
// least once. What they say is package lineage/openlineage's.
package runevents

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/registry"
)

// Receiver is where an org's events go.
type Receiver struct {
	URL       string // takes one event per POST
	Secret    string // name of the org's secret that is sent as a bearer token; empty: none is
	Namespace string // of jobs and datasets; empty: dagctl://ORG
}

// Receivers are the receivers of orgs, by slug.
type Receivers map[string]Receiver

// orgs returns the slugs of the orgs that have a receiver, sorted.
func (r Receivers) orgs() []string { return slices.Sorted(maps.Keys(r)) }

// most is how many revisions of inputs, and as many of outputs, an event names.
const most = 1000

// end is the payload of an outbox row: what is known of an attempt only when it ends.
type end struct {
	Task    uuid.UUID        `json:"task"`
	Job     uuid.UUID        `json:"job"` // the row by which it ran
	Attempt int              `json:"attempt"`
	Kind    tasks.Kind       `json:"kind"`
	Started time.Time        `json:"started"`
	Ended   time.Time        `json:"ended"`
	Type    openlineage.Type `json:"type"`
	Reason  tasks.Reason     `json:"reason,omitempty"`
	Read    []revision       `json:"read,omitempty"` // by index of the input
	Made    []revision       `json:"made,omitempty"` // by index of the output
	Cut     bool             `json:"cut,omitempty"`  // there was more of one of them
}

// revision is a revision of an input or an output.
type revision struct {
	Place int `json:"place"` // index of the input or output
	openlineage.Revision
	Rows  int64 `json:"rows,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
}

// Note writes an outbox row for each attempt that ended, of orgs that have a receiver. Without receivers it does
// nothing.
func Note(ctx context.Context, tx pgx.Tx, r *registry.Registry, to Receivers, all []tasks.Ended, now time.Time) error {
	ended := attempts(to, all)
	if len(ended) == 0 {
		return nil
	}
	ended, err := received(ctx, tx, to, ended)
	if err != nil || len(ended) == 0 {
		return err
	}

	jobs, err := jobsOf(ctx, tx, r, ended)
	if err != nil {
		return err
	}
	orgs, payloads := make([]uuid.UUID, len(ended)), make([]string, len(ended))
	for i, t := range ended {
		payload, err := json.Marshal(endOf(t, jobs[t.Origin], now))
		if err != nil {
			return err
		}
		orgs[i], payloads[i] = t.Org, string(payload)
	}

	_, err = tx.Exec(ctx, `
		INSERT INTO outbox (org_id, kind, payload, available_at, created_at)
		SELECT e.org, 'openlineage', e.payload::jsonb, $3, $3 FROM unnest($1::uuid[], $2::text[]) AS e(org, payload)`,
		orgs, payloads, now)
	if err != nil {
		return fmt.Errorf("note the ends of %d attempts: %w", len(ended), err)
	}
	return nil
}

// attempts returns the ended tasks of which an attempt ended: it ran until now, or completed after its lease was lost.
func attempts(to Receivers, all []tasks.Ended) (ended []tasks.Ended) {
	if len(to) == 0 {
		return nil
	}
	for _, t := range all {
		if (t.Row.Status == tasks.Running || t.Ending.Status == tasks.Completed) && t.Attempt > 0 {
			ended = append(ended, t)
		}
	}
	return ended
}

// received returns the ended tasks of orgs that have a receiver.
func received(ctx context.Context, tx pgx.Tx, to Receivers, all []tasks.Ended) ([]tasks.Ended, error) {
	orgs := map[uuid.UUID]bool{}
	for _, t := range all {
		orgs[t.Org] = false
	}
	rows, err := tx.Query(ctx, `SELECT id FROM unnest($1::uuid[]) AS id WHERE org_slug(id) = ANY($2)`,
		slices.Collect(maps.Keys(orgs)), to.orgs())
	if err != nil {
		return nil, fmt.Errorf("look for receivers: %w", err)
	}
	var org uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&org}, func() error { orgs[org] = true; return nil }); err != nil {
		return nil, fmt.Errorf("look for receivers: %w", err)
	}
	return slices.DeleteFunc(all, func(t tasks.Ended) bool { return !orgs[t.Org] }), nil
}

// jobsOf returns the rows by which jobs are run now, by origin, or else the origins themselves.
func jobsOf(ctx context.Context, tx pgx.Tx, r *registry.Registry, ended []tasks.Ended) (map[uuid.UUID]*registry.Job,
	error) {
	jobs := map[uuid.UUID]*registry.Job{}
	for _, t := range ended {
		jobs[t.Origin] = nil
	}
	acting, err := r.ActingJobs(ctx, tx, slices.Collect(maps.Keys(jobs)))
	if err != nil {
		return nil, err
	}

	var idle []uuid.UUID
	for origin := range jobs {
		if a, ok := acting[origin]; ok {
			jobs[origin] = a.Job
		} else {
			idle = append(idle, origin)
		}
	}
	origins, err := r.Jobs(ctx, tx, idle)
	if err != nil {
		return nil, err
	}
	maps.Copy(jobs, origins)
	return jobs, nil
}

// endOf returns what is to be told of an attempt.
func endOf(t tasks.Ended, job *registry.Job, now time.Time) end {
	e := end{Task: t.ID, Job: job.ID, Attempt: t.Attempt, Kind: t.Kind, Started: now, Ended: now, Reason: t.Reason}
	if at := t.Started(); at != nil {
		e.Started = *at
	}
	switch {
	case t.Ending.Status == tasks.Completed:
		e.Type = openlineage.Complete
	case t.Ending.Status == tasks.Failed && t.Reason != tasks.ReasonHandedBack:
		e.Type = openlineage.Fail
	default:
		e.Type = openlineage.Abort
	}

	for _, p := range t.Pins {
		if p.Input < len(job.Inputs) {
			e.Read = append(e.Read, revision{Place: p.Input, Revision: openlineage.Revision{Generation: p.Version,
				Partition: timeKey(job.Inputs[p.Input].PartitionBy, p.Key), Revision: p.Revision}})
		}
	}
	for _, o := range t.Outputs {
		if o.Output < len(job.Outputs) {
			to := job.Outputs[o.Output]
			e.Made = append(e.Made, revision{Place: o.Output, Rows: o.Rows, Bytes: o.Bytes,
				Revision: openlineage.Revision{Generation: to.Generation.Version,
					Partition: timeKey(to.PartitionBy, o.Partition), Revision: o.Revision, State: o.State}})
		}
	}
	if len(e.Read) > most || len(e.Made) > most {
		e.Cut = true
		e.Read, e.Made = e.Read[:min(most, len(e.Read))], e.Made[:min(most, len(e.Made))]
	}
	return e
}

// timeKey returns the key of a partition if it is a time. Others are values of rows.
func timeKey(p dag.Partitioning, key string) string {
	if p.Kind != dag.ByTime {
		return ""
	}
	return key
}
