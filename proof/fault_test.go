package proof_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/migrations"
)

// doses sets the amount of each fault in a run.
type doses struct {
	servers int
	kills   int // SIGKILLs of working servers
	// SIGKILLs of PostgreSQL, half of its first process and half of one that serves a connection
	postgres  int
	failovers int     // losses of PostgreSQL with all its data, whose standby takes over
	zombies   int     // SIGSTOPs of a server beyond its leases
	workers   int     // polling workers, and as many behind a queue, besides a function; 0: servers run all tasks
	far       faraway // the faults of these
	commits   float64 // share of transactions whose connection is cut at the end, half of them before the commit
	// At least so many transactions of each kind are cut before and after their commit, if there are as many
	points   int
	wakeups  float64       // share of wake-ups that are lost, repeated and delayed each
	pause    time.Duration // the longest time between two kills, unless spread
	spread   bool          // whether kills and stops are spread evenly over the enqueued tasks
	tasks    int           // at least so many are enqueued
	flows    int           // DAGs with data
	landings int           // one request in so many is for a flow
	askers   int           // concurrent clients
	most     int64         // open tasks
	free     int           // share of the load without a limit; each other job has a share of 1 to 12
	naps     [3]string     // durations of the tasks with limits, see longNaps
	seed     uint64
}

// faraway sets the faults of workers, of the queue and of the function.
type faraway struct {
	kills    int     // SIGKILLs of a worker or a bootstrap
	zombies  int     // SIGSTOPs of a worker beyond its leases
	messages float64 // share of messages that are lost, repeated, delayed and mixed up each
	// Share of invocations that are refused, throttled, made but answered with an error, and never answered, each
	calls float64
}

// TestFaultsLoseAndRepeatNothing kills servers, workers and PostgreSQL, loses PostgreSQL with its data and promotes the
// standby, stops servers and workers beyond their leases, cuts connections at COMMIT, garbles wake-ups, messages and
// invocations, all at once, while tasks with limits and chains with data run; then it reads the database. The clocks of
// the servers differ by ten minutes.
func TestFaultsLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	withFaults(t, doses{servers: 3, kills: 15, postgres: 4, failovers: 1, zombies: 2, commits: 0.05, points: 1,
		wakeups: 0.2, workers: 2, far: faraway{kills: 10, zombies: 2, messages: 0.2, calls: 0.05},
		pause: 500 * time.Millisecond, tasks: 200, flows: 2, landings: 3, askers: 8, most: 80, naps: longNaps,
		seed: rand.Uint64()})
}

func withFaults(t *testing.T, dose doses) {
	t.Logf("seed %d", dose.seed) // of the order of faults; their times depend on the machine
	began := time.Now()
	database := startPostgres(t)
	require.NoError(t, migrations.Up(t.Context(), database.through(database.plain)))
	if dose.failovers > 0 {
		database.follow(t.Context())
	}

	w := newWorldOn(t, database.through(database.plain))
	marks := t.TempDir()
	writePrograms(t, w.landing)
	secret, _, err := authz.CreateToken(t.Context(), w.pool, w.caller,
		authz.NewToken{Name: "proof", Role: authz.RoleAdmin})
	require.NoError(t, err)

	var far *remote
	config := ""
	if dose.workers > 0 {
		far = startRemote(t)
		config = far.config
	} else {
		config = unlimited(t)
	}

	members := servers(t, dose.servers, "--config", config, "--database-url", database.through(database.faulty),
		"--storage-root", w.root, "--file-root", "acme="+w.landing, "--allow-command", "acme", "--pool-size", "12")
	for i, m := range members { // their clocks differ by ten minutes
		m.env = append([]string{fmt.Sprintf("DAGCTL_CLOCK_SKEW=%dm", 5*(i%3-1))}, awsSettings...)
	}

	fleet := startFleet(t, members)
	var asked []*server
	for _, m := range fleet.members {
		s := newServer("http://"+m.address, secret)
		t.Cleanup(s.client.CloseIdleConnections)
		asked = append(asked, s)
	}

	if far != nil {
		far.door.servers.Store(fleet)
		far.start(w, dose.workers)
	}
	w.eventually("the servers to be ready", func() bool { since, _ := fleet.working(); return !since.IsZero() })
	jobs := jobsWith(dose.naps, dose.free, far != nil)
	w.serve(limitedYAML(marks, jobs))

	for i := range dose.flows {
		w.serve(flowYAML(i, far != nil))
	}

	l := newLoad(t, asked, jobs, dose)
	look := &watch{pool: w.pool, database: database, fleet: fleet, load: l}
	asking, enough := context.WithCancel(t.Context())
	defer enough()

	watching, stop := context.WithCancel(t.Context())
	defer stop()
	var askers, watchers sync.WaitGroup
	watchers.Go(func() { look.run(watching) })
	watchers.Go(func() { l.tell(watching) })
	for i := range dose.askers {
		askers.Go(func() { l.run(asking, dose.seed+uint64(i)) })
	}

	database.faulty.points = dose.points
	misbehave := func(commits, wakeups, messages, calls float64) {
		if database.faulty.misbehave(commits, wakeups); far != nil {
			far.misbehave(messages, calls)
		}
	}

	misbehave(dose.commits, dose.wakeups, dose.far.messages, dose.far.calls)
	held, heldFar := strike(t, w, database, fleet, far, l)
	for tick := time.NewTicker(20 * time.Millisecond); l.acknowledged() < dose.tasks && !t.Failed() && t.Context().
		Err() == nil; {
		<-tick.C
	}

	misbehave(0, 0, 0, 0)
	enough()
	askers.Wait()
	enoughAt := time.Now()
	w.eventually("everything to settle", func() bool {
		settled, err := w.d.Views.Settled(w.t.Context(), w.caller.OrgID)
		return settled && err == nil
	})

	settled := time.Since(enoughAt)
	stop()
	watchers.Wait()
	w.eventually("messages to be looked after", func() bool { return w.count(`SELECT FROM outbox`) == 0 })
	if far != nil {
		far.fleet.stop()
	}

	fleet.stop()

	f := database.faulty
	deaths := 0
	for _, m := range fleet.members {
		if deaths += m.deaths; m.deaths > 0 {
			t.Logf("the last that a server said which ended by itself: %s", m.last)
		}
	}

	t.Logf("%d tasks asked for in %d requests, %d of them to begin a chain, %d in all, in %v; %d servers killed, %d "+
		"ended by themselves, PostgreSQL killed %d times and lost %d times, %d servers stopped with %d leases",
		len(l.acked), l.asked.Load(), l.runs(), w.count(`SELECT FROM tasks`), time.Since(began).Round(time.Second),
		dose.kills, deaths, dose.postgres, dose.failovers, dose.zombies, held)
	t.Log(f.report())
	t.Logf("%d transactions that change something or say COMMIT, cut before %d and after %d; %d wake-ups, lost %d, "+
		"twice %d, late %d", f.commits.Load(), f.before.Load(), f.after.Load(),
		f.wakeups.Load(), f.lost.Load(), f.doubled.Load(), f.late.Load())

	if far != nil {
		t.Logf("%d workers killed, %d stopped with %d leases", dose.far.kills, dose.far.zombies, heldFar)
		far.report(t)
	}
	t.Logf("attempts lost: %d; completed late all the same: %d",
		w.count(`SELECT FROM task_attempts WHERE outcome = 'lease_expired'`),
		w.count(`SELECT FROM task_events WHERE to_status = 'Completed' AND from_status <> 'Running'`))

	t.Logf("looked %d times; the longest that a lease stayed after its end: %v (%s); all was settled %v after the "+
		"last request", look.looks,
		look.recovery.Round(time.Millisecond), look.worst, settled.Round(time.Millisecond))
	require.Empty(t, look.wrong, "limits")

	w.checkAccounts(l)
	counted := w.checkLimits(marks, jobs)
	for _, job := range jobs {
		t.Logf("limit %d of %s: at most %d at once by the tasks' own count, %d with a lease", job.limit, job.name,
			counted[job.name], look.peak["job:limited/"+job.name])
	}
	require.Less(t, look.recovery, time.Minute, "bounds a failure: the machine may be busy")
}

// strike injects the faults: one kill after the other, and beside them stops of servers and of workers. It returns how
// many leases the stopped processes held.
func strike(t *testing.T, w *world, database *postgres, fleet *fleet, far *remote, l *load) (held, heldFar int) {
	t.Helper()
	dose := l.dose
	random := rand.New(rand.NewPCG(dose.seed, 0))
	faults := strings.Fields(strings.Repeat("server ", dose.kills) + strings.Repeat("postgres ", dose.postgres) +
		strings.Repeat("worker ", dose.far.kills) + strings.Repeat("failover ", dose.failovers))
	random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })

	// turn waits until as many tasks are enqueued as should be before the i-th of n faults.
	turn := func(i, n int) {
		for tick := time.NewTicker(20 * time.Millisecond); dose.spread && l.acknowledged() < dose.tasks*i/n &&
			!t.Failed() && t.Context().Err() == nil; {
			<-tick.C
		}
	}

	var beside sync.WaitGroup
	defer beside.Wait() // its count is complete only then
	beside.Go(func() {
		for i := range dose.zombies {
			turn(i, dose.zombies)
			held += zombie(t, w, fleet)
		}
	})

	beside.Go(func() {
		for i := range dose.far.zombies {
			turn(i, dose.far.zombies)
			heldFar += zombie(t, w, far.fleet)
		}
	})

	recoveries := 0
	for i, fault := range faults {
		turn(i, len(faults))
		select {
		case <-time.After(time.Duration(random.Int64N(int64(dose.pause)))): // at a random moment
		case <-t.Context().Done():
			return
		}

		if fault == "postgres" {
			if recoveries++; recoveries%2 == 1 {
				database.kill()
			} else {
				database.crash(t.Context())
			}
			continue
		}

		if fault == "failover" {
			database.failOver(t.Context())
			continue
		}

		members := fleet.members
		if fault == "worker" {
			members = far.fleet.members
		}
		var victim *member
		w.eventually("a process to kill", func() bool {
			at := random.IntN(len(members))
			for i := range members {
				if m := members[(at+i)%len(members)]; !m.since().IsZero() {
					victim = m
					return true
				}
			}
			return false
		})
		victim.kill()
	}
	return
}

// zombie stops a server or a worker with running tasks until others surely have its leases, and lets it go on. It
// returns how many leases it had.
func zombie(t *testing.T, w *world, fleet *fleet) (held int) {
	var m *member
	w.eventually("a process with work", func() bool {
		for _, candidate := range fleet.members {
			if candidate.since().IsZero() {
				continue
			}
			worker := fmt.Sprintf("%%-%d-%%", candidate.pid())
			// PostgreSQL may be away.
			if err := w.pool.QueryRow(t.Context(), `SELECT count(*) FROM leases WHERE worker_id LIKE $1`, worker).
				Scan(&held); err == nil && held > 0 {
				m = candidate
				return true
			}
		}
		return false
	})

	m.halt()
	defer m.resume()
	select {
	case <-time.After(faultLease + 2*time.Second):
	case <-t.Context().Done():
	}
	return held
}
