package dispatcher

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/wakeup"
)

// shares counts the slots that orgs hold in this process. Besides the slots of the pool there are spare ones, for orgs
// that hold none while others hold all: long tasks of one org keep nobody waiting for their end. They are more, and not
// some of the pool, so that an org that is alone loses nothing.
type shares struct {
	mu     sync.Mutex
	held   map[uuid.UUID]int
	spares int       // spare slots that are taken
	tried  time.Time // when a task for one was last looked for in vain
	later  bool      // a look is to come
}

// spareEvery is how often a process whose slots are all taken looks for a task for a spare one.
const spareEvery = 5 * time.Millisecond

// hold counts a slot for an org until the function that it returns is called.
func (s *shares) hold(org uuid.UUID, spare bool) (release func()) {
	s.count(org, spare, 1)
	return func() { s.count(org, spare, -1) }
}

func (s *shares) count(org uuid.UUID, spare bool, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[uuid.UUID]int{}
	}
	if s.held[org] += n; s.held[org] == 0 {
		delete(s.held, org)
	}
	if spare {
		s.spares += n
	}
}

// holding returns what the orgs hold now.
func (s *shares) holding() tasks.Holding {
	s.mu.Lock()
	defer s.mu.Unlock()
	return tasks.Holding{Slots: maps.Clone(s.held)}
}

// forSpare returns what the orgs hold, for a claim of one of so many spare slots, unless these are taken. Where the
// last look was in vain and only just now, it lets look be called when it is time for another.
func (s *shares) forSpare(most int, now time.Time, look func()) (h tasks.Holding, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spares >= most {
		return h, false // one that comes free is followed by a look
	}

	if wait := spareEvery - now.Sub(s.tried); wait > 0 {
		if !s.later {
			s.later = true
			time.AfterFunc(wait, func() {
				s.mu.Lock()
				s.later = false
				s.mu.Unlock()
				look()
			})
		}
		return h, false
	}
	return tasks.Holding{Slots: maps.Clone(s.held), Others: true}, true
}

// inVain notes that there was no task for a spare slot.
func (s *shares) inVain(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = now
}

// claimSpare claims a task for a spare slot and starts it; more reports whether there may be another. There are half as
// many as in the pool. What follows from the task waits for its turn like all else, or one org could keep the slot.
func (d *Dispatcher) claimSpare(
	ctx context.Context, runtimes []string, running *sync.WaitGroup, now time.Time,
) (more bool, err error) {
	look := func() { wakeup.Poke(d.Wakeups.Claim) }
	holding, ok := d.shares.forSpare(max(1, cap(d.slots)/2), now, look)
	if !ok {
		return false, nil
	}

	claimed, err := d.claimShare(ctx, runtimes, d.WorkerID, 1, holding, now)
	if len(claimed) == 0 {
		d.shares.inVain(now)
	}
	for i := range claimed {
		t := &claimed[i]
		release := d.shares.hold(t.Job.OrgID, true)
		running.Go(func() {
			defer d.pokeIfShort()
			defer release()
			d.Attempt(ctx, t, nil)
		})
	}
	return len(claimed) > 0, err
}
