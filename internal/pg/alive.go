package pg

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// lives is how often a slow transaction says that its process lives. It is far shorter than any bound on idle
// transactions.
const lives = 3 * time.Second

// WhileAlive calls slow, which takes long and does not use the transaction, and meanwhile keeps PostgreSQL from ending
// the transaction for being idle. A process that is frozen or cut off says nothing, and loses it. Without a transaction
// it only calls slow.
func WhileAlive(ctx context.Context, tx pgx.Tx, slow func() error) error {
	if tx == nil {
		return slow()
	}
	over := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		tick := time.NewTicker(lives)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case <-tick.C:
			}
			if _, err := tx.Exec(ctx, `SELECT 1`); err != nil {
				return // the caller's next statement fails by the same
			}
		}
	})

	defer func() { close(over); saying.Wait() }()
	return slow()
}
