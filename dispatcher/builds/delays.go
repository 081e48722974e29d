package builds

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// delay is a build's wait after turns that failed.
type delay struct {
	failed int // turns in a row
	until  time.Time
}

// next returns the delay after another failed turn: none after the first, then from half a second, doubled up to ten.
func (d delay) next(now time.Time) delay {
	wait := min(250*time.Millisecond<<min(d.failed, 10), 10*time.Second)
	if d.failed == 0 {
		wait = 0
	}
	return delay{d.failed + 1, now.Add(wait)}
}

// turn advances a build, unless it waits after turns that failed.
func (bs *Builds) turn(ctx context.Context, b registry.Build, now time.Time) error {
	bs.holding.Lock()
	last := bs.later[b.ID]
	bs.holding.Unlock()
	if now.Before(last.until) {
		return nil
	}

	failed := bs.advance(ctx, b, now)
	bs.holding.Lock()
	if failed != nil {
		bs.later[b.ID] = last.next(now)
	} else {
		delete(bs.later, b.ID)
	}
	bs.holding.Unlock()

	err := bs.noteDelay(ctx, b, last, failed)
	if failed != nil {
		failed = fmt.Errorf("build %s v%d: %w", b.DAG, b.Number, failed)
	}
	return errors.Join(failed, err)
}

// noteDelay records on the version what a cutover waits for, and takes that back when the wait is over.
func (bs *Builds) noteDelay(ctx context.Context, b registry.Build, last delay, failed error) error {
	text := ""
	switch {
	case fault.Is(failed, fault.Unavailable):
		text = failed.Error()
	case failed != nil || last.failed == 0:
		return nil
	}
	return pg.InTx(ctx, bs.pool, func(ctx context.Context, tx pgx.Tx) error {
		return deploy.NoteDelay(ctx, tx, b, text)
	})
}

// forget drops what is known of builds that have ended; releaseEnded drops what they hold back.
func (bs *Builds) forget(builds []registry.Build) {
	bs.holding.Lock()
	defer bs.holding.Unlock()
	ended := func(id uuid.UUID) bool {
		return !slices.ContainsFunc(builds, func(b registry.Build) bool { return b.ID == id })
	}
	maps.DeleteFunc(bs.looks, func(id uuid.UUID, _ time.Time) bool { return ended(id) })
	maps.DeleteFunc(bs.later, func(id uuid.UUID, _ delay) bool { return ended(id) })
	maps.DeleteFunc(bs.awaited, func(id uuid.UUID, _ awaited) bool { return ended(id) })
}
