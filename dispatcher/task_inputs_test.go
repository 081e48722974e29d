package dispatcher

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
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/worker/protocol"
)

// farReader reads elsewhere what is made here.
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

// readByTask tells what task_inputs says of a task to one org's requests, and what it relies on for that.
func (w *world) readByTask(caller authz.Caller, task uuid.UUID) (inputs []string) {
	w.t.Helper()
	require.NoError(w.t, pg.InOrgTx(w.t.Context(), w.asked, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		const read = ` FROM task_inputs i WHERE task_id = $1`
		rows, err := tx.Query(ctx, `
			SELECT concat_ws(' ', (SELECT name FROM datasets WHERE id = i.input_dataset_uuid), i.input_partition_key, i.revision)`+read+`
			  AND input_version = (SELECT p.materialized_at FROM partition_versions p WHERE p.dataset_version = i.dataset_version
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
		require.Contains(w.t, strings.Join(plan, "\n"), "Index Scan using tasks_pkey on tasks t", "a task is looked up by its id")
		return err
	}))
	return inputs
}

// What a task has read is what the attempt read that committed something.
func TestWhatATaskHasRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(farReader)
	bring := func(list, content string) {
		t.Helper()
		w.probe.put(list, "k", content)
		w.poll()
		w.work()
	}
	bring("side", "s")
	bring("raw", "a")
	w.route()
	var id uuid.UUID
	w.row(`SELECT task_id FROM ready`)(&id)
	require.Empty(t, w.readByTask(w.caller, id), "it has not begun")

	first := w.farAgain(id)
	require.Empty(t, w.readByTask(w.caller, id), "nothing came of it yet")
	_, err := first.complete(first.failed(true), time.Now())
	require.NoError(t, err)
	require.Empty(t, w.readByTask(w.caller, id), "nothing came of what failed")

	bring("raw", "b") // its event is not routed yet, so the next attempt is the same task's
	w.promote(later(time.Hour))
	second := w.farAgain(id)
	require.Empty(t, w.readByTask(w.caller, id))
	_, err = second.commit(protocol.Events{OperatorState: json.RawMessage(`{"at":1}`)}, time.Now())
	require.NoError(t, err)
	read := []string{"far_raw k 2", "far_side k 1"}
	require.Equal(t, read, w.readByTask(w.caller, id), "an attempt that committed something on its way")
	_, err = second.complete(second.completed(second.upload("one.parquet", rows("x"))), time.Now())
	require.NoError(t, err)
	require.Equal(t, "Completed", w.task(id))
	require.Equal(t, read, w.readByTask(w.caller, id))
	require.Empty(t, w.readByTask(w.org("other").caller, id), "to another org")

	w.settle()
	bring("raw", "c")
	w.route()
	var failed uuid.UUID
	w.row(`SELECT task_id FROM ready`)(&failed)
	third := w.farAgain(failed)
	_, err = third.complete(third.failed(true), time.Now())
	require.NoError(t, err)
	bring("raw", "d")
	w.route()
	require.Equal(t, "Canceled merged", w.task(failed), "a newer one stands for it")
	require.Empty(t, w.readByTask(w.caller, failed))

	w.exec(`DELETE FROM ready`)
	w.exec(`UPDATE tasks SET status = 'Canceled', reason = 'canceled', completed_at = now() WHERE status = 'Queued'`)
	require.NotZero(t, w.count(`SELECT FROM task_inputs`))
	require.NoError(t, w.d.sweepRetention(t.Context(), later(2*keepTasks)))
	require.Zero(t, w.count(`SELECT FROM tasks UNION ALL SELECT FROM task_inputs`))
}
