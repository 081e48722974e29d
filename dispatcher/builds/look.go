package builds

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dispatcher/stale"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// What a gate decides over may be 100,000 partitions, and nothing of the DAG is committed while it holds the DAG's
// lock. So a build looks at all of them without any lock, in one snapshot, and under the lock only at those that have
// changed since; see docs/decisions/0023-a-gate-looks-twice.md.
//
// That misses nothing. Each revision names the transaction that wrote it or changed its state. A transaction that the
// snapshot saw is in the look. Any other one, also one that ran at that time and had written its revisions before, is
// not visible in the snapshot, and what it changed is found by that, in whatever order transactions were committed. The
// lock waits for those that hold it shared, as all do that complete a task of the DAG, and the statements under the
// lock see what they left. What else decides, the generations that inputs read and those that the version replaces, is
// few and is compared as a whole: where it is another than in the look, the build looks again.

// look is what a build found that looked at all of its partitions.
type look struct {
	began      time.Time
	at         registry.Snapshot
	reads      map[uuid.UUID][]registry.InputGeneration // by job row
	replaces   []registry.Succession
	continues  []uuid.UUID        // generations that take over from others, with those others
	findings   []stale.Finding    // those that are stale, or whose newest revision readers do not see
	incomplete map[uuid.UUID]bool // origins with a target that lacks something
	undecided  []deploy.Undecided
	lost       []registry.Removal
	outdated   []registry.Ref // what a forward-only build has to take over again
}

// lookAtAll looks at everything that a gate decides over, without any lock.
func (bs *Builds) lookAtAll(ctx context.Context, b registry.Build, jobs []*registry.Job) (seen *look, err error) {
	err = pg.InOrgSnapshot(ctx, bs.pool, b.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		seen, err = bs.lookIn(ctx, tx, b, jobs)
		return err
	})
	if err == nil && bs.AfterLook != nil {
		bs.AfterLook()
	}
	return seen, err
}

// lookIfQuiet is lookAtAll for a build with few open tasks; nil for any other.
func (bs *Builds) lookIfQuiet(ctx context.Context, b registry.Build, jobs []*registry.Job) (*look, error) {
	quiet, err := bs.quiet(ctx, jobs)
	if err != nil || !quiet {
		return nil, err
	}
	return bs.lookAtAll(ctx, b, jobs)
}

// clean reports whether a look found nothing that is left to make, to check or to decide.
func (l *look) clean() bool { return len(l.findings) == 0 && len(l.undecided) == 0 }

// lookIn is lookAtAll in the caller's transaction.
func (bs *Builds) lookIn(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job) (*look, error) {
	seen, err := bs.beginLook(ctx, tx, b, jobs)
	if err != nil {
		return nil, err
	}
	_, generations := filledBy(jobs)
	if seen.undecided, err = deploy.Unsettled(ctx, tx, generations); err != nil {
		return nil, err
	}
	if seen.lost, err = registry.Removals(ctx, tx, seen.replaces); err != nil {
		return nil, err
	}
	if len(seen.continues) > 0 {
		if seen.outdated, err = deploy.Outdated(ctx, tx, b, false); err != nil {
			return nil, err
		}
	}

	targets, err := bs.stale.AllTargets(ctx, tx, jobs...)
	if err != nil {
		return nil, err
	}
	return seen, bs.examine(ctx, tx, seen, targets)
}

// beginLook begins a look with what is compared as a whole. The snapshot is taken first.
func (bs *Builds) beginLook(ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job) (*look, error) {
	began := time.Now()
	at, err := registry.CurrentSnapshot(ctx, tx)
	if err != nil {
		return nil, err
	}
	seen := &look{began: began, at: at, incomplete: map[uuid.UUID]bool{}}
	if seen.reads, err = bs.registry.InputGenerations(ctx, tx, jobs...); err != nil {
		return nil, err
	}
	if seen.replaces, err = registry.Successions(ctx, tx, b.ID); err != nil {
		return nil, err
	}
	seen.continues, err = deploy.Continued(ctx, tx, b)
	return seen, err
}

// examine adds the findings on targets to a look whose undecided revisions are known.
func (bs *Builds) examine(ctx context.Context, tx pgx.Tx, seen *look, targets []stale.Target) error {
	undecided := map[registry.Ref]bool{}
	for _, u := range seen.undecided {
		undecided[u.Ref] = true
	}

	for some := range slices.Chunk(targets, lookBatch) {
		findings, err := bs.stale.Examine(ctx, tx, some)
		if err != nil {
			return err
		}
		var notes pg.Batch
		stale.NoteAwaited(&notes, findings)
		if err := notes.Send(ctx, tx); err != nil {
			return err
		}
		for _, f := range findings {
			if f.Verdict == stale.Incomplete {
				seen.incomplete[f.Job.Origin] = true
			}
			if ref, _ := f.Ref(); f.Verdict == stale.Stale || undecided[ref] {
				seen.findings = append(seen.findings, f)
			}
		}
	}
	return nil
}

// lookBatch bounds how many partitions are examined at a time, and so the memory that it takes.
const lookBatch = 5000

// since brings a look up to date: it looks at the partitions that have changed since, and again at those that were not
// as they should be. It returns nil where a look at everything is needed.
func (bs *Builds) since(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, was *look,
) (*look, error) {
	now, err := bs.beginLook(ctx, tx, b, jobs)
	if err != nil {
		return nil, err
	}
	if !reflect.DeepEqual(now.reads, was.reads) || !slices.Equal(now.replaces, was.replaces) ||
		!slices.Equal(now.continues, was.continues) {
		return nil, nil
	}
	maps.Copy(now.incomplete, was.incomplete)
	changed, err := registry.ChangedSince(ctx, tx, was.at, was.generations(jobs))
	if err != nil {
		return nil, err
	}

	open := slices.Clone(changed)
	for _, u := range was.undecided {
		open = append(open, u.Ref)
	}
	if now.undecided, err = deploy.UnsettledAmong(ctx, tx, ofJobs(open, jobs)); err != nil {
		return nil, err
	}

	gone := slices.Clone(changed)
	for _, r := range was.lost {
		for _, key := range r.Keys {
			gone = append(gone, registry.Ref{Version: r.Generation, Key: key})
		}
	}
	if now.lost, err = registry.RemovalsAmong(ctx, tx, now.replaces, gone); err != nil {
		return nil, err
	}

	if len(now.continues) > 0 {
		now.outdated, err = deploy.OutdatedAmong(ctx, tx, b, slices.Concat(changed, was.outdated))
		if err != nil {
			return nil, err
		}
	}

	targets, err := bs.lookAgainAt(ctx, tx, jobs, was, changed)
	if err != nil {
		return nil, err
	}
	return now, bs.examine(ctx, tx, now, targets)
}

// lookAgainAt lists the targets that a look has to be brought up to date on.
func (bs *Builds) lookAgainAt(
	ctx context.Context, tx pgx.Tx, jobs []*registry.Job, was *look, changed []registry.Ref,
) ([]stale.Target, error) {
	some, whole := stale.Touched(jobs, was.reads, changed, was.incomplete)
	for _, f := range was.findings {
		some = append(some, f.Target)
	}
	if len(whole) > 0 {
		all, err := bs.stale.AllTargets(ctx, tx, whole...)
		if err != nil {
			return nil, err
		}
		some = append(some, all...)
	}

	once, targets := map[stale.Target]bool{}, some[:0]
	for _, t := range some {
		if !once[t] {
			once[t], targets = true, append(targets, t)
		}
	}
	return targets, nil
}

// generations lists the generations whose partitions a look depends on.
func (l *look) generations(jobs []*registry.Job) []uuid.UUID {
	_, all := filledBy(jobs)
	for _, inputs := range l.reads {
		for _, in := range inputs {
			all = append(all, in.Version)
		}
	}
	for _, s := range l.replaces {
		all = append(all, s.Next, s.Live)
	}
	all = append(all, l.continues...)
	slices.SortFunc(all, func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(all)
}

// ofJobs returns the partitions of the jobs' own generations.
func ofJobs(some []registry.Ref, jobs []*registry.Job) []registry.Ref {
	_, generations := filledBy(jobs)
	own := map[uuid.UUID]bool{}
	for _, g := range generations {
		own[g] = true
	}
	return slices.DeleteFunc(some, func(r registry.Ref) bool { return !own[r.Version] })
}

// ofGenerations returns the undecided revisions of some generations.
func (l *look) ofGenerations(generations []uuid.UUID) (some []deploy.Undecided) {
	for _, u := range l.undecided {
		if slices.Contains(generations, u.Version) {
			some = append(some, u)
		}
	}
	return some
}

// quiet reports whether a build has so few open tasks that a look at its data is worth while.
func (bs *Builds) quiet(ctx context.Context, jobs []*registry.Job) (is bool, err error) {
	origins, _ := filledBy(jobs)
	err = pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		open, err := openTasks(ctx, tx, origins, maxOpenCompared)
		is = err == nil && len(open) < maxOpenCompared && !slices.ContainsFunc(open, isOfSource(jobs))
		return err
	})
	return is, err
}

// confirm returns an error, if the build doubts its looks, where one that was brought up to date differs from a look at
// everything.
func (bs *Builds) confirm(
	ctx context.Context, tx pgx.Tx, b registry.Build, jobs []*registry.Job, seen *look,
) error {
	if !bs.Doubt || seen == nil {
		return nil
	}
	whole, err := bs.lookIn(ctx, tx, b, jobs)
	if err != nil {
		return err
	}
	if was, is := seen.summary(), whole.summary(); was != is {
		return fmt.Errorf("the look of %s v%d found\n%s\nand there is\n%s", b.DAG, b.Number, was, is)
	}
	return nil
}

// summary lists what a look found, in order.
func (l *look) summary() string {
	var all []string
	for _, f := range l.findings {
		all = append(all, fmt.Sprintf("%s %s is %d: %s", f.Job.Name, f.Key, f.Verdict, f.Dedupe))
	}
	for _, u := range l.undecided {
		all = append(all, fmt.Sprintf("%s %s@%d held %t", u.Version, u.Key, u.Revision, u.Held))
	}
	for _, r := range l.lost {
		all = append(all, fmt.Sprintf("%s loses %v", r.Dataset, r.Keys))
	}
	for _, r := range l.outdated {
		all = append(all, fmt.Sprintf("%s %s is outdated", r.Version, r.Key))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
