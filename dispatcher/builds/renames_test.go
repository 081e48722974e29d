package builds_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/registry"
)

// lettered is a job whose runs append its letter to its operator state. One with an output writes a row with the state
// to the partition it is run for, and cannot be read again.
type lettered struct {
	name, from, letter string
	output             bool
}

// letterDAG returns a DAG of such jobs, and makes their runs append the letters.
func letterDAG(w *dispatchertest.World, jobs ...lettered) string {
	var yaml strings.Builder
	yaml.WriteString("name: mail\njobs:\n")
	for _, j := range jobs {
		yaml.WriteString("  - name: " + j.name + "\n    operator: hook\n    source: { kind: manual }\n" +
			"    config: { letter: " + j.letter + " }\n")
		if j.from != "" {
			yaml.WriteString("    renamed_from: " + j.from + "\n")
		}
		if j.output {
			yaml.WriteString("    partition_by: { time: day }\n")
		} else {
			yaml.WriteString("    outputs: 0\n")
		}
		w.Probe.On(j.name, func(ctx context.Context, t *operators.Task) (operators.Result, error) {
			letter, _ := t.Config["letter"].(string)
			state := `"` + letter + `"`
			if len(t.State) > 0 {
				state = strings.Replace(string(t.State), `"`, `"`+letter, 1)
			}
			return operators.Result{State: json.RawMessage(state)}, w.Probe.Write(ctx, t, state)
		})
	}
	return yaml.String()
}

// run runs a job once, and returns what its state is then, the last letter first.
func run(w *dispatchertest.World, job string, item ...dispatcher.EnqueueItem) (state string) {
	w.T.Helper()
	if len(item) == 0 {
		item = []dispatcher.EnqueueItem{{}}
	}
	w.Enqueue(job, item...)
	w.Settle()
	return stateOf(w, job)
}

func stateOf(w *dispatchertest.World, job string) (state string) {
	w.T.Helper()
	w.Row(`SELECT coalesce(max(s.state #>> '{}'), '') FROM dag_current_versions c
		JOIN jobs j ON j.dag_version_id = c.dag_version_id AND j.name = $1
		LEFT JOIN operator_state s ON s.job_id = j.origin_job_id`, job)(&state)
	return state
}

func TestOperatorStateFollowsEveryRename(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]lettered{
		"twice":          {{name: "a"}, {name: "b", from: "a"}, {name: "c", from: "b"}},
		"and back":       {{name: "a"}, {name: "b", from: "a"}, {name: "a", from: "b"}, {name: "b", from: "a"}},
		"a line removed": {{name: "a"}, {name: "b", from: "a"}, {name: "b"}, {name: "c", from: "b"}, {name: "c"}},
		"back without":   {{name: "a"}, {name: "b", from: "a"}, {name: "a"}},
		"two at once":    {{name: "a"}, {name: "b", from: "a"}, {name: "c", from: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			for i, job := range steps {
				job.letter = "A"
				w.Serve(letterDAG(w, job))
				require.Equal(t, strings.Repeat("A", i+1), run(w, job.name))
			}
			list, err := w.D.Views.Tasks(t.Context(), w.Caller, views.TaskFilter{
				TaskSelection: views.TaskSelection{DAG: "mail", Job: steps[len(steps)-1].name}, Limit: 10})
			require.NoError(t, err)
			require.Len(t, list, len(steps))

			for _, job := range steps[:len(steps)-1] {
				if now := steps[len(steps)-1].name; job.name != now {
					_, err := w.D.Views.Job(t.Context(), w.Caller, "mail", job.name)
					require.ErrorContains(t, err, "mail/"+job.name+" is now mail/"+now)
				}
			}
		})
	}
}

// A job with effects goes on with what it has not acted on, and does not begin anew.
func TestEffectsFollowEveryRename(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Probe.Put("raw", "2024-01-01", "a")
	for i, job := range []lettered{{name: "a"}, {name: "b", from: "a"}, {name: "c", from: "b"}, {name: "c"}} {
		job.letter = "A"
		w.Serve(dispatchertest.Edit(letterDAG(w, job), "jobs:\n", "jobs:\n"+dispatchertest.Raw,
			"    source: { kind: manual }\n", "    inputs: [{ from: { job: raw } }]\n"))
		require.Equal(t, strings.Repeat("A", i), stateOf(w, job.name))

		w.Probe.Put("raw", []string{"2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"}[i], "a")
		w.Poll()
		w.Settle()
		require.Equal(t, strings.Repeat("A", i+1), stateOf(w, job.name))
	}
}

// An old name is free for a new job, which has nothing of the one that had it before.
func TestANewJobUnderAnOldNameBeginsWithNothing(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(letterDAG(w, lettered{name: "a", letter: "A"}))
	require.Equal(t, "A", run(w, "a"))
	w.Serve(letterDAG(w, lettered{name: "b", from: "a", letter: "A"}))
	both := letterDAG(w, lettered{name: "b", letter: "A"}, lettered{name: "a", letter: "N"})
	served := w.Serve(both)
	require.Empty(t, stateOf(w, "a"))
	list, err := w.D.Views.Tasks(t.Context(), w.Caller,
		views.TaskFilter{TaskSelection: views.TaskSelection{DAG: "mail", Job: "a"}, Limit: 10})
	require.NoError(t, err)
	require.Empty(t, list)
	require.Equal(t, "N", run(w, "a"))
	require.Equal(t, "AA", run(w, "b"))

	// The file of a version that served is that version, whatever happened meanwhile.
	require.NoError(t, goBack(w, "mail", 1))
	require.Equal(t, "AAA", run(w, "a"))
	again := w.Serve(both)
	require.Equal(t, served.Version.ID, again.Version.ID)
	require.Equal(t, "NN", run(w, "a"))
	require.Equal(t, "AAAA", run(w, "b"))
	require.Equal(t, "NNN", run(w, "a"))

	// Each goes on under further names.
	w.Serve(letterDAG(w, lettered{name: "c", from: "a", letter: "N"}, lettered{name: "b", letter: "A"}))
	require.Equal(t, "NNNN", run(w, "c"))
	w.Serve(letterDAG(w, lettered{name: "c", letter: "N"}, lettered{name: "a", from: "b", letter: "A"}))
	require.Equal(t, "AAAAA", run(w, "a"))
}

// swapped serves two jobs whose names are swapped in three deploys.
func swapped(w *dispatchertest.World, output bool) {
	for _, jobs := range [][]lettered{
		{{name: "a", letter: "A"}, {name: "b", letter: "B"}},
		{{name: "t", from: "a", letter: "A"}, {name: "b", letter: "B"}},
		{{name: "t", letter: "A"}, {name: "a", from: "b", letter: "B"}},
		{{name: "b", from: "t", letter: "A"}, {name: "a", letter: "B"}},
	} {
		for i := range jobs {
			jobs[i].output = output
		}
		w.Serve(letterDAG(w, jobs...))
		for _, job := range jobs {
			run(w, job.name, dispatcher.EnqueueItem{Partition: map[bool]string{true: "2024-01-01"}[output]})
		}
	}
}

func TestNamesOfTwoJobsAreSwapped(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	swapped(w, false)
	require.Equal(t, "AAAA", stateOf(w, "b"))
	require.Equal(t, "BBBB", stateOf(w, "a"))

	// A pause and a dead task are the job's, on the way back too.
	_, err := w.D.Control.Pause(t.Context(), w.Caller, "mail", "b", "", time.Now())
	require.NoError(t, err)
	w.Probe.On("a", func(context.Context, *operators.Task) (operators.Result, error) {
		return operators.Result{}, operators.Permanent(fault.New(fault.Invalid, "no"))
	})
	w.Enqueue("a", dispatcher.EnqueueItem{})
	w.Settle()
	dead := func() []string {
		return dispatchertest.Texts(t, w.Pool, `SELECT job_address(origin_job_id) FROM waiting WHERE reason = 'dead'`)
	}
	paused := func() []string { return dispatchertest.Texts(t, w.Pool, `SELECT job_name FROM pauses`) }
	require.Equal(t, []string{"mail/a"}, dead())

	require.NoError(t, goBack(w, "mail", 1))
	require.Equal(t, []string{"a"}, paused())
	require.Equal(t, []string{"mail/b"}, dead())
	require.NoError(t, goBack(w, "mail", 4))
	require.Equal(t, []string{"b"}, paused())
	require.Equal(t, []string{"mail/a"}, dead())

	// Two pauses change places.
	_, err = w.D.Control.Pause(t.Context(), w.Caller, "mail", "a", "other", time.Now())
	require.NoError(t, err)
	require.NoError(t, goBack(w, "mail", 1))
	require.Equal(t, []string{"a", "b other"}, dispatchertest.Texts(t, w.Pool,
		`SELECT concat_ws(' ', job_name, reason) FROM pauses ORDER BY 1`))
}

// What a source that cannot be read again has made stays with it under every name.
func TestASourceThatCannotBeReadAgainIsRenamed(t *testing.T) {
	t.Parallel()
	p := lettered{name: "p", letter: "P", output: true}
	t1 := lettered{name: "t", from: "p", letter: "P", output: true}
	for name, next := range map[string][]lettered{
		"again":           {{name: "u", from: "t"}},
		"from the first":  {{name: "u", from: "p"}},
		"back":            {{name: "p", from: "t"}},
		"without a line":  {{name: "t"}},
		"beside a new p":  {{name: "t"}, {name: "p"}},
		"back by the way": {{name: "p"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			day := dispatcher.EnqueueItem{Partition: "2024-01-01"}
			first := w.Serve(letterDAG(w, p))
			run(w, "p", day)
			w.Serve(letterDAG(w, t1))
			require.Contains(t, w.Published("t"), "2024-01-01")

			for i := range next {
				next[i].letter, next[i].output = "P", true
			}
			plan := w.Plan(letterDAG(w, next...))
			require.Equal(t, "reuse: same definition", actions(plan.Changes)[next[0].name])
			version := w.Serve(letterDAG(w, next...))
			require.Equal(t, w.Generation(first.Version.ID, "p"), w.Generation(version.Version.ID, next[0].name))
			require.Contains(t, w.Published(next[0].name), "2024-01-01")
			require.Equal(t, "PP", run(w, next[0].name, dispatcher.EnqueueItem{Partition: "2024-01-02"}))
			if len(next) > 1 {
				require.Empty(t, w.Published("p"))
				require.Equal(t, "P", run(w, "p", day))
			}
		})
	}
}

func TestSourcesThatCannotBeReadAgainSwapTheirNames(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	swapped(w, true)
	require.Equal(t, "AAAA", stateOf(w, "b"))
	require.Equal(t, "BBBB", stateOf(w, "a"))
	var first, last string
	for version, into := range map[int]*string{1: &first, 4: &last} {
		w.Row(`SELECT string_agg(p.dataset_version::text, ' ' ORDER BY j.definition -> 'config' ->> 'letter')
			FROM dag_versions v JOIN dag_version_datasets p ON p.dag_version_id = v.id
			JOIN jobs j ON j.dag_version_id = v.id AND j.name = p.job_name WHERE v.number = $1`, version)(into)
	}
	require.Equal(t, first, last)

	_, err := w.D.Builds.Rollback(t.Context(), w.Caller, "mail", builds.RollbackRequest{})
	require.NoError(t, err)
	w.Settle()
	require.Equal(t, "AAAA", stateOf(w, "t"))
	require.Equal(t, registry.Active, statusOf(w, w.Serve(letterDAG(w,
		lettered{name: "b", from: "t", letter: "A", output: true}, lettered{name: "a", letter: "B", output: true}))))
	require.Equal(t, "BBBB", stateOf(w, "a"))
}
