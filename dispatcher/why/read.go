package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

// explainer explains one moment to one caller. It keeps what it reads for the rest of its answer.
type explainer struct {
	d      *Explainer
	tx     pgx.Tx
	caller authz.Caller
	now    time.Time

	jobs     map[uuid.UUID]*registry.Job // by origin
	readable map[uuid.UUID]bool          // by job row
	paused   *[]tasks.Pause
	visited  map[visit]bool
	deciding bool
}

// visit is one partition that is being explained; with an empty key, all of a job.
type visit struct {
	job uuid.UUID
	key string
}

// visits bounds how many partitions one answer looks at upstream.
const visits = 100

// step reports whether there is a point in explaining something: it was not explained yet, and the answer is not too
// long.
func (e *explainer) step(job uuid.UUID, key string) bool {
	s := visit{job, key}
	if e.visited[s] || len(e.visited) >= visits {
		return false
	}
	e.visited[s] = true
	return true
}

// inspects reports whether the caller may see what only those see who work on a DAG, such as errors that quote rows.
func (e *explainer) inspects(dag string) bool { return e.caller.May(authz.Inspect, authz.OnDAG(dag)) }

// decide runs fn, which decides what is so by all rows of the org, whoever asks: an answer that depended on what its
// caller may read would be wrong. Where an answer tells of what fn finds, about and conditions leave out what is
// hidden.
func (e *explainer) decide(ctx context.Context, fn func() error) error {
	if e.deciding {
		return fn()
	}
	e.deciding = true
	defer func() { e.deciding = false }()
	return pg.SeeingAll(ctx, e.tx, fn)
}

// pauses returns the pauses of the org, as the caller sees them.
func (e *explainer) pauses(ctx context.Context) ([]tasks.Pause, error) {
	if e.paused == nil {
		found, err := views.PausesOf(ctx, e.tx, e.caller)
		if err != nil {
			return nil, err
		}
		e.paused = &found
	}
	return *e.paused, nil
}

// job returns the row by which an origin is run now, or the origin's own.
func (e *explainer) job(ctx context.Context, origin uuid.UUID) (*registry.Job, error) {
	if job, ok := e.jobs[origin]; ok {
		return job, nil
	}

	acting, err := e.d.registry.ActingJobs(ctx, e.tx, []uuid.UUID{origin})
	if err != nil {
		return nil, err
	}
	job := acting[origin].Job
	if job == nil {
		rows, err := e.d.registry.KnownJobs(ctx, e.tx, []uuid.UUID{origin})
		if err != nil {
			return nil, err
		}
		job = rows[origin]
	}
	e.jobs[origin] = job
	return job, nil
}

// mayRead reports whether the caller may look into a job: see registry.ReadableJobs and, for what was decided behind
// the second wall, registry.ShownJob.
func (e *explainer) mayRead(ctx context.Context, job *registry.Job) (bool, error) {
	if may, ok := e.readable[job.ID]; ok {
		return may, nil
	}
	readable, err := e.d.registry.ReadableJobs(ctx, e.tx, e.caller, []*registry.Job{job})
	if err != nil {
		return false, err
	}
	may := readable[job.ID]
	if may {
		if may, err = registry.ShownJob(ctx, e.tx, e.caller.OrgID, job.ID); err != nil {
			return false, err
		}
	}
	e.readable[job.ID] = may
	return may, nil
}

// about adds the job to a reason or, where the caller may not see that, removes what would reveal it.
func (e *explainer) about(ctx context.Context, job *registry.Job, r Reason) (Reason, error) {
	may, err := e.mayRead(ctx, job)
	if err != nil {
		return Reason{}, err
	}
	if may {
		r.Job = job.Address()
		return r, nil
	}

	r.Hidden = true
	r.Job, r.Dataset, r.Partition, r.Input, r.Task, r.Limit, r.Error, r.Command = "", "", "", "", nil, "", "", ""
	if r.Code != WhyPaused { // it says no more than status does, see views.PausesOf
		r.Detail = ""
	}
	return r, nil
}

// explain returns the answer that body fills in, in one transaction that sees the caller's org.
func (y *Explainer) explain(
	ctx context.Context, caller authz.Caller, now time.Time, body func(ctx context.Context, e *explainer, w *Why) error,
) (Why, error) {
	w := Why{At: now}
	err := pg.InOrgTx(ctx, y.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		e := &explainer{d: y, tx: tx, caller: caller, now: now,
			jobs: map[uuid.UUID]*registry.Job{}, readable: map[uuid.UUID]bool{}, visited: map[visit]bool{}}
		w = Why{At: now}
		return body(ctx, e, &w)
	})
	if err != nil {
		return Why{}, err
	}

	if w.Reasons == nil {
		w.Reasons = []Reason{}
	}
	addTexts(w.Reasons)
	return w, nil
}

// shown bounds how many tasks, and how many partitions, an answer about a job or a dataset names.
const shown = 20

// TaskWhy explains why a task is where it is. Every open task has a reason. It returns NotFound where there is no such
// task.
func (y *Explainer) TaskWhy(ctx context.Context, caller authz.Caller, id uuid.UUID, now time.Time) (Why, error) {
	w, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, w *Why) error {
		t, readable, err := y.views.FindTask(ctx, e.tx, caller, id)
		if err != nil {
			return err
		}
		w.Task, w.DAG, w.Job, w.Partition, w.State = &id, t.DAG, t.Job, t.Partition, t.Status

		list, err := e.tasksByID(ctx, id)
		if err != nil {
			return err
		}
		if w.Reasons, err = e.tasks(ctx, list); err != nil || !readable || len(list) == 0 {
			return err
		}
		more, err := e.wanted(ctx, list[0])
		w.Reasons = append(w.Reasons, more...)
		return err
	})
	return w, fault.Wrap(err, fmt.Sprintf("why task %s", id))
}

// wanted explains a queued task whose inputs no longer have what it would read: it will be canceled when it is claimed.
func (e *explainer) wanted(ctx context.Context, p placed) ([]Reason, error) {
	job, err := e.job(ctx, p.origin)
	if err != nil || p.status != tasks.Queued || p.kind == tasks.KindCheck ||
		job.Def.Activation != dag.ActivationReactive {
		return nil, err
	}
	e.step(job.ID, p.slot)
	return e.target(ctx, stale.Target{Job: job, Key: p.slot}, true)
}

// JobWhy explains what a job does, or why it does nothing. It returns NotFound where no shown version has it.
func (y *Explainer) JobWhy(
	ctx context.Context, caller authz.Caller, dagName, name string, now time.Time,
) (Why, error) {
	w, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, w *Why) error {
		job, err := e.jobNamed(ctx, dagName, name)
		if err != nil {
			return err
		}
		w.DAG, w.Job = dagName, name
		return e.all(ctx, job, w)
	})
	return w, fault.Wrap(err, fmt.Sprintf("why job %s/%s", dagName, name))
}

// all explains a job and the versions of its DAG.
func (e *explainer) all(ctx context.Context, job *registry.Job, w *Why) (err error) {
	if w.Reasons, err = e.version(ctx, job.DAG); err != nil {
		return err
	}
	more, err := e.activity(ctx, job, shown)
	w.Reasons = append(w.Reasons, more...)
	return err
}

// VersionWhy explains why a version does not serve yet: what its build waits for, or how it failed. There are no
// reasons where it serves, or is over. It returns NotFound where the DAG has no such version.
func (y *Explainer) VersionWhy(
	ctx context.Context, caller authz.Caller, dagName string, number int, now time.Time,
) (Why, error) {
	version, err := y.registry.Version(ctx, caller, dagName, number)
	if err != nil {
		return Why{}, err
	}

	w, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, w *Why) (err error) {
		w.DAG, w.State, w.Reasons = dagName, string(version.Status), []Reason{}
		switch version.Status {
		case registry.Building, registry.Ready:
			var r Reason
			r, err = e.build(ctx, version.Version)
			w.Reasons = append(w.Reasons, r)
		case registry.Failed:
			failed := Reason{Code: whyBuildFailed, Version: number, Error: version.Error}
			w.Reasons = append(w.Reasons, failed)
		}
		return err
	})
	return w, fault.Wrap(err, fmt.Sprintf("why %s v%d", dagName, number))
}

// jobNamed returns a job of the version that serves, else of the one being built, else of the one that failed.
func (e *explainer) jobNamed(ctx context.Context, dagName, name string) (*registry.Job, error) {
	d, err := e.d.registry.DAG(ctx, e.tx, e.caller, dagName)
	if err != nil {
		return nil, err
	}

	for _, v := range []*registry.Version{d.Active, d.Building, d.Failed} {
		if v == nil {
			continue
		}
		jobs, err := e.d.registry.VersionJobs(ctx, e.tx, v.ID)
		if err != nil {
			return nil, err
		}
		if i := slices.IndexFunc(jobs, func(j *registry.Job) bool { return j.Name == name }); i >= 0 {
			return jobs[i], nil
		}
	}
	return nil, registry.NoJob(dagName, name)
}

// DatasetWhy explains the state of a dataset: that it is late, what its job does, what is withheld, and what does not
// serve yet. It returns NotFound where the caller may see no such dataset.
func (y *Explainer) DatasetWhy(ctx context.Context, caller authz.Caller, name string, now time.Time) (Why, error) {
	w, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, w *Why) error {
		dataset, job, err := e.maker(ctx, name, w)
		if err != nil || job == nil {
			return err
		}
		if err := e.all(ctx, job, w); err != nil {
			return err
		}
		bad, err := e.badRows(ctx, dataset, "")
		if err != nil {
			return err
		}
		w.Reasons = slices.Concat(bad, w.Reasons)
		if dataset.Late == nil {
			return nil
		}

		late := Reason{Code: whyLate, Dataset: dataset.Name, Job: job.Address(),
			Partition: dataset.Late.Partition, Since: &dataset.Late.DueAt}
		if late.Partition != "" {
			if late.Because, err = e.partition(ctx, job, late.Partition); err != nil {
				return err
			}
		}
		w.Reasons = slices.Insert(w.Reasons, 0, late)
		return nil
	})
	return w, fault.Wrap(err, "why dataset "+name)
}

// maker returns a dataset and the job that makes it; the job is nil where no shown version makes it.
func (e *explainer) maker(ctx context.Context, name string, w *Why) (registry.Dataset, *registry.Job, error) {
	found, err := e.d.registry.DatasetByName(ctx, e.tx, e.caller, name, e.now)
	if fault.Is(err, fault.NotFound) {
		found, err = e.toBe(ctx, name, err)
	}
	if err != nil {
		return found, nil, err
	}
	w.Dataset, w.DAG, w.Job = found.Name, found.DAG, found.Job

	job, err := e.jobNamed(ctx, found.DAG, found.Job)
	if fault.Is(err, fault.NotFound) {
		w.Reasons = []Reason{{Code: whyNotInVersion, Job: found.DAG + "/" + found.Job}}
		return found, nil, nil
	}
	return found, job, err
}

// PartitionWhyNot explains why readers do not see a partition of a dataset, or not a newer one. It returns NotFound
// where the caller may see no such dataset, and Invalid where the key cannot be one of its partitions.
func (y *Explainer) PartitionWhyNot(
	ctx context.Context, caller authz.Caller, name, key string, now time.Time,
) (Why, error) {
	var found *stored
	w, err := y.explain(ctx, caller, now, func(ctx context.Context, e *explainer, w *Why) error {
		dataset, job, err := e.maker(ctx, name, w)
		if err != nil || job == nil {
			return err
		}
		if err := job.Def.PartitionBy.Valid(key); err != nil {
			return err
		}

		w.Partition = key
		if w.Reasons, found, err = e.served(ctx, dataset, job, key); err != nil {
			return err
		}
		bad, err := e.badRows(ctx, dataset, key)
		if err != nil {
			return err
		}
		more, err := e.partition(ctx, job, key)
		w.Reasons = slices.Concat(w.Reasons, bad, more)
		return err
	})
	if err == nil && found != nil {
		w.Reasons = y.seen(ctx, found, w.Reasons)
		if lost := &w.Reasons[0]; lost.Code == whyFileGone {
			err = y.addLostBehind(ctx, caller, now, found, lost, mostBehindFar)
		}
		addTexts(w.Reasons)
	}
	return w, fault.Wrap(err, fmt.Sprintf("why not %s %s", name, key))
}

// badRows says how many rows of a dataset's files went to its quarantine; of one partition, or of all.
func (e *explainer) badRows(ctx context.Context, d registry.Dataset, key string) ([]Reason, error) {
	bad, err := registry.BadRowsOf(ctx, e.tx, e.caller, d, key)
	if err != nil || bad == nil || bad.Rows == 0 {
		return nil, err
	}
	return []Reason{{Code: whyBadRows, Dataset: bad.Dataset, Partition: key, Job: d.DAG + "/" + d.Job,
		Count: int(bad.Rows)}}, nil
}

// gone says for people that what was there a moment ago is not: it was purged, or closed to the caller.
func gone(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return fault.New(fault.NotFound, "the partition is not there any more")
	}
	return err
}

// served explains since when readers see a partition, with what the storage is to have of it, or, where no version
// serves, why none does.
func (e *explainer) served(
	ctx context.Context, d registry.Dataset, job *registry.Job, key string,
) ([]Reason, *stored, error) {
	if d.Version == nil {
		reasons, err := e.version(ctx, d.DAG)
		return reasons, nil, err
	}

	ref := registry.Ref{Version: *d.Version, Key: key}
	published, err := registry.PublishedAt(new(pg.Batch), []registry.Ref{ref}).Get(ctx, e.tx)
	if err != nil || len(published) == 0 {
		return nil, nil, err
	}
	found, err := e.publishedAt(ctx, job, d.Name, ref, published[ref])
	if err != nil {
		return nil, nil, gone(err)
	}
	return []Reason{{Code: whyPublished, Dataset: d.Name, Partition: key, Job: d.DAG + "/" + d.Job,
		Since: &found.revision.Materialized}}, found, nil
}

// toBe returns the dataset that gets a name with the first version that publishes it, while that is built or has
// failed; missing, if there is none that the caller may see.
func (e *explainer) toBe(ctx context.Context, name string, missing error) (registry.Dataset, error) {
	present, err := registry.NamedInBuild(ctx, e.tx, e.caller.OrgID, name)
	if err != nil {
		return registry.Dataset{}, err
	}
	if present == "" {
		return registry.Dataset{}, missing
	}
	found, err := e.d.registry.DatasetByName(ctx, e.tx, e.caller, present, e.now)
	if fault.Is(err, fault.NotFound) {
		return registry.Dataset{}, missing
	}
	found.Name = name
	return found, err
}
