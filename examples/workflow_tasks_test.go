package examples_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/worker/protocol"
)

// TestWorkflowTasks keeps the promises of examples/workflow-tasks one by one; docs/sources.md lists them.
func TestWorkflowTasks(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "workflow-tasks", "workflow", 1)
	ask := func(repository, more string, flags ...string) string {
		return c.run(t, append([]string{"workflow-tasks/document", "--partition", repository, "--payload",
			fmt.Sprintf(`{"repository": %q, "revision": "abc"%s}`, repository, more)}, flags...)...)
	}

	waiting := ask("shop", "", "--metadata", `{"tenant": "acme"}`)
	t.Run("a new task is queued, with its first event, before any worker hears of it", func(t *testing.T) {
		task := c.task(t, waiting)
		require.Equal(t, "Queued", task.Status)
		require.Zero(t, task.Progress)
		require.Equal(t, 1, task.Priority)
		require.JSONEq(t, `{"tenant": "acme"}`, string(task.Metadata))
		require.Len(t, task.Events, 1)
		require.Equal(t, "Queued", task.Events[0].To)
		require.Contains(t, task.Events[0].Actor, "bootstrap")
	})
	t.Run("one task of the same input", func(t *testing.T) {
		require.Equal(t, waiting, ask("shop", `, "seconds": 1`), "seconds are no part of the input")
	})

	c.work(t, []string{"python3", "document.py"})
	t.Run("steps, progress, the result and its artefact", func(t *testing.T) {
		task := c.ended(t, waiting)
		require.Equal(t, "Completed", task.Status, task.Error)
		require.Equal(t, 100, task.Progress)
		require.JSONEq(t, `{"dataset": "pages", "partition": "shop", "pages": 4}`, string(task.Result))
		var rows query.Rows
		c.decode(t, &rows, "datasets", "preview", "pages", "--partition", "shop")
		require.Len(t, rows.Rows, 4)
	})
	t.Run("a task that is delivered again after its end is not run again", func(t *testing.T) {
		before := c.task(t, waiting)
		var answer protocol.Claim
		require.Equal(t, 200, c.call(t, c.worker, "/internal/task-claim", protocol.ClaimRequest{
			TaskID: before.ID, WorkerID: "another", Incarnation: "1"}, &answer))
		require.Equal(t, "NotClaimed Completed", answer.Status+" "+answer.Reason)
		require.Equal(t, before.Version, c.task(t, waiting).Version)
	})

	t.Run("a canceled task stops between its steps", func(t *testing.T) {
		id := ask("large", `, "seconds": 1`)
		task := c.becomes(t, id, "at its second step", func(task views.TaskDetail) bool {
			return task.State == "Analysing"
		})
		require.Equal(t, 25, task.Progress)
		c.must(t, "tasks", "cancel", id, "--yes")
		task = c.ended(t, id)
		require.Equal(t, "Canceled", task.Status)
		require.Less(t, task.Progress, 100)
		require.Equal(t, "Canceled", task.Events[0].To)

		states := []string{}
		for _, e := range slices.Backward(task.Events) {
			if e.State != "" {
				states = append(states, e.State)
			}
		}
		require.Equal(t, []string{"Cloning", "Analysing"}, states[:2], "its steps are in the trail")
		require.Contains(t, c.refused(t, "datasets", "preview", "pages", "--partition", "large"), "large")
	})
	t.Run("a task that waits is canceled at once", func(t *testing.T) {
		id := ask("later", "", "--run-at", "2100-01-01")
		c.must(t, "tasks", "cancel", id, "--yes")
		require.Equal(t, "Canceled", c.task(t, id).Status)
	})
	t.Run("attempts are counted, the error stays, and a retry begins anew", func(t *testing.T) {
		id := ask("broken", `, "fail": 2`, "--max-attempts", "2")
		task := c.ended(t, id)
		require.Equal(t, "Failed dead", fmt.Sprint(task.Status, " ", task.Waiting))
		require.Equal(t, 2, task.Failures)
		require.Contains(t, task.Error, "broken cannot be parsed")
		require.Len(t, task.Attempts, 2)

		var retried views.Task
		require.Equal(t, 200, c.call(t, c.admin, "/v1/tasks/"+id+":retry", struct{}{}, &retried))
		require.Zero(t, retried.Failures)
		require.Equal(t, "Completed", c.ended(t, id).Status)
	})
	t.Run("an action on a task that has changed meanwhile is refused", func(t *testing.T) {
		id := ask("held", "", "--run-at", "2100-01-01")
		version := c.task(t, id).Version
		said := c.refused(t, "tasks", "cancel", id, "--yes", "--if-match", fmt.Sprint(version+1))
		require.Contains(t, said, "If-Match")
		c.must(t, "tasks", "cancel", id, "--yes", "--if-match", fmt.Sprint(version))
		require.Greater(t, c.task(t, id).Version, version)
	})
	t.Run("events, the newest first", func(t *testing.T) {
		var events []views.TaskEvent
		c.decode(t, &events, "tasks", "events", waiting, "--limit", "100")
		require.Equal(t, "Completed", events[0].To)
		require.Equal(t, "Queued", events[len(events)-1].To)
		require.NotEqual(t, events[0].Actor, events[len(events)-1].Actor, "a worker ended it, a person asked for it")
	})
	t.Run("times have zones", func(t *testing.T) {
		require.Zero(t, c.count(t, `SELECT count(*) FROM information_schema.columns WHERE table_schema = 'public'
			AND table_name IN ('tasks', 'task_events', 'task_results') AND data_type = 'timestamp without time zone'`))
	})
	t.Run("a server brings the schema up to date, and finds it so the next time", func(t *testing.T) {
		applied := c.count(t, `SELECT count(*) FROM schema_migrations`)
		require.Positive(t, applied)
		processtest.Must(t, c.dir, "migrate", "--database-url", c.dbURL)
		require.Equal(t, applied, c.count(t, `SELECT count(*) FROM schema_migrations`))
	})
}
