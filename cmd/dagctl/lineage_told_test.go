package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/lineage/openlineage"
	"github.com/dagctl/dagctl/lineage/openlineage/openlineagetest"
)

// catalogue takes OpenLineage events, and checks each against the published schemas. It can be down, and it can be so
// bad that the answer to every other event is lost after the event was taken.
type catalogue struct {
	*httptest.Server
	mu        sync.Mutex
	down, bad bool
	refused   int
	came      int
	invalid   []error
	took      map[uuid.UUID][]openlineage.Event // by run
	bodies    strings.Builder
}

func newCatalogue(t *testing.T) *catalogue {
	c := &catalogue{took: map[uuid.UUID][]openlineage.Event{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.take))
	t.Cleanup(c.Close)
	return c
}

func (c *catalogue) take(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var e openlineage.Event
	err = errors.Join(err, openlineagetest.Check(body), json.Unmarshal(body, &e))

	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.invalid = append(c.invalid, err)
	}
	if c.down {
		c.refused++
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.bodies.Write(body)
	c.took[e.Run.ID] = append(c.took[e.Run.ID], e)
	if c.came++; c.bad && c.came%2 == 0 {
		panic(http.ErrAbortHandler)
	}
}

// is changes how the catalogue is.
func (c *catalogue) is(down, bad bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down, c.bad = down, bad
}

// counts returns how many events it has refused, and how many it has taken.
func (c *catalogue) counts() (refused, came int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.refused, c.came
}

// heldDAG has a job that fails for good, and one that runs until there is a file.
const heldDAG = `name: held
jobs:
  - name: mail
    operator: command
    source: { kind: manual }
    outputs: 0
    max_attempts: 2
    retry: { initial_seconds: 1, max_seconds: 1, multiplier: 1 }
    config: { argv: [/bin/sh, -c, "echo the mail server said no >&2; exit 1"] }
  - name: long
    operator: command
    source: { kind: manual }
    outputs: 0
    heartbeat_timeout_seconds: 5
    config: { argv: [/bin/sh, -c, "cat >/dev/null; until test -e GATES/open; do sleep 0.1; done"] }
`

// Whatever happens to the receiver and to the server, each attempt is told of: that it started, and how it ended.
func TestEveryAttemptIsToldToACatalogue(t *testing.T) {
	t.Parallel()
	c, gates := newCatalogue(t), t.TempDir()
	c.is(true, false)
	b := newBuilt(t, fmt.Sprintf(`
operators: { allow_command: [acme], command_shared: [%s], allowed_addresses: [127.0.0.0/8] }
openlineage: { acme: { url: "%s/api/v1/lineage", namespace: prod } }
`, gates, c.URL))
	env := b.env(t, admin)
	b.deployReadings(t, "2026-01-01", "2026-01-02", "2026-01-03")
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "held", strings.ReplaceAll(heldDAG, "GATES", gates)))
	must(t, env, "run", "held/mail")
	must(t, env, "run", "held/long")
	is := func(job, status string) func() (bool, error) {
		return func() (bool, error) { return b.lastTask(t, job).Status == status, nil }
	}
	eventually(t, "one is dead", func() (bool, error) { return b.lastTask(t, "mail").Waiting == "dead", nil })
	eventually(t, "one runs", is("long", "Running"))
	eventually(t, "the receiver was tried", func() (bool, error) {
		refused, came := c.counts()
		return refused > 0 && came == 0, nil
	})

	// The server is killed while an attempt runs and nothing could be told, and again in the middle of telling.
	b.crash(t)
	open(t, gates, "open")
	c.is(false, true)
	b.tell(t)
	eventually(t, "some of it is told", func() (bool, error) {
		_, came := c.counts()
		return came > 3, nil
	})
	b.crash(t)
	b.land(t, "2026-01-04")
	c.is(false, false)
	eventually(t, "the new day", func() (bool, error) { return len(b.partitions(t, "daily_highest")) == 4, nil })
	eventually(t, "the attempt that was killed is made again", is("long", "Completed"))
	eventually(t, "all of it is told", func() (bool, error) {
		b.tell(t)
		var left int
		err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox WHERE kind = 'openlineage'`).Scan(&left)
		return left == 0, err
	})
	b.requireTold(t, c)
}

// tell makes the server tell now what it would tell later: the waits between tries, and that for the process which was
// killed while it told something, are skipped.
func (b *built) tell(t *testing.T) {
	t.Helper()
	_, err := b.pool.Exec(t.Context(), `UPDATE outbox SET available_at = now() WHERE kind = 'openlineage'`)
	require.NoError(t, err)
}

// requireTold compares what a catalogue was told with the attempts that there were.
func (b *built) requireTold(t *testing.T, c *catalogue) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(t, c.invalid)
	attempts, kinds := 0, map[openlineage.Type]int{}
	for _, outline := range b.tasks(t) {
		var task views.TaskDetail
		require.NoError(t, b.as(admin).Get(t.Context(), "/v1/tasks/"+outline.ID.String(), nil, &task))
		require.NotEmpty(t, task.Attempts)
		for _, a := range task.Attempts {
			attempts++
			events := c.took[openlineage.RunID(task.ID, a.Number)]
			what := fmt.Sprintf("%s/%s %s, attempt %d, %s", task.DAG, task.Job, task.Partition, a.Number, a.Outcome)
			kinds[requireRun(t, what, task, a, events)]++
		}
	}
	require.Len(t, c.took, attempts, "no run that there was not")
	require.GreaterOrEqual(t, kinds[openlineage.Complete], 4+4+1)
	require.GreaterOrEqual(t, attempts-kinds[openlineage.Complete], 2+1, "two of mail, and one of long")

	for _, secret := range []string{"GROUP BY", "harbour", "mail server", b.roots} {
		require.NotContains(t, c.bodies.String(), secret, "no statement, row, error or path")
	}
}

// requireRun requires that events tell of an attempt, and returns how they say that it ended.
func requireRun(
	t *testing.T, what string, task views.TaskDetail, a views.Attempt, events []openlineage.Event,
) (end openlineage.Type) {
	t.Helper()
	started := slices.ContainsFunc(events, func(e openlineage.Event) bool { return e.Type == openlineage.Start })
	require.True(t, started, "%s has begun", what)
	for _, e := range events {
		run := e.Run.Facets["dagctl_run"].(map[string]any)
		require.Equal(t, "prod", e.Job.Namespace, what)
		require.Equal(t, task.DAG+"."+task.Job, e.Job.Name, what)
		require.Equal(t, []any{task.DAG, task.Job, 1.0, float64(a.Number), task.ID.String()},
			[]any{run["dag"], run["job"], run["dagVersion"], run["attempt"], run["taskId"]}, what)
		if e.Type == openlineage.Start {
			continue
		}
		require.True(t, end == "" || end == e.Type, "%s ended in one way", what)
		end = e.Type
		if e.Type == openlineage.Complete && task.Job == "daily" {
			requireFacets(t, what, task.Partition, e)
		}
	}
	require.NotEmpty(t, end, "%s has ended", what)
	require.Equal(t, a.Outcome == "Completed", end == openlineage.Complete, what)
	return end
}

// requireFacets requires that an event names what daily read and made of a day, and from which columns.
func requireFacets(t *testing.T, what, day string, e openlineage.Event) {
	t.Helper()
	require.Len(t, e.Inputs, 1, what)
	require.Len(t, e.Outputs, 1, what)
	require.Equal(t, []any{"readings/landing/0", "daily_highest"}, []any{e.Inputs[0]["name"], e.Outputs[0]["name"]},
		what)
	for _, dataset := range []map[string]any{e.Inputs[0], e.Outputs[0]} {
		facets := dataset["facets"].(map[string]any)
		revisions := facets["dagctl_revisions"].(map[string]any)["revisions"].([]any)
		require.Len(t, revisions, 1, what)
		require.Equal(t, day, revisions[0].(map[string]any)["partition"], what)
		require.NotNil(t, facets["schema"], what)
	}

	columns := e.Outputs[0]["facets"].(map[string]any)["columnLineage"].(map[string]any)["fields"].(map[string]any)
	for column, from := range map[string]string{"station": "station", "highest": "celsius"} {
		origin := columns[column].(map[string]any)["inputFields"].([]any)[0].(map[string]any)
		require.Equal(t, []any{"readings/landing/0", from}, []any{origin["name"], origin["field"]}, what)
	}
}
