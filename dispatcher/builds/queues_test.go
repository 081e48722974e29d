package builds_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func cancelTasks(r *registry.DeployRequest) { r.CancelTasks = true }

// queue lists tasks with their place and origin; "now" is the origin of the active version.
func queue(w *dispatchertest.World, items ...dispatcher.Enqueued) (states []string) {
	w.T.Helper()
	for _, e := range items {
		var of string
		w.Row(`SELECT CASE WHEN EXISTS (SELECT FROM dag_current_versions c
			JOIN jobs j ON j.dag_version_id = c.dag_version_id
			WHERE j.origin_job_id = t.job_id) THEN 'now' ELSE 'before' END || ' ' || coalesce(t.partitions[1], '-')
			FROM tasks t WHERE id = $1`, e.ID)(&of)
		states = append(states, w.Task(e.ID)+" "+of)
	}
	return states
}

func TestAQueueFollowsItsEditedJob(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	done := w.Enqueue("load", dispatcher.EnqueueItem{IdempotencyKey: "done", Partition: "all"})
	require.Equal(t, 1, w.Work())
	runAt := dispatchertest.Later(time.Hour)
	items := []dispatcher.EnqueueItem{{IdempotencyKey: "a", Partition: "eu"}, {IdempotencyKey: "b", Partition: "eu"},
		{IdempotencyKey: "c", Partition: "us", RunAt: &runAt}, {Partition: "asia"}}
	queued := w.Enqueue("load", items...)
	require.Equal(t, []string{"Queued ready now eu", "Queued waiting:limit now eu", "Queued waiting:run_at now us",
		"Queued ready now asia"}, queue(w, queued...))

	// The edit leaves one output: every task is for that output, none is lost, and their keys still count.
	edited := dispatchertest.Edit(dispatchertest.Mail, "    partition_by: key\n", "")
	w.Serve(edited, allowRemovals)
	w.Check()
	for _, e := range queued[:2] {
		require.Equal(t, "Completed now all", queue(w, e)[0])
	}
	require.Equal(t, []string{"Queued waiting:run_at now all", "Completed now all"}, queue(w, queued[2:]...))
	for i, key := range []string{"a", "b", "c"} {
		require.Equal(t, dispatcher.Enqueued{ID: queued[i].ID},
			w.Enqueue("load", dispatcher.EnqueueItem{IdempotencyKey: key})[0])
	}
	require.Equal(t, dispatcher.Enqueued{ID: done[0].ID},
		w.Enqueue("load", dispatcher.EnqueueItem{IdempotencyKey: "done"})[0], "done under the definition before")

	// Roll back, with a task that was queued under the newer definition.
	newer := w.Enqueue("load", dispatcher.EnqueueItem{IdempotencyKey: "d"})
	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "mail", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Check()
	require.Equal(t, []string{"Queued waiting:run_at now all", "Queued ready now all"}, queue(w, queued[2], newer[0]))
	require.Equal(t, dispatcher.Enqueued{ID: newer[0].ID}, w.Enqueue("load", dispatcher.EnqueueItem{IdempotencyKey: "d",
		Partition: "all"})[0])
	require.Equal(t, 1, w.Work())
}

func TestARunningTaskFollowsItsEditedJob(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		job, edited string
		goesOn      bool
	}{
		"it writes nothing, and goes on": {"send", dispatchertest.Edit(dispatchertest.Mail,
			"    outputs: 0\n    payload_schema", "    payload_schema"), true},
		"what it writes is replaced: it runs again": {"load", dispatchertest.Edit(dispatchertest.Mail,
			"    partition_by: key\n", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(dispatchertest.Mail)
			sent := w.Enqueue(c.job, dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": "a"})})
			task := w.One(w.D)
			w.Deploy(c.edited)
			w.Advance()
			w.Check()
			completion := w.Do(w.D, task)
			err := w.D.CompleteAttempt(t.Context(), task, completion, time.Now())
			if !c.goesOn {
				dispatchertest.Refused(t, err)
				w.Promote(dispatchertest.Later(time.Second))
				require.Equal(t, 1, w.Work())
			} else {
				require.NoError(t, err)
			}
			require.Regexp(t, "^Completed now", queue(w, sent...)[0])
			w.Check()
		})
	}
}

func TestAQueueIsNotCanceledUnasked(t *testing.T) {
	t.Parallel()
	gone := dispatchertest.Edit(dispatchertest.Mail, `  - name: once
    operator: hook
    source: { kind: manual }
    outputs: 0
    dedupe: [to]
`, "")
	byDay := dispatchertest.Edit(dispatchertest.Mail, "    partition_by: key\n", "    partition_by: { time: day }\n")
	for name, c := range map[string]struct {
		yaml, job string
		reason    string
	}{
		"the job goes": {gone, "once", "the job goes"},
		"it is of another kind": {dispatchertest.Edit(dispatchertest.Mail,
			"  - name: once\n    operator: hook\n    source: { kind: manual }\n    outputs: 0\n    dedupe: [to]\n",
			"  - name: once\n    operator: hook\n    source: { kind: cron, schedule: '@yearly' }\n"), "once",
			"the job goes"},
		"its partitions are no more": {byDay, "load", "its new definition has no such partitions"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			first := w.Serve(dispatchertest.Mail)
			item := func(to string) dispatcher.EnqueueItem {
				if c.job == "load" {
					return dispatcher.EnqueueItem{Partition: to}
				}
				return dispatcher.EnqueueItem{Payload: dispatchertest.Payload(map[string]any{"to": to})}
			}
			tasks := w.Enqueue(c.job, item("a"), item("b"))
			plan, err := w.D.Views.Plan(t.Context(), w.Caller, "mail", registry.DeployRequest{YAML: c.yaml})
			require.NoError(t, err)
			require.Equal(t, []registry.CanceledQueue{{Job: c.job, Tasks: 2, Reason: c.reason}}, plan.Cancels)
			_, err = w.TryDeploy(c.yaml)
			dispatchertest.Refused(t, err)
			require.ErrorContains(t, err, "2 of mail/"+c.job)

			// Tasks that are enqueued between the deploy and the cutover count too.
			require.Equal(t, 2, w.Work())
			deployed := w.Deploy(c.yaml, allowRemovals)
			late := w.Enqueue(c.job, item("c"))
			w.Advance()
			status, reason := w.Status(deployed.Version.ID)
			require.Equal(t, registry.Failed, status)
			require.Contains(t, reason, "1 of mail/"+c.job)
			require.Contains(t, w.Task(late[0].ID), "Queued")

			w.Serve(c.yaml, cancelTasks, allowRemovals)
			require.Equal(t, "Canceled superseded", w.Task(late[0].ID))
			require.Equal(t, "Completed", w.Task(tasks[0].ID))

			// A rollback that removes a job needs confirmation as well.
			w.Serve(dispatchertest.Edit(c.yaml, "name: send\n", "name: post\n"))
			post := w.Enqueue("post", dispatcher.EnqueueItem{
				Payload: dispatchertest.Payload(map[string]any{"to": "a"})})
			_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "mail",
				builds.RollbackRequest{To: &first.Version.Number})
			dispatchertest.Refused(t, err)
			_, err = w.D.Builds.Rollback(t.Context(), w.Caller, "mail",
				builds.RollbackRequest{To: &first.Version.Number, CancelTasks: true})
			require.NoError(t, err)
			require.Equal(t, "Canceled superseded", w.Task(post[0].ID))
			w.Check()
		})
	}
}

// A task that is enqueued while a cutover gives its job another origin is run.
func TestEnqueueDuringACutover(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	stay := false
	deployed := w.Deploy(dispatchertest.Edit(dispatchertest.Mail, "    partition_by: key\n", ""),
		func(r *registry.DeployRequest) { r.Activate = &stay })
	w.Advance()
	var made []dispatcher.Enqueued
	var g errgroup.Group
	require.NoError(t, pg.InTx(t.Context(), w.Pool, func(ctx context.Context, tx pgx.Tx) error {
		if err := deploy.LockSwap(ctx, tx, registry.Build{OrgID: w.Caller.OrgID, DAG: "mail"}); err != nil {
			return err
		}
		g.Go(func() (err error) {
			made, err = w.D.Enqueue(t.Context(), w.Caller, "mail", "load", []dispatcher.EnqueueItem{{}})
			return err
		})
		w.Eventually("the enqueue waits for the cutover", func() bool {
			return w.Count(`SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid
				FROM pg_database WHERE datname = current_database())`) > 0
		})
		_, err := deploy.Activate(ctx, tx, w.Caller.OrgID, "mail", deployed.Version.Number, nil, time.Now())
		if err != nil {
			return err
		}
		ready, err := deploy.Builds(ctx, tx)
		require.NoError(t, err)
		require.Len(t, ready, 1)
		moved, err := w.D.Builds.Swap(ctx, tx, ready[0], deploy.ByPromote, "test", builds.Prepared{}, time.Now())
		require.True(t, moved)
		return err
	}))
	require.NoError(t, g.Wait())
	require.Equal(t, []string{"Queued ready now all"}, queue(w, made...))
}

// A manual job cannot be run again without what people gave it, so its data is reused. The plan says all the same that
// the definition changed, and the deploy and the diff say what the plan says.
func TestAChangedManualJobIsNoRebuild(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(dispatchertest.Mail)
	reasons := func(changes []registry.Change) []string {
		var all []string
		for _, c := range changes {
			all = append(all, c.Action+": "+c.Reason)
		}
		return all
	}
	require.Equal(t, []string{"reuse: same definition"},
		reasons(w.Plan(dispatchertest.Mail+"description: better\n").Changes))

	edited := dispatchertest.Edit(dispatchertest.Mail, "tag: l", "tag: other")
	later := []string{"reuse: definition changed, for later tasks only: its input cannot be read again"}
	require.Equal(t, later, reasons(w.Plan(edited).Changes))
	require.Equal(t, later, reasons(w.Serve(edited).Changes))
	diff, err := deploy.New(w.D.Registry).DiffVersions(t.Context(), w.Caller, "mail", 1, 2)
	require.NoError(t, err)
	require.Equal(t, later, reasons(diff.Changes))
}
