package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
)

func cancelTasks(r *registry.DeployRequest) { r.CancelTasks = true }

// queue tells of tasks where they are, and of which origin: "now" is the active version's.
func (w *world) queue(items ...Enqueued) (states []string) {
	w.t.Helper()
	for _, e := range items {
		var of string
		w.row(`SELECT CASE WHEN EXISTS (SELECT FROM dag_current_versions c JOIN jobs j ON j.dag_version_id = c.dag_version_id
			WHERE j.origin_job_id = t.job_id) THEN 'now' ELSE 'before' END || ' ' || coalesce(t.partitions[1], '-') FROM tasks t WHERE id = $1`, e.ID)(&of)
		states = append(states, w.task(e.ID)+" "+of)
	}
	return states
}

func TestAQueueFollowsItsEditedJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	done := w.enqueue("load", EnqueueItem{IdempotencyKey: "done", Partition: "all"})
	require.Equal(t, 1, w.work())
	runAt := later(time.Hour)
	items := []EnqueueItem{{IdempotencyKey: "a", Partition: "eu"}, {IdempotencyKey: "b", Partition: "eu"}, {IdempotencyKey: "c", Partition: "us", RunAt: &runAt}, {Partition: "asia"}}
	queued := w.enqueue("load", items...)
	require.Equal(t, []string{"Queued ready now eu", "Queued waiting:limit now eu", "Queued waiting:run_at now us", "Queued ready now asia"}, w.queue(queued...))

	// The edit makes it one output: every task is for that, none is lost, and its keys are known.
	edited := edit(mail, "    partition_by: key\n", "")
	w.serve(edited)
	w.check()
	for _, e := range queued[:2] {
		require.Equal(t, "Completed now all", w.queue(e)[0])
	}
	require.Equal(t, []string{"Queued waiting:run_at now all", "Completed now all"}, w.queue(queued[2:]...))
	for i, key := range []string{"a", "b", "c"} {
		require.Equal(t, Enqueued{ID: queued[i].ID}, w.enqueue("load", EnqueueItem{IdempotencyKey: key})[0])
	}
	require.Equal(t, Enqueued{ID: done[0].ID}, w.enqueue("load", EnqueueItem{IdempotencyKey: "done"})[0], "done under the definition before")

	// Back, with one that was queued under the newer definition.
	newer := w.enqueue("load", EnqueueItem{IdempotencyKey: "d"})
	_, err := w.d.Rollback(t.Context(), w.caller, "mail", RollbackRequest{})
	require.NoError(t, err)
	w.check()
	require.Equal(t, []string{"Queued waiting:run_at now all", "Queued ready now all"}, w.queue(queued[2], newer[0]))
	require.Equal(t, Enqueued{ID: newer[0].ID}, w.enqueue("load", EnqueueItem{IdempotencyKey: "d", Partition: "all"})[0])
	require.Equal(t, 1, w.work())
}

func TestARunningTaskFollowsItsEditedJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job, edited string
		goesOn      bool
	}{
		"it writes nothing, and goes on":            {"send", edit(mail, "    outputs: 0\n    payload_schema", "    payload_schema"), true},
		"what it writes is replaced: it runs again": {"load", edit(mail, "    partition_by: key\n", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(mail)
			sent := w.enqueue(c.job, EnqueueItem{Payload: payload(map[string]any{"to": "a"})})
			task := w.one(w.d)
			w.deploy(c.edited)
			w.advance()
			w.check()
			completion := w.do(w.d, task)
			err := w.d.complete(t.Context(), task, completion, time.Now())
			if !c.goesOn {
				refused(t, err)
				w.promote(later(time.Second))
				require.Equal(t, 1, w.work())
			} else {
				require.NoError(t, err)
			}
			require.Regexp(t, "^Completed now", w.queue(sent...)[0])
			w.check()
		})
	}
}

func TestAQueueIsNotCanceledUnasked(t *testing.T) {
	t.Parallel()
	gone := edit(mail, `  - name: once
    operator: hook
    source: { kind: manual }
    outputs: 0
    dedupe: [to]
`, "")
	byDay := edit(mail, "    partition_by: key\n", "    partition_by: { time: day }\n")
	for name, c := range map[string]struct {
		yaml, job string
		reason    string
	}{
		"the job goes":               {gone, "once", "the job goes"},
		"it is of another kind":      {edit(mail, "  - name: once\n    operator: hook\n    source: { kind: manual }\n    outputs: 0\n    dedupe: [to]\n", "  - name: once\n    operator: hook\n    source: { kind: cron, schedule: '@yearly' }\n"), "once", "the job goes"},
		"its partitions are no more": {byDay, "load", "its new definition has no such partitions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			first := w.serve(mail)
			item := func(to string) EnqueueItem {
				if c.job == "load" {
					return EnqueueItem{Partition: to}
				}
				return EnqueueItem{Payload: payload(map[string]any{"to": to})}
			}
			tasks := w.enqueue(c.job, item("a"), item("b"))
			plan, err := w.d.Plan(t.Context(), w.caller, "mail", registry.DeployRequest{YAML: c.yaml})
			require.NoError(t, err)
			require.Equal(t, []registry.CanceledQueue{{Job: c.job, Tasks: 2, Reason: c.reason}}, plan.Cancels)
			_, err = w.tryDeploy(c.yaml)
			refused(t, err)
			require.ErrorContains(t, err, "2 of mail/"+c.job)

			// What comes between the deploy and the cutover counts too.
			require.Equal(t, 2, w.work())
			deployed := w.deploy(c.yaml)
			late := w.enqueue(c.job, item("c"))
			w.advance()
			status, reason := w.status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "1 of mail/"+c.job)
			require.Contains(t, w.task(late[0].ID), "Queued")

			w.serve(c.yaml, cancelTasks)
			require.Equal(t, "Canceled superseded", w.task(late[0].ID))
			require.Equal(t, "Completed", w.task(tasks[0].ID))

			// A rollback that takes a job away asks as well.
			w.serve(edit(c.yaml, "name: send\n", "name: post\n"))
			post := w.enqueue("post", EnqueueItem{Payload: payload(map[string]any{"to": "a"})})
			_, err = w.d.Rollback(t.Context(), w.caller, "mail", RollbackRequest{To: &first.Version.Number})
			refused(t, err)
			_, err = w.d.Rollback(t.Context(), w.caller, "mail", RollbackRequest{To: &first.Version.Number, CancelTasks: true})
			require.NoError(t, err)
			require.Equal(t, "Canceled superseded", w.task(post[0].ID))
			w.check()
		})
	}
}

// Whoever enqueues while a cutover gives the job another origin has a task that is run.
func TestEnqueueDuringACutover(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(mail)
	stay := false
	deployed := w.deploy(edit(mail, "    partition_by: key\n", ""), func(r *registry.DeployRequest) { r.Activate = &stay })
	w.advance()
	var made []Enqueued
	var g errgroup.Group
	require.NoError(t, pg.InTx(t.Context(), w.pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := registry.LockSwap(ctx, tx, w.caller.OrgID, "mail"); err != nil {
			return err
		}
		g.Go(func() (err error) {
			made, err = w.d.Enqueue(t.Context(), w.caller, "mail", "load", []EnqueueItem{{}})
			return err
		})
		w.eventually("the enqueue waits for the cutover", func() bool {
			return w.count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) > 0
		})
		if err := registry.Activate(ctx, tx, w.caller.OrgID, "mail", deployed.Version.Number); err != nil {
			return err
		}
		builds, err := registry.Builds(ctx, tx)
		require.NoError(t, err)
		require.Len(t, builds, 1)
		moved, err := w.d.swap(ctx, tx, builds[0], registry.ByPromote, "test", nil, time.Now())
		require.True(t, moved)
		return err
	}))
	require.NoError(t, g.Wait())
	require.Equal(t, []string{"Queued ready now all"}, w.queue(made...))
}
