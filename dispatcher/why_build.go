package dispatcher

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// version explains how the versions of a DAG stand: nothing where one serves and none is on its way.
func (e *explainer) version(ctx context.Context, dagName string) ([]Reason, error) {
	d, err := e.d.Registry.DAG(ctx, e.tx, e.caller, dagName)
	if err != nil {
		return nil, err
	}
	var reasons []Reason
	switch {
	case d.Building != nil:
		r, err := e.build(ctx, *d.Building)
		if err != nil {
			return nil, err
		}
		reasons = append(reasons, r)
	case d.Failed != nil:
		reasons = append(reasons, Reason{Code: whyBuildFailed, Version: d.Failed.Number, Error: d.Failed.Error}) // the error is for writers: see shownTo
	}
	if d.Active == nil {
		reasons = []Reason{{Code: whyNoLiveVersion, Because: reasons}}
	}
	return reasons, nil
}

// gated is what a look at a build found, with what is behind its figures.
type gated struct {
	progress
	jobs      []*registry.Job
	undecided []registry.Undecided
	openTasks int
}

// build explains why a version on its way does not serve yet.
func (e *explainer) build(ctx context.Context, v registry.Version) (Reason, error) {
	builds, err := registry.Builds(ctx, e.tx)
	if err != nil {
		return Reason{}, err
	}
	r := Reason{Code: whyPromotion, Version: v.Number}
	for _, b := range builds {
		if b.ID != v.ID {
			continue
		}
		g, err := e.look(ctx, b)
		if err != nil {
			return r, err
		}
		if r.Because = gateReasons(g.progress, g.openTasks); len(r.Because) == 0 {
			if r.Code = whyCuttingOver; !b.Activate {
				r.Code = whyPromotion
			}
			return r, nil
		}
		r.Code = whyGate
		if err := e.behindGate(ctx, g, r.Because); err != nil || g.open {
			return r, err
		}
		held, err := e.pressure(ctx)
		if held != nil {
			r.Because = append(r.Because, *held)
		}
		return r, err
	}
	return r, nil
}

// gateReasons says why gate does not open for a build: there is none if and only if it does. It is pure.
func gateReasons(p progress, openTasks int) (reasons []Reason) {
	ready, _ := gate(p)
	if ready {
		return nil
	}
	add := func(code Code, n int) {
		if n > 0 {
			reasons = append(reasons, Reason{Code: code, Count: n})
		}
	}
	add(whyGateDead, len(p.dead))
	add(whyGateRejected, len(p.rejected))
	for _, name := range p.unread {
		reasons = append(reasons, Reason{Code: whyGateUnread, Job: name})
	}
	if p.open && !p.caughtUp {
		add(whyGateOpen, max(openTasks, 1))
	}
	add(whyGateStale, p.stale)
	add(whyGateHeld, p.held)
	return reasons
}

// look finds out what advance would of a build, and changes nothing.
func (e *explainer) look(ctx context.Context, b registry.Build) (g gated, err error) {
	if g.jobs, err = e.d.Registry.BuildJobs(ctx, e.tx, b.ID); err != nil {
		return g, err
	}
	g.jobs = slices.DeleteFunc(g.jobs, e.d.Registry.ForwardOnly)
	var origins, generations []uuid.UUID
	for _, job := range g.jobs {
		origins = append(origins, job.Origin)
		for _, o := range job.Outputs {
			generations = append(generations, o.Generation.Version)
		}
	}
	read, err := enumeratedSince(ctx, e.tx, e.caller.OrgID, b.Started)
	if err != nil {
		return g, err
	}
	for _, job := range g.jobs {
		if _, enumerable := e.d.enumerator(job); job.Def.Source != nil && enumerable && job.Def.Source.OnDeploy && !read[job.ID] {
			g.unread = append(g.unread, job.Address())
		}
	}
	if g.open, err = anyOpen(ctx, e.tx, origins); err != nil {
		return g, err
	}
	if g.dead, err = deadTasks(ctx, e.tx, origins); err != nil || len(g.dead) > 0 {
		return g, err
	}
	if g.undecided, err = registry.Unsettled(ctx, e.tx, generations); err != nil {
		return g, err
	}
	if g.open {
		if _, g.openTasks, err = e.openOf(ctx, origins, nil, 0); err != nil {
			return g, err
		}
		_, err = e.d.catchesUp(ctx, e.tx, b, g.jobs, &g.progress)
		return g, err
	}
	return g, e.lookAtData(ctx, b, &g)
}

// lookAtData is look where no task of the build is open.
func (e *explainer) lookAtData(ctx context.Context, b registry.Build, g *gated) error {
	findings, err := e.d.examineAll(ctx, e.tx, g.jobs)
	if err != nil {
		return err
	}
	findings = slices.DeleteFunc(findings, func(f finding) bool { return f.verdict != stale })
	known, err := e.known(ctx, findings)
	if err != nil {
		return err
	}
	for _, f := range findings {
		switch r := unmade(f, known); r.Code {
		case whyUndecided:
			g.stale++
		case whyCanceled:
			if r.Since == nil || r.Since.Before(b.Started) {
				g.stale++ // canceled before the build was taken up: it is tried again
				continue
			}
			g.dead = append(g.dead, fmt.Sprintf("task %s was canceled", r.Task))
		}
	}
	for _, u := range g.undecided {
		if u.Held || u.Decided != nil && u.Decided.Before(b.Started) {
			g.held++
			continue
		}
		g.rejected = append(g.rejected, u.Key)
	}
	if ready, _ := gate(g.progress); !ready {
		return nil
	}
	reused, err := e.d.uncheckedOutputs(ctx, e.tx, b)
	if err != nil {
		return err
	}
	for _, o := range reused {
		if _, err := e.d.checkOutput(ctx, e.tx, b, o, &g.progress, e.now); err != nil {
			return err
		}
	}
	return nil
}

// behind is how many tasks or partitions are named behind each reason of a gate.
const behind = 5

// behindGate names what the figures of a gate are about.
func (e *explainer) behindGate(ctx context.Context, g gated, reasons []Reason) (err error) {
	var origins []uuid.UUID
	byAddress := map[string]*registry.Job{}
	for _, job := range g.jobs {
		origins = append(origins, job.Origin)
		byAddress[job.Address()] = job
	}
	for i := range reasons {
		r := &reasons[i]
		switch r.Code {
		case whyGateDead:
			r.Because, err = e.someOpen(ctx, origins, true)
		case whyGateOpen:
			r.Because, err = e.someOpen(ctx, origins, false)
		case whyGateUnread:
			job := byAddress[r.Job]
			if r.Because, err = e.source(ctx, job, ""); err == nil {
				*r, err = e.about(ctx, job, *r)
			}
		case whyGateRejected, whyGateHeld:
			for _, u := range g.undecided {
				job := makerOf(g.jobs, u.Version)
				if job == nil || u.Held != (r.Code == whyGateHeld) || len(r.Because) >= behind {
					continue
				}
				withheld, err := e.withheld(ctx, job, u.Key)
				if err != nil {
					return err
				}
				r.Because = append(r.Because, withheld...)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func makerOf(jobs []*registry.Job, generation uuid.UUID) *registry.Job {
	for _, job := range jobs {
		if slices.ContainsFunc(job.Outputs, func(o registry.OutputGeneration) bool { return o.Generation.Version == generation }) {
			return job
		}
	}
	return nil
}

// someOpen explains the first open tasks of a build's origins, or those that are dead.
func (e *explainer) someOpen(ctx context.Context, origins []uuid.UUID, dead bool) ([]Reason, error) {
	rows, err := e.tx.Query(ctx, `
		SELECT task_id FROM (
			SELECT task_id, 0 AS n FROM leases WHERE org_id = $1 AND job_id = ANY($2) AND NOT $3 UNION ALL
			SELECT task_id, 1 FROM waiting WHERE org_id = $1 AND job_id = ANY($2) AND (reason = 'dead') = $3 UNION ALL
			SELECT task_id, 2 FROM ready WHERE org_id = $1 AND job_id = ANY($2) AND NOT $3) AS o
		ORDER BY n, task_id LIMIT $4`, e.caller.OrgID, origins, dead, behind)
	if err != nil {
		return nil, fmt.Errorf("open tasks of a build: %w", err)
	}
	tasks, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, fmt.Errorf("open tasks of a build: %w", err)
	}
	list, err := e.tasksByID(ctx, tasks...)
	if err != nil {
		return nil, err
	}
	return e.tasks(ctx, list)
}
