package builds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// Progress is the state of a build that gate decides over.
type Progress struct {
	Open     bool     // tasks are queued, running, or waiting for a retry
	CaughtUp bool     // tasks are open, but readers would miss nothing that they bring
	Dead     []string // tasks that failed for good or were canceled, with their errors
	Rejected []string // revisions whose checks failed
	Unread   []string // sources not enumerated since the build began
	Stale    int      // output partitions that wanted a task just now
	Held     int      // revisions whose checks have not decided

	seen       *look           // what the build found when it looked at everything; nil: it has not
	inherits   bool            // it is to take over again what live has changed
	unfinished []stale.Finding // targets that open tasks are to make, where the build has caught up
}

// Gate reports whether a build is ready and, if it can never be, why. It is pure.
func Gate(p Progress) (ready bool, failed string) {
	switch {
	case len(p.Dead) > 0:
		return false, p.Dead[0]
	case len(p.Rejected) > 0:
		return false, p.Rejected[0]
	}
	return (!p.Open || p.CaughtUp) && len(p.Unread) == 0 && p.Stale == 0 && p.Held == 0, ""
}

// A stream of events that never ends keeps some task of a build open at any moment. So a build is also ready when its
// few open tasks are about data that the live generations lack too: it is then as good as they are, and goes on from
// there once it serves. While it comes close, its live counterparts are held back for a moment, because their tasks are
// claimed first and would outrun it.

const (
	// maxOpenCompared is how many tasks may be open when a build is compared with what is live. The comparison traces
	// revisions back to what they were made from, which costs too much after each of the thousands of tasks before.
	maxOpenCompared = 32
	// holdFor is how long live counterparts wait at first, and holdPause how long they then go on in any case. A build
	// that did not catch up meanwhile, because machines are slow or few, gets twice the time when it is near again, up
	// to holdMost.
	holdFor   = 5 * time.Second
	holdPause = 15 * time.Second
	holdMost  = time.Minute
)

// liveHold is the last time that live counterparts of a build were made to wait.
type liveHold struct {
	until  time.Time
	length time.Duration
}

// openTask is a task of a build that may still end.
type openTask struct {
	tasks.Slot
	kind string
}

func openTasks(ctx context.Context, tx pgx.Tx, origins []uuid.UUID, limit int) ([]openTask, error) {
	rows, err := tx.Query(ctx, `
		SELECT o.origin_job_id, o.slot, t.kind FROM (
			(SELECT task_id, origin_job_id, slot FROM ready WHERE origin_job_id = ANY($1) LIMIT $2) UNION ALL
			(SELECT task_id, origin_job_id, slot FROM leases WHERE origin_job_id = ANY($1) LIMIT $2) UNION ALL
			(SELECT task_id, origin_job_id, slot FROM waiting
			 WHERE origin_job_id = ANY($1) AND reason <> 'dead' LIMIT $2)) AS o
		JOIN tasks t ON t.id = o.task_id`, origins, limit)
	if err != nil {
		return nil, fmt.Errorf("list open tasks: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (o openTask, err error) {
		return o, row.Scan(&o.Origin, &o.Key, &o.kind)
	})
}

// isOfSource returns a function that reports whether an open task of jobs is not a reactive job's.
func isOfSource(jobs []*registry.Job) func(openTask) bool {
	reactive := map[uuid.UUID]bool{}
	for _, job := range jobs {
		if job.Def.Activation == dag.ActivationReactive {
			reactive[job.Origin] = true
		}
	}
	return func(o openTask) bool { return !reactive[o.Origin] }
}

// lookOnce looks at everything where the build has not done so yet.
func (bs *Builds) lookOnce(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress,
) (err error) {
	if p.seen == nil {
		p.seen, err = bs.lookIn(ctx, tx, b, jobs)
	}
	return err
}

// CatchesUp compares a build that has open tasks with what is live. It sets p.caughtUp where the build lacks nothing
// that readers have, and reports near where the build is so close that its live counterparts may be held back for it.
func (bs *Builds) CatchesUp(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress,
) (near bool, err error) {
	origins, _ := filledBy(jobs)
	open, err := openTasks(ctx, tx, origins, maxOpenCompared)
	if err != nil || len(open) >= maxOpenCompared {
		return false, err
	}
	// The work of a source ends, so the build waits for it.
	if slices.ContainsFunc(open, isOfSource(jobs)) {
		return false, nil
	}

	pairs, err := registry.Counterparts(ctx, tx, b.ID)
	if err != nil || len(pairs) == 0 {
		return false, err
	}
	p.unfinished, err = bs.unfinished(ctx, tx, b, jobs, p)
	if err != nil {
		return false, err
	}
	behind, err := lagging(ctx, tx, b, jobs, pairs, p.unfinished)
	p.CaughtUp = err == nil && !behind
	return true, err
}

// unfinished lists the targets of a build whose published revision was not made from what their inputs have now. It
// adds the revisions that this build's checks rejected to p.
func (bs *Builds) unfinished(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, p *Progress,
) ([]stale.Finding, error) {
	if err := bs.lookOnce(ctx, tx, b, jobs, p); err != nil {
		return nil, err
	}
	var generations []uuid.UUID
	for _, job := range jobs {
		if job.Def.Activation == dag.ActivationReactive {
			for _, o := range job.Outputs {
				generations = append(generations, o.Generation.Version)
			}
		}
	}

	held := map[registry.Ref]bool{}
	for _, u := range p.seen.ofGenerations(generations) {
		if u.Held {
			held[u.Ref] = true
		} else if u.Decided != nil && !u.Decided.Before(b.Started) {
			text, err := rejection(ctx, tx, jobs, u)
			if err != nil {
				return nil, err
			}
			p.Rejected = append(p.Rejected, text)
		}
	}

	return slices.DeleteFunc(slices.Clone(p.seen.findings), func(f stale.Finding) bool {
		ref, _ := f.Ref()
		return f.Verdict != stale.Stale && !held[ref]
	}), nil
}

// rejection returns the text that says why a revision of a build cannot be published.
func rejection(ctx context.Context, tx pgx.Tx, jobs []*registry.Job, u deploy.Undecided) (string, error) {
	for _, job := range jobs {
		for i, o := range job.Outputs {
			if o.Generation.Version != u.Version {
				continue
			}
			why, err := deploy.FailedChecks(ctx, tx, job, i, u.Ref, u.Revision)
			return fmt.Sprintf("checks of %s failed on partition %s: %s", job.Address(), u.Key, why), err
		}
	}
	return "", fmt.Errorf("no job of the build makes generation %s", u.Version)
}

// lagging reports whether an unfinished target of a build lacks what a reader would miss: something that its live
// counterpart was made from, or that was there before the build began.
func lagging(
	ctx context.Context, tx pgx.Tx, b registry.Build,
	jobs []*registry.Job, pairs []registry.Counterpart, unfinished []stale.Finding,
) (bool, error) {
	c := newComparison(b, jobs, pairs, unfinished)
	published, err := registry.PublishedAt(new(pg.Batch), c.refs()).Get(ctx, tx)
	if err != nil {
		return false, err
	}

	c.addRoots(published)
	leaves, err := registry.Trace(ctx, tx, c.roots, c.through, c.appended)
	if err != nil {
		return false, err
	}
	return c.behind(leaves, inputsOf(jobs)), nil
}

// comparison compares the unfinished targets of a build with their live counterparts, by the source data that both were
// made from in the end. It holds no connection: lagging reads for it.
type comparison struct {
	began      time.Time // of the build
	unfinished []stale.Finding
	live       map[uuid.UUID]registry.Counterpart // by generation of the build
	rebuilt    map[uuid.UUID]bool                 // datasets that the build makes
	through    []uuid.UUID                        // generations that the trace goes through
	appended   []uuid.UUID                        // those of them whose revisions add to earlier ones
	roots      []registry.Pin                     // revisions to trace
	askedFor   []rootRole                         // for each root
}

// rootRole is why a revision is traced: for an unfinished target, by its index, and as what.
type rootRole struct{ target, role int }

const (
	ownRevision  = iota // what the build has published
	liveRevision        // what its live counterpart has published
	wantedInput         // what a task of the target would read now
)

func newComparison(
	b registry.Build, jobs []*registry.Job, pairs []registry.Counterpart, unfinished []stale.Finding,
) *comparison {
	c := &comparison{began: b.Started, unfinished: unfinished,
		live: map[uuid.UUID]registry.Counterpart{}, rebuilt: map[uuid.UUID]bool{}}
	for _, pair := range pairs {
		c.live[pair.Candidate] = pair
		c.through = append(c.through, pair.Live)
	}

	for _, job := range jobs {
		for _, o := range job.Outputs {
			c.rebuilt[o.Generation.Dataset] = true
			c.through = append(c.through, o.Generation.Version)
			if job.Def.UpdateStrategy != dag.Append {
				continue
			}
			c.appended = append(c.appended, o.Generation.Version)
			if pair, ok := c.live[o.Generation.Version]; ok {
				c.appended = append(c.appended, pair.Live)
			}
		}
	}
	return c
}

// refs lists the partitions whose published revisions are compared: of each target and of its counterpart.
func (c *comparison) refs() []registry.Ref {
	refs := make([]registry.Ref, 0, 2*len(c.unfinished))
	for _, f := range c.unfinished {
		own, ok := f.Ref()
		if !ok {
			continue
		}
		refs = append(refs, own)
		if pair, ok := c.live[own.Version]; ok && pair.Comparable {
			refs = append(refs, registry.Ref{Version: pair.Live, Key: f.Key})
		}
	}
	return refs
}

// addRoots adds what is to be traced for each target: its revision, its counterpart's, and what it would read now.
func (c *comparison) addRoots(published map[registry.Ref]int64) {
	for i, f := range c.unfinished {
		own, _ := f.Ref()
		if revision, ok := published[own]; ok {
			c.addRoot(rootRole{i, ownRevision}, registry.Pin{Version: own.Version, Key: own.Key, Revision: revision})
		}
		other := registry.Ref{Version: c.live[own.Version].Live, Key: f.Key}
		if revision, ok := published[other]; ok {
			pin := registry.Pin{Version: other.Version, Key: other.Key, Revision: revision}
			c.addRoot(rootRole{i, liveRevision}, pin)
		}
		for _, p := range stale.ComparedPins(f.Pins) {
			c.addRoot(rootRole{i, wantedInput}, p)
		}
	}
}

func (c *comparison) addRoot(r rootRole, p registry.Pin) {
	c.roots, c.askedFor = append(c.roots, p), append(c.askedFor, r)
}

// sourcePartition is a partition of a dataset that a target was made from in the end, by one way or, without that, by
// any.
type sourcePartition struct {
	target  int
	dataset uuid.UUID
	key     string
	way     uuid.UUID
}

// behind reports whether a target lacks something among the traced leaves that a reader would miss. reads holds, by
// origin, the datasets that each job is made from.
//
// The live revision may have come from the sources by other jobs, so it matters only that the target has read them. But
// a target that reads a source by two ways, once directly and once through a job of the build, has what it wants only
// if it came by both.
func (c *comparison) behind(leaves []registry.Leaf, reads map[uuid.UUID]map[uuid.UUID]bool) bool {
	own, live := c.newestRead(leaves, ownRevision), c.newestRead(leaves, liveRevision)
	for _, l := range leaves {
		r := c.askedFor[l.Root]
		k := sourcePartition{target: r.target, dataset: l.Dataset, key: l.Key}
		switch {
		case r.role == ownRevision:
			continue
		case r.role == liveRevision && !reads[c.unfinished[r.target].Job.Origin][l.Dataset]:
			continue // the new definition no longer reads it
		case r.role == wantedInput:
			served, is := live[k]
			if !c.rebuilt[l.Dataset] && l.At.After(c.began) && (!is || older(served, l)) {
				continue // it came after the build began, and live lacks it too: no reader misses it
			}
			k.way = l.Way
		}
		if read, ok := own[k]; !ok || older(read, l) {
			return true
		}
	}
	return false
}

// newestRead returns, for each partition that the revisions of a role were made from, the newest one that was read: by
// each way, and by any.
func (c *comparison) newestRead(leaves []registry.Leaf, role int) map[sourcePartition]registry.Leaf {
	newest := map[sourcePartition]registry.Leaf{}
	for _, l := range leaves {
		r := c.askedFor[l.Root]
		if r.role != role {
			continue
		}
		for _, way := range []uuid.UUID{l.Way, {}} {
			k := sourcePartition{r.target, l.Dataset, l.Key, way}
			if known, ok := newest[k]; !ok || known.At.Before(l.At) {
				newest[k] = l
			}
		}
	}
	return newest
}

// older reports whether revision a of a partition was read before b, unless both are the same version of the source.
func older(a, b registry.Leaf) bool {
	if a.Version == b.Version {
		return a.Revision < b.Revision
	}
	return a.At.Before(b.At) && (a.SourceVersion == "" || a.SourceVersion != b.SourceVersion)
}

// inputsOf returns, by origin, the datasets outside a build that its jobs are made from in the end. The build's own
// sources count as outside.
func inputsOf(jobs []*registry.Job) map[uuid.UUID]map[uuid.UUID]bool {
	producer := producersOf(jobs)
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

// HoldLive makes queued tasks of the build's live counterparts wait for a moment.
func (bs *Builds) HoldLive(ctx context.Context, b registry.Build, now time.Time) error {
	h := bs.nextHold(b.ID, now)
	if !now.Before(h.until) {
		return nil
	}
	return pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		return bs.holdLiveUntil(ctx, tx, b, h.until, now)
	})
}

// nextHold returns the hold of a build that is under way or, after a pause, the next one, which is longer.
func (bs *Builds) nextHold(build uuid.UUID, now time.Time) liveHold {
	bs.holding.Lock()
	defer bs.holding.Unlock()
	h := bs.holds[build]
	if now.After(h.until.Add(holdPause)) {
		h.length = min(max(2*h.length, holdFor), holdMost)
		h.until = now.Add(h.length)
		maps.DeleteFunc(bs.holds, func(_ uuid.UUID, other liveHold) bool {
			return now.After(other.until.Add(time.Hour))
		})
		bs.holds[build] = h
	}
	return h
}

// releaseLive lets the tasks go on that a build which has ended held back.
func (bs *Builds) releaseLive(ctx context.Context, tx pgx.Tx, build uuid.UUID, now time.Time) error {
	pairs, err := registry.Counterparts(ctx, tx, build)
	if err != nil || len(pairs) == 0 {
		return err
	}
	var origins []uuid.UUID
	for _, c := range pairs {
		origins = append(origins, c.Origin)
	}
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return err
	}

	// A task for which somebody asked for a later time has that in its row.
	_, err = bs.tasks.PromoteWhere(ctx, tx, now, `q.reason = 'run_at' AND q.origin_job_id = ANY($1)
		AND NOT EXISTS (SELECT FROM tasks t WHERE t.id = q.task_id AND t.run_at > $2)`, tasks.SortedIDs(origins), now)
	if err != nil {
		return fmt.Errorf("release live tasks: %w", err)
	}
	return nil
}

func (bs *Builds) holdLiveUntil(ctx context.Context, tx pgx.Tx, b registry.Build, until, now time.Time) error {
	pairs, err := registry.Counterparts(ctx, tx, b.ID)
	if err != nil {
		return err
	}
	var origins []uuid.UUID
	for _, c := range pairs {
		origins = append(origins, c.Origin)
	}
	if err := tasks.LockOrigins(ctx, tx, origins); err != nil {
		return err
	}

	rows, err := tx.Query(ctx, `
		WITH held AS (DELETE FROM ready WHERE origin_job_id = ANY($1) RETURNING task_id, rank)
		SELECT t.id, t.org_id, t.job_id, t.slot, t.runtime, t.needs, h.rank, t.limits
		FROM held h JOIN tasks t ON t.id = h.task_id`, tasks.SortedIDs(origins))
	if err != nil {
		return fmt.Errorf("hold live tasks back: %w", err)
	}
	held, err := tasks.CollectPlacements(rows)
	if err != nil {
		return fmt.Errorf("hold live tasks back: %w", err)
	}

	freed := map[tasks.Limit]int{}
	for i := range held {
		tasks.AddFreed(freed, held[i].Org, tasks.LimitKeys(held[i].Limits))
		held[i].RunAt = &until
	}
	if err := bs.tasks.ReleaseAll(ctx, tx, freed, now); err != nil {
		return err
	}
	return bs.tasks.Place(ctx, tx, tasks.NewRoom(nil), held, now)
}

// producersOf returns, by dataset, the jobs of a build that make it.
func producersOf(jobs []*registry.Job) map[uuid.UUID]*registry.Job {
	producer := map[uuid.UUID]*registry.Job{}
	for _, job := range jobs {
		for _, o := range job.Outputs {
			producer[o.Generation.Dataset] = job
		}
	}
	return producer
}
