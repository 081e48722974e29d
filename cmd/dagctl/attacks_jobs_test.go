//go:build linux && (amd64 || arm64)

package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// attackJob is a job of acme that does what it should not.
type attackJob struct{ name, yaml string }

// document returns a DAG file with jobs of these definitions, a line each, from line 3 on.
func document(dag string, jobs []attackJob) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\njobs:\n", dag)
	for i, j := range jobs {
		fmt.Fprintf(&b, "  - { name: j%d, %s }\n", i, j.yaml)
	}
	return b.String()
}

// plan plans a DAG file.
func (a *arena) plan(t *testing.T, class, name, yaml string) (status int, answer string) {
	t.Helper()
	return a.post(t, class, name, "/v1/dags/attack/plan", map[string]string{"yaml": yaml})
}

var place = regexp.MustCompile(`^[^:]*:(\d+):\d+$`)

// refused plans the jobs, 50 at once, and returns those that the plan finds fault with.
func (a *arena) refused(t *testing.T, class string, jobs []attackJob) (at []int) {
	t.Helper()
	const most = 50 // a plan names 100 problems at most
	left := make([]int, len(jobs))
	for i := range left {
		left[i] = i
	}
	a.add(class, len(jobs))
	for begin := 0; begin < len(left); { // as one problem may hide others, what was not refused is planned again
		some := left[begin:min(begin+most, len(left))]
		var planned []attackJob
		for _, i := range some {
			planned = append(planned, jobs[i])
		}
		now := a.refusedAtOnce(t, class, planned)
		if len(now) == 0 {
			begin += len(some)
		}
		gone := map[int]bool{}
		for _, i := range now {
			at, gone[some[i]] = append(at, some[i]), true
		}
		left = slices.DeleteFunc(left, func(i int) bool { return gone[i] })
	}
	return at
}

func (a *arena) refusedAtOnce(t *testing.T, class string, jobs []attackJob) (at []int) {
	t.Helper()
	status, text := a.plan(t, class, "a plan of all", document("attack", jobs))
	a.add(class, -1) // the jobs are counted, not their plans
	if status < 300 {
		return nil
	}
	var problem struct{ Errors []struct{ Location string } }
	require.NoError(t, json.Unmarshal([]byte(text), &problem))
	for _, e := range problem.Errors {
		if found := place.FindStringSubmatch(e.Location); found != nil {
			line, err := strconv.Atoi(found[1])
			require.NoError(t, err)
			at = append(at, line-3)
		}
	}
	require.NotEmpty(t, at, text)
	slices.Sort(at)
	return slices.Compact(at)
}

// attackByJobs plans jobs, and runs those that are not refused.
func (a *arena) attackByJobs(t *testing.T, class string, jobs []attackJob) []ran {
	t.Helper()
	no := a.refused(t, class, jobs)
	var accepted []attackJob
	for i, j := range jobs {
		if !slices.Contains(no, i) {
			accepted = append(accepted, j)
		}
	}
	return a.run(t, class, accepted)
}

// ran is the task of a job that ran.
type ran struct {
	name string
	views.TaskDetail
}

// run deploys each job in a DAG of its own, and waits until their tasks have ended. Nothing that they leave may show
// anything of others.
func (a *arena) run(t *testing.T, class string, jobs []attackJob) (all []ran) {
	t.Helper()
	names := map[string]string{} // of DAGs to attacks
	for i, j := range jobs {
		dag := fmt.Sprintf("%s%d", strings.ReplaceAll(strings.ToLower(t.Name()), "/", "-"), i)
		status, text := a.post(t, class, j.name, "/v1/dags/"+dag+"/versions",
			map[string]string{"yaml": document(dag, []attackJob{j})})
		if assert.Less(t, status, 300, "%s\n%s", j.name, text) {
			names[dag] = j.name
		}
		a.add(class, -1) // it was counted before
	}

	moved := time.Now()
	eventually(t, class+" has ended", func() (bool, error) {
		started := map[string]bool{}
		tasks, err := cli.Fetch[views.Task](t.Context(), a.client("acme"), "/v1/tasks", nil, cli.Page{Limit: 1000})
		for _, task := range tasks {
			started[task.DAG] = true
			ended := task.Status == "Completed" || task.Status == "Canceled" || task.Waiting == "dead"
			if name, ours := names[task.DAG]; ours && ended {
				all = append(all, ran{name, a.look(t, class, name, task)})
				delete(names, task.DAG)
				moved = time.Now()
			}
		}
		// A source that cannot be listed has no task, and is looked at again and again.
		never := time.Since(moved) > 2*time.Second && !slices.ContainsFunc(slices.Collect(maps.Keys(names)),
			func(dag string) bool { return started[dag] })
		return len(names) == 0 || never, err
	})
	for dag, name := range names {
		require.Contains(t, document("", jobs), "operator: file_source", name)
		why := dagctl(t, a.env(t, "acme"), "why", dag+"/j0")
		a.clean(t, name, why.out)
		require.NotEmpty(t, why.out, name)
	}
	return all
}

// look requires that a task that has ended left nothing of others, and returns it.
func (a *arena) look(t *testing.T, class, name string, task views.Task) (detail views.TaskDetail) {
	t.Helper()
	client := a.client("acme")
	require.NoError(t, client.Get(t.Context(), "/v1/tasks/"+task.ID.String(), nil, &detail))
	if task.Waiting == "dead" {
		require.NotEmpty(t, detail.Error, name)
	}
	text, err := json.Marshal(detail)
	require.NoError(t, err)
	a.clean(t, name, string(text))
	for _, path := range []string{"/v1/tasks/" + task.ID.String() + "/logs",
		cli.DatasetPath(task.DAG+"/"+task.Job+"/0") + "/rows", cli.DatasetPath(task.DAG + "/" + task.Job + "/0")} {
		a.send(t, class, name, http.MethodGet, path, "", nil)
		a.add(class, -1)
	}
	return detail
}
