package dispatcher

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// progress is what a build has come to.
type progress struct {
	open     bool     // tasks are queued, running, or waiting for a retry
	caughtUp bool     // but nobody who reads the live generations would miss what they are about
	dead     []string // tasks that failed for good or were canceled, with their errors
	rejected []string // revisions whose checks failed
	unread   []string // sources not enumerated since the build began
	stale    int      // output partitions that wanted a task just now
	held     int      // revisions whose checks have not decided
}

// gate decides over a build: whether it is ready, and if it can never be, why. It is pure.
func gate(p progress) (ready bool, failed string) {
	switch {
	case len(p.dead) > 0:
		return false, p.dead[0]
	case len(p.rejected) > 0:
		return false, p.rejected[0]
	}
	return (!p.open || p.caughtUp) && len(p.unread) == 0 && p.stale == 0 && p.held == 0, ""
}

// A stream of events that never ends keeps some task of a build open at any moment. So a build is also ready when the few
// tasks that are open are about what the live generations have not got either: it is then as good as they are, and goes
// on from there once it serves. While it comes close, the live counterparts are held back for a moment, because their
// tasks are claimed first and would outrun it.

const (
	// few is how many tasks may be open when a build is compared with what is live. The comparison follows revisions to
	// what they were made from, which is too much to do after each of the thousands of tasks before.
	few = 32
	// holdFor is how long live counterparts wait at first, and holdPause how long they then go on in any case. A build that
	// did not catch up meanwhile, since machines are slow or few, gets twice the time when it is near again, up to holdMost.
	holdFor   = 5 * time.Second
	holdPause = 15 * time.Second
	holdMost  = time.Minute
)

// liveHold is the last time that live counterparts of a build were made to wait.
type liveHold struct {
	until  time.Time
	length time.Duration
}

// openTask is a task of a build that may still come to an end.
type openTask struct {
	slotOf
	kind string
}

func openTasks(ctx context.Context, tx pgx.Tx, origins []uuid.UUID, limit int) ([]openTask, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.job_id, o.slot, t.kind FROM (
			(SELECT task_id, job_id, slot FROM ready WHERE job_id = ANY($1) LIMIT $2) UNION ALL
			(SELECT task_id, job_id, slot FROM leases WHERE job_id = ANY($1) LIMIT $2) UNION ALL
			(SELECT task_id, job_id, slot FROM waiting WHERE job_id = ANY($1) AND reason <> 'dead' LIMIT $2)) AS o
		JOIN tasks t ON t.id = o.task_id`, origins, limit)
	if err != nil {
		return nil, fmt.Errorf("list open tasks: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o openTask, err error) {
		return o, row.Scan(&o.origin, &o.slot, &o.kind)
	})
}

// catchesUp looks at a build some of whose tasks are open: whether it is caught up with what serves, and whether it comes
// so close that what serves may be held back for it.
func (d *Dispatcher) catchesUp(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *progress) (near bool, err error) {
	reactive := map[uuid.UUID]bool{}
	var origins, generations []uuid.UUID
	for _, job := range jobs {
		origins = append(origins, job.Origin)
		if job.Def.Activation == dag.ActivationReactive {
			reactive[job.Origin] = true
			for _, o := range job.Outputs {
				generations = append(generations, o.Generation.Version)
			}
		}
	}
	open, err := openTasks(ctx, tx, origins, few)
	if err != nil || len(open) >= few {
		return false, err
	}
	// What its sources are to read, the build has read once it is through; there is no end of it to wait for.
	if slices.ContainsFunc(open, func(o openTask) bool { return !reactive[o.origin] }) {
		return false, nil
	}
	pairs, err := registry.Counterparts(ctx, tx, b.ID)
	if err != nil || len(pairs) == 0 {
		return false, err
	}
	unfinished, err := d.unfinished(ctx, tx, b, jobs, generations, p)
	if err != nil {
		return false, err
	}
	behind, err := lagging(ctx, tx, b, jobs, pairs, unfinished)
	p.caughtUp = err == nil && !behind
	return true, err
}

// unfinished lists the targets of a build whose published revision is not made from what their inputs have.
func (d *Dispatcher) unfinished(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, generations []uuid.UUID, p *progress) ([]finding, error) {
	findings, err := d.examineAll(ctx, tx, jobs)
	if err != nil {
		return nil, err
	}
	undecided, err := registry.Unsettled(ctx, tx, generations)
	if err != nil {
		return nil, err
	}
	held := map[registry.Ref]bool{}
	for _, u := range undecided {
		if u.Held {
			held[u.Ref] = true
		} else if u.Decided != nil && !u.Decided.Before(b.Started) {
			text, err := rejection(ctx, tx, jobs, u)
			if err != nil {
				return nil, err
			}
			p.rejected = append(p.rejected, text)
		}
	}
	return slices.DeleteFunc(findings, func(f finding) bool {
		ref, _ := f.ref()
		return f.verdict != stale && !held[ref]
	}), nil
}

// rejection says what keeps a revision of a build from being published.
func rejection(ctx context.Context, tx pgx.Tx, jobs []*registry.Job, u registry.Undecided) (string, error) {
	why, err := registry.FailedChecks(ctx, tx, u.Ref, u.Revision)
	if err != nil {
		return "", err
	}
	address := ""
	for _, job := range jobs {
		if slices.ContainsFunc(job.Outputs, func(o registry.OutputGeneration) bool { return o.Generation.Version == u.Version }) {
			address = job.Address()
		}
	}
	return fmt.Sprintf("checks of %s failed on partition %s: %s", address, u.Key, why), nil
}

// lagging reports whether an unfinished target of a build lacks what a reader would miss: something that its live
// counterpart was made from, or that was there before the build began.
func lagging(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, pairs []registry.Counterpart, unfinished []finding) (bool, error) {
	live, rebuilt := map[uuid.UUID]registry.Counterpart{}, map[uuid.UUID]bool{}
	var through, appended []uuid.UUID
	for _, c := range pairs {
		live[c.Candidate] = c
		through = append(through, c.Live)
	}
	for _, job := range jobs {
		for _, o := range job.Outputs {
			rebuilt[o.Generation.Dataset] = true
			through = append(through, o.Generation.Version)
			if job.Def.UpdateStrategy == dag.Append {
				appended = append(appended, o.Generation.Version)
				if c, ok := live[o.Generation.Version]; ok {
					appended = append(appended, c.Live)
				}
			}
		}
	}
	// What each target is published as, what its counterpart is, and what it would read now.
	refs := make([]registry.Ref, 0, 2*len(unfinished))
	for _, f := range unfinished {
		own, ok := f.ref()
		if !ok {
			continue
		}
		refs = append(refs, own)
		if c, ok := live[own.Version]; ok && c.Comparable {
			refs = append(refs, registry.Ref{Version: c.Live, Key: f.key})
		}
	}
	published, err := registry.PublishedAt(ctx, tx, refs)
	if err != nil {
		return false, err
	}
	const has, serves, wants = 0, 1, 2
	var roots []registry.Pin
	var of []struct{ target, role int }
	add := func(target, role int, pins ...registry.Pin) {
		for _, p := range pins {
			roots = append(roots, p)
			of = append(of, struct{ target, role int }{target, role})
		}
	}
	for i, f := range unfinished {
		own, _ := f.ref()
		if revision, ok := published[own]; ok {
			add(i, has, registry.Pin{Version: own.Version, Key: own.Key, Revision: revision})
		}
		other := registry.Ref{Version: live[own.Version].Live, Key: f.key}
		if revision, ok := published[other]; ok {
			add(i, serves, registry.Pin{Version: other.Version, Key: other.Key, Revision: revision})
		}
		add(i, wants, comparedPins(f.pins)...)
	}
	leaves, err := registry.Trace(ctx, tx, roots, through, appended)
	if err != nil {
		return false, err
	}
	type input struct {
		target  int
		dataset uuid.UUID
		key     string
	}
	read := map[input]registry.Leaf{}
	for _, l := range leaves {
		if r := of[l.Root]; r.role == has {
			k := input{r.target, l.Dataset, l.Key}
			if old, ok := read[k]; !ok || old.At.Before(l.At) {
				read[k] = l
			}
		}
	}
	reads := inputsOf(jobs)
	for _, l := range leaves {
		r := of[l.Root]
		switch {
		case r.role == has:
			continue
		case r.role == serves && !reads[unfinished[r.target].job.Origin][l.Dataset]:
			continue // the new definition does not read it any more
		case r.role == wants && !rebuilt[l.Dataset] && l.At.After(b.Started):
			continue // it came since: nobody misses it
		}
		if own, ok := read[input{r.target, l.Dataset, l.Key}]; !ok || older(own, l) {
			return true, nil
		}
	}
	return false, nil
}

// older reports whether one revision of a partition was read before another, where it is not the same thing read again.
func older(a, b registry.Leaf) bool {
	if a.Version == b.Version {
		return a.Revision < b.Revision
	}
	return a.At.Before(b.At) && (a.SourceVersion == "" || a.SourceVersion != b.SourceVersion)
}

// inputsOf tells, by origin, which datasets outside a build its jobs are made from in the end; its own sources count as outside.
func inputsOf(jobs []*registry.Job) map[uuid.UUID]map[uuid.UUID]bool {
	producer := map[uuid.UUID]*registry.Job{}
	for _, job := range jobs {
		for _, o := range job.Outputs {
			producer[o.Generation.Dataset] = job
		}
	}
	reads := map[uuid.UUID]map[uuid.UUID]bool{}
	var visit func(job *registry.Job) map[uuid.UUID]bool
	visit = func(job *registry.Job) map[uuid.UUID]bool {
		if known, ok := reads[job.Origin]; ok {
			return known
		}
		found := map[uuid.UUID]bool{}
		reads[job.Origin] = found
		for _, in := range job.Inputs {
			up, inside := producer[in.Dataset]
			if !inside || up.Def.Activation != dag.ActivationReactive {
				found[in.Dataset] = true
				continue
			}
			for dataset := range visit(up) {
				found[dataset] = true
			}
		}
		return found
	}
	for _, job := range jobs {
		visit(job)
	}
	return reads
}

// holdLive sets queued tasks of the build's live counterparts aside for a moment.
func (d *Dispatcher) holdLive(ctx context.Context, b registry.Build, now time.Time) error {
	h := d.holds[b.ID]
	if now.After(h.until.Add(holdPause)) {
		h.length = min(max(2*h.length, holdFor), holdMost)
		h.until = now.Add(h.length)
		maps.DeleteFunc(d.holds, func(_ uuid.UUID, other liveHold) bool { return now.After(other.until.Add(time.Hour)) })
		d.holds[b.ID] = h
	}
	if !now.Before(h.until) {
		return nil
	}
	return pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		pairs, err := registry.Counterparts(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		var origins []uuid.UUID
		for _, c := range pairs {
			origins = append(origins, c.Origin)
		}
		if err := lockOrigins(ctx, tx, origins); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH held AS (DELETE FROM ready WHERE job_id = ANY($1) RETURNING task_id, rank)
			SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, h.rank, t.limits
			FROM held h JOIN tasks t ON t.id = h.task_id`, dedupeIDs(origins))
		if err != nil {
			return fmt.Errorf("hold live tasks back: %w", err)
		}
		held, err := collectPlacements(rows)
		if err != nil {
			return fmt.Errorf("hold live tasks back: %w", err)
		}
		freed := map[limit]int{}
		for i := range held {
			countLimits(freed, held[i].org, limitKeys(held[i].limits))
			held[i].runAt = &h.until
		}
		if err := d.releaseAll(ctx, tx, freed, now); err != nil {
			return err
		}
		return d.place(ctx, tx, held, now)
	})
}

// readAgain reads the sources of a build that is ready otherwise once more, where they lack what serves: a changed source
// must not swap in emptiness. One that does not find it is the end of the build.
func (d *Dispatcher) readAgain(ctx context.Context, b registry.Build, jobs []*registry.Job, now time.Time) (again bool, failed string, err error) {
	for _, job := range jobs {
		op, ok := d.enumerator(job)
		if job.Def.Source == nil || !ok || job.Def.Bootstrap != nil && job.Def.Bootstrap.ResetOutputs {
			continue
		}
		missing, older, err := d.lacking(ctx, b, job)
		if err != nil {
			return false, "", err
		}
		if len(missing) == 0 && older == 0 {
			continue
		}
		if _, err := d.enumerate(ctx, job, op, false, now); err != nil {
			if operators.IsPermanent(err) || now.Sub(b.Started) > enumerateFor {
				return false, fmt.Sprintf("source %s: %v", job.Name, err), nil
			}
			d.Log.Warn("source cannot be read yet", "dag", b.DAG, "job", job.Name, "error", err)
			again = true
			continue
		}
		var open bool
		err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
			open, err = anyOpen(ctx, tx, ids(job.Origin))
			return err
		})
		switch {
		case err != nil:
			return false, "", err
		case open:
			again = true
		case len(missing) > 0:
			return false, fmt.Sprintf("source %s does not find %d partitions that are served now, such as %s: they would be lost. Restore them, or keep them as they are with `dagctl deploy --forward-only`",
				job.Name, len(missing), missing[0]), nil
		}
	}
	return again, "", nil
}

// lacking compares a source of a build with the one that serves.
func (d *Dispatcher) lacking(ctx context.Context, b registry.Build, job *registry.Job) (missing []string, older int, err error) {
	err = pg.InTx(ctx, d.Pool, func(ctx context.Context, tx pgx.Tx) error {
		pairs, err := registry.Counterparts(ctx, tx, b.ID)
		if err != nil {
			return err
		}
		for _, c := range pairs {
			if c.Candidate == job.Outputs[0].Generation.Version && c.Comparable {
				missing, older, err = registry.Lacking(ctx, tx, c)
			}
		}
		return err
	})
	return missing, older, err
}
