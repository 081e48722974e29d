package examples_test

import (
	"cmp"
	"flag"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
)

var (
	plannerTasks    = flag.Int("planner-tasks", 600, "tasks of TestPlannerWorkerThroughKills")
	plannerEntities = flag.Int("planner-entities", 30, "its entities")
)

var agents = []string{"python3", "agents.py"}

// record is what a planner or a worker has as its state.
type record struct {
	Runs    int
	Last    string
	Workers []string
}

// record reads the state of an entity.
func (c *crew) record(t *testing.T, entityType, id string) (r record) {
	t.Helper()
	require.NoError(t, c.owner.QueryRow(t.Context(), `SELECT s.state FROM operator_state s JOIN jobs j
		ON j.id = s.job_id WHERE j.name = $1 AND s.state_key = $2`, entityType, id).Scan(&r))
	return r
}

// TestPlannerWorker keeps the promises of examples/planner-worker one by one; docs/sources.md lists them.
func TestPlannerWorker(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "planner-worker", "agents", 1)
	first := c.work(t, agents, "AGENTS_JOURNAL="+c.journal)
	ask := func(entityType, id, function string, more ...string) string {
		return c.run(t, append([]string{"planner-worker/" + entityType, "--payload",
			string(payload(`{"entity_id": %q, "function_name": %q}`, id, function))}, more...)...)
	}

	plan := c.run(t, "planner-worker/planner", "--payload", `{"entity_id": "p1", "instruction": "Compare",
		"function_name": "execute_initial_planning", "user_question": "Which is larger?"}`)
	creation, synthesis := ask("planner", "p1", "execute_task_creation"), ask("planner", "p1", "execute_synthesis")

	t.Run("functions of an entity run in the order of their making", func(t *testing.T) {
		for _, id := range []string{plan, creation, synthesis} {
			task := c.ended(t, id)
			require.Equal(t, "Completed", task.Status, task.Error)
			require.Empty(t, task.Error)
		}
		require.Equal(t, record{3, "execute_synthesis", []string{"p1-1", "p1-2"}}, c.record(t, "planner", "p1"))
	})
	t.Run("what a function asks for is made with its end", func(t *testing.T) {
		processtest.Eventually(t, "the planner's workers are there", func() bool { return c.completed(t) == 5 })
		require.Equal(t, record{Runs: 1, Last: "worker_initialisation"}, c.record(t, "worker", "p1-2"))
	})
	t.Run("entity types, functions and payloads are checked before a task is made", func(t *testing.T) {
		before := c.count(t, `SELECT count(*) FROM tasks`)
		c.refused(t, "run", "planner-worker/agent", "--payload", `{"entity_id": "p1"}`)
		for _, wrong := range []string{
			`{"function_name": "execute_synthesis"}`,
			`{"entity_id": "p1", "function_name": "execute_sql_worker"}`,
			`{"entity_id": "p1", "function_name": "execute_initial_planning", "user_question": "?"}`,
		} {
			require.Contains(t, c.refused(t, "run", "planner-worker/planner", "--payload", wrong), "payload")
		}
		require.Equal(t, before, c.count(t, `SELECT count(*) FROM tasks`))
	})
	t.Run("an entity that does not exist fails its task at once", func(t *testing.T) {
		task := c.ended(t, ask("worker", "nobody", "execute_sql_worker"))
		require.Equal(t, "Failed dead", fmt.Sprint(task.Status, " ", task.Waiting))
		require.Equal(t, 1, task.Attempt)
		require.Contains(t, task.Error, "there is no worker:nobody")
	})
	t.Run("a batch is made as a whole or not at all", func(t *testing.T) {
		before := c.count(t, `SELECT count(*) FROM tasks`)
		good := payload(`{"entity_id": "p1-1", "function_name": "execute_standard_worker"}`)
		var out struct{ Items []dispatcher.Enqueued }
		require.Equal(t, 422, c.call(t, c.admin, "/v1/jobs/planner-worker/worker/tasks", map[string]any{"items": []any{
			map[string]any{"payload": good}, map[string]any{"payload": payload(`{}`)}}}, &out))
		require.Equal(t, before, c.count(t, `SELECT count(*) FROM tasks`))
		require.Equal(t, 201, c.call(t, c.admin, "/v1/jobs/planner-worker/worker/tasks", map[string]any{"items": []any{
			map[string]any{"payload": good}, map[string]any{"payload": good}}}, &out))
		require.Len(t, out.Items, 2)
		require.NotEqual(t, out.Items[0].ID, out.Items[1].ID)
	})
	t.Run("retries up to their number, with an error until then", func(t *testing.T) {
		id := c.run(t, "planner-worker/worker", "--max-attempts", "2", "--payload",
			`{"entity_id": "p1-2", "function_name": "execute_sql_worker", "fail": 2}`)
		task := c.becomes(t, id, "waiting for its next attempt", func(task views.TaskDetail) bool {
			return task.Waiting == "backoff"
		})
		require.Contains(t, task.Error, "worker:p1-2 does not answer")

		task = c.ended(t, id)
		require.Equal(t, "Failed dead", fmt.Sprint(task.Status, " ", task.Waiting))
		require.Equal(t, 2, task.Failures)
		require.NotEmpty(t, task.Error)
		require.Equal(t, 1, c.record(t, "worker", "p1-2").Runs, "what failed has changed nothing")

		c.must(t, "tasks", "retry", id)
		task = c.ended(t, id)
		require.Equal(t, "Completed", task.Status)
		require.Empty(t, task.Error)
		require.Equal(t, 2, c.record(t, "worker", "p1-2").Runs)
		require.Contains(t, c.refused(t, "tasks", "retry", id), "Completed", "an end is an end")
	})
	t.Run("a task of a process that was stopped is taken from it", func(t *testing.T) {
		id := c.run(t, "planner-worker/worker", "--payload",
			`{"entity_id": "p1-1", "function_name": "execute_standard_worker", "seconds": 1}`)
		c.becomes(t, id, "running", func(task views.TaskDetail) bool { return task.Status == "Running" })
		first.signal(syscall.SIGSTOP)
		c.work(t, agents)
		task := c.ended(t, id)
		require.Equal(t, "Completed", task.Status)
		require.Greater(t, task.Attempt, 1)

		runs := c.record(t, "worker", "p1-1")
		first.signal(syscall.SIGCONT)
		require.Equal(t, "Completed", c.ended(t, ask("worker", "p1-1", "execute_standard_worker")).Status)
		require.Equal(t, runs.Runs+1, c.record(t, "worker", "p1-1").Runs, "what woke up too late has changed nothing")
	})
}

// TestPlannerWorkerThroughKills runs tasks of many entities, while workers are killed. Each entity has as many runs in
// its record as it has tasks, and no two of them ran at once.
func TestPlannerWorkerThroughKills(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "planner-worker", "agents", 1)
	program := agents
	entities := make([]string, *plannerEntities)
	var items []dispatcher.EnqueueItem
	for i := range entities {
		entities[i] = fmt.Sprint("w", i)
		items = append(items, dispatcher.EnqueueItem{
			Payload: payload(`{"entity_id": %q, "function_name": "worker_initialisation"}`, entities[i])})
	}
	work := func() *process { return c.work(t, program, "AGENTS_JOURNAL="+c.journal, "AGENTS_POOL_SIZE=8") }
	workers := []*process{work(), work()}
	c.enqueue(t, "planner-worker/worker", items)
	processtest.Eventually(t, "the entities exist", func() bool { return c.completed(t) == len(entities) })

	items = nil
	for i := range *plannerTasks {
		items = append(items, dispatcher.EnqueueItem{Payload: payload(
			`{"entity_id": %q, "function_name": "execute_standard_worker", "seconds": 0.03, "fail": %d}`,
			entities[i%len(entities)], i%40/39)})
	}
	c.enqueue(t, "planner-worker/worker", items)
	all := len(entities) + len(items)

	killed := map[int]int64{} // by process id, when it was dead, in Unix nanoseconds
	for step := 1; step <= 9; step++ {
		processtest.Eventually(t, fmt.Sprintf("%d0 %% are done", step), func() bool {
			return c.completed(t) >= all*step/10
		})
		if n := step % 2; step < 7 && step > 2 {
			c.stopInARun(t, workers[n])
			workers[n].kill()
			killed[workers[n].Process.Pid] = time.Now().UnixNano()
			workers[n] = work()
		}
	}
	processtest.Eventually(t, "all are done", func() bool { return c.completed(t) == all })

	c.requireOnce(t)
	for _, entity := range entities {
		require.Equal(t, all/len(entities), c.record(t, "worker", entity).Runs, entity)
	}
	requireOneAtATime(t, c.entries(t), killed)
}

// stopInARun stops a worker while it runs tasks, by its journal.
func (c *crew) stopInARun(t *testing.T, worker *process) {
	t.Helper()
	processtest.Often(t, "the worker runs a task", func() bool {
		worker.signal(syscall.SIGSTOP)
		runs := 0
		for _, e := range c.entries(t) {
			if e.PID == worker.Process.Pid {
				runs += map[string]int{"begin": 1, "end": -1}[e.Event]
			}
		}
		if runs == 0 {
			worker.signal(syscall.SIGCONT)
		}
		return runs > 0
	})
}

// requireOneAtATime requires that no two runs of an entity overlap. A run that a kill has cut off ended with its
// process.
func requireOneAtATime(t *testing.T, entries []entry, killed map[int]int64) {
	t.Helper()
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Compare(a.At, b.At) })
	running, cut := map[string]entry{}, 0 // by entity
	for _, e := range entries {
		before, open := running[e.Of]
		if e.Event == "end" {
			require.True(t, open && before.Task == e.Task && before.Attempt == e.Attempt, "%v ends in %v", e, before)
			delete(running, e.Of)
			continue
		}
		if open {
			at, was := killed[before.PID]
			require.True(t, was && at < e.At, "%v began while %v ran", e, before)
			cut++
		}
		running[e.Of] = e
	}
	require.Empty(t, running)
	require.Positive(t, cut, "no kill has cut a run off")
}
