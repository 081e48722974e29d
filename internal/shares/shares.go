// Package shares has places that orgs share fairly. It owns no tables.
package shares

import (
	"context"
	"maps"
	"sync"
)

// Slots are places that orgs share. A place that becomes free goes to the org that has the smallest part of those that
// it may have at most, so that a bound is a weight as well; of those, to the one that waits longest.
type Slots struct {
	total  int
	perOrg func(org string) int // the most of an org; 0: all but one

	mu      sync.Mutex
	free    int
	taken   map[string]int
	waiting []*waiter // in the order in which they came
}

// waiter waits for a slot.
type waiter struct {
	org string
	got chan struct{} // closed when it has one
}

// New returns n slots. perOrg is how many an org may have at once; 0: all but one.
func New(n int, perOrg func(org string) int) *Slots {
	return &Slots{total: n, perOrg: perOrg, free: n, taken: map[string]int{}}
}

// Take takes a slot, or waits for one until ctx ends. Before it waits, it calls waits.
func (s *Slots) Take(ctx context.Context, org string, waits func()) error {
	w := &waiter{org, make(chan struct{})}
	s.mu.Lock()
	s.waiting = append(s.waiting, w)
	s.hand()
	s.mu.Unlock()

	select {
	case <-w.got:
		return nil
	default:
		waits()
	}
	select {
	case <-w.got:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.waiting {
		if other == w {
			s.waiting = append(s.waiting[:i:i], s.waiting[i+1:]...)
			return context.Cause(ctx)
		}
	}
	s.give(org) // it came at the last moment
	s.hand()
	return context.Cause(ctx)
}

// Release gives a slot back.
func (s *Slots) Release(org string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.give(org)
	s.hand()
}

func (s *Slots) give(org string) {
	s.free++
	if s.taken[org]--; s.taken[org] == 0 {
		delete(s.taken, org)
	}
}

// hand hands out free slots.
func (s *Slots) hand() {
	for s.free > 0 {
		next := s.next()
		if next < 0 {
			return
		}
		w := s.waiting[next]
		s.waiting = append(s.waiting[:next:next], s.waiting[next+1:]...)
		s.free--
		s.taken[w.org]++
		close(w.got)
	}
}

// next returns the index of the waiter whose turn it is; -1: nobody may have one.
func (s *Slots) next() int {
	best := -1
	for i, w := range s.waiting {
		if s.taken[w.org] >= s.most(w.org) {
			continue
		}
		if best < 0 || s.has(w.org) < s.has(s.waiting[best].org) {
			best = i
		}
	}
	return best
}

// has returns which part an org has of the slots that it may have.
func (s *Slots) has(org string) float64 { return float64(s.taken[org]) / float64(s.most(org)) }

// most returns how many slots an org may have at once.
func (s *Slots) most(org string) int {
	if most := s.perOrg(org); most > 0 {
		return most
	}
	return max(1, s.total-1)
}

// Taken returns how many slots each org has that has any.
func (s *Slots) Taken() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.taken)
}

// Counts returns how many slots are taken, and how many callers wait for one.
func (s *Slots) Counts() (taken, waiting int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.taken {
		taken += n
	}
	return taken, len(s.waiting)
}
