package tasklogs

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/testdb"
)

func same(s string) string { return s }

// TestALogGoesOnAfterAFailedStore renames the table away under a task that logs.
func TestALogGoesOnAfterAFailedStore(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	logs := &Logs{Config: Config{Pool: pool, Requests: pool, MaxBytes: DefaultMaxBytes,
		Log: slog.New(slog.DiscardHandler)}}
	task := uuid.New()
	s := &sink{logs: logs, org: uuid.New(), task: task, attempt: 1, redact: same}
	exec := func(sql string) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}

	s.log("one")
	s.store()
	exec("ALTER TABLE task_logs RENAME TO away")
	s.log("two")
	s.store()
	s.log("three")
	s.store()
	exec("ALTER TABLE away RENAME TO task_logs")
	s.log("four")
	s.end()
	require.Equal(t, []string{"1 one", "2 two", "3 three", "4 four"}, stored(t, s))
}

// The connection is cut three times under the last lines of a task.
func TestTheLastLinesAreTriedAgain(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	logs := &Logs{Config: Config{Pool: pool, Requests: pool, MaxBytes: DefaultMaxBytes,
		Log: slog.New(slog.DiscardHandler)}}
	s := &sink{logs: logs, org: uuid.New(), task: uuid.New(), attempt: 1, redact: same}
	_, err := pool.Exec(t.Context(), `
		CREATE SEQUENCE stores;
		CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('stores') <= 3 THEN
				PERFORM pg_terminate_backend(pg_backend_pid());
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER cut BEFORE INSERT ON task_logs FOR EACH ROW EXECUTE FUNCTION cut()`)
	require.NoError(t, err)

	s.log("why it failed")
	s.end()
	require.Equal(t, []string{"1 why it failed"}, stored(t, s))
}

// TestALogThatCannotBeStoredIsBounded fills what waits, and expects one line in place of those that found no room.
func TestALogThatCannotBeStoredIsBounded(t *testing.T) {
	t.Parallel()
	pool := testdb.New(t)
	logs := &Logs{Config: Config{Pool: pool, Requests: pool, MaxBytes: DefaultMaxBytes,
		Log: slog.New(slog.DiscardHandler)}}
	s := &sink{logs: logs, org: uuid.New(), task: uuid.New(), attempt: 1, redact: same}
	s.storing.Lock() // nothing is stored meanwhile
	long := strings.Repeat("x", longest)
	for range maxHeld/longest + 3 {
		s.log(long)
	}
	s.storing.Unlock()
	s.store()
	s.log("again")
	s.end()

	lines := stored(t, s)
	require.Len(t, lines, maxHeld/longest+2)
	require.Equal(t, []string{
		fmt.Sprintf("%d 3 lines are missing here: they could not be stored in time.", len(lines)-1),
		fmt.Sprintf("%d again", len(lines)),
	}, lines[len(lines)-2:])
	require.Zero(t, s.held)
}

func (s *sink) log(text string) { s.add(time.Unix(0, 0), "info", text) }

func stored(t *testing.T, s *sink) []string {
	t.Helper()
	rows, err := s.logs.Pool.Query(t.Context(), `SELECT seq || ' ' || text FROM task_logs WHERE task_id = $1 ORDER BY seq`,
		s.task)
	require.NoError(t, err)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return lines
}
