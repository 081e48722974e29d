package query

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/registry"
)

// What a statement reads it has open, so that a purge on any server takes away the names of the files, and not their
// bytes. Whoever reads for long looks whether what they read was purged.

// lookAgainEach is how often a reading that lasts looks at what it reads.
const lookAgainEach = time.Second

// whileThere returns a context for a reading. It is canceled when somebody has purged a part of what is read, with that
// as its cause. end must be called when the reading has ended.
func (q *Query) whileThere(ctx context.Context, caller authz.Caller, r reading) (_ context.Context, end func()) {
	if len(r.datasets) == 0 {
		return ctx, func() {}
	}

	return wait.While(ctx, lookAgainEach, func(ctx context.Context) error {
		err := pg.InOrgTx(ctx, q.Requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
			return registry.Erased(ctx, tx, caller.OrgID, r.datasets)
		})
		if fault.Is(err, fault.Conflict) {
			return err
		}
		return nil // a look that fails says nothing of the data: the next one may succeed
	})
}
