//go:build soak

package histories_test

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"time"
)

var (
	soakSteps = flag.Int("soak-steps", 200_000, "steps of all histories together")
	soakSeed  = flag.Uint64("soak-seed", 1000, "seed of the first history")
)

// TestSoakHistories compares many histories with the model. It prints a line for every 1,000 steps; a history that
// fails prints its seed and its last steps, and the others go on.
func TestSoakHistories(t *testing.T) {
	p := &progress{began: time.Now()}
	for i := range uint64((*soakSteps + *steps - 1) / *steps) {
		t.Run(fmt.Sprint(*soakSeed+i), func(t *testing.T) {
			t.Parallel()
			defer p.ended(t)
			h := newHistory(t, *soakSeed+i)
			h.each = p.step
			h.run(*steps)
		})
	}
}

// progress counts the steps of all histories.
type progress struct {
	began time.Time

	mu                    sync.Mutex
	steps, failed, passed int
}

func (p *progress) step() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.steps++; p.steps%1000 == 0 {
		took := time.Since(p.began)
		fmt.Printf("%d steps in %s, %s each: %d histories passed, %d failed\n", p.steps, took.Round(time.Second),
			(took / time.Duration(p.steps)).Round(time.Millisecond), p.passed, p.failed)
	}
}

func (p *progress) ended(t *testing.T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.Failed() {
		fmt.Printf("%s failed\n", t.Name()) // its last steps are printed when all histories have ended
		p.failed++
	} else {
		p.passed++
	}
}
