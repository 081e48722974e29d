package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/lineage"
	"github.com/dagctl/dagctl/registry"
)

// peaksDAG goes on from daily_highest through an unpublished dataset, and has a job that makes nothing.
const peaksDAG = `name: peaks
jobs:
  - name: scaled
    operator: sql
    inputs: [{ from: { dataset: daily_highest } }]
    execution_strategy: PerPartition
    partition_by: { time: day }
    config: { query: "SELECT station, 2 * highest AS twice, 'x' AS note FROM daily_highest" }
  - name: peak
    operator: sql
    inputs: [{ from: { job: scaled } }]
    execution_strategy: PerPartition
    config: { query: "SELECT station, max(twice) AS peak FROM scaled GROUP BY station" }
  - name: tell
    operator: command
    inputs: [{ from: { job: peak } }]
    execution_strategy: PerPartition
    outputs: 0
    config: { argv: [/bin/sh, -c, "cat > /dev/null"] }
publish:
  station_peaks: { from: { job: peak }, owner: weather-team }
`

// peaks makes a world with readingsDAG and peaksDAG.
func peaks(t *testing.T, change ...func(*server.Config)) (w *world, dir string) {
	t.Helper()
	w, dir = newWorld(t, change...), t.TempDir()
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	must(t, w.env(t, writer), "deploy", writeDAG(t, dir, "peaks", peaksDAG))
	return w, dir
}

// graph asks for the lineage of a dataset.
func (w *world) graph(t *testing.T, caller, dataset, query string) (g lineage.Graph) {
	t.Helper()
	require.NoError(t, w.as(caller).Get(t.Context(), cli.DatasetPath(dataset)+"/lineage"+query, nil, &g))
	return g
}

// labels returns the nodes of a graph by their levels, as texts, and its edges.
func labels(g lineage.Graph) (nodes, edges []string) {
	names := map[string]string{}
	for _, n := range g.Nodes {
		names[n.ID] = n.Label()
		nodes = append(nodes, fmt.Sprintf("%d %s %s", n.Level, n.Kind, n.Label()))
	}
	for _, e := range g.Edges {
		edges = append(edges, strings.TrimSpace(names[e.From]+" > "+names[e.To]+" "+e.DAG+"/"+e.Job))
	}
	return nodes, edges
}

func TestLineageOverDAGs(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)

	g := w.graph(t, writer, "daily_highest", "")
	nodes, edges := labels(g)
	require.ElementsMatch(t, []string{"0 dataset daily_highest", "-1 dataset readings/landing/0",
		"-2 source readings/landing", "1 dataset peaks/scaled/0", "2 dataset station_peaks",
		"3 sink peaks/tell"}, nodes)
	require.ElementsMatch(t, []string{"readings/landing > readings/landing/0 readings/landing",
		"readings/landing/0 > daily_highest readings/daily", "daily_highest > peaks/scaled/0 peaks/scaled",
		"peaks/scaled/0 > station_peaks peaks/peak", "station_peaks > peaks/tell peaks/tell"}, edges)
	require.False(t, g.Truncated)
	require.Nil(t, g.Edges[0].Columns)
	for _, n := range g.Nodes {
		switch n.Label() {
		case "station_peaks":
			require.Equal(t, "weather-team", n.Owner)
			require.True(t, n.Served)
			require.NotNil(t, n.Generation)
			require.Equal(t, 1, n.DAGVersion)
		case "readings/landing":
			require.Equal(t, "poll", n.Source)
		}
	}

	require.Len(t, w.graph(t, writer, "daily_highest", "?direction=up").Nodes, 3)
	require.Len(t, w.graph(t, writer, "daily_highest", "?direction=down").Nodes, 4)

	// What is left out is said, and where.
	near := w.graph(t, writer, "daily_highest", "?depth=1")
	nodes, _ = labels(near)
	require.ElementsMatch(t, []string{"0 dataset daily_highest", "-1 dataset readings/landing/0",
		"1 dataset peaks/scaled/0"}, nodes)
	require.True(t, near.Truncated)
	require.Equal(t, "depth", near.TruncatedBy)
	for _, n := range near.Nodes {
		require.Equal(t, n.Label() == "peaks/scaled/0", n.More, n.Label())
	}
	few := w.graph(t, writer, "daily_highest", "?limit=2")
	require.True(t, few.Truncated)
	require.Equal(t, "size", few.TruncatedBy)
	require.LessOrEqual(t, len(few.Nodes), 3)

	for path, status := range map[string]int{"no_such": 404, "daily_highest?depth=0": 422,
		"daily_highest?direction=x": 422, "daily_highest?at=v9": 404,
		"daily_highest?at=yesterday": 422, "daily_highest?at=2001-01-01T00:00:00Z": 404,
		"daily_highest?column=nope": 404, "daily_highest?partition=1999-01-01": 404,
		"daily_highest?at=candidate": 404} {
		name, query, _ := strings.Cut(path, "?")
		got, body := w.send(t, writer, http.MethodGet, "/v1/datasets/"+name+"/lineage?"+query, "", nil)
		require.Equal(t, status, got, "%s: %s", path, body)
	}
}

// The impact of a column goes over three hops and two DAGs, and leaves out what does not come from it.
func TestLineageOfAColumn(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	columns := func(g lineage.Graph) (all []string) {
		names := map[string]string{}
		for _, n := range g.Nodes {
			names[n.ID] = n.Label()
		}
		for _, e := range g.Edges {
			for _, c := range e.Columns {
				all = append(all, fmt.Sprintf("%s.%s > %s.%s %s", names[e.From], c.From, names[e.To], c.To,
					c.Transform))
			}
			if e.ColumnsUnknown {
				all = append(all, names[e.From]+" > "+names[e.To]+" unknown")
			}
		}
		return all
	}
	impact := []string{"readings/landing/0.celsius > daily_highest.highest aggregate",
		"daily_highest.highest > peaks/scaled/0.twice expression",
		"peaks/scaled/0.twice > station_peaks.peak aggregate", "station_peaks > peaks/tell unknown"}

	g := w.graph(t, writer, "readings/landing/0", "?column=celsius&direction=down")
	require.ElementsMatch(t, impact, columns(g))
	require.Equal(t, []string{"celsius"}, g.Node(g.Root).Columns)

	origin := w.graph(t, writer, "station_peaks", "?column=peak&direction=up")
	require.ElementsMatch(t, impact[:3], columns(origin))
	nodes, _ := labels(origin)
	require.Contains(t, nodes, "-4 source readings/landing")

	whole := w.graph(t, writer, "station_peaks", "?columns=true&direction=up")
	require.Subset(t, columns(whole), append(impact[:3:3], "peaks/scaled/0.station > station_peaks.station identity"))
	require.Empty(t, columns(w.graph(t, writer, "peaks/scaled/0", "?column=note&direction=up")))

	// Readers do not see what is not published, and learn how published columns depend on each other through it.
	read := w.graph(t, reader, "daily_highest", "?column=highest")
	require.ElementsMatch(t, []string{"hidden. > daily_highest.highest ", "daily_highest.highest > hidden. ",
		"hidden. > station_peaks.peak ", "station_peaks > hidden unknown"}, columns(read))
	_, text := w.send(t, reader, http.MethodGet, "/v1/datasets/daily_highest/lineage?columns=true", "", nil)
	for _, secret := range []string{"celsius", "twice", "scaled", "landing", "tell"} {
		require.NotContains(t, text, secret)
	}
}

// A graph is as it was when a version last served: over two deploys and a rollback.
func TestLineageAsOfADeploy(t *testing.T) {
	t.Parallel()
	w, dir := peaks(t)
	env := w.env(t, writer)
	first := w.graph(t, writer, "station_peaks", "?direction=up")
	before := time.Now()

	direct := strings.NewReplacer("[{ from: { job: scaled } }]",
		"[{ from: { dataset: daily_highest } }]\n    partition_by: { time: day }",
		"max(twice) AS peak FROM scaled", "max(highest) AS peak FROM daily_highest").Replace(peaksDAG)
	must(t, env, "deploy", writeDAG(t, dir, "peaks", direct))
	inputs := func(query string) (names []string) {
		g := w.graph(t, writer, "station_peaks", "?direction=up&depth=1"+query)
		for _, n := range g.Nodes[1:] {
			names = append(names, n.Label())
		}
		return names
	}
	now, then := []string{"daily_highest"}, []string{"peaks/scaled/0"}
	require.Equal(t, now, inputs(""))
	require.Equal(t, then, inputs("&at=v1"))
	require.Equal(t, then, inputs("&at=peaks@v1"))
	require.Equal(t, then, inputs("&at="+before.UTC().Format(time.RFC3339Nano)))
	require.Equal(t, now, inputs("&at=2"))
	old := w.graph(t, writer, "station_peaks", "?direction=up&at=v1")
	require.Equal(t, first.Node(first.Root).Generation, old.Node(old.Root).Generation)
	require.Equal(t, 1, old.At.Version)
	require.NotNil(t, old.At.Time)

	must(t, env, "rollback", "peaks", "--yes")
	require.Equal(t, then, inputs(""))
	require.Equal(t, now, inputs("&at=v2"))
	require.Equal(t, then, inputs("&at=v1"))
	require.Equal(t, then, inputs("&at="+before.UTC().Format(time.RFC3339Nano)))
	live := w.graph(t, writer, "station_peaks", "?at=v1")
	require.Nil(t, live.At.Time, "it serves again")

	// A version that has never served is for those who work on its DAG.
	tripled := strings.Replace(peaksDAG, "2 * highest", "3 * highest", 1)
	must(t, env, "deploy", writeDAG(t, dir, "peaks", tripled), "--no-activate")
	waiting := w.graph(t, writer, "station_peaks", "?direction=up&at=v3")
	require.Equal(t, "station_peaks", waiting.Dataset)
	require.False(t, waiting.Node(waiting.Root).Served)
	require.Equal(t, 3, w.graph(t, writer, "station_peaks", "?at=candidate").At.Version)
	status, _ := w.send(t, reader, http.MethodGet, "/v1/datasets/station_peaks/lineage?at=v3", "", nil)
	require.Equal(t, http.StatusForbidden, status)

	// After its deletion a DAG is in the graphs of the moments before.
	must(t, env, "abandon", "peaks")
	must(t, env, "delete", "peaks", "--yes")
	require.Len(t, w.graph(t, writer, "daily_highest", "?direction=down").Nodes, 1)
	past := w.graph(t, writer, "daily_highest", "?direction=down&at="+before.UTC().Format(time.RFC3339Nano))
	require.Len(t, past.Nodes, 4)
	require.Equal(t, "peaks/scaled/0", past.Nodes[1].Dataset)
	require.True(t, past.Nodes[1].Deleted)
}

// A partition's revision names exactly those revisions that it was made from.
func TestLineageOfAPartition(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	revision := func(dataset, key string) registry.Revision {
		var list struct{ Items []registry.Revision }
		require.NoError(t, w.as(writer).Get(t.Context(), cli.DatasetPath(dataset)+"/partitions", nil, &list))
		for _, r := range list.Items {
			if r.Key == key {
				return r
			}
		}
		return registry.Revision{}
	}
	chain := []string{"station_peaks", "peaks/scaled/0", "daily_highest", "readings/landing/0"}
	check := func() (tasks []string) {
		g := w.graph(t, writer, "station_peaks", "?partition=2026-01-02")
		require.Len(t, g.Revisions, len(chain))
		for i, r := range g.Revisions {
			want := revision(chain[i], "2026-01-02")
			require.Equal(t, i, r.ID)
			require.Equal(t, chain[i], r.Dataset)
			require.Equal(t, "2026-01-02", r.Partition)
			require.Equal(t, want.Revision, r.Revision)
			require.Equal(t, want.TaskID, *r.TaskID)
			require.True(t, want.Materialized.Equal(*r.MadeAt))
			require.Equal(t, chain[i], g.Node(r.Node).Dataset)
			require.False(t, r.HiddenInputs)
			if i+1 < len(chain) {
				require.Equal(t, []int{i + 1}, r.MadeFrom)
			} else {
				require.Empty(t, r.MadeFrom)
			}
			tasks = append(tasks, r.TaskID.String())
		}
		return tasks
	}
	old := check()
	at := time.Now()

	// New content makes new revisions; at the instant before, there were the old ones.
	w.landText(t, "2026-01-02", "station,celsius\nharbour,99.5\n")
	eventually(t, "the new file has come through", func() (bool, error) {
		g := w.graph(t, writer, "station_peaks", "?partition=2026-01-02")
		for i, r := range g.Revisions {
			if r.TaskID.String() == old[i] {
				return false, nil
			}
		}
		return true, nil
	})
	require.NotEqual(t, old, check())
	then := w.graph(t, writer, "station_peaks", "?partition=2026-01-02&at="+at.UTC().Format(time.RFC3339Nano))
	require.Len(t, then.Revisions, 4)
	for i, r := range then.Revisions {
		require.Equal(t, old[i], r.TaskID.String())
	}

	short := w.graph(t, writer, "station_peaks", "?partition=2026-01-02&depth=1")
	require.Len(t, short.Revisions, 2)
	require.True(t, short.Revisions[1].More)
	require.True(t, short.Truncated)

	read := w.graph(t, reader, "station_peaks", "?partition=2026-01-02")
	require.Len(t, read.Revisions, 4)
	require.Equal(t, lineage.RevisionNode{ID: 1, MadeFrom: []int{2}}, read.Revisions[1],
		"of what is not published nothing is told")
	require.Equal(t, "daily_highest", read.Revisions[2].Dataset)
}

// What a caller may not read is a node that says nothing, and one only; the graph ends there.
func TestLineageHidesWhatReadRolesGuard(t *testing.T) {
	t.Parallel()
	w := hide(t)
	dir := t.TempDir()
	must(t, w.env(t, "finance"), "deploy", writeDAG(t, dir, "mixed", `name: mixed
jobs:
  - name: joined
    operator: sql
    inputs:
      - from: { dataset: bonus_mark }
      - from: { dataset: payroll_mark }
      - from: { dataset: daily_highest }
    execution_strategy: PerUpdate
    config:
      query: >
        SELECT count(*) AS n, count(salary_mark) AS m, max(highest) AS h FROM bonus_mark, payroll_mark, daily_highest
publish:
  headcount: { from: { job: joined } }
`))
	status, _ := w.send(t, reader, http.MethodGet, "/v1/datasets/headcount/lineage", "", nil)
	require.Equal(t, http.StatusNotFound, status, "it is as closed as what it is made from")
	must(t, w.env(t, admin), "datasets", "visibility", "headcount", "--opened")

	for _, caller := range []string{reader, writer} {
		g := w.graph(t, caller, "headcount", "?direction=up&columns=true&partition=all")
		nodes, edges := labels(g)
		require.Contains(t, nodes, "-1 hidden hidden")
		require.Contains(t, nodes, "-1 dataset daily_highest")
		require.Contains(t, edges, "hidden > headcount /")
		hiddenNodes := 0
		for _, n := range g.Nodes {
			if n.Kind != lineage.KindHidden {
				continue
			}
			require.Equal(t, lineage.Node{ID: n.ID, Kind: lineage.KindHidden, Level: n.Level}, n)
			if n.Level == -1 {
				hiddenNodes++
			}
		}
		require.Equal(t, 1, hiddenNodes, "nothing says how many there are")
		require.True(t, g.Revisions[0].HiddenInputs)

		down := w.graph(t, caller, "daily_highest", "?direction=down&columns=true")
		_, edges = labels(down)
		require.Equal(t, []string{"daily_highest > headcount mixed/joined"}, edges)
	}
	all, _ := labels(w.graph(t, "finance", "headcount", "?direction=up&depth=1"))
	require.ElementsMatch(t, []string{"0 dataset headcount", "-1 dataset bonus_mark", "-1 dataset payroll_mark",
		"-1 dataset daily_highest"}, all)

	// Nothing that a reader gets names what is hidden, or has its ids.
	var secrets []string
	for _, d := range decode[[]registry.Dataset](t, w.env(t, "finance"), "datasets", "list", "--all") {
		if strings.Contains(d.Name, "mark") || d.DAG == "wages" {
			secrets = append(secrets, d.ID.String(), d.Version.String(), d.Name)
		}
	}
	require.NotEmpty(t, secrets)
	_, text := w.send(t, reader, http.MethodGet, "/v1/datasets/headcount/lineage?columns=true&partition=all", "", nil)
	for _, secret := range append(secrets, append([]string{"wages", "bonuses"}, hiddenMarks...)...) {
		require.NotContains(t, text, secret)
	}
	for _, name := range []string{"payroll_mark", "bonus_mark", "wages%2Fintake%2F0"} {
		status, _ := w.send(t, writer, http.MethodGet, "/v1/datasets/"+name+"/lineage", "", nil)
		require.Equal(t, http.StatusNotFound, status)
	}
}

func TestLineageCommand(t *testing.T) {
	t.Parallel()
	w, _ := peaks(t)
	env := w.env(t, writer)

	tree := must(t, env, "lineage", "daily_highest")
	page, err := os.ReadFile("../../docs/lineage.md")
	require.NoError(t, err)
	_, after, found := strings.Cut(string(page), "$ dagctl lineage daily_highest\n")
	require.True(t, found)
	want, _, _ := strings.Cut(after, "```")
	require.Equal(t, want, tree)
	impact := must(t, env, "lineage", "daily_highest.highest", "--down")
	require.Contains(t, impact, "daily_highest.highest  readings/daily v1\nread by\n")
	require.Contains(t, impact, "highest → twice expression\n")
	require.Contains(t, impact, "twice → peak aggregate\n")
	require.NotContains(t, impact, "made from")
	require.Contains(t, must(t, env, "lineage", "readings/landing/0.celsius", "--down"), "celsius → highest aggregate")

	for _, name := range []string{"daily_highest.nope", "nope.highest", "nope"} {
		r := dagctl(t, env, "lineage", name)
		require.Equal(t, 1, r.code, r.err)
	}
	require.Contains(t, dagctl(t, env, "lineage", "daily_highest.nope").err, "it has station, highest")
	require.Contains(t, dagctl(t, env, "lineage", "--", "explain").err, `there is no dataset "explain"`)

	text := must(t, env, "lineage", "station_peaks", "--up", "--partition", "2026-01-01", "--at", "v1", "--depth", "2")
	require.Contains(t, text, "partition\n└─ station_peaks 2026-01-01, revision 1, made 20")
	require.Contains(t, text, "\n   └─ peaks/scaled/0 2026-01-01, revision 1")
	require.Contains(t, text, "Truncated: it goes on beyond --depth 2")
	g := decode[lineage.Graph](t, env, "lineage", "daily_highest")
	require.Equal(t, "daily_highest", g.Dataset)
	require.Contains(t, must(t, w.env(t, reader), "lineage", "daily_highest"), "└─ hidden  you may not read it")
}
