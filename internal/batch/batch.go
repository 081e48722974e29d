// Package batch gathers what many callers want done at the same time.
//
// Vocabulary: a batch is what one call of the function works on. It owns no tables.
package batch

import (
	"runtime"
	"sync"
)

// Batcher gathers items into batches: while one batch is under way, what comes waits and makes the next. So under load
// the cost of a transaction, or a request, is shared by many, and an idle system loses no time waiting for company.
type Batcher[T any] struct {
	size  int
	lanes int
	do    func([]T)

	mu      sync.Mutex
	pending []T
	busy    int
}

// New returns a Batcher that calls do with batches of up to size items, as many as lanes at the same time.
func New[T any](size, lanes int, do func([]T)) *Batcher[T] {
	return &Batcher[T]{size: size, lanes: lanes, do: do}
}

// Add returns at once; do answers the caller through the item.
func (b *Batcher[T]) Add(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, item)
	if b.busy < b.lanes {
		b.busy++
		go b.drain()
	}
}

func (b *Batcher[T]) drain() {
	for {
		runtime.Gosched() // callers that are about to add an item come first
		b.mu.Lock()
		n := min(b.size, len(b.pending))
		if n == 0 {
			b.busy--
			b.pending = nil
			b.mu.Unlock()
			return
		}
		batch := b.pending[:n:n]
		b.pending = b.pending[n:]
		b.mu.Unlock()
		b.do(batch)
	}
}
