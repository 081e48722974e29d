//go:build soak && linux

package proof_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/worker/protocol"
)

// withoutDatabase are the alerts that may fire while figures cannot be read, or work cannot go on.
var withoutDatabase = []string{"DagctlFiguresMissing", "DagctlNoLeader", "DagctlErrors", "DagctlSourceLate",
	"DagctlNoWorker", "DagctlNoServer", "DagctlQueueOld", "DagctlOutboxLag", "DagctlPoolExhausted", "DagctlTurnsWait",
	"DagctlStorageAway", "DagctlLeasesLost"}

// unserved are the alerts that fire where tasks wait that nobody takes.
var unserved = []string{"DagctlQueueOld", "DagctlNoWorker"}

// ofTasks are outages of what tasks call and of who runs them.
func (a *alarms) ofTasks() []outage {
	var stop func()
	return []outage{
		{[]string{"DagctlDeadTasks"}, []string{"DagctlAttemptsFail"}, func() { a.enqueue("fails", 1) },
			func() { a.each("fails", "skip") }},
		{[]string{"DagctlAttemptsFail"}, []string{"DagctlDeadTasks"}, func() {
			stop = a.again(1, time.Second, func(ctx context.Context) { _ = a.tryEnqueue(ctx, "fails", 2) })
		}, func() { stop(); a.settleFails() }},
		{[]string{"DagctlQueueOld", "DagctlNoWorker"}, nil, func() { a.enqueue("unserved", 1) },
			func() { a.each("unserved", "cancel") }},
		{[]string{"DagctlQueueAway"}, unserved, func() { a.enqueue("announced", 1) },
			func() { a.each("announced", "cancel") }},
		{[]string{"DagctlLeasesLost"}, append([]string{"DagctlDeadTasks", "DagctlSourceLate"}, unserved...), func() {
			a.enqueue("unserved", 100)
			stop = a.again(1, time.Second, a.claimAndDie)
		}, func() { stop(); a.each("unserved", "cancel") }},
		{[]string{"DagctlSourceLate"}, []string{"DagctlQueueOld"}, func() { a.enqueue("slow", 300) },
			func() { a.each("slow", "cancel") }},
		{[]string{"DagctlBuildSlow"}, unserved, func() { a.deploy(stuckYAML) }, func() {
			require.NoError(a.t, a.one.call(a.t.Context(), http.MethodPost, "/v1/dags/stuck/abandon", nil, new(any)))
		}},
	}
}

// settleFails waits until the tasks that fail have failed, and skips them.
func (a *alarms) settleFails() {
	a.eventually("the last tasks to fail", func() bool {
		return a.count(`SELECT FROM tasks t JOIN jobs j ON j.id = t.job_id
			WHERE j.name = 'fails' AND t.status IN ('Queued', 'Running')`) == 0
	})
	a.each("fails", "skip")
}

// claimAndDie claims tasks as a worker does that dies of the first.
func (a *alarms) claimAndDie(ctx context.Context) {
	var answer protocol.PollResponse
	err := a.worker.call(ctx, http.MethodPost, "/internal/task-poll", protocol.PollRequest{WorkerID: "mortal",
		Runtime: "elsewhere", Operators: []protocol.Operator{{Name: "command"}}, Max: 2}, &answer)
	if err != nil && ctx.Err() == nil {
		a.t.Logf("no task is claimed: %v", err)
	}
}

// ofStorage are outages of the disk.
func (a *alarms) ofStorage() []outage {
	var stop func()
	return []outage{
		{[]string{"DagctlStorageAway"},
			[]string{"DagctlNoWorker", "DagctlSourceLate", "DagctlStorageFails", "DagctlErrors"},
			func() { remount(a.t, a.root, unix.MS_REMOUNT|unix.MS_RDONLY) },
			func() { remount(a.t, a.root, unix.MS_REMOUNT) }},
		{[]string{"DagctlStorageFails"}, []string{"DagctlStorageAway", "DagctlSourceLate", "DagctlNoWorker",
			"DagctlErrors", "DagctlQueueOld"}, func() { stop = a.again(1, 6*time.Second, a.fillDisk) },
			func() { stop() }},
	}
}

// fillDisk fills the disk for a while, when there is something to write.
func (a *alarms) fillDisk(ctx context.Context) {
	ballast := filepath.Join(a.root, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		return
	}
	for block := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(block)
	}
	_ = f.Close()
	a.write()
	select {
	case <-ctx.Done():
	case <-time.After(3 * time.Second):
	}
	_ = os.Remove(ballast)
}

// ofPeople are what people forget, and whom nobody reaches.
func (a *alarms) ofPeople() []outage {
	return []outage{
		{[]string{"DagctlAdminTokenEnds"}, nil, func() { // as time passes
			a.exec(`UPDATE service_tokens SET expires_at = now() + interval '6 days' WHERE role = 'admin'`)
		}, func() {
			_, _, err := authz.CreateToken(a.t.Context(), a.pool, a.caller,
				authz.NewToken{Name: "next", Role: authz.RoleAdmin})
			require.NoError(a.t, err)
		}},
		{[]string{"DagctlOutboxFailed"}, nil, func() { // as an hour of tries passes
			a.exec(`UPDATE outbox SET attempts = 19, available_at = now() WHERE kind = 'openlineage'`)
		}, func() { // as a day passes
			a.exec(`UPDATE outbox SET attempts = 0 WHERE kind = 'openlineage' AND status = 'Pending'`)
			a.exec(`UPDATE outbox SET available_at = now() - interval '2 days' WHERE status = 'Failed'`)
		}},
	}
}

// ofDatabase are outages of the database.
func (a *alarms) ofDatabase() []outage {
	var end, stop func()
	asks := func(path string) func(ctx context.Context) {
		return func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_ = a.one.get(ctx, path, new(any))
		}
	}
	over := func() { end(); stop() }
	return []outage{
		{[]string{"DagctlOutboxLag"}, withoutDatabase, func() {
			end = a.locked(`SELECT pg_advisory_xact_lock(hashtextextended(origin_job_id::text, 1)) FROM jobs
				WHERE name = 'copied'`)
			a.write()
		}, func() { end() }},
		{[]string{"DagctlNoLeader"}, nil, func() { end = a.locked(`LOCK river_leader IN EXCLUSIVE MODE`) },
			func() { end() }},
		{[]string{"DagctlFiguresMissing", "DagctlTurnsWait"}, withoutDatabase, func() {
			end = a.locked(`LOCK sources`)
			stop = a.again(40, 10*time.Millisecond, asks("/v1/sources"))
		}, over},
		{[]string{"DagctlErrors"}, withoutDatabase, func() {
			a.exec(`ALTER SYSTEM SET default_transaction_read_only = on`)
			a.exec(`SELECT pg_reload_conf()`)
			stop = a.again(1, 100*time.Millisecond, func(ctx context.Context) { _ = a.tryEnqueue(ctx, "works", 1) })
		}, func() {
			a.exec(`ALTER SYSTEM RESET default_transaction_read_only`)
			a.exec(`SELECT pg_reload_conf()`)
			stop()
		}},
		{[]string{"DagctlNoServer"}, withoutDatabase, a.database.end, a.database.start},
	}
}

// ofServers are outages of the servers; the last does not end.
func (a *alarms) ofServers() []outage {
	return []outage{
		{[]string{"DagctlNoWorker"}, []string{"DagctlQueueOld", "DagctlSourceLate"}, func() {
			for _, id := range a.texts(`SELECT id FROM workers
				WHERE last_heartbeat > now() - interval '10 s' AND token = ''`) {
				_, err := dispatcher.DrainWorker(a.t.Context(), a.pool, id, "", time.Now())
				require.NoError(a.t, err)
			}
		}, func() {
			for _, m := range a.fleet.members {
				m.terminate()
			}
		}},
		{[]string{"DagctlNoServer"}, []string{"DagctlNoLeader"}, a.fleet.stop, nil},
	}
}
