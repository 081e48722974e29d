package dispatcher

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// The DAG of the random histories: raw → made → total, raw and side → both. TAG changes what made computes.
const history = `
name: history
jobs:
  - name: raw
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    max_attempts: 4
    config: { list: raw }
  - name: side
    operator: listed
    source: { kind: poll, every: 1h }
    partition_by: key
    max_attempts: 4
    config: { list: side }
  - name: made
    operator: hook
    inputs: [{ from: { job: raw } }]
    execution_strategy: PerPartition
    max_attempts: 4
    scaling: { max_concurrency: 2 }
    config: { tag: "TAG" }
  - name: both
    operator: hook
    inputs: [{ from: { job: made } }, { from: { job: side } }]
    execution_strategy: PerPartition
    max_attempts: 4
    config: { tag: b }
  - name: total
    operator: hook
    inputs: [{ from: { job: made } }]
    partition_by: none
    max_attempts: 4
    config: { tag: t }
publish:
  h_made: { from: { job: made } }
  h_both: { from: { job: both } }
  h_total: { from: { job: total } }
`

// run is one random history and what it is to come to.
type run struct {
	*world
	random    *rand.Rand
	units     map[string]map[string]string // what the lists hold
	tag       string                       // of the version deployed last
	running   []claimed
	late      []func() error // completions that their workers have not sent yet
	processes []*Dispatcher
}

const (
	keysOfHistory  = 4
	stepsOfHistory = 800 // with the seeds that are kept, some 5,000 operations a run
)

func (r *run) pick(n int) int { return r.random.IntN(n) }

// step does one random thing. Whatever it does may come at any time in production.
func (r *run) step() string {
	t := r.t
	d := r.processes[r.pick(len(r.processes))]
	// A refusal is what a fence is for.
	fenced := func(err error) {
		if err != nil {
			refused(t, err)
		}
	}
	take := func() (claimed, bool) {
		if len(r.running) == 0 {
			return claimed{}, false
		}
		i := r.pick(len(r.running))
		task := r.running[i]
		r.running = slices.Delete(r.running, i, i+1)
		return task, true
	}
	switch n := r.pick(100); {
	case n < 18:
		list, key, content := []string{"raw", "side"}[r.pick(2)], fmt.Sprint("k", r.pick(keysOfHistory)), fmt.Sprint("c", r.pick(6))
		r.probe.put(list, key, content)
		r.units[list][key] = content
		r.poll()
		return "file " + list + " " + key + " " + content
	case n < 32:
		_, err := d.routeOnce(t.Context(), later(0))
		require.NoError(t, err)
		return "route"
	case n < 50:
		tasks, err := d.claim(t.Context(), []string{"dispatcher"}, d.WorkerID, 1+r.pick(3), later(0))
		require.NoError(t, err)
		r.running = append(r.running, tasks...)
		return fmt.Sprint("claim ", len(tasks))
	case n < 68:
		if task, ok := take(); ok {
			c := d.run(t.Context(), task, &progressNote{})
			require.NoError(t, c.outcome.Err)
			again := r.pick(4) == 0
			fenced(d.complete(t.Context(), task, c, later(0)))
			if again {
				fenced(d.complete(t.Context(), task, c, later(0)))
			}
			return "complete " + task.job.Name + " " + task.slot
		}
	case n < 73: // worked out, not reported yet
		if task, ok := take(); ok {
			c := d.run(t.Context(), task, &progressNote{})
			require.NoError(t, c.outcome.Err)
			r.late = append(r.late, func() error { return d.complete(t.Context(), task, c, later(0)) })
			return "work out " + task.job.Name + " " + task.slot
		}
	case n < 78:
		if len(r.late) > 0 {
			i := r.pick(len(r.late))
			fenced(r.late[i]())
			if r.pick(2) == 0 {
				r.late = slices.Delete(r.late, i, i+1)
			}
			return "report late"
		}
	case n < 82:
		if task, ok := take(); ok {
			fenced(d.fail(t.Context(), task, reasonError, errors.New("unlucky"), true, later(0)))
			return "fail " + task.job.Name + " " + task.slot
		}
	case n < 84:
		if task, ok := take(); ok {
			fenced(d.handBack(t.Context(), task, "stopped", later(0), later(0)))
			return "hand back " + task.job.Name + " " + task.slot
		}
	case n < 87:
		r.reap(later(2 * time.Minute))
		return "reap"
	case n < 91:
		r.promote(later(time.Hour))
		return "promote"
	case n < 93:
		require.NoError(t, d.Reconcile(t.Context(), later(0)))
		return "reconcile"
	case n < 96:
		_, err := d.advanceBuilds(t.Context(), later(0))
		require.NoError(t, err)
		return "advance"
	case n < 98:
		r.exec(`INSERT INTO outbox (org_id, kind, payload) SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id))
			FROM (SELECT * FROM events ORDER BY created_at, partition_key, id OFFSET $1 LIMIT 5) AS e GROUP BY org_id`, r.pick(40))
		return "events again"
	case n < 99:
		r.exec(`DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 2)`)
		return "lose events"
	default:
		r.tag = fmt.Sprint("v", r.pick(3))
		r.deploy(edit(history, "TAG", r.tag), supersede)
		return "deploy " + r.tag
	}
	return "nothing"
}

// want is what the last contents come to, worked out without the engine.
func (r *run) want() map[string]map[string][]string {
	made, both := map[string][]string{}, map[string][]string{}
	for key, content := range r.units["raw"] {
		made[key] = []string{r.tag + "(" + content + ")"}
		if side, ok := r.units["side"][key]; ok {
			both[key] = []string{"b(" + made[key][0] + "," + side + ")"}
		}
	}
	want := map[string]map[string][]string{"h_made": made, "h_both": both, "h_total": {}}
	if len(made) > 0 {
		all := []string{}
		for _, rows := range made {
			all = append(all, rows...)
		}
		slices.Sort(all)
		want["h_total"] = map[string][]string{"all": {"t(" + strings.Join(all, "+") + ")"}}
	}
	return want
}

// converge lets everything come to rest, as time would.
func (r *run) converge() {
	t := r.t
	for _, report := range r.late {
		if err := report(); err != nil {
			refused(t, err)
		}
	}
	for range 30 {
		r.reap(later(2 * time.Hour))
		r.promote(later(24 * time.Hour))
		for _, id := range texts(t, r.pool, `SELECT task_id::text FROM waiting WHERE reason = 'dead'`) { // as people would
			_, err := r.d.Retry(t.Context(), r.caller, uuid.MustParse(id))
			require.NoError(t, err)
		}
		r.poll()
		require.NoError(t, r.d.Reconcile(t.Context(), later(0)))
		r.settle()
		if r.count(`SELECT FROM waiting WHERE reason <> 'dead' UNION ALL SELECT FROM leases UNION ALL SELECT FROM dag_versions WHERE status = 'Building'`) == 0 &&
			maps.EqualFunc(r.want(), r.got(), func(a, b map[string][]string) bool { return maps.EqualFunc(a, b, slices.Equal) }) {
			return
		}
	}
}

func (r *run) got() map[string]map[string][]string {
	got := map[string]map[string][]string{}
	for _, name := range []string{"h_made", "h_both", "h_total"} {
		got[name] = r.read(name)
	}
	return got
}

// Whatever happens in whatever order, each open task is in one set all along and has a reason, and in the end each published partition was
// made from the newest there is. Seeds that found something stay in testdata/seeds.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	now := uint64(time.Now().UnixNano())
	seeds := []uint64{now, now + 1, now + 2, now + 3}
	if file, err := os.Open("testdata/seeds"); err == nil {
		defer file.Close()
		for lines := bufio.NewScanner(file); lines.Scan(); {
			seed, err := strconv.ParseUint(strings.Fields(lines.Text())[0], 10, 64)
			require.NoError(t, err)
			seeds = append(seeds, seed)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			r := &run{world: w, random: rand.New(rand.NewPCG(seed, 0)), tag: "v0", units: map[string]map[string]string{"raw": {}, "side": {}},
				processes: []*Dispatcher{w.d, w.dispatcher("two")}}
			w.serve(edit(history, "TAG", r.tag))
			var trail []string
			answers := map[string]string{}
			defer func() {
				if t.Failed() {
					t.Logf("seed %d:\n%s", seed, strings.Join(trail, "\n"))
				}
			}()
			for range stepsOfHistory {
				trail = append(trail, r.step())
				if found := broken(t, w.pool); len(found) > 0 {
					require.Empty(t, found, "after %s", trail[len(trail)-1])
				}
				if len(trail)%100 == 0 {
					w.explained("h_made", "h_both")
					w.keepsAnswers(answers)
					answers = w.answers()
				}
			}
			r.converge()
			var status, reason string
			w.row(`SELECT status, coalesce(error, '') FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id AND j.name = 'made'
				WHERE j.config ->> 'tag' = $1`, r.tag)(&status, &reason)
			require.Equal(t, "Active", status, reason)
			require.Equal(t, r.want(), r.got())
			w.keepsAnswers(answers)
			answers = w.answers()
			w.routeAgain()
			w.keepsAnswers(answers)
			require.Zero(t, w.count(`SELECT FROM ready UNION ALL SELECT FROM waiting`), "events that come again make nothing")
		})
	}
}
