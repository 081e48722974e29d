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
	"github.com/dagctl/dagctl/internal/wait"
)

// maxAttempts bounds how often InTx runs a transaction that PostgreSQL keeps rolling back in favour of others.
const maxAttempts = 8

// ErrDryRun is what fn returns to InTx if only what it found is wanted: nothing that it did stays.
var ErrDryRun = errors.New("dry run")

// InTx runs fn in a transaction and commits it, or rolls it back if fn returns an error or panics. It runs a
// transaction again that PostgreSQL rolled back to resolve a deadlock or a serialization failure, so fn must have no
// effect outside tx.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inTx(ctx, pool, pgx.TxOptions{}, fn)
}

func inTx(ctx context.Context, pool *pgxpool.Pool, options pgx.TxOptions,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
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
		if wait.For(ctx, backoff(attempt)) != nil {
			return ctx.Err()
		}
	}
}

// afterCommit holds the functions to call after a transaction's COMMIT.
type afterCommit []func()

type afterCommitKey struct{}

func (a afterCommit) run() {
	for _, fn := range a {
		fn()
	}
}

// AfterCommit calls fn after the transaction of ctx has committed, and never if it does not commit. It is for what only
// reports on the work, such as metrics; what must not be lost belongs in the transaction.
func AfterCommit(ctx context.Context, fn func()) {
	if a, ok := ctx.Value(afterCommitKey{}).(*afterCommit); ok {
		*a = append(*a, fn)
	}
}

// InOrgTx is like InTx for one org: on the requests' pool, row-level security lets the transaction read and write only
// that org's rows, and read only those that the Reader of the context, if it has one, may read.
func InOrgTx(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inOrgTx(ctx, pool, orgID, pgx.TxOptions{}, false, fn)
}

// OrgTx returns fn as a part of a work whose parts are done at once: each in a transaction of its own, see InOrgTx.
func OrgTx(pool *pgxpool.Pool, orgID uuid.UUID,
	fn func(ctx context.Context, tx pgx.Tx) error) func(ctx context.Context) error {
	return func(ctx context.Context) error { return InOrgTx(ctx, pool, orgID, fn) }
}

// InOrgTxByKey is like InOrgTx, for statements that run all the time and find their rows by key: each connection plans
// them once, for any parameters, as those of the owner's pool do.
func InOrgTxByKey(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inOrgTx(ctx, pool, orgID, pgx.TxOptions{}, true, fn)
}

// InOrgSnapshot is like InOrgTx, with one snapshot for all statements, so that they all see the same moment.
func InOrgSnapshot(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	return inOrgTx(ctx, pool, orgID, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, false, fn)
}

func inOrgTx(ctx context.Context, pool *pgxpool.Pool, orgID uuid.UUID, options pgx.TxOptions, planOnce bool,
	fn func(ctx context.Context, tx pgx.Tx) error) error {
	if orgID == uuid.Nil {
		return errors.New("transaction for an org: no org given")
	}
	ctx, end, err := takeTurn(ctx, orgID)
	if err != nil {
		return err
	}
	defer end()

	return inTx(ctx, pool, options, func(ctx context.Context, tx pgx.Tx) error {
		var b Batch
		nameOrg(ctx, &b, orgID, planOnce)
		if err := b.SendLast(ctx, tx); err != nil { // with BEGIN, before the first statement
			return err
		}
		return fn(ctx, tx)
	})
}

// lostToOthers reports whether PostgreSQL rolled the transaction back only because of concurrent transactions.
func lostToOthers(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	const serializationFailure, deadlockDetected = "40001", "40P01"
	return pgErr.Code == serializationFailure || pgErr.Code == deadlockDetected
}

// LostTable reports whether a statement failed because others use what it wanted to lock: it waited for longer than
// lock_timeout, or was chosen to resolve a deadlock.
func LostTable(err error) bool {
	const lockNotAvailable = "55P03"
	var pgErr *pgconn.PgError
	return lostToOthers(err) || errors.As(err, &pgErr) && pgErr.Code == lockNotAvailable
}

// backoff doubles from 4 ms to half a second, with jitter so that the same transactions do not collide again.
func backoff(attempt int) time.Duration {
	ceiling := min(4*time.Millisecond<<attempt, 500*time.Millisecond)
	return ceiling/2 + rand.N(ceiling/2)
}
