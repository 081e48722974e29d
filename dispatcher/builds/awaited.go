package builds

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/registry"
)

// A build looks at all of its revisions to find those that lack a check. Each check that ends wakes it; looking at all
// of them each time would take the square of their number. So while the last checks that it asked for are open, a build
// looks again only after a pause that is in proportion to what the last look took.

const (
	awaitedSlots = 20 // of the checks that were asked for last
	lookShare    = 20 // looks take at most one part in so many of the time
	leastPause   = time.Second
	mostPause    = 30 * time.Second
)

// awaited is what a build waits for.
type awaited struct {
	origins []uuid.UUID
	slots   []string
	until   time.Time // when it looks again whatever is open
}

// await records the checks that a look asks for.
func (bs *Builds) await(b registry.Build, asked []tasks.Request) {
	if len(asked) == 0 {
		return
	}
	var w awaited
	for _, t := range asked[max(0, len(asked)-awaitedSlots):] {
		w.origins, w.slots = append(w.origins, t.Job.Origin), append(w.slots, t.Slot)
	}
	bs.holding.Lock()
	defer bs.holding.Unlock()
	bs.awaited[b.ID] = w
}

// looked records what a look took.
func (bs *Builds) looked(b registry.Build, took time.Duration) {
	bs.holding.Lock()
	defer bs.holding.Unlock()
	if w, ok := bs.awaited[b.ID]; ok {
		w.until = time.Now().Add(min(max(lookShare*took, leastPause), mostPause))
		bs.awaited[b.ID] = w
	}
}

// awaitsChecks reports whether a build has nothing to look at yet. It looks up a few slots by their indexes.
func (bs *Builds) awaitsChecks(ctx context.Context, b registry.Build) (waits bool, err error) {
	bs.holding.Lock()
	w, ok := bs.awaited[b.ID]
	bs.holding.Unlock()
	if !ok || time.Now().After(w.until) {
		return false, nil
	}

	err = bs.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM unnest($1::uuid[], $2::text[]) AS w(origin, slot)
			WHERE EXISTS (SELECT FROM ready r WHERE r.origin_job_id = w.origin AND r.slot = w.slot)
			   OR EXISTS (SELECT FROM leases l WHERE l.origin_job_id = w.origin AND l.slot = w.slot)
			   OR EXISTS (SELECT FROM waiting q
			       WHERE q.origin_job_id = w.origin AND q.slot = w.slot AND q.reason <> 'dead'))`,
		w.origins, w.slots).Scan(&waits)
	if err != nil {
		return false, fmt.Errorf("look for checks of %s v%d: %w", b.DAG, b.Number, err)
	}
	if !waits {
		bs.holding.Lock()
		defer bs.holding.Unlock()
		delete(bs.awaited, b.ID)
	}
	return waits, nil
}
