//go:build soak

package proof_test

import (
	"flag"
	"math/rand/v2"
	"testing"
	"time"
)

var (
	chaosKills    = flag.Int("chaos-kills", 1000, "how often the test of faults kills a server")
	chaosPostgres = flag.Int("chaos-postgres", 100, "how often it kills PostgreSQL")
	chaosReplicas = flag.Int("chaos-failovers", 30, "how often it loses PostgreSQL and promotes its standby")
	chaosZombies  = flag.Int("chaos-zombies", 200, "how often it stops a server beyond its leases")
	chaosWorkers  = flag.Int("chaos-workers", 3, "workers that poll, and as many behind a queue; 0: the servers run "+
		"everything")
	chaosFarKills = flag.Int("chaos-worker-kills", 1000, "how often it kills a worker or the bootstrap of a function")
	chaosFarStops = flag.Int("chaos-worker-zombies", 200, "how often it stops a worker beyond its leases")
	chaosMessages = flag.Float64("chaos-messages", 0.2,
		"the share of messages that it loses, that it repeats, that it holds back, and that it mixes up")
	chaosCalls = flag.Float64("chaos-calls", 0.05,
		"the share of invocations that it refuses, that it throttles, that it makes and says it did not, and that "+
			"it never answers")
	chaosCommits = flag.Float64("chaos-commits", 0.05, "the share of COMMITs at which it cuts the connection")
	chaosPoints  = flag.Int("chaos-points", 1, "how many of each kind of transaction it cuts before they are "+
		"committed, and how many after, whatever the share")
	chaosFlows    = flag.Int("chaos-flows", 64, "DAGs with data, each a chain of three jobs")
	chaosLandings = flag.Int("chaos-landings", 8, "one request in so many is for one of those")
	chaosWakeups  = flag.Float64("chaos-wakeups", 0.2,
		"the share of wake-ups that it loses, that it repeats, and that it holds back")
	chaosPause = flag.Duration("chaos-pause", 500*time.Millisecond,
		"the longest that it waits before a kill, beside spreading them over the tasks")
	chaosTasks = flag.Int("chaos-tasks", 100_000, "the least that it asks for")
	chaosSeed  = flag.Uint64("chaos-seed", rand.Uint64(), "of the order of faults")
)

// shortNaps let more tasks through than longNaps.
var shortNaps = [3]string{"0", "0.01", "0.05"}

// TestChaos is TestFaultsLoseAndRepeatNothing for hours.
func TestChaos(t *testing.T) {
	far := faraway{kills: *chaosFarKills, zombies: *chaosFarStops, messages: *chaosMessages, calls: *chaosCalls}
	withFaults(t, doses{servers: 3, kills: *chaosKills, postgres: *chaosPostgres, failovers: *chaosReplicas,
		zombies: *chaosZombies, workers: *chaosWorkers, far: far, commits: *chaosCommits,
		points: *chaosPoints, wakeups: *chaosWakeups, pause: *chaosPause, spread: true, tasks: *chaosTasks,
		flows: *chaosFlows, landings: *chaosLandings, askers: 32, most: 600, free: 60, naps: shortNaps,
		seed: *chaosSeed})
}

var (
	limitsTasks = flag.Int("limits-tasks", 100_000, "the least tasks that the test of limits asks for")
	limitsKills = flag.Int("limits-kills", 200, "how often it kills a server meanwhile")
	limitsPause = flag.Duration("limits-pause", 10*time.Second, "the longest that it waits between two kills")
)

// TestChaosOfLimits runs only short tasks under limits of 1, 3 and 20 and kills servers all the time. No look at the
// database sees a limit exceeded or a wrong count, and afterwards no capacity is held.
func TestChaosOfLimits(t *testing.T) {
	withFaults(t, doses{servers: 3, kills: *limitsKills, pause: *limitsPause, tasks: *limitsTasks, askers: 16,
		most: 400,
		naps: shortNaps, seed: *chaosSeed})
}
