package query

import (
	"sync"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// slots are the places for statements that run at once. An org may have only some of them, and the last ones are kept
// for orgs that have none, so that no org's long statements keep the others out.
type slots struct {
	all, perOrg, reserved int

	mu    sync.Mutex
	taken map[string]int // by org
	busy  int
}

// newSlots returns n slots. A quarter of them, but at least one, is reserved for orgs that have none, unless there is
// only one slot at all.
func newSlots(n int) *slots {
	reserved := min(max(n/4, 1), n-1)
	return &slots{all: n, perOrg: n - reserved, reserved: reserved, taken: map[string]int{}}
}

// take takes a slot for an org, or returns an error that says when to try again. It does not wait.
func (s *slots) take(org string) (release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	own, free := s.taken[org], s.all-s.busy
	switch {
	case free == 0:
		return nil, tryAgain("this server is already running %d queries, the most that it runs at once", s.all)
	case own >= s.perOrg:
		return nil, tryAgain("your org is already running %d queries on this server, the most that one org may", own)
	case own > 0 && free <= s.reserved:
		return nil, tryAgain("your org is running %d queries, and the free places are kept for others", own)
	}
	s.taken[org]++
	s.busy++
	return sync.OnceFunc(func() { s.give(org) }), nil
}

func (s *slots) give(org string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	if s.taken[org]--; s.taken[org] == 0 {
		delete(s.taken, org)
	}
}

func tryAgain(format string, args ...any) error {
	return rest.RetryAfter(fault.New(fault.TooMany, format, args...).WithHint("try again in a moment"), time.Second)
}
