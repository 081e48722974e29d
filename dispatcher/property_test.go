package dispatcher_test

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

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/service"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/why"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
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

// run is one random history with its expected result.
type run struct {
	*dispatchertest.World
	random    *rand.Rand
	units     map[string]map[string]string // contents of the lists
	tag       string                       // of the version deployed last
	running   []dispatcher.Claimed
	late      []func() error // completions that their workers have not sent yet
	processes []*service.Service
}

const (
	keysOfHistory  = 4
	stepsOfHistory = 800 // with the kept seeds, about 5,000 operations in a run
)

func (r *run) pick(n int) int { return r.random.IntN(n) }

// step does one random thing. Whatever it does may come at any time in production.
func (r *run) step() string {
	t := r.T
	d := r.processes[r.pick(len(r.processes))]
	// Fences may refuse the call.
	fenced := func(err error) {
		if err != nil {
			dispatchertest.Refused(t, err)
		}
	}
	take := func() (dispatcher.Claimed, bool) {
		if len(r.running) == 0 {
			return dispatcher.Claimed{}, false
		}
		i := r.pick(len(r.running))
		task := r.running[i]
		r.running = slices.Delete(r.running, i, i+1)
		return task, true
	}
	switch n := r.pick(100); {
	case n < 18:
		list, key, content := []string{"raw", "side"}[r.pick(2)], fmt.Sprint("k", r.pick(keysOfHistory)),
			fmt.Sprint("c", r.pick(6))
		r.Probe.Put(list, key, content)
		r.units[list][key] = content
		r.Poll()
		return "file " + list + " " + key + " " + content
	case n < 32:
		_, err := d.RouteOnce(t.Context(), dispatchertest.Later(0))
		require.NoError(t, err)
		return "route"
	case n < 50:
		tasks, err := d.Claim(t.Context(), []string{"dispatcher"}, d.WorkerID, 1+r.pick(3), dispatchertest.Later(0))
		require.NoError(t, err)
		r.running = append(r.running, tasks...)
		return fmt.Sprint("claim ", len(tasks))
	case n < 68:
		if task, ok := take(); ok {
			c := d.RunTask(t.Context(), &task, &dispatcher.ProgressNote{})
			require.NoError(t, c.Outcome.Err)
			again := r.pick(4) == 0
			fenced(d.CompleteAttempt(t.Context(), task, c, dispatchertest.Later(0)))
			if again {
				fenced(d.CompleteAttempt(t.Context(), task, c, dispatchertest.Later(0)))
			}
			return "complete " + task.Job.Name + " " + task.Slot
		}
	case n < 73: // computed, but not reported yet
		if task, ok := take(); ok {
			c := d.RunTask(t.Context(), &task, &dispatcher.ProgressNote{})
			require.NoError(t, c.Outcome.Err)
			r.late = append(r.late, func() error {
				return d.CompleteAttempt(t.Context(), task, c,
					dispatchertest.Later(0))
			})
			return "work out " + task.Job.Name + " " + task.Slot
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
			fenced(d.Fail(t.Context(), task, tasks.ReasonError, errors.New("unlucky"), true, dispatchertest.Later(0)))
			return "fail " + task.Job.Name + " " + task.Slot
		}
	case n < 84:
		if task, ok := take(); ok {
			fenced(d.HandBack(t.Context(), task, "stopped", dispatchertest.Later(0), dispatchertest.Later(0)))
			return "hand back " + task.Job.Name + " " + task.Slot
		}
	case n < 87:
		r.Reap(dispatchertest.Later(2 * time.Minute))
		return "reap"
	case n < 91:
		r.Promote(dispatchertest.Later(time.Hour))
		return "promote"
	case n < 93:
		require.NoError(t, d.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
		return "reconcile"
	case n < 96:
		_, err := d.Builds.AdvanceBuilds(t.Context(), dispatchertest.Later(0))
		require.NoError(t, err)
		return "advance"
	case n < 98:
		r.Exec(`INSERT INTO outbox (org_id, kind, payload)
			SELECT org_id, 'route_event', jsonb_build_object('event_ids', jsonb_agg(id))
			FROM (SELECT * FROM events ORDER BY created_at, partition_key, id OFFSET $1 LIMIT 5) AS e
			GROUP BY org_id`, r.pick(40))
		return "events again"
	case n < 99:
		r.Exec(`DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT 2)`)
		return "lose events"
	default:
		r.tag = fmt.Sprint("v", r.pick(3))
		r.Deploy(dispatchertest.Edit(history, "TAG", r.tag), dispatchertest.Supersede)
		return "deploy " + r.tag
	}
	return "nothing"
}

// want returns the expected result of the last contents, computed without the engine.
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

// converge waits until nothing is left to do, and moves the time forward.
func (r *run) converge() {
	t := r.T
	for _, report := range r.late {
		if err := report(); err != nil {
			dispatchertest.Refused(t, err)
		}
	}
	for range 30 {
		r.Reap(dispatchertest.Later(2 * time.Hour))
		r.Promote(dispatchertest.Later(24 * time.Hour))
		// As a person would. A version that failed has to run first: nothing runs the tasks of one that does not.
		if r.failed() {
			r.Deploy(dispatchertest.Edit(history, "TAG", r.tag), resume)
		}
		for _, id := range dispatchertest.Texts(t, r.Pool, `SELECT task_id::text FROM waiting WHERE reason = 'dead'`) {
			_, err := r.D.Control.Retry(t.Context(), r.Caller, uuid.MustParse(id))
			if !fault.Is(err, fault.Conflict) { // no version runs it any more
				require.NoError(t, err)
			}
		}

		r.Poll()
		require.NoError(t, r.D.Upkeep.Reconcile(t.Context(), dispatchertest.Later(0)))
		r.Settle()
		if r.Count(`SELECT FROM waiting WHERE reason <> 'dead' UNION ALL SELECT FROM leases UNION ALL
			SELECT FROM dag_versions WHERE status = 'Building'`) == 0 &&
			maps.EqualFunc(r.want(), r.got(), func(a, b map[string][]string) bool {
				return maps.EqualFunc(a, b,
					slices.Equal)
			}) {
			return
		}
	}
}

// failed tells that the build of the document deployed last has failed: enough attempts of one of its tasks did.
func (r *run) failed() bool {
	return r.Count(`SELECT FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id AND j.name = 'made'
		WHERE v.status = 'Failed' AND j.config ->> 'tag' = $1`, r.tag) > 0
}

func resume(r *registry.DeployRequest) { r.Resume = true }

func (r *run) got() map[string]map[string][]string {
	got := map[string]map[string][]string{}
	for _, name := range []string{"h_made", "h_both", "h_total"} {
		got[name] = r.Read(name)
	}
	return got
}

// After any sequence of steps, each open task is in exactly one set and has a reason, and in the end each published
// partition was made from the newest inputs. Seeds that found a bug stay in testdata/seeds.
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
			w := dispatchertest.NewWorld(t)
			r := &run{World: w, random: rand.New(rand.NewPCG(seed, 0)), tag: "v0",
				units:     map[string]map[string]string{"raw": {}, "side": {}},
				processes: []*service.Service{w.D, w.Dispatcher("two")}}
			w.Serve(dispatchertest.Edit(history, "TAG", r.tag))
			var trail []string
			kept := map[string]string{}
			defer func() {
				if t.Failed() {
					t.Logf("seed %d:\n%s", seed, strings.Join(trail, "\n"))
				}
			}()
			for range stepsOfHistory {
				trail = append(trail, r.step())
				if found := dispatchertest.Violations(t, w.Pool); len(found) > 0 {
					require.Empty(t, found, "after %s", trail[len(trail)-1])
				}
				if len(trail)%100 == 0 {
					explained(w, "h_made", "h_both")
					keepsAnswers(w, kept)
					kept = answers(w)
				}
			}
			r.converge()
			var status, reason string
			w.Row(`SELECT status, coalesce(error, '') FROM dag_versions v JOIN jobs j ON j.dag_version_id = v.id
				AND j.name = 'made'
				WHERE j.config ->> 'tag' = $1`, r.tag)(&status, &reason)
			require.Equal(t, "Active", status, reason)
			require.Equal(t, r.want(), r.got())
			keepsAnswers(w, kept)
			kept = answers(w)
			routeAgain(w)
			keepsAnswers(w, kept)
			require.Zero(t, w.Count(`SELECT FROM ready UNION ALL SELECT FROM waiting`),
				"events that come again make nothing")
		})
	}
}

// explained checks that every open task has a reason, and so has every partition of some datasets, whether it exists
// or not.
func explained(w *dispatchertest.World, datasets ...string) {
	w.T.Helper()
	for _, id := range dispatchertest.Texts(w.T, w.Pool, `SELECT task_id::text FROM ready UNION ALL SELECT task_id::text
		FROM waiting UNION ALL SELECT task_id::text FROM leases`) {
		w_ := w.WhyTask(w.Caller, uuid.MustParse(id))
		require.NotEmpty(w.T, w_.Reasons)
		require.NotContains(w.T, []why.Code{why.WhyCompleted, why.WhyFailed, why.WhyCanceled, why.WhySuperseded},
			w_.Reasons[0].Code)
	}
	for _, name := range datasets {
		for key := range keysOfHistory {
			require.NotEmpty(w.T, w.WhyNot(name, fmt.Sprint("k", key)).Reasons)
		}
		_, err := w.D.Why.DatasetWhy(w.T.Context(), w.Caller, name, time.Now())
		require.NoError(w.T, err)
	}
}
