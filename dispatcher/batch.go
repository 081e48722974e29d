package dispatcher

import "sync"

// batcher gathers what many callers want done into batches: while one batch is at the database, what comes waits and
// makes the next. So under load the cost of a transaction is shared by many, and an idle system loses no time waiting
// for company.
type batcher[T any] struct {
	size  int // of a batch, at most
	lanes int // batches under way at once, at most
	do    func([]T)

	mu      sync.Mutex
	pending []T
	busy    int
}

// add returns at once; what do does with the item tells the caller.
func (b *batcher[T]) add(item T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.pending = append(b.pending, item)
	if b.busy < b.lanes {
		b.busy++
		go b.drain()
	}
}

func (b *batcher[T]) drain() {
	for {
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
