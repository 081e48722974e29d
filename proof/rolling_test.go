package proof_test

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/internal/testdb"
)

// expansion is what the migration of a newer build may do to the tables that are written all the time: columns that may
// be null or have a default, indexes, tables. The servers that run keep their plans of statements meanwhile. Like a
// migration it gives way where it loses a table to them.
const expansion = `
	SET LOCAL lock_timeout = '2s';
	ALTER TABLE tasks ADD COLUMN of_a_newer_build TEXT;
	ALTER TABLE leases ADD COLUMN of_a_newer_build INT NOT NULL DEFAULT 1;
	ALTER TABLE jobs ADD COLUMN of_a_newer_build JSONB;
	CREATE INDEX ON leases (worker_id, of_a_newer_build);
	CREATE TABLE of_a_newer_build (id BIGINT PRIMARY KEY);
	INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, true)`

// A rolling upgrade as docs/operations.md describes it: the schema first, then the servers one by one, while work goes
// on. Nothing is lost, nothing fails, nothing is done twice. It needs no source of an older build, which an exported
// tree lacks: what an older server meets on a newer schema is what this one meets on a schema that it does not know.
func TestARollingUpgradeLosesNothing(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	w := newWorldOn(t, url)
	writePrograms(t, w.landing)
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "proof",
		Role: authz.RoleAdmin})
	require.NoError(t, err)
	members := servers(t, 3, "--config", unlimited(t), "--database-url", url, "--storage-root", w.root, "--file-root",
		"acme="+w.landing, "--allow-command", "acme", "--pool-size", "4")
	fleet := startFleet(t, members)
	ready := func(m *member) {
		w.eventually("a server to be ready", func() bool { return !m.since().IsZero() })
	}
	for _, m := range members {
		ready(m)
	}
	w.serve(limitedYAML(t.TempDir(), []limitedJob{{"free", 0, "dispatcher", "0.2", 1}}))

	// A client calls whichever server answers, and repeats what got no answer with the same keys.
	var clients []*server
	for _, m := range members {
		clients = append(clients, newServer("http://"+m.address, secret))
	}
	ctx, enough := context.WithCancel(t.Context())
	batches := make(chan int, 1)
	go func() {
		batch := 0
		for next := time.Tick(200 * time.Millisecond); ctx.Err() == nil; batch++ {
			enqueueBatch(t.Context(), clients, batch)
			<-next
		}
		batches <- batch
	}()

	w.eventually("the migration to get its tables", func() bool {
		_, err := w.pool.Exec(t.Context(), expansion)
		require.True(t, err == nil || pg.LostTable(err), "%v", err)
		return err == nil
	})
	for _, m := range members {
		done := w.count(`SELECT FROM tasks WHERE status = 'Completed'`)
		m.terminate()
		ready(m)
		w.eventually("work to go on", func() bool { return w.count(`SELECT FROM tasks WHERE status = 'Completed'`) > done })
	}
	enough()
	made := batchSize * <-batches

	w.eventually("the tasks to end", func() bool {
		return w.count(`SELECT FROM tasks WHERE status = 'Completed'`) == made
	})
	require.Equal(t, made, w.count(`SELECT FROM tasks`), "nothing was enqueued twice")
	require.Empty(t, w.texts(`
		SELECT format('attempt %s: %s: %s', a.attempt, a.outcome, a.error) FROM task_attempts a
		WHERE a.task_id IN (SELECT id FROM tasks WHERE failures > 0) ORDER BY a.task_id, a.attempt`),
		"what was handed back has not failed")
	fleet.stop()
	for _, m := range members {
		require.Contains(t, string(m.tail(1<<20)), "an older program than the schema's",
			"an older build says that the schema is newer")
	}
}

const batchSize = 10

// enqueueBatch enqueues tasks under keys of their own, at the first server that answers.
func enqueueBatch(ctx context.Context, clients []*server, batch int) {
	items := make([]dispatcher.EnqueueItem, batchSize)
	for i := range items {
		items[i] = dispatcher.EnqueueItem{IdempotencyKey: fmt.Sprint(batch, "/", i), Payload: []byte(`{}`)}
	}
	body := map[string]any{"items": items}
	for try := batch; ctx.Err() == nil; try++ {
		var made rest.List[dispatcher.Enqueued]
		if clients[try%len(clients)].call(ctx, http.MethodPost, "/v1/jobs/limited/free/tasks", body, &made) == nil {
			break
		}
	}
}

// terminate sends SIGTERM, and waits until the process is replaced.
func (m *member) terminate() {
	m.mu.Lock()
	before := m.cmd
	m.killed, m.readyAt = true, time.Time{}
	_ = before.Process.Signal(syscall.SIGTERM) // it may have ended
	m.mu.Unlock()
	for range time.Tick(20 * time.Millisecond) {
		m.mu.Lock()
		replaced := m.cmd != before
		m.mu.Unlock()
		if replaced {
			return
		}
	}
}
