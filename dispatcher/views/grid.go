package views

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/catalog"
)

// CellState is what has become of a partition.
type CellState string

// The states of a partition, the one that a person should see before the others first.
const (
	CellHeld     CellState = "held"     // its newest revision waits for its checks, or for a person
	CellRejected CellState = "rejected" // its newest revision did not pass
	CellFailed   CellState = "failed"   // the task that makes it failed for good
	CellBuilding CellState = "building" // a task that makes it is queued, runs, or waits for another try
	CellStale    CellState = "stale"    // it was made from other revisions than its inputs have now
	CellMissing  CellState = "missing"  // it is due or possible, and has no revision
	CellPresent  CellState = "present"  // readers see its newest revision
)

// published is the state of a revision that readers see.
const published = "Published"

// Cell is one partition of the generation that readers see.
type Cell struct {
	Partition    string     `json:"partition"`
	State        CellState  `json:"state" enum:"held,rejected,failed,building,stale,missing,present"`
	Revision     int64      `json:"revision,omitempty" doc:"Its newest one"`
	Rows         int64      `json:"rows,omitempty"`
	Bytes        int64      `json:"bytes,omitempty"`
	Materialized *time.Time `json:"materialized_at,omitempty"`
	Task         *uuid.UUID `json:"task_id,omitempty" doc:"The task that makes it now, or that made it"`
}

// mostFed is how many published partitions the inputs of a job without partitions in time may have for the grid to look
// for outputs that were never made.
const mostFed = 5000

// Grid lists the partitions of a dataset from the last key down, beginning before a key (empty: with the last), each
// once with its state. A dataset that no version serves has none.
func (vs *Views) Grid(
	ctx context.Context, caller authz.Caller, name, before string, limit int, now time.Time,
) (cells []Cell, err error) {
	cells = []Cell{}
	err = pg.InOrgSnapshot(ctx, vs.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		d, err := vs.registry.FindDataset(ctx, tx, caller, name)
		if err != nil || d.Version == nil {
			return err
		}
		g := grid{vs, tx, caller, d, *d.Version, nil, nil}
		if err := g.findJob(ctx, before); err != nil {
			return err
		}

		besides, err := g.expected(ctx, before, limit, now)
		if err != nil {
			return err
		}
		tips, err := catalog.Tips(ctx, tx, caller.OrgID, g.generation, before, besides, limit)
		if err != nil {
			return err
		}
		outdated, err := g.outdated(ctx, tips)
		if err != nil {
			return err
		}

		for _, tip := range tips {
			cells = append(cells, g.cell(tip, outdated[tip.Key]))
		}
		return nil
	})
	return cells, fault.Wrap(err, "partitions of dataset "+name)
}

// grid is what the partitions of one dataset are looked at with.
type grid struct {
	views      *Views
	tx         pgx.Tx
	caller     authz.Caller
	dataset    registry.Dataset
	generation uuid.UUID
	job        *registry.Job       // that makes it in the version that serves; nil: the caller may not look into it
	open       map[string]openCell // by key
}

// openCell is the open task of a partition.
type openCell struct {
	task uuid.UUID
	dead bool
}

// findJob sets the job and its open tasks before a key, where the caller may look into it.
func (g *grid) findJob(ctx context.Context, before string) error {
	jobs, err := g.views.registry.ServingJobs(ctx, g.tx, g.caller.OrgID, g.dataset.DAG)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(jobs, func(j *registry.Job) bool { return j.Name == g.dataset.Job })
	if at < 0 {
		return nil
	}
	readable, err := g.views.registry.ReadableJobs(ctx, g.tx, g.caller, jobs[at:at+1])
	if err != nil || !readable[jobs[at].ID] {
		return err
	}

	g.job = jobs[at]
	g.open, err = openCells(ctx, g.tx, g.job, before)
	return err
}

// mostOpen bounds the open tasks of each set that the grid looks at: far more than a page has partitions.
const mostOpen = 5000

// openCells returns the open tasks of a job's output partitions before a key, by their keys. Each of the three sets is
// looked up by job and slot.
func openCells(ctx context.Context, tx pgx.Tx, job *registry.Job, before string) (map[string]openCell, error) {
	const at = `WHERE origin_job_id = $1 AND ($2 = '' OR slot < $2) ORDER BY slot DESC LIMIT $3`
	rows, err := tx.Query(ctx, `
		(SELECT slot, task_id, false FROM leases `+at+`)
		UNION ALL (SELECT slot, task_id, false FROM ready `+at+`)
		UNION ALL (SELECT slot, task_id, reason = 'dead' FROM waiting `+at+`)`, job.Origin, before, mostOpen)
	if err != nil {
		return nil, fmt.Errorf("open tasks of %s: %w", job.Address(), err)
	}

	open := map[string]openCell{}
	var (
		slot string
		cell openCell
	)
	_, err = pgx.ForEachRow(rows, []any{&slot, &cell.task, &cell.dead}, func() error {
		if was, ok := open[slot]; (!ok || was.dead) && job.Def.PartitionBy.Valid(slot) == nil {
			open[slot] = cell
		}
		return nil
	})
	return open, err
}

// expected returns keys that may have no revision: those with open tasks, the partitions in time between the first and
// the last, and after it those that are due, and what the inputs of the job feed.
func (g *grid) expected(ctx context.Context, before string, limit int, now time.Time) (keys []string, err error) {
	for key := range g.open {
		keys = append(keys, key)
	}
	p, err := catalog.Partitioning(g.dataset)
	if err != nil {
		return nil, err
	}

	switch {
	case p.Kind == dag.Unpartitioned:
		return append(keys, dag.WholeKey), nil
	case p.Kind == dag.ByTime:
		span, err := catalog.SpanOf(ctx, g.tx, g.caller.OrgID, g.dataset.ID, g.generation)
		for key := range g.open {
			span.Last = max(span.Last, key)
		}
		if span.Due {
			span.Last = max(span.Last, p.LastComplete(now))
		}
		return append(keys, pastKeys(p, span, before, limit)...), err
	case g.job == nil || g.job.Def.Activation != dag.ActivationReactive:
		return keys, nil
	}

	inputs, err := g.views.registry.InputGenerations(ctx, g.tx, g.job)
	if err != nil {
		return nil, err
	}
	var generations []uuid.UUID
	for _, in := range inputs[g.job.ID] {
		generations = append(generations, in.Version)
	}
	few, err := registry.AtMostPublished(ctx, g.tx, generations, mostFed)
	if err != nil || !few {
		return keys, err
	}
	targets, err := stale.New(g.views.registry).AllTargets(ctx, g.tx, g.job)
	for _, t := range targets {
		keys = append(keys, t.Key)
	}
	return keys, err
}

// pastKeys returns the keys of as many partitions in time as a page has: the last ones of a span that come before a
// key.
func pastKeys(p dag.Partitioning, span catalog.Span, before string, limit int) []string {
	last := span.Last
	if before != "" && before < last {
		last = before
	}
	return p.KeysUpTo(span.First, last, limit+1) // one more than the page has, which ends before its last
}

// outdated reports which of the partitions that readers see newest were made from other revisions than the inputs have.
func (g *grid) outdated(ctx context.Context, tips []catalog.Tip) (map[string]bool, error) {
	if g.job == nil || g.job.Def.Activation != dag.ActivationReactive {
		return nil, nil
	}
	var targets []stale.Target
	for _, tip := range tips {
		if tip.State == published {
			targets = append(targets, stale.Target{Job: g.job, Key: tip.Key})
		}
	}

	findings, err := stale.New(g.views.registry).Examine(ctx, g.tx, targets)
	outdated := map[string]bool{}
	for _, f := range findings {
		outdated[f.Key] = f.Verdict == stale.Stale
	}
	return outdated, err
}

// cell decides on the state of a partition.
func (g *grid) cell(tip catalog.Tip, outdated bool) Cell {
	c := Cell{Partition: tip.Key, Revision: tip.Revision, Rows: tip.Rows, Bytes: tip.Bytes,
		Materialized: tip.Materialized, Task: tip.Task}
	open, working := g.open[tip.Key]
	if working {
		c.Task = &open.task
	}

	switch {
	case tip.State == "Held":
		c.State = CellHeld
	case working && !open.dead:
		c.State = CellBuilding
	case tip.State == "Rejected":
		c.State = CellRejected
	case working:
		c.State = CellFailed
	case tip.State != published:
		c.State = CellMissing
	case outdated:
		c.State = CellStale
	default:
		c.State = CellPresent
	}
	if (c.State == CellHeld || c.State == CellRejected) && !g.caller.May(authz.Inspect, authz.OnDAG(g.dataset.DAG)) {
		c.Revision, c.Rows, c.Bytes, c.Materialized, c.Task = 0, 0, 0, nil, nil
	}
	return c
}
