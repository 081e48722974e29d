package proof_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/registry"
)

// property makes random changes by one seed, and then compares what readers see with the model. Each deploy on the way
// computes what its plan said.
func property(t *testing.T, seed uint64, steps int) {
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	m := &model{files: map[string]int{}, byNum: map[int]formula{}}
	put := func() {
		key := fmt.Sprintf("k%d", random.IntN(6))
		m.files[key] = random.IntN(1000)
		w.drop(key+".csv", fmt.Sprintf("n\n%d\n", m.files[key]))
	}

	put()
	stop := w.start(w.d)
	m.active = formula{factor: 2}
	w.serve(m.active.yaml())
	m.byNum[1] = m.active

	var open *account
	plans, units := 0, 0
	closeAccount := func() {
		if open != nil {
			open.close(w)
			plans, units = plans+1, units+len(open.planned)
			open = nil
		}
	}

	// sync reads the live version: whether a build finished before it was abandoned is a race that either side may
	// win.
	sync := func() {
		var number int
		w.one(`SELECT v.number FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id`)(&number)
		m.active = m.byNum[number]
	}

	for range steps {
		switch random.IntN(9) {
		case 0, 1, 2:
			put()
			w.poll()
		case 3, 4:
			closeAccount()
			f := anyFormula(random)
			activate := random.IntN(4) > 0
			open = w.accounted(f.yaml(), superseding, func(r *registry.DeployRequest) { r.Activate = &activate })
			m.byNum[open.deployed.Version.Number] = f
			if random.IntN(4) > 0 {
				w.eventually("the build to end", func() bool {
					s, _ := w.status(open.deployed)
					return s != registry.Building && (s != registry.Ready || !activate)
				})
			}
		case 5:
			closeAccount()
			_, err := w.d.Builds.Rollback(t.Context(), w.caller, "chain", builds.RollbackRequest{})
			if err != nil {
				// There is no version before, or that version is being built
				require.ErrorContains(t, err, "roll back chain")
			}
		case 6:
			closeAccount()
			if random.IntN(2) == 0 {
				_, _ = w.d.Builds.Abandon(t.Context(), w.caller, "chain") // there may be no build
			} else {
				_, _ = w.d.Builds.Promote(t.Context(), w.caller, "chain", 1+random.IntN(len(m.byNum)))
			}
		case 7: // gc: now, or as if every retention window had ended
			closeAccount()
			// Its connection may have been ended
			_, _ = w.d.Upkeep.CollectGarbage(t.Context(), w.caller, false, time.Now().
				Add(time.Duration(random.IntN(2))*9*24*time.Hour))
		case 8: // stop the dispatcher with its running tasks, or cut its connections
			if random.IntN(2) == 0 {
				stop()
				w.d = w.dispatcher(fmt.Sprintf("d%d", random.Uint32()), runtimes[0])
				stop = w.start(w.d)
			} else {
				w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
					AND application_name = $1`, working)
			}
		}
	}

	w.settle()
	w.poll()
	w.sweep()

	// A source that is reading its folder has no open task yet, so a settled dispatcher may not be done.
	var got map[string][]string
	converged := func() bool {
		sync()
		got = map[string][]string{}
		for name := range m.want() {
			got[name] = w.read(name)
		}
		return reflect.DeepEqual(m.want(), got)
	}

	for deadline := time.Now().Add(time.Minute); !converged() && time.Now().Before(deadline); {
		w.poll()
		w.sweep()
	}
	require.Equal(t, m.want(), got, "seed %d", seed)

	// No build undid a rollback: what began before one has served since only if somebody asked for it again.
	require.Empty(t, w.texts(`
		SELECT format('v%s served in spite of the rollback at %s', v.number, r.at)
		FROM dag_activations r
		JOIN dag_activations a ON a.dag_name = r.dag_name AND a.reason <> 'rollback' AND a.at > r.at
		JOIN dag_versions v ON v.id = a.dag_version_id AND v.building_at < r.at
		WHERE r.reason = 'rollback' AND NOT EXISTS (SELECT FROM audit_log l
			WHERE l.action IN ('dag.promote', 'dag.deploy') AND l.object = format('%s v%s', v.dag_name, v.number)
			  AND l.at >= r.at)`), "seed %d", seed)

	w.settle()
	require.Empty(t, w.texts(`SELECT format('%s of %s is %s: %s', t.id, j.name, t.status, t.error_message) FROM tasks t
		JOIN jobs j ON j.id = t.job_id
		WHERE t.status NOT IN ('Completed', 'Canceled')`), "seed %d", seed)

	// Tasks run as planned: one more definition, now that all is quiet and nothing else explains a difference.
	closeAccount()
	last := formula{factor: 5, offset: int(seed % 7), third: true, total: true}
	plan, err := w.d.Views.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: last.yaml()})
	require.NoError(t, err)

	open = w.accounted(last.yaml(), superseding)
	require.Equal(t, keysByJob(plan.Changes), keysByJob(open.deployed.Changes), "the deploy computes what was planned")
	w.reach(open.deployed, registry.Active)
	w.settle()
	require.Equal(t, 2*len(m.files)+len(m.files)+1, len(open.planned), "seed %d", seed)

	closeAccount()
	t.Logf("%d deploys computed the %d partitions of their plans", plans, units)
	stop()
}

// keptSeeds returns the seeds that have found a fault.
func keptSeeds(t *testing.T) (seeds []uint64) {
	f, err := os.Open("testdata/seeds")
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, _, _ := strings.Cut(lines.Text(), "#"); strings.TrimSpace(text) != "" {
			seed, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			require.NoError(t, err)
			seeds = append(seeds, seed)
		}
	}
	return seeds
}

// TestWhateverHappensTheServedDataIsRight changes a DAG at random and compares the result with a model.
func TestWhateverHappensTheServedDataIsRight(t *testing.T) {
	t.Parallel()
	for _, seed := range append(keptSeeds(t), uint64(time.Now().UnixNano()), uint64(time.Now().UnixNano())+1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			property(t, seed, 25)
		})
	}
}
