package pg_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/testdb"
)

// An org with more requests than there are connections leaves some to the others.
func TestOrgsTakeTurns(t *testing.T) {
	t.Parallel()
	pool := open(t, testdb.URL(t), pg.WithMaxConns(4))
	turns := pg.NewTurns(pool)
	during := func(ctx context.Context, org uuid.UUID, fn func(ctx context.Context)) (err error) {
		turns.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			err = pg.InOrgTx(r.Context(), pool, org, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT`)
				fn(ctx)
				return err
			})
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
		return err
	}

	many, one := uuid.New(), uuid.New()
	begun, finish := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	for range 9 {
		all.Go(func() {
			assert.NoError(t, during(t.Context(), many, func(context.Context) {
				begun <- struct{}{}
				<-finish
			}))
		})
	}
	for range 2 { // half of the connections
		<-begun
	}
	require.EqualValues(t, 2, pool.Stat().AcquiredConns())

	// Another org is served at once, also where a transaction is in another.
	require.NoError(t, during(t.Context(), one, func(ctx context.Context) {
		require.NoError(t, pg.InOrgTx(ctx, pool, one, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT`)
			return err
		}))
	}))

	// Who does not want to wait longer has no turn.
	gone, leave := context.WithCancelCause(t.Context())
	leave(errors.New("left"))
	require.ErrorContains(t, during(gone, many, func(context.Context) {}), "left")

	// What does not belong to a request waits for nobody.
	require.NoError(t, pg.InOrgTx(t.Context(), pool, many, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SELECT`)
		return err
	}))

	close(finish)
	for range 7 {
		select {
		case <-begun:
		case <-time.After(time.Minute):
			require.Fail(t, "a turn never came")
		}
	}
	all.Wait()
}
