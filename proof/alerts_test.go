//go:build soak && linux

package proof_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/migrations"
)

const alertsYAML = `name: alerts
jobs:
  - { name: works, operator: command, source: { kind: manual }, outputs: 0, config: { argv: [/bin/true] } }
  - { name: fails, operator: command, source: { kind: manual }, outputs: 0, max_attempts: 1,
      config: { argv: [/bin/false] } }
  - { name: slow, operator: command, source: { kind: manual }, outputs: 0, scaling: { max_concurrency: 1 },
      config: { argv: [/bin/sleep, "600"] } }
  - { name: unserved, operator: command, runtime: elsewhere, source: { kind: manual }, outputs: 0,
      heartbeat_timeout_seconds: 5, max_attempts: 100, config: { argv: [/bin/true] } }
  - { name: announced, operator: command, runtime: queued, source: { kind: manual }, outputs: 0,
      config: { argv: [/bin/true] } }
  - { name: lines, operator: file_source, source: { kind: poll, every: 1s }, config: { path: lines.csv, format: csv } }
  - { name: copied, operator: sql, inputs: [{ from: { job: lines }, as: input }],
      config: { query: "SELECT n FROM input" } }
`

// stuckYAML is a DAG whose build waits for a runtime that nobody serves.
const stuckYAML = `name: stuck
jobs:
  - { name: near, operator: file_source, source: { kind: poll, every: 1s }, config: { path: lines.csv, format: csv } }
  - { name: far, operator: sql, runtime: elsewhere, inputs: [{ from: { job: near }, as: input }],
      config: { query: "SELECT n FROM input" } }
`

// alarms are servers, a Prometheus that watches them, and what causes outages.
type alarms struct {
	*world
	prometheus prometheus
	database   *postgres
	fleet      *fleet
	one        *server // one of the servers
	worker     *server // the same for a worker of the runtime elsewhere
	drop       int     // how often lines.csv was written
}

// outage is what makes alerts fire.
type outage struct {
	alerts []string
	may    []string // fire as well
	cause  func()
	ends   func() // nil: it does not end
}

// TestAlertsFire causes outages under a real Prometheus with the rules of docs/alerts.yaml, where a minute is a second.
// Each makes its alerts fire, and no other than those that it may; once it is over, the alerts end. Before and after
// them, none fires. Every alert has an outage but that of a pool that many orgs use up, each within its turns.
func TestAlertsFire(t *testing.T) {
	a, whole := newAlarms(t), t
	a.enqueue("works", 20)
	p := a.prometheus
	p.knows("dagctl_leader")
	p.until("DagctlNoServer", false, []string{"DagctlNoServer"}) // it has just begun to look
	p.quiet(20 * time.Second)

	caused := map[string]bool{"DagctlPoolExhausted": true} // tried nowhere
	for _, o := range slices.Concat(a.ofStorage(), a.ofTasks(), a.ofPeople(), a.ofDatabase(), a.ofServers()) {
		for _, alert := range o.alerts {
			caused[alert] = true
		}
		t.Run(strings.Join(o.alerts, "And"), func(t *testing.T) {
			a.t, a.prometheus.t = t, t
			defer func() { a.t, a.prometheus.t = whole, whole }()
			a.try(o)
		})
	}
	for _, alert := range p.rules() {
		require.True(t, caused[alert], "nothing makes %s fire", alert)
	}
}

// try makes the alerts of an outage fire and end.
func (a *alarms) try(o outage) {
	a.t.Helper()
	may := append(slices.Clone(o.may), o.alerts...)
	began := time.Now()
	ends := func() {}
	if o.ends != nil {
		ends = sync.OnceFunc(o.ends)
	}
	defer ends() // if it failed before
	o.cause()
	for _, alert := range o.alerts {
		a.prometheus.until(alert, true, may)
	}
	names := strings.Join(o.alerts, " and ")
	fired := time.Since(began).Round(time.Second)
	if o.ends == nil {
		a.t.Logf("%s fired after %s", names, fired)
		return
	}

	began = time.Now()
	ends()
	for _, alert := range o.alerts {
		a.prometheus.until(alert, false, may)
	}
	a.t.Logf("%s fired after %s, and ended after %s", names, fired, time.Since(began).Round(time.Second))
	for _, other := range o.may {
		a.prometheus.until(other, false, may)
	}
	a.prometheus.quiet(5 * time.Second)
}

func newAlarms(t *testing.T) *alarms {
	database := startPostgres(t)
	require.NoError(t, migrations.Up(t.Context(), database.through(database.plain)))
	w := newWorldOn(t, database.through(database.plain))
	a := &alarms{world: w, database: database}
	a.write()
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "proof",
		Role: authz.RoleAdmin})
	require.NoError(t, err)
	works, _, err := authz.CreateToken(t.Context(), w.pool, w.caller, authz.NewToken{Name: "worker",
		Kind: authz.KindWorker, Runtimes: []string{"elsewhere"}})
	require.NoError(t, err)
	remount(t, w.root, 0)
	t.Cleanup(func() { require.NoError(t, unix.Unmount(w.root, unix.MNT_DETACH)) })

	members := servers(t, 2, "--config", alarmsConfig(t), "--database-url", database.through(database.plain),
		"--storage-root", w.root, "--file-root", "acme="+w.landing, "--allow-command", "acme")
	var targets []string
	for _, m := range members {
		address := processtest.FreeAddress(t)
		m.args, m.env = append(m.args, "--metrics-address", address), awsSettings
		targets = append(targets, address)
	}
	a.fleet = startFleet(t, members)
	a.eventually("the servers to be ready", func() bool { since, _ := a.fleet.working(); return !since.IsZero() })
	a.serve(alertsYAML)
	a.prometheus = startPrometheus(t, targets)
	a.one, a.worker = newServer("http://"+members[0].address, secret), newServer("http://"+members[0].address, works)
	return a
}

// alarmsConfig returns a config file of servers. Nobody listens where it says that the queue and the receiver of run
// events are.
func alarmsConfig(t *testing.T) string {
	t.Helper()
	key, config := filepath.Join(t.TempDir(), "task.pem"), filepath.Join(t.TempDir(), "config.yaml")
	_, err := authz.EnsureTaskKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, `
limits: { requests_per_second: 100000, burst: 100000, worker_requests_per_second: 100000, worker_burst: 100000 }
backpressure: { max_queued: 200 }
operators: { allowed_addresses: [127.0.0.0/8] }
openlineage: { acme: { url: "http://127.0.0.1:1/api/v1/lineage" } }
runtimes:
  dispatcher: in-process
  elsewhere: poll
  queued: { kind: sqs, queue_url: "http://127.0.0.1:1/1/q", endpoint: "http://127.0.0.1:1", region: eu-central-1 }
tasks: { key_files: [%q] }
`, key), 0o600))
	return config
}

// write gives the source a new file.
func (a *alarms) write() {
	a.drop++
	require.NoError(a.t, os.WriteFile(filepath.Join(a.landing, "lines.csv"), fmt.Appendf(nil, "n\n%d\n", a.drop),
		0o600))
}

func (a *alarms) enqueue(job string, n int) {
	a.t.Helper()
	require.NoError(a.t, a.tryEnqueue(a.t.Context(), job, n))
}

func (a *alarms) tryEnqueue(ctx context.Context, job string, n int) error {
	items := make([]dispatcher.EnqueueItem, n)
	for i := range items {
		items[i].Payload = []byte(`{}`)
	}
	var made rest.List[dispatcher.Enqueued]
	return a.one.call(ctx, http.MethodPost, "/v1/jobs/alerts/"+job+"/tasks", map[string]any{"items": items}, &made)
}

// each does something to the open and the dead tasks of a job.
func (a *alarms) each(job, verb string) {
	a.t.Helper()
	for _, id := range a.texts(`SELECT t.id::text FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE j.name = $1 AND t.status NOT IN ('Completed', 'Canceled', 'Skipped')`, job) {
		_ = a.one.call(a.t.Context(), http.MethodPost, "/v1/tasks/"+id+":"+verb,
			map[string]any{"reason": "the test is over"}, new(any)) // it may have ended
	}
}

// again calls something n times at once, again and again, until stop.
func (a *alarms) again(n int, every time.Duration, do func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(a.t.Context())
	done := make(chan struct{})
	for range n {
		go func() {
			defer func() { done <- struct{}{} }()
			tick := time.NewTicker(every)
			defer tick.Stop()
			for ; ctx.Err() == nil; <-tick.C {
				do(ctx)
			}
		}()
	}
	return func() {
		cancel()
		for range n {
			<-done
		}
	}
}

// locked is a statement in a transaction that stays open, as that of a person who has gone to lunch, until end.
func (a *alarms) locked(sql string, args ...any) (end func()) {
	a.t.Helper()
	tx, err := a.pool.Begin(a.t.Context())
	require.NoError(a.t, err)
	_, err = tx.Exec(a.t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`)
	require.NoError(a.t, err)
	_, err = tx.Exec(a.t.Context(), sql, args...)
	require.NoError(a.t, err)
	return func() { require.NoError(a.t, tx.Rollback(context.WithoutCancel(a.t.Context()))) }
}

// remount makes a folder a file system of its own, which takes root, or changes that.
func remount(t *testing.T, dir string, flags uintptr) {
	t.Helper()
	require.Eventually(t, func() bool { // not while a file is written there
		return unix.Mount("none", dir, "tmpfs", flags, "size=160m") == nil
	}, time.Minute, 10*time.Millisecond, "mount %s", dir)
}
