package tasks

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testdb"
)

func TestRetryAfterBacksOff(t *testing.T) {
	t.Parallel()
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	retries := func(limit time.Duration, multiplier float64) dag.Retry {
		return dag.Retry{Initial: 10 * time.Second, Max: limit, Multiplier: multiplier}
	}

	for _, c := range []struct {
		name               string
		failures, attempts int
		retry              dag.Retry
		retryable          bool
		counts             int
		around             time.Duration // 0: none
	}{
		{"first, by default", 0, 3, dag.Retry{}, true, 1, time.Second},
		{"second, by default", 1, 3, dag.Retry{}, true, 1, 2 * time.Second},
		{"the last attempt", 2, 3, dag.Retry{}, true, 1, 0},
		{"one attempt is all", 0, 1, dag.Retry{}, true, 1, 0},
		{"not retryable", 0, 3, dag.Retry{}, false, 1, 0},
		{"does not count", 2, 3, dag.Retry{}, true, 0, 4 * time.Second},
		{"capped, by default", 50, 100, dag.Retry{}, true, 1, 5 * time.Minute},
		{"so many that the power overflows", 5000, 10000, dag.Retry{}, true, 1, 5 * time.Minute},
		{"as the job says", 2, 9, retries(time.Hour, 3), true, 1, 90 * time.Second},
		{"capped, as the job says", 8, 9, retries(15*time.Second, 3), true, 0, 15 * time.Second},
		{"constant", 5, 9, retries(time.Hour, 1), true, 1, 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			row := Row{failures: c.failures, maxAttempts: c.attempts}
			if c.around == 0 {
				require.Nil(t, RetryAfter(row, c.retry, c.retryable, c.counts, now, 0.5))
				return
			}
			for random, factor := range map[float64]float64{0: 0.5, 0.5: 1, 0.999: 1.499} {
				at := RetryAfter(row, c.retry, c.retryable, c.counts, now, random)
				require.NotNil(t, at)
				require.InDelta(t, float64(c.around)*factor, float64(at.Sub(now)), float64(time.Millisecond))
			}
		})
	}
}

func TestMayComplete(t *testing.T) {
	t.Parallel()
	token, other := uuid.New(), uuid.New()
	id := uuid.New()

	for _, c := range []struct {
		name              string
		status            Status
		reason            Reason
		attempt           int
		token             uuid.UUID
		hash              string
		repeated, refused bool
	}{
		{"running", Running, "", 2, token, "h", false, false},
		{"lease ran out, waits for its retry", Failed, ReasonLeaseExpired, 2, token, "h", false, false},
		{"lease ran out, queued again", Queued, ReasonLeaseExpired, 2, token, "h", false, false},
		{"lease ran out, and a newer attempt runs", Running, "", 1, token, "h", false, true},
		{"another's token", Running, "", 2, other, "h", false, true},
		{"timed out", Failed, ReasonTimeout, 2, token, "h", false, true},
		{"timed out, retried by hand", Queued, ReasonTimeout, 2, token, "h", false, true},
		{"failed", Failed, ReasonError, 2, token, "h", false, true},
		{"handed back", Queued, ReasonHandedBack, 2, token, "h", false, true},
		{"canceled", Canceled, ReasonCanceled, 2, token, "h", false, true},
		{"the same again", Completed, "", 2, token, "done", true, false},
		{"another after it was completed", Completed, "", 2, token, "h", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			row := Row{ID: id, Status: c.status, reason: c.reason, Attempt: 2, token: &token, completionHash: "done"}
			repeated, err := row.MayComplete(Fence{TaskID: id, Attempt: c.attempt, LeaseToken: c.token}, c.hash)
			require.Equal(t, c.refused, fault.Is(err, fault.Conflict), "%v", err)
			require.Equal(t, c.repeated, repeated)
		})
	}
}

// Tasks end in batches of hundreds, whose number the plan does not know: it must not compare all with all.
func TestEndingsAreJoinedByHash(t *testing.T) {
	t.Parallel()
	conn, err := testdb.New(t).Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `SET plan_cache_mode = force_generic_plan`)
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `PREPARE ending AS `+endTasks)
	require.NoError(t, err)

	rows, err := conn.Query(t.Context(), `EXPLAIN EXECUTE ending (now()`+strings.Repeat(", NULL", 15)+`)`,
		pgx.QueryExecModeSimpleProtocol)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	plan := strings.Join(lines, "\n")
	require.Contains(t, plan, "Hash Full Join")
	require.NotContains(t, plan, "Join Filter", "a nested loop that compares all with all")
}
