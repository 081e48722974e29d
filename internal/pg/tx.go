package pg

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
)

// maxAttempts bounds how often InTx runs a transaction that keeps losing against others.
const maxAttempts = 8

// InTx runs fn in a transaction and commits it, or rolls back when fn returns an error or panics. A transaction that
// PostgreSQL ended to resolve a deadlock or a serialization failure is run again, so fn must have no effect outside tx.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inTx(ctx, pool, pgx.TxOptions{}, fn)
}

func inTx(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	for attempt := 1; ; attempt++ {
		var committed afterCommit
		err := once(ctx, pool, options, func(tx pgx.Tx) error {
			return fn(context.WithValue(ctx, afterCommitKey{}, &committed), tx)
		})
		if err == nil {
			committed.run()
			return nil
		}
		if !lostToOthers(err) {
			return err
		}
		if attempt == maxAttempts {
			return fault.New(fault.Unavailable, "transaction lost against others %d times: %w", attempt, err).
				WithHint("try again")
		}
		if err := pause(ctx, backoff(attempt)); err != nil {
			return err
		}
	}
}

// afterCommit is what is to follow a transaction's COMMIT.
type afterCommit []func()

type afterCommitKey struct{}

func (a afterCommit) run() {
	for _, fn := range a {
		fn()
	}
}

// AfterCommit has fn called once the transaction that ctx came with is committed, and never if it is not. It is for what
// only tells of what was done, such as counting; whatever must not be lost belongs into the transaction.
func AfterCommit(ctx context.Context, fn func()) {
	if a, ok := ctx.Value(afterCommitKey{}).(*afterCommit); ok {
		*a = append(*a, fn)
	}
}

// InOrgTx is InTx with the rows of one org in sight: row-level security on the requests' pool shows and takes no others.
func InOrgTx(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inOrgTx(ctx, pool, orgID, pgx.TxOptions{}, fn)
}

// InOrgSnapshot is InOrgTx with one snapshot for all of its statements, so that what they find was so at one moment.
func InOrgSnapshot(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inOrgTx(ctx, pool, orgID, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, fn)
}

func inOrgTx(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID, options pgx.TxOptions, fn func(ctx context.Context, tx pgx.Tx) error) error {
	if orgID == uuid.Nil {
		return errors.New("transaction for an org: no org given")
	}
	return inTx(ctx, pool, options, func(ctx context.Context, tx pgx.Tx) error {
		var b Batch
		b.Exec("name org "+orgID.String(), `SELECT set_config('dagctl.org', $1, true)`, orgID.String())
		if err := b.SendLast(ctx, tx); err != nil { // with BEGIN, before whatever comes first
			return err
		}
		return fn(ctx, tx)
	})
}

// lostToOthers reports whether PostgreSQL rolled the transaction back only because of what ran beside it.
func lostToOthers(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	const serializationFailure, deadlockDetected = "40001", "40P01"
	return pgErr.Code == serializationFailure || pgErr.Code == deadlockDetected
}

// backoff doubles from 4 ms to half a second, with jitter so that the losers do not meet again.
func backoff(attempt int) time.Duration {
	ceiling := min(4*time.Millisecond<<attempt, 500*time.Millisecond)
	return ceiling/2 + rand.N(ceiling/2)
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
