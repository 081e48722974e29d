package proof_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/rest"
)

// faultLease is the lease length of the jobs below, the shortest possible.
const faultLease = 5 * time.Second

// limitedYAML has a job for each limit, whose tasks count themselves.
func limitedYAML(marks string, jobs []limitedJob) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: limited\ndefaults: { heartbeat_timeout_seconds: %d, max_attempts: 100, retry: { "+
		"initial_seconds: 0.2, max_seconds: 2 } }\njobs:\n", faultLease/time.Second)
	for _, j := range jobs {
		runs := fmt.Sprintf("operator: command\n    config: { argv: [./count], env: { MARKS: %q, NAP: %q } }", marks,
			j.nap)
		if j.runtime == called {
			runs = fmt.Sprintf("operator: handler\n    config: { handler: count, marks: %q, nap: %s }", marks, j.nap)
		}
		if j.limit > 0 {
			runs += fmt.Sprintf("\n    scaling: { max_concurrency: %d }", j.limit)
		}
		fmt.Fprintf(&b, `  - name: %s
    runtime: %s
    source: { kind: manual }
    outputs: 0
    %s
`, j.name, j.runtime, runs)
	}
	return b.String()
}

// limitedJob is a job with a limit on tasks that run at once.
type limitedJob struct {
	name    string
	limit   int // 0: none
	runtime string
	nap     string // duration of a task, in seconds
	share   int    // of the load
}

// jobsWith returns the jobs with limits, with tasks of the given durations; elsewhere adds jobs for workers.
func jobsWith(naps [3]string, free int, elsewhere bool) []limitedJob {
	jobs := []limitedJob{{"max1", 1, "dispatcher", naps[0], 1}, {"max3", 3, "dispatcher", naps[1], 4},
		{"max20", 20, "dispatcher", naps[2], 12}}
	if free > 0 {
		jobs = append(jobs, limitedJob{"free", 0, "dispatcher", "0", free})
	}
	if elsewhere {
		jobs = append(jobs, limitedJob{"polled2", 2, polled, "0.1", 2}, limitedJob{"queued4", 4, queued, "0.2", 1},
			limitedJob{"called2", 2, called, "0.1", 1})
	}
	return jobs
}

// longNaps are long enough for each limit to be reached.
var longNaps = [3]string{"0.02", "0.05", "0.4"}

// flowYAML is a chain in which every stage publishes: a task lands one row, the next copies it, the last counts all
// rows. With elsewhere, the first two run on workers.
func flowYAML(n int, elsewhere bool) string {
	landing, copying, copies := "dispatcher", "dispatcher", `operator: sql
    config: { query: "SELECT n FROM input" }`
	if elsewhere {
		switch n % 4 {
		case 0:
			landing, copying = queued, polled
		case 1:
			landing, copying, copies = polled, called, `operator: handler
    config: { handler: copy }`
		case 2:
			copying = polled
		}
	}

	return fmt.Sprintf(`name: flow%[1]d
defaults: { heartbeat_timeout_seconds: %[2]d, max_attempts: 100, retry: { initial_seconds: 0.2, max_seconds: 2 } }
jobs:
  - name: landed
    runtime: %[3]s
    operator: command
    source: { kind: manual }
    partition_by: key
    config: { argv: [./land] }
  - name: copied
    runtime: %[4]s
    %[5]s
    inputs: [{ from: { job: landed }, as: input }]
    execution_strategy: PerPartition
  - name: total
    operator: sql
    inputs: [{ from: { job: copied }, as: input }]
    partition_by: none
    config: { query: "SELECT sum(n) AS n FROM input" }
publish:
  copied%[1]d: { from: { job: copied } }
  total%[1]d: { from: { job: total } }
`, n, faultLease/time.Second, landing, copying, copies)
}

// faultPrograms are the programs of the tasks. They read their task from one line of JSON.
var faultPrograms = map[string]string{
	// A file at the beginning and one at the end: their times show how many ran at once.
	"count": `#!/bin/sh
IFS= read -r task
[ -n "$task" ] || exit 1 # whoever began this was killed before it could say what to do
id=${task#*\"task_id\":\"}; id=${id%%\"*}
attempt=${task#*\"attempt\":}; attempt=${attempt%%,*}
: >"$MARKS/$id.$attempt.begin"
[ "$NAP" = 0 ] || sleep "$NAP"
: >"$MARKS/$id.$attempt.end"
`,
	"land": `#!/bin/sh
IFS= read -r task
[ -n "$task" ] || exit 1 # whoever began this was killed before it could say what to do
dir=${task##*\"dir\":\"}; dir=${dir%%\"*}
printf 'n\n1\n' >"$dir/rows.csv"
`,
}

// load enqueues tasks until it is asked to stop, and remembers which were acknowledged.
type load struct {
	t       *testing.T
	servers []*server
	limited []string // jobs with limits, each repeated by its share
	dose    doses

	open  atomic.Int64 // as the watch counts them
	asked atomic.Int64 // requests, including those without a good answer

	mu    sync.Mutex
	acked map[string]uuid.UUID // by idempotency key
	keys  []map[string]bool    // by flow, the landed partitions
	jobs  map[string]int       // tasks by job
}

func newLoad(t *testing.T, servers []*server, limited []limitedJob, dose doses) *load {
	l := &load{t: t, servers: servers, dose: dose, acked: map[string]uuid.UUID{}, jobs: map[string]int{}}
	for _, j := range limited {
		l.limited = append(l.limited, slices.Repeat([]string{j.name}, j.share)...)
	}
	for range dose.flows {
		l.keys = append(l.keys, map[string]bool{})
	}
	return l
}

// writePrograms puts the programs where commands are looked up.
func writePrograms(t *testing.T, dir string) {
	t.Helper()
	for name, text := range faultPrograms {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
}

// run enqueues until ctx ends. It repeats each request until it is acknowledged.
func (l *load) run(ctx context.Context, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	for ctx.Err() == nil {
		if l.open.Load() >= l.dose.most {
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}

		dag, job, flow := "limited", l.limited[random.IntN(len(l.limited))], -1
		if l.dose.flows > 0 && random.IntN(l.dose.landings) == 0 {
			flow = random.IntN(l.dose.flows)
			dag, job = fmt.Sprintf("flow%d", flow), "landed"
		}

		items := make([]dispatcher.EnqueueItem, 1+random.IntN(8))
		for i := range items {
			items[i].IdempotencyKey = uuid.NewString()
			if flow >= 0 {
				items[i].Partition = "p" + items[i].IdempotencyKey[:13]
			}
		}

		l.ask(dag, job, flow, items)
		if random.IntN(10) == 0 { // as if the answer were lost
			l.ask(dag, job, flow, items)
		}
	}
}

// ask asks one server after the other until one acknowledges. A working server may answer that it is unavailable, and
// nothing else.
func (l *load) ask(dag, job string, flow int, items []dispatcher.EnqueueItem) {
	// Bounds a failure. It outlasts the load, so that every request is acknowledged.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.t.Context()), 3*time.Minute)
	defer cancel()
	for {
		var answer rest.List[dispatcher.Enqueued]
		n := l.asked.Add(1)
		try, done := context.WithTimeout(ctx, 3*time.Second) // a server may be stopped meanwhile
		err := l.servers[int(n)%len(l.servers)].call(try, http.MethodPost, "/v1/jobs/"+dag+"/"+job+"/tasks",
			map[string]any{"items": items}, &answer)
		done()
		if err == nil {
			l.acknowledge(dag+"/"+job, flow, items, answer.Items)
			return
		}

		var no *refused
		if errors.As(err, &no) && no.code != http.StatusServiceUnavailable {
			l.t.Errorf("a server that is up answered %v", no)
			return
		}
		if ctx.Err() != nil {
			l.t.Errorf("%s/%s: never acknowledged: %v", dag, job, err)
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (l *load) acknowledge(job string, flow int, items []dispatcher.EnqueueItem, made []dispatcher.Enqueued) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(made) != len(items) {
		l.t.Errorf("%d tasks were asked for, %d acknowledged", len(items), len(made))
		return
	}

	for i, item := range items {
		before, known := l.acked[item.IdempotencyKey]
		switch {
		case known && before != made[i].ID:
			l.t.Errorf("key %s named task %s, and now %s", item.IdempotencyKey, before, made[i].ID)
		case !known:
			l.jobs[job]++
		}
		l.acked[item.IdempotencyKey] = made[i].ID
		if flow >= 0 {
			l.keys[flow][item.Partition] = true
		}
	}
}

// tell logs the progress each minute, for watching a long run.
func (l *load) tell(ctx context.Context) {
	for tick := time.NewTicker(time.Minute); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.t.Logf("%d tasks acknowledged, %d open rows", l.acknowledged(), l.open.Load())
		}
	}
}

// runs returns the number of requested DAG runs, that is, of landed partitions.
func (l *load) runs() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, keys := range l.keys {
		n += len(keys)
	}
	return n
}

func (l *load) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}
