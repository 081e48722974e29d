package views

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// TaskPart is a revision of a partition that a task reads or has made.
type TaskPart struct {
	Dataset   string     `json:"dataset,omitempty" doc:"Absent where the caller may not read it"`
	Input     string     `json:"input,omitempty" doc:"The name by which the job reads it"`
	Partition string     `json:"partition,omitempty"`
	Revision  int64      `json:"revision,omitempty"`
	Version   int        `json:"version,omitempty" doc:"The DAG version that its generation was made for"`
	Task      *uuid.UUID `json:"task_id,omitempty" doc:"The task that made it"`
	State     string     `json:"state,omitempty" enum:"Held,Published,Replaced,Rejected,Purged" doc:"What has become of it"`
	Newest    bool       `json:"newest,omitempty" doc:"No later revision of the partition exists"`
	Rows      int64      `json:"rows,omitempty"`
	Bytes     int64      `json:"bytes,omitempty"`

	dataset uuid.UUID
	ref     registry.RevisionRef
}

// Withheld reports whether readers do not see it, and somebody may decide over it.
func (p TaskPart) Withheld() bool { return p.Newest && (p.State == "Held" || p.State == "Rejected") }

// Lease says until when a running task is its worker's.
type Lease struct {
	HeartbeatAt time.Time `json:"heartbeat_at" doc:"When the worker last reported"`
	ExpiresAt   time.Time `json:"expires_at" doc:"When the task goes to another worker, unless this one reports"`
	TimeoutAt   time.Time `json:"timeout_at" doc:"When the attempt ends in any case"`
	Asked       bool      `json:"cancel_requested,omitempty" doc:"The worker was asked to end"`
}

// leaseOf returns the lease of a task; nil: it does not run.
func leaseOf(ctx context.Context, tx pgx.Tx, org, id uuid.UUID) (*Lease, error) {
	var l Lease
	err := tx.QueryRow(ctx, `
		SELECT heartbeat_at, expires_at, timeout_at, cancel_requested FROM leases WHERE org_id = $1 AND task_id = $2`,
		org, id).Scan(&l.HeartbeatAt, &l.ExpiresAt, &l.TimeoutAt, &l.Asked)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return &l, nil
}

// mostParts is how many of the revisions that a task reads are shown.
const mostParts = 200

// addParts adds what a task reads and has made. Of a task that the caller may not look into, both are empty.
func (vs *Views) addParts(ctx context.Context, tx pgx.Tx, caller authz.Caller, t *TaskDetail) error {
	if len(t.InputVersions) == 0 && len(t.Outputs) == 0 {
		return nil
	}
	var origin uuid.UUID
	if err := tx.QueryRow(ctx, `SELECT job_id FROM tasks WHERE org_id = $1 AND id = $2`, caller.OrgID, t.ID).
		Scan(&origin); err != nil {
		return fmt.Errorf("job of task: %w", err)
	}
	jobs, err := vs.registry.Jobs(ctx, tx, []uuid.UUID{origin})
	if err != nil {
		return err
	}

	if t.Read, err = readParts(jobs[origin], t.InputVersions); err != nil {
		return err
	}
	if t.Made, err = madeParts(jobs[origin], t.Outputs); err != nil {
		return err
	}
	return vs.nameParts(ctx, tx, caller, t.Read, t.Made)
}

// readParts returns what a task pinned.
func readParts(job *registry.Job, pinned json.RawMessage) (parts []TaskPart, err error) {
	var pins []registry.Pin
	if len(pinned) > 0 {
		err = json.Unmarshal(pinned, &pins)
	}
	for _, pin := range pins[:min(len(pins), mostParts)] {
		p := TaskPart{Partition: pin.Key, Revision: pin.Revision, dataset: pin.Dataset,
			ref: registry.RevisionRef{Version: pin.Version, Key: pin.Key, Revision: pin.Revision}}
		if pin.Input >= 0 && pin.Input < len(job.Def.Inputs) {
			p.Input = job.Def.Inputs[pin.Input].As
		}
		parts = append(parts, p)
	}
	return parts, err
}

// madeParts returns what a task committed.
func madeParts(job *registry.Job, committed json.RawMessage) (parts []TaskPart, err error) {
	var notes []tasks.OutputNote
	if len(committed) > 0 {
		err = json.Unmarshal(committed, &notes)
	}
	for _, n := range notes {
		if n.Output < 0 || n.Output >= len(job.Outputs) {
			continue
		}
		g := job.Outputs[n.Output].Generation
		parts = append(parts, TaskPart{Partition: n.Partition, Revision: n.Revision, State: n.State, Rows: n.Rows,
			Bytes: n.Bytes, dataset: g.Dataset,
			ref: registry.RevisionRef{Version: g.Version, Key: n.Partition, Revision: n.Revision}})
	}
	return parts, err
}

// nameParts adds the names of datasets and where revisions come from; of what the caller may not read, nothing is left.
func (vs *Views) nameParts(ctx context.Context, tx pgx.Tx, caller authz.Caller, lists ...[]TaskPart) error {
	var datasets []uuid.UUID
	var refs []registry.RevisionRef
	for _, parts := range lists {
		for _, p := range parts {
			datasets, refs = append(datasets, p.dataset), append(refs, p.ref)
		}
	}
	names, err := vs.registry.ReadableNames(ctx, tx, caller, datasets)
	if err != nil {
		return err
	}
	origins, err := vs.registry.RevisionOrigins(ctx, tx, caller, refs)
	if err != nil {
		return err
	}

	for _, parts := range lists {
		for i := range parts {
			p := &parts[i]
			if p.Dataset = names[p.dataset]; p.Dataset == "" {
				*p = TaskPart{}
				continue
			}
			if o, known := origins[p.ref]; known {
				p.Version, p.Task, p.State, p.Newest = o.DAGVersion, &o.Task, o.State, o.Newest
			}
		}
	}
	return nil
}
