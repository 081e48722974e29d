//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
)

// `make isolation` is the whole test, on an idle machine.
var (
	isolationQueue = flag.Int("isolation-queue", 3000, "tasks that the hostile org queues")
	isolationHours = flag.Int("isolation-hours", 500, "partitions of its backfill")
	isolationTasks = flag.Int("isolation-tasks", 60, "tasks of the other org, idle and meanwhile")
	isolationBound = flag.Duration("isolation-bound", 5*time.Second, "how long such a task may take to start meanwhile")
	isolationParts = flag.String("isolation-parts", "queue busy backfill query plan hook files pages", "what it does")
	isolationTimes = flag.Float64("isolation-times", 0, "and how many times as long as idle; 0: not compared")
)

// stormDAG does what one org may do to a server: queues that nobody serves, programs that only use the processor, a
// folder of large files that is looked at every second, deliveries, and a long backfill.
const stormDAG = `name: storm
jobs:
  - { name: unserved, operator: handler, runtime: bare, source: { kind: manual }, outputs: 0,
      config: { handler: nobody } }
  - { name: busy, operator: command, source: { kind: manual }, outputs: 0,
      config: { argv: [/bin/sh, -c, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"] } }
  - { name: listing, operator: file_source, source: { kind: poll, every: 1s }, partition_by: key,
      config: { path: many, pattern: "{key}.csv", format: csv } }
  - { name: hook, operator: handler, runtime: bare, source: { kind: webhook, path: 5f2a8c0e4b7d41f69a3c2e1d0b9f8a76 },
      outputs: 0, config: { handler: nobody } }
  - { name: hours, operator: command, source: { kind: cron, schedule: "0 * * * *" }, partition_by: { time: hour },
      config: { argv: [/bin/sh, -c, "dir=$(sed 's/.*\"dir\": *\"\\([^\"]*\\)\".*/\\1/');
        echo n > $dir/x.csv; echo 1 >> $dir/x.csv"] } }
`

// TestIsolation lets one org do the worst that it may, and measures how long tasks of another take to start.
func TestIsolation(t *testing.T) {
	a := newArena(t, 50) // the default
	idle, idlePages := a.times(t)
	end := a.storm(t)
	busy, busyPages := a.times(t)
	end()
	a.alive(t)

	p99 := func(all []time.Duration) time.Duration { return all[len(all)*99/100] }
	for _, m := range []struct {
		what string
		all  []time.Duration
	}{
		{"idle, a task starts after", idle}, {"meanwhile, a task starts after", busy},
		{"idle, a page comes after", idlePages}, {"meanwhile, a page comes after", busyPages},
	} {
		slices.Sort(m.all)
		t.Logf("%s %s in the median, %s at the 99th percentile, %s at most", m.what,
			m.all[len(m.all)/2].Round(10*time.Microsecond), p99(m.all).Round(10*time.Microsecond),
			m.all[len(m.all)-1].Round(10*time.Microsecond))
	}
	require.Less(t, p99(busy), *isolationBound)
	require.Less(t, p99(busyPages), *isolationBound)
	if *isolationTimes > 0 {
		require.Less(t, p99(busy).Seconds(), *isolationTimes*p99(idle).Seconds())
	}
}

// times runs tasks of umbrella one after another, and returns by the server's times how long each took to start, and
// how long what the home page shows took to come.
func (a *arena) times(t *testing.T) (starts, pages []time.Duration) {
	t.Helper()
	client := a.client("umbrella")

	for range *isolationTasks {
		asked := time.Now()
		require.NoError(t, client.Get(t.Context(), "/v1/attention", nil, nil))
		pages = append(pages, time.Since(asked))

		var made struct{ Items []struct{ ID string } }
		require.NoError(t, client.Post(t.Context(), "/v1/jobs/quiet/note/tasks", tasksOf(1), &made))
		eventually(t, "the task has ended", func() (bool, error) {
			if err := cli.Sleep(t.Context(), 50*time.Millisecond); err != nil { // it has a budget of requests, too
				return false, err
			}
			var task struct {
				Status    string
				CreatedAt time.Time `json:"created_at"`
				StartedAt time.Time `json:"started_at"`
			}
			err := client.Get(t.Context(), "/v1/tasks/"+made.Items[0].ID, nil, &task)
			if err == nil && task.Status == "Completed" {
				starts = append(starts, task.StartedAt.Sub(task.CreatedAt))
				return true, nil
			}
			return false, err
		})
	}
	return starts, pages
}

// tasksOf asks for so many tasks.
func tasksOf(n int) map[string]any {
	items := make([]map[string]any, n)
	for i := range items {
		items[i] = map[string]any{"payload": map[string]any{}}
	}
	return map[string]any{"items": items}
}

// storm lets acme do its worst, until end is called.
func (a *arena) storm(t *testing.T) (end func()) {
	t.Helper()
	many := filepath.Join(a.roots, "many")
	require.NoError(t, os.Mkdir(many, 0o755))
	line := strings.Repeat("x", 99) + "\n"
	for n := range 20 {
		text := "a\n" + strings.Repeat(line, 100_000) // 10 MB
		require.NoError(t, os.WriteFile(filepath.Join(many, fmt.Sprintf("k%02d.csv", n)), []byte(text), 0o600))
	}
	must(t, a.env(t, "acme"), "deploy", "--wait=false", writeDAG(t, t.TempDir(), "storm", stormDAG))
	client := a.client("acme")
	eventually(t, "the storm serves", func() (bool, error) {
		return client.Post(t.Context(), "/v1/jobs/storm/unserved/tasks", tasksOf(1), nil) == nil, nil
	})

	does := func(part string) bool { return slices.Contains(strings.Fields(*isolationParts), part) }
	const batch = 1000
	for queued := 0; queued < *isolationQueue && does("queue"); queued += batch {
		require.NoError(t, client.Post(t.Context(), "/v1/jobs/storm/unserved/tasks", tasksOf(batch), nil))
	}
	if does("busy") {
		require.NoError(t, client.Post(t.Context(), "/v1/jobs/storm/busy/tasks", tasksOf(batch), nil))
	}
	if does("backfill") {
		first := time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)
		const hour = "2006-01-02T15"
		require.NoError(t, client.Post(t.Context(), cli.DAGPath("storm")+"/backfills", control.BackfillRequest{
			Job: "hours", From: first.Format(hour),
			To: first.Add(time.Duration(*isolationHours) * time.Hour).Format(hour), Concurrency: 1000}, nil))
	}

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	again := func(part string, do func(n int)) {
		if !does(part) {
			return
		}
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				do(n)
			}
		})
	}
	for range 2 {
		again("query", func(int) { // whether they are refused or end by their time: they come again
			const endless = "SELECT sum(i) FROM range(3000000000) r(i)"
			_ = client.Post(ctx, "/v1/query", map[string]string{"sql": endless}, nil)
		})
		again("plan", func(n int) {
			jobs := make([]attackJob, 100)
			for i := range jobs {
				jobs[i] = attackJob{yaml: fmt.Sprintf("operator: sql, inputs: [{ from: { dataset: sales } }], "+
					"config: { query: 'SELECT n + %d AS n FROM sales' }", n*len(jobs)+i)}
			}
			_ = client.Post(ctx, "/v1/dags/parsed/plan", map[string]string{"yaml": document("parsed", jobs)}, nil)
		})
		again("hook", func(n int) {
			answer, err := http.Post(a.url+"/v1/hooks/acme/5f2a8c0e4b7d41f69a3c2e1d0b9f8a76", "application/json",
				strings.NewReader(fmt.Sprint(n)))
			if err == nil {
				_, _ = io.Copy(io.Discard, answer.Body)
				_ = answer.Body.Close()
			}
		})
	}
	costly := []string{"/v1/attention", "/v1/costs", "/v1/tasks", "/v1/datasets"}
	for range 32 {
		again("pages", func(n int) { _ = client.Get(ctx, costly[n%len(costly)], nil, nil) })
	}
	again("files", func(n int) { // every listing finds changed files to hash and to read
		_ = os.Chtimes(filepath.Join(many, fmt.Sprintf("k%02d.csv", n%20)), time.Time{}, time.Now())
		_ = cli.Sleep(ctx, 50*time.Millisecond)
	})
	return func() { cancel(); all.Wait() }
}
