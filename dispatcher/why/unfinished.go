package why

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// version explains the versions of a DAG. It returns nothing where one serves and none is being built.
func (e *explainer) version(ctx context.Context, dagName string) ([]Reason, error) {
	d, err := e.d.registry.DAG(ctx, e.tx, e.caller, dagName)
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
		// Only writers get the error: see shownTo.
		reasons = append(reasons, Reason{Code: whyBuildFailed, Version: d.Failed.Number, Error: d.Failed.Error})
	}
	if d.Active == nil {
		reasons = []Reason{{Code: whyNoLiveVersion, Because: reasons}}
	}
	return reasons, nil
}

// gated is the progress of a build, with what its figures count.
type gated struct {
	builds.Progress
	jobs      []*registry.Job
	undecided []deploy.Undecided
	openTasks int
}

// build explains why a version that is being built does not serve yet.
func (e *explainer) build(ctx context.Context, v registry.Version) (Reason, error) {
	builds, err := deploy.Builds(ctx, e.tx)
	if err != nil {
		return Reason{}, err
	}
	i := slices.IndexFunc(builds, func(b registry.Build) bool { return b.ID == v.ID })
	if i < 0 {
		return Reason{Code: whyPromotion, Version: v.Number, Detail: v.HeldBecause}, nil
	}

	b, r := builds[i], Reason{Code: whyGate, Version: v.Number}
	var g gated
	err = e.decide(ctx, func() (err error) {
		g, err = e.look(ctx, b)
		return err
	})
	if err != nil {
		return r, err
	}
	if r.Because = gateReasons(g.Progress, g.openTasks); len(r.Because) == 0 {
		if r.Code = whyCuttingOver; !b.Activate {
			r.Code, r.Detail = whyPromotion, v.HeldBecause
		}
		r.Error = v.Error
		return r, nil
	}

	if err := e.behindGate(ctx, g, r.Because); err != nil || g.Open {
		return r, err
	}
	held, err := e.pressure(ctx, b.DAG)
	r.Because = append(r.Because, held...)
	return r, err
}

// gateReasons returns the reasons for which the gate of a build is shut: none if and only if it is open. It is pure.
func gateReasons(p builds.Progress, openTasks int) (reasons []Reason) {
	ready, _ := builds.Gate(p)
	if ready {
		return nil
	}

	add := func(code Code, n int) {
		if n > 0 {
			reasons = append(reasons, Reason{Code: code, Count: n})
		}
	}

	add(whyGateDead, len(p.Dead))
	add(whyGateRejected, len(p.Rejected))
	for _, name := range p.Unread {
		reasons = append(reasons, Reason{Code: whyGateUnread, Job: name})
	}
	if p.Open && !p.CaughtUp {
		add(whyGateOpen, max(openTasks, 1))
	}
	add(whyGateStale, p.Stale)
	add(whyGateHeld, p.Held)
	return reasons
}

// look returns what advance would find about a build, and changes nothing.
func (e *explainer) look(ctx context.Context, b registry.Build) (g gated, err error) {
	if g.jobs, err = e.d.registry.BuildJobs(ctx, e.tx, b.ID); err != nil {
		return g, err
	}
	g.jobs = slices.DeleteFunc(g.jobs, e.d.registry.ForwardOnly)

	var origins, generations []uuid.UUID
	for _, job := range g.jobs {
		origins = append(origins, job.Origin)
		for _, o := range job.Outputs {
			generations = append(generations, o.Generation.Version)
		}
	}

	if g.Unread, err = e.unreadSources(ctx, b, g.jobs); err != nil {
		return g, err
	}
	if g.Open, err = builds.AnyOpen(ctx, e.tx, origins); err != nil {
		return g, err
	}
	if g.Dead, err = builds.DeadTasks(ctx, e.tx, b, origins); err != nil || len(g.Dead) > 0 {
		return g, err
	}
	if g.undecided, err = deploy.Unsettled(ctx, e.tx, generations); err != nil {
		return g, err
	}

	if !g.Open {
		return g, e.lookAtData(ctx, b, &g)
	}

	if _, g.openTasks, err = e.openOf(ctx, origins, nil, 0); err != nil {
		return g, err
	}
	_, err = e.d.builds.CatchesUp(ctx, e.tx, b, g.jobs, &g.Progress)
	return g, err
}

// unreadSources lists the sources that a build is still to read.
func (e *explainer) unreadSources(ctx context.Context, b registry.Build, jobs []*registry.Job) ([]string, error) {
	read, err := views.EnumeratedSince(ctx, e.tx, e.caller.OrgID, b.Started)
	if err != nil {
		return nil, err
	}

	var unread []string
	for _, job := range jobs {
		_, enumerable := e.d.sources.Enumerator(job)
		if job.Def.Source != nil && enumerable && job.Def.Source.OnDeploy && !read[job.ID] {
			unread = append(unread, job.Address())
		}
	}
	return unread, nil
}

// lookAtData does the part of look for a build none of whose tasks is open.
func (e *explainer) lookAtData(ctx context.Context, b registry.Build, g *gated) error {
	findings, err := e.d.stale.ExamineAll(ctx, e.tx, g.jobs)
	if err != nil {
		return err
	}
	findings = slices.DeleteFunc(findings, func(f stale.Finding) bool { return f.Verdict != stale.Stale })

	known, err := e.known(ctx, findings)
	if err != nil {
		return err
	}
	g.count(b, findings, known)
	if ready, _ := builds.Gate(g.Progress); !ready {
		return nil
	}

	reused, err := e.d.builds.UncheckedOutputs(ctx, e.tx, b)
	if err != nil {
		return err
	}
	for _, o := range reused {
		if _, err := e.d.builds.CheckOutput(ctx, e.tx, b, o, &g.Progress, e.now); err != nil {
			return err
		}
	}
	return nil
}

// count adds the stale targets and the undecided revisions of a build to its progress.
func (g *gated) count(b registry.Build, stale []stale.Finding, known map[workOf]placed) {
	for _, f := range stale {
		switch r := unmade(f, known); r.Code {
		case whyUndecided:
			g.Stale++
		case WhyCanceled:
			if r.Since == nil || r.Since.Before(b.Started) {
				g.Stale++ // canceled before the build began: its task is made again
				continue
			}
			g.Dead = append(g.Dead, fmt.Sprintf("task %s was canceled", r.Task))
		}
	}

	for _, u := range g.undecided {
		if u.Held || u.Decided != nil && u.Decided.Before(b.Started) {
			g.Held++
			continue
		}
		g.Rejected = append(g.Rejected, u.Key)
	}
}

// behind bounds how many tasks or partitions are named behind each reason of a gate.
const behind = 5

// behindGate puts the tasks and partitions that the figures of a gate count behind its reasons.
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

// makerOf returns the job that makes a generation, or nil.
func makerOf(jobs []*registry.Job, generation uuid.UUID) *registry.Job {
	for _, job := range jobs {
		for _, o := range job.Outputs {
			if o.Generation.Version == generation {
				return job
			}
		}
	}
	return nil
}

// someOpen explains the first open tasks of a build's origins; if dead, only the dead ones.
func (e *explainer) someOpen(ctx context.Context, origins []uuid.UUID, dead bool) ([]Reason, error) {
	rows, err := e.tx.Query(ctx, `
		SELECT task_id FROM (
			SELECT task_id, 0 AS n FROM leases WHERE org_id = $1 AND origin_job_id = ANY($2) AND NOT $3 UNION ALL
			SELECT task_id, 1 FROM waiting
			WHERE org_id = $1 AND origin_job_id = ANY($2) AND (reason = 'dead') = $3 UNION ALL
			SELECT task_id, 2 FROM ready WHERE org_id = $1 AND origin_job_id = ANY($2) AND NOT $3) AS o
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
