package dispatcher

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/tasks"
)

// shares counts the slots that orgs hold in this process. Besides the slots of the pool there is a spare one, for orgs
// that hold none while others hold all: long tasks of one org keep nobody waiting for their end. It is one more, and
// not one of the pool, so that an org that is alone loses nothing.
type shares struct {
	mu    sync.Mutex
	held  map[uuid.UUID]int
	spare bool      // the spare slot is taken
	tried time.Time // when a task for it was last looked for
}

// spareEvery is how often a process whose slots are all taken looks for a task for the spare one.
const spareEvery = 100 * time.Millisecond

// hold counts a slot for an org until the function that it returns is called.
func (s *shares) hold(org uuid.UUID, spare bool) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[uuid.UUID]int{}
	}
	s.held[org]++
	s.spare = s.spare || spare
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.held[org]--; s.held[org] == 0 {
			delete(s.held, org)
		}
		s.spare = s.spare && !spare
	}
}

// holding returns what the orgs hold now.
func (s *shares) holding() tasks.Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tasks.Holding{Slots: maps.Clone(s.held)}
}

// forSpare returns what the orgs hold, for a claim of the spare slot, unless that is taken or was tried just now.
func (s *shares) forSpare(now time.Time) (h tasks.Holding, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spare || now.Sub(s.tried) < spareEvery {
		return h, false
	}
	s.tried = now
	return tasks.Holding{Slots: maps.Clone(s.held), Others: true}, true
}

// claimSpare claims a task for the spare slot and starts it. What follows from the task waits for its turn like all
// else, or one org could keep the spare slot.
func (d *Dispatcher) claimSpare(ctx context.Context, runtimes []string, running *sync.WaitGroup, now time.Time) error {
	holding, ok := d.shares.forSpare(now)
	if !ok {
		return nil
	}
	claimed, err := d.claimShare(ctx, runtimes, d.WorkerID, 1, holding, now)
	for _, t := range claimed {
		release := d.shares.hold(t.Job.OrgID, true)
		running.Go(func() {
			defer d.pokeIfShort()
			defer release()
			d.Attempt(ctx, t, nil)
		})
	}
	return err
}
