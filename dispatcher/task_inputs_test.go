package dispatcher_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// farReader is a DAG with a job that reads elsewhere the outputs of a job that runs in the server.
const farReader = `
name: work
jobs:
  - { name: raw, operator: listed, source: { kind: poll, every: 1h }, partition_by: key, config: { list: raw } }
  - { name: side, operator: listed, source: { kind: poll, every: 1h }, partition_by: key, config: { list: side } }
  - name: made
    operator: handler
    runtime: poll
    inputs: [{ from: { job: raw } }, { from: { job: side }, map: latest }, { from: { job: side }, map: latest, as: again }]
    execution_strategy: PerPartition
    config: { handler: made }
    retry: { initial_seconds: 60 }
publish:
  far_raw: { from: { job: raw } }
  far_side: { from: { job: side } }
  far_made: { from: { job: made } }
`

// readByTask returns the task_inputs of a task as requests of one org see them, and the index that the read uses.
func readByTask(w *dispatchertest.World, caller authz.Caller, task uuid.UUID) (inputs []string) {
	w.T.Helper()
	require.NoError(w.T, pg.InOrgTx(w.T.Context(), w.Requests, caller.OrgID,
		func(ctx context.Context, tx pgx.Tx) error {
			const read = ` FROM task_inputs i WHERE task_id = $1`
			rows, err := tx.Query(ctx, `
			SELECT concat_ws(' ', (SELECT name FROM datasets
			WHERE id = i.input_dataset_uuid), i.input_partition_key, i.revision)`+read+`
			  AND input_version = (SELECT p.materialized_at FROM partition_versions p
			WHERE p.dataset_version = i.dataset_version
				AND p.partition_key = i.input_partition_key AND p.revision = i.revision) ORDER BY 1`, task)
			if err != nil {
				return err
			}
			if inputs, err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = off`); err != nil {
				return err
			}
			if rows, err = tx.Query(ctx, `EXPLAIN SELECT *`+read, pgx.QueryExecModeSimpleProtocol, task); err != nil {
				return err
			}
			plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.Contains(w.T, strings.Join(plan, "\n"), "Index Scan using tasks_pkey on tasks t",
				"a task is looked up by its id")
			return err
		}))
	return inputs
}

// The inputs of a task are the inputs of the attempt that committed something.
func TestWhatATaskHasRead(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(farReader)
	bring := func(list, content string) {
		t.Helper()
		w.Probe.Put(list, "k", content)
		w.Poll()
		w.Work()
	}
	bring("side", "s")
	bring("raw", "a")
	w.Route()
	var id uuid.UUID
	w.Row(`SELECT task_id FROM ready`)(&id)
	require.Empty(t, readByTask(w, w.Caller, id), "it has not begun")

	first := claimFarAgain(w.Tenant, id)
	require.Empty(t, readByTask(w, w.Caller, id), "nothing came of it yet")
	_, err := first.complete(first.failed(true), time.Now())
	require.NoError(t, err)
	require.Empty(t, readByTask(w, w.Caller, id), "nothing came of what failed")

	bring("raw", "b") // its event is not routed yet, so the same task has the next attempt
	w.Promote(dispatchertest.Later(time.Hour))
	second := claimFarAgain(w.Tenant, id)
	require.Empty(t, readByTask(w, w.Caller, id))
	_, err = second.commit(protocol.Events{OperatorState: json.RawMessage(`{"at":1}`)}, time.Now())
	require.NoError(t, err)
	read := []string{"far_raw k 2", "far_side k 1"}
	require.Equal(t, read, readByTask(w, w.Caller, id), "an attempt that committed something on its way")
	_, err = second.complete(second.completed(second.upload("one.parquet", rows("x"))), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", w.Task(id))
	require.Equal(t, read, readByTask(w, w.Caller, id))
	require.Empty(t, readByTask(w, w.Org("other").Caller, id), "to another org")

	w.Settle()
	bring("raw", "c")
	w.Route()
	var failed uuid.UUID
	w.Row(`SELECT task_id FROM ready`)(&failed)
	third := claimFarAgain(w.Tenant, failed)
	_, err = third.complete(third.failed(true), time.Now())
	require.NoError(t, err)
	bring("raw", "d")
	w.Route()
	require.Equal(t, "Canceled merged", w.Task(failed), "a newer one stands for it")
	require.Empty(t, readByTask(w, w.Caller, failed))

	w.Exec(`DELETE FROM ready`)
	w.Exec(`UPDATE tasks SET status = 'Canceled', reason = 'canceled', completed_at = now() WHERE status = 'Queued'`)
	require.NotZero(t, w.Count(`SELECT FROM task_inputs`))
	require.NoError(t, w.D.Upkeep.SweepRetention(t.Context(), dispatchertest.Later(2*upkeep.KeepTasks)))
	require.Zero(t, w.Count(`SELECT FROM tasks UNION ALL SELECT FROM task_inputs`))
}
