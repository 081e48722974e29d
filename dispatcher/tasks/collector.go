package tasks

import (
	"context"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/dispatcher/wakeup"
	"github.com/dagctl/dagctl/internal/pg"
)

// Collector collects the tasks that a transaction makes claimable, for a caller that runs one of them itself.
type Collector struct {
	Ready []uuid.UUID
	Taken int // how many of them the transaction itself took

	// TakeFirst, if not nil, is called with the tasks that a batch makes ready, so that it can take the first of them
	// in the same round trip.
	TakeFirst func(b *pg.Batch, made []Request, placing []Placement)
}

// claimable notes that tasks will be claimable once the transaction commits. The claim loop is woken then, unless next
// collects the tasks and all of them are taken.
func (st *Store) claimable(ctx context.Context, next *Collector, tasks []uuid.UUID) {
	if len(tasks) == 0 {
		return
	}
	if next != nil {
		next.Ready = append(next.Ready, tasks...)
	}

	pg.AfterCommit(ctx, func() {
		if next == nil || len(next.Ready) > next.Taken {
			st.wake.Send(wakeup.Claim)
		}
	})
}
