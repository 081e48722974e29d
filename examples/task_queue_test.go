package examples_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
)

var queueTasks = flag.Int("queue-tasks", 2000, "tasks of TestTaskQueueThroughKills")

// TestTaskQueue keeps the promises of examples/task-queue one by one; docs/sources.md lists them.
func TestTaskQueue(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "task-queue", "queue", 1)
	program := built(t, "./task-queue/worker")

	// Tasks that were there before any worker, made in this order. The one that is to come last has another type.
	var made []string
	for _, asked := range [][2]string{{"report_build", "0"}, {"email_send", "5"}, {"task_backup", "0"},
		{"image_resize", "9"}, {"service_nextjs", "5"}, {"email_send", "-1"}} {
		made = append(made, c.run(t, "task-queue/"+asked[0], "--payload", `{"subject": "x"}`, "--priority", asked[1]))
	}
	require.Equal(t, "Queued", c.task(t, made[0]).Status)

	said := c.refused(t, "run", "task-queue/fax_send", "--payload", `{"subject": "x"}`)
	require.Contains(t, said, "fax_send", "a type that nobody defined is refused at once")
	require.Contains(t, c.must(t, "why", made[0]), "report:build", "a task whose handler no worker has says so")

	first := c.work(t, []string{program}, "TASK_QUEUE_POOL_SIZE=1", "TASK_QUEUE_JOURNAL="+c.journal)
	for _, id := range made {
		require.Equal(t, "Completed", c.ended(t, id).Status)
	}

	t.Run("higher priorities first, then the older", func(t *testing.T) {
		var order []string
		for _, e := range c.entries(t) {
			if e.Event == "begin" {
				order = append(order, e.Task)
			}
		}
		require.Equal(t, []string{made[3], made[1], made[4], made[0], made[2], made[5]}, order)
	})
	t.Run("a task's life", func(t *testing.T) {
		task := c.task(t, made[1])
		require.Equal(t, "task-queue", task.DAG)
		require.Equal(t, "email_send", task.Job)
		require.JSONEq(t, `{"subject": "x"}`, string(task.Payload))
		require.JSONEq(t, `{"done": "sent to x"}`, string(task.Result))
		require.NotEmpty(t, task.Worker)
		require.NotNil(t, task.StartedAt)
		require.NotNil(t, task.CompletedAt)
		require.False(t, task.StartedAt.Before(task.CreatedAt) || task.CompletedAt.Before(*task.StartedAt))
		require.Equal(t, 1, task.Attempt)
		require.Empty(t, task.Error)

		var states []string
		for _, e := range task.Events { // the newest first
			states = append([]string{e.To}, states...)
		}
		require.Equal(t, []string{"Queued", "Running", "Completed"}, states)
	})
	t.Run("a key of a type makes one task", func(t *testing.T) {
		same := func(job string) string {
			return c.run(t, "task-queue/"+job, "--payload", `{"subject": "x"}`, "--idempotency-key", "user-123")
		}
		before := same("email_send")
		require.Equal(t, before, same("email_send"))
		require.NotEqual(t, before, same("task_backup"), "keys belong to their type")
		require.Equal(t, "Completed", c.ended(t, before).Status)
		require.Equal(t, before, same("email_send"), "also after it is done")
	})
	t.Run("retries with growing pauses, and the last error", func(t *testing.T) {
		id := c.run(t, "task-queue/image_resize", "--payload", `{"subject": "disk", "fail": 2}`)
		task := c.becomes(t, id, "waiting for its next attempt", func(task views.TaskDetail) bool {
			return task.Waiting == "backoff"
		})
		require.NotNil(t, task.NextRetryAt)
		require.Contains(t, task.Error, "disk is busy")
		require.Equal(t, 4, task.MaxAttempts)

		task = c.ended(t, id)
		require.Equal(t, "Completed", task.Status)
		require.Equal(t, 3, task.Attempt)
		require.Empty(t, task.Error)
		pause := func(n int) time.Duration {
			return task.Attempts[n].StartedAt.Sub(*task.Attempts[n-1].EndedAt).Abs()
		}
		require.GreaterOrEqual(t, pause(1), 500*time.Millisecond)
	})
	t.Run("out of retries it is dead, until a person retries it", func(t *testing.T) {
		id := c.run(t, "task-queue/image_resize", "--payload", `{"subject": "disk", "fail": 2}`, "--max-attempts", "2")
		task := c.ended(t, id)
		require.Equal(t, "Failed dead", fmt.Sprint(task.Status, " ", task.Waiting))
		require.Equal(t, 2, task.Attempt)
		var dead []views.Task
		c.decode(t, &dead, "tasks", "list", "--dead")
		require.Len(t, dead, 1)
		require.Equal(t, id, dead[0].ID.String())

		c.must(t, "tasks", "retry", id, "--yes")
		require.Equal(t, "Completed", c.ended(t, id).Status)
	})
	t.Run("an error that no attempt can mend ends it at once", func(t *testing.T) {
		task := c.ended(t, c.run(t, "task-queue/report_build", "--payload", `{"subject": "y", "broken": true}`))
		require.Equal(t, "Failed dead", fmt.Sprint(task.Status, " ", task.Waiting))
		require.Equal(t, 1, task.Attempt)
		require.Contains(t, task.Error, "there is no y")
	})
	t.Run("workers are known, with their pool and heartbeats", func(t *testing.T) {
		found := 0
		for _, w := range c.workers(t) {
			if w.Token == "" {
				continue // the server
			}
			found++
			require.Equal(t, 1, w.PoolSize)
			require.Equal(t, "live", w.State)
			require.NotEmpty(t, w.Hostname)
			require.Contains(t, w.ID, fmt.Sprint("-", first.Process.Pid, "-"))
			require.False(t, w.IsLeader)
			require.WithinDuration(t, time.Now(), w.LastHeartbeat, time.Minute)
		}
		require.Equal(t, 1, found)
	})
}

// TestTaskQueueThroughKills runs tasks of five types and ten priorities, each asked for twice, on three workers and two
// servers. Two of the workers and the leading server are killed on the way. Every task ends as it has to, once.
func TestTaskQueueThroughKills(t *testing.T) {
	t.Parallel()
	c := newCrew(t, "task-queue", "queue", 2)
	program := built(t, "./task-queue/worker")
	jobs := []string{"service_nextjs", "task_backup", "email_send", "image_resize", "report_build"}

	items, broken := make([]dispatcher.EnqueueItem, *queueTasks/len(jobs)), 0
	for i := range items {
		priority := i % 10
		items[i] = dispatcher.EnqueueItem{IdempotencyKey: fmt.Sprint(i), Priority: &priority,
			Payload: payload(`{"subject": "%d", "ms": 2, "fail": %d, "broken": %t}`, i, i%50/49, i%100 == 7)}
		if i%100 == 7 {
			broken += len(jobs)
		}
	}
	for _, job := range jobs {
		made := c.enqueue(t, "task-queue/"+job, items)
		for i, again := range c.enqueue(t, "task-queue/"+job, items) {
			require.Equal(t, made[i].ID, again.ID)
			require.False(t, again.Created)
		}
	}
	all := len(items) * len(jobs)
	require.Equal(t, all, c.count(t, "SELECT count(*) FROM tasks"))

	const pool = 8
	began := time.Now()
	worker := func() *process {
		return c.work(t, []string{program}, fmt.Sprint("TASK_QUEUE_POOL_SIZE=", pool), "TASK_QUEUE_JOURNAL="+c.journal)
	}
	reach := func(share float64) {
		processtest.Eventually(t, fmt.Sprintf("%.0f %% are done", 100*share), func() bool {
			return c.completed(t) >= int(share*float64(all))
		})
	}
	kill := func(p *process) {
		p.kill()
		require.Less(t, c.completed(t), all-broken, "nothing was left to do at the kill")
	}
	lost := []*process{worker(), worker()}
	worker()

	reach(0.1)
	kill(lost[0])
	reach(0.2)
	leader := c.killLeader(t)
	reach(0.4)
	kill(lost[1])
	for share := 0.45; share < 0.9; share += 0.05 {
		reach(share)
	}
	processtest.Eventually(t, "all tasks have ended", func() bool {
		return c.count(t, `SELECT count(*) FROM tasks WHERE status = 'Completed' OR id IN
			(SELECT task_id FROM waiting WHERE reason = 'dead')`) == all
	})
	t.Logf("%d tasks in %s", all, time.Since(began).Round(time.Second))
	require.Equal(t, all-broken, c.completed(t))
	require.Equal(t, broken, c.count(t, `SELECT count(*) FROM waiting WHERE reason = 'dead'`))
	c.requireOnce(t)
	require.Equal(t, all-broken, c.count(t, `SELECT count(*) FROM tasks t JOIN task_results r ON r.task_id = t.id
		WHERE r.payload->>'done' LIKE '% ' || (t.payload->>'subject')`), "each has its own result")
	c.requireRuns(t, all+all/50, 2*pool)

	processtest.Eventually(t, "the other server leads", func() bool {
		now := c.leaders(t)
		return len(now) == 1 && now[0] != leader
	})
}

// requireRuns requires that workers ran exactly so many attempts to their ends, and at most lost ones not to it.
func (c *crew) requireRuns(t *testing.T, ended, lost int) {
	t.Helper()
	open, ends := map[string]bool{}, 0
	for _, e := range c.entries(t) {
		run := fmt.Sprint(e.Task, " ", e.Attempt)
		if e.Event == "begin" {
			require.False(t, open[run], "%s began twice", run)
			open[run] = true
			continue
		}
		require.True(t, open[run], "%s ended without a beginning", run)
		delete(open, run)
		ends++
	}
	require.LessOrEqual(t, len(open), lost, "only what ran on killed workers was cut off")
	// What a killed worker, or a worker of a killed server, had done and could not report ran again.
	require.GreaterOrEqual(t, ends, ended)
	require.LessOrEqual(t, ends, ended+2*lost)
}

// leaders returns the servers that lead now.
func (c *crew) leaders(t *testing.T) (ids []string) {
	t.Helper()
	for _, w := range c.workers(t) {
		if w.IsLeader {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

// killLeader kills the server that leads, passes requests to the other, and returns the id of the killed one.
func (c *crew) killLeader(t *testing.T) (id string) {
	t.Helper()
	var leaders []string
	processtest.Eventually(t, "a server leads", func() bool {
		leaders = c.leaders(t)
		return len(leaders) > 0
	})
	require.Len(t, leaders, 1)

	leading, other := c.servers[0], c.servers[1]
	if !strings.Contains(leaders[0], fmt.Sprint("-", leading.Process.Pid, "-")) {
		leading, other = other, leading
	}
	require.Contains(t, leaders[0], fmt.Sprint("-", leading.Process.Pid, "-"))
	c.live.Store(other.url)
	leading.kill()
	return leaders[0]
}
