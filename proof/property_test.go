package proof_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/registry"
)

// model is what a DAG of the property test should come to, worked out in plain Go: which files there are, and what the
// version that serves makes of them.
type model struct {
	files  map[string]int  // by partition: the one number in it
	active formula         // of the version that serves
	byNum  map[int]formula // of every version, by number
	served map[int]bool    // versions that have served
}

// formula is one definition of the DAG: what each step does with n.
type formula struct {
	factor, offset int
	third          bool // a third job, published as well
}

func (f formula) yaml() string {
	// Short leases, so that what a dispatcher leaves behind is soon taken up.
	text := chain("name: chain\n", "name: chain\ndefaults: { heartbeat_timeout_seconds: 5 }\n", "n * 2 AS n", fmt.Sprintf("n * %d AS n", f.factor), "sum(n) AS n", fmt.Sprintf("sum(n) + %d AS n", f.offset))
	if !f.third {
		return text
	}
	job := `  - name: also
    operator: sql
    inputs: [{ from: { job: summed }, as: input }]
    execution_strategy: PerPartition
    config: { query: "SELECT n + 1 AS n FROM input" }
publish:
  also: { from: { job: also } }
`
	return strings.Replace(text, "publish:\n", job, 1)
}

// want is what readers are to find in the end, by dataset.
func (m *model) want() map[string][]string {
	all := map[string]func(n int) int{
		"landed":  func(n int) int { return n },
		"doubled": func(n int) int { return n * m.active.factor },
		"summed":  func(n int) int { return n*m.active.factor + m.active.offset },
	}
	if m.active.third {
		all["also"] = func(n int) int { return n*m.active.factor + m.active.offset + 1 }
	}
	found := map[string][]string{}
	for name, f := range all {
		found[name] = []string{}
		for _, n := range m.files {
			found[name] = append(found[name], strconv.Itoa(f(n)))
		}
		slices.Sort(found[name])
	}
	return found
}

// run does what chance wants, by one seed, and then compares what readers see with the model.
func property(t *testing.T, seed uint64, steps int) {
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t)
	m := &model{files: map[string]int{}, byNum: map[int]formula{}, served: map[int]bool{}}
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

	// sync reads which version serves: whether a build came through before it was abandoned is a race that anyone may win.
	sync := func() {
		var number int
		w.one(`SELECT v.number FROM dag_current_versions c JOIN dag_versions v ON v.id = c.dag_version_id`)(&number)
		m.active = m.byNum[number]
	}
	for range steps {
		switch random.IntN(8) {
		case 0, 1, 2:
			put()
			w.poll()
		case 3, 4:
			f := formula{factor: 2 + random.IntN(2), offset: random.IntN(2), third: random.IntN(2) == 0}
			deployed := w.deploy(f.yaml(), superseding, func(r *registry.DeployRequest) {
				activate := random.IntN(4) > 0
				r.Activate = &activate
			})
			m.byNum[deployed.Version.Number] = f
			if random.IntN(2) == 0 && deployed.Version.Status == registry.Building {
				w.eventually("the build to end", func() bool { s, _ := w.status(deployed); return s != registry.Building })
			}
		case 5:
			_, err := w.d.Rollback(t.Context(), w.caller, "chain", nil)
			if err != nil {
				require.ErrorContains(t, err, "roll back chain") // none before, or a build of the very version
			}
		case 6:
			if random.IntN(2) == 0 {
				_, _ = w.d.Abandon(t.Context(), w.caller, "chain") // nothing may be building
			} else {
				_, _ = w.d.Promote(t.Context(), w.caller, "chain", 1+random.IntN(len(m.byNum)))
			}
		case 7: // the dispatcher goes, with what it was running, or its connections do
			if random.IntN(2) == 0 {
				stop()
				w.d = w.dispatcher(fmt.Sprintf("d%d", random.Uint32()), runtimes[0])
				stop = w.start(w.d)
			} else {
				w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, working)
			}
		}
	}
	w.settle()
	w.poll()
	w.sweep()
	// A source that is looking at its files just now has nothing open yet, so being settled is not the end.
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
	w.settle()
	require.Empty(t, w.texts(`SELECT format('%s of %s is %s: %s', t.id, j.name, t.status, t.error_message) FROM tasks t JOIN jobs j ON j.id = t.job_id
		WHERE t.status NOT IN ('Completed', 'Canceled')`), "seed %d", seed)

	// What is planned is what is run: of one more definition, now that all is quiet.
	last := formula{factor: 5, offset: int(seed % 7), third: true}
	plan, err := w.d.Plan(t.Context(), w.caller, "chain", registry.DeployRequest{YAML: last.yaml()})
	require.NoError(t, err)
	planned := 0
	for _, c := range plan.Changes {
		if c.Partitions != nil {
			planned += *c.Partitions
		}
	}
	before := w.count(`SELECT FROM tasks WHERE status = 'Completed'`)
	w.serve(last.yaml(), superseding)
	w.settle()
	require.Equal(t, planned, w.count(`SELECT FROM tasks WHERE status = 'Completed'`)-before, "seed %d", seed)
	stop()
}

// keptSeeds are those by which a fault was found once.
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

// TestWhateverHappensTheServedDataIsRight does what chance wants with a DAG, and compares the outcome with a model.
func TestWhateverHappensTheServedDataIsRight(t *testing.T) {
	t.Parallel()
	for _, seed := range append(keptSeeds(t), uint64(time.Now().UnixNano()), uint64(time.Now().UnixNano())+1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			property(t, seed, 25)
		})
	}
}
