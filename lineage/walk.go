package lineage

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/registry/flow"
)

// walk goes from a dataset to what it is made from and to what is made from it, step by step. It goes through datasets
// that the caller may not see only because they are not published, and ends at those that are closed to it.
type walk struct {
	tx     pgx.Tx
	caller authz.Caller
	at     flow.Serving
	most   int // datasets and jobs without outputs; what is closed does not count, or its number could be found out
	root   uuid.UUID

	closed   map[uuid.UUID]bool // datasets of the org
	near     int                // up to this step, jobs are asked for by datasets
	whole    whole
	datasets map[uuid.UUID]flow.Dataset // those that were loaded, and in the end all that were reached
	jobs     map[uuid.UUID]flow.Job
	levels   map[uuid.UUID]int  // of the datasets that were reached
	more     map[uuid.UUID]bool // those from which the walk did not go on
	count    int
	full     bool // there are more than allowed
}

// load loads those of some datasets that were not loaded yet.
func (w *walk) load(ctx context.Context, ids []uuid.UUID) error {
	missing := slices.DeleteFunc(slices.Clone(ids), func(id uuid.UUID) bool {
		_, known := w.datasets[id]
		return known
	})
	if len(missing) == 0 {
		return nil
	}
	found, err := flow.Datasets(ctx, w.tx, w.caller, w.at, missing)
	maps.Copy(w.datasets, found)
	return err
}

// around returns the jobs next to some datasets: those that make them, or those that read them. Far from the root,
// whole DAGs are read at once.
func (w *walk) around(ctx context.Context, up bool, datasets []uuid.UUID, step int) ([]flow.Job, error) {
	switch {
	case step > w.near:
		return w.whole.around(ctx, w, up, datasets)
	case up:
		return flow.Into(ctx, w.tx, w.caller, w.at, datasets)
	}
	return flow.From(ctx, w.tx, w.caller, w.at, datasets)
}

// beyond returns the datasets on the far side of a job.
func beyond(j flow.Job, up bool) []uuid.UUID {
	if up {
		return j.Reads
	}
	return j.Makes
}

// follow walks at most depth steps, in both directions by turns, so that what is near comes first. Each dataset is
// reached once, so that circles end.
func (w *walk) follow(ctx context.Context, direction string, depth int) (err error) {
	edges := map[bool][]uuid.UUID{}
	for _, up := range []bool{true, false} {
		if direction == Both || up == (direction == Up) {
			edges[up] = []uuid.UUID{w.root}
		}
	}
	for step := 1; len(edges[true])+len(edges[false]) > 0; step++ {
		for _, up := range []bool{true, false} {
			if edges[up], err = w.step(ctx, up, edges[up], step, step > depth); err != nil {
				return err
			}
		}
	}
	return w.load(ctx, slices.Collect(maps.Keys(w.levels)))
}

// step goes from the edge of the walk to what is next to it, and returns the new edge. At the last step it only looks
// whether there is more.
func (w *walk) step(ctx context.Context, up bool, edge []uuid.UUID, step int, last bool) ([]uuid.UUID, error) {
	if len(edge) == 0 {
		return nil, nil
	}
	jobs, err := w.around(ctx, up, edge, step)
	if err != nil {
		return nil, err
	}
	if last || w.full {
		w.stop(jobs, up, edge)
		return nil, nil
	}

	var next []uuid.UUID
	found := map[uuid.UUID]bool{}
	for _, j := range jobs {
		if !w.admit(j, up) {
			continue
		}
		for _, id := range beyond(j, up) {
			if _, known := w.levels[id]; !known && !found[id] {
				next, found[id] = append(next, id), true
			}
		}
	}
	reached, err := w.reach(ctx, up, next, step)
	if err == nil && w.full {
		w.stop(jobs, up, edge)
	}
	return reached, err
}

// admit notes a job, unless it would be a node too many.
func (w *walk) admit(j flow.Job, up bool) bool {
	if !up && len(j.Makes) == 0 && !j.Hidden {
		if _, known := w.jobs[j.ID]; known {
			return true
		}
		if w.count >= w.most {
			w.full = true
			return false
		}
		w.count++
	}
	w.jobs[j.ID] = j
	return true
}

// reach notes the datasets of one step, as many as are allowed, and returns those from which the walk goes on.
func (w *walk) reach(ctx context.Context, up bool, found []uuid.UUID, step int) (edge []uuid.UUID, err error) {
	if len(found) == 0 {
		return nil, nil
	}
	if w.count+len(found) > w.most { // names say which of them are drawn
		if err := w.load(ctx, found); err != nil {
			return nil, err
		}
		slices.SortFunc(found, func(a, b uuid.UUID) int {
			return cmp.Or(cmp.Compare(w.datasets[a].Name, w.datasets[b].Name), slices.Compare(a[:], b[:]))
		})
	}

	level := step
	if up {
		level = -step
	}
	for _, id := range found {
		if w.closed[id] {
			w.levels[id] = level
			continue
		}
		if w.count >= w.most {
			w.full = true
			continue
		}
		w.count++
		w.levels[id] = level
		edge = append(edge, id)
	}
	return edge, nil
}

// stop notes from which datasets of the edge the walk does not go on to what is next to them.
func (w *walk) stop(jobs []flow.Job, up bool, edge []uuid.UUID) {
	at := map[uuid.UUID]bool{}
	for _, id := range edge {
		at[id] = true
	}
	for _, j := range jobs {
		beyondIt := beyond(j, up)
		_, drawn := w.jobs[j.ID]
		missing := slices.ContainsFunc(beyondIt, func(id uuid.UUID) bool { _, known := w.levels[id]; return !known })
		if !missing && (up || len(beyondIt) > 0 || drawn) { // a job that makes nothing is a node, too
			continue
		}
		for _, id := range beyond(j, !up) {
			if at[id] {
				w.more[id] = true
			}
		}
	}
}

// drawing is a graph on its way, and the nodes of datasets.
type drawing struct {
	graph  Graph
	nodes  map[uuid.UUID]string // of datasets that are not closed
	hidden int                  // how many nodes are hidden
	closed map[string]string    // the hidden nodes next to a node, by its id and the direction
	jobs   map[string]int       // the nodes of jobs
}

// draw makes the nodes and edges of what the walk has reached. What is closed to the caller is one hidden node on
// either side of a dataset, so that nothing says how much it is.
func (w *walk) draw(depth int) *drawing {
	d := &drawing{nodes: map[uuid.UUID]string{}, closed: map[string]string{},
		jobs: map[string]int{}}
	order := make([]uuid.UUID, 0, len(w.levels))
	for id := range w.levels {
		order = append(order, id)
	}
	slices.SortFunc(order, func(a, b uuid.UUID) int {
		return cmp.Or(cmp.Compare(abs(w.levels[a]), abs(w.levels[b])), cmp.Compare(w.levels[a], w.levels[b]),
			cmp.Compare(w.datasets[a].Name, w.datasets[b].Name), slices.Compare(a[:], b[:]))
	})
	for _, id := range order {
		if !w.closed[id] {
			d.nodes[id] = d.add(w.datasets[id], w.levels[id], w.more[id])
		}
	}
	d.graph.Root = d.nodes[w.root]

	jobs := make([]flow.Job, 0, len(w.jobs))
	for _, j := range w.jobs {
		jobs = append(jobs, j)
	}
	slices.SortFunc(jobs, func(a, b flow.Job) int {
		return cmp.Or(cmp.Compare(a.DAG, b.DAG), cmp.Compare(a.Name, b.Name))
	})
	for _, j := range jobs {
		w.connect(d, j, depth)
	}

	d.graph.Edges = slices.CompactFunc(sorted(d.graph.Edges), func(a, b Edge) bool {
		return a.From == b.From && a.To == b.To && a.Job == b.Job && a.DAG == b.DAG
	})
	slices.SortStableFunc(d.graph.Nodes, func(a, b Node) int { return cmp.Compare(abs(a.Level), abs(b.Level)) })
	if d.graph.Truncated = len(w.more) > 0 || w.full; d.graph.Truncated {
		d.graph.TruncatedBy = "depth"
	}
	if w.full {
		d.graph.TruncatedBy = "size"
	}
	return d
}

func abs(n int) int { return max(n, -n) }

func sorted(edges []Edge) []Edge {
	slices.SortStableFunc(edges, func(a, b Edge) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.DAG, b.DAG),
			cmp.Compare(a.Job, b.Job))
	})
	return edges
}

// add adds the node of a dataset that is not closed, and returns its id.
func (d *drawing) add(of flow.Dataset, level int, more bool) string {
	if !of.Readable {
		id := d.hide(level)
		d.graph.Nodes[len(d.graph.Nodes)-1].More = more
		return id
	}
	n := Node{ID: of.ID.String(), Kind: KindDataset, Level: level, Dataset: of.Name, DAG: of.DAG, Job: of.Job,
		Output: &of.Output, DAGVersion: of.DAGVersion, Generation: of.Generation, Served: of.Served,
		Published: of.Published, Owner: of.Owner, Late: of.Late, More: more, Deleted: of.Now == ""}
	if of.Now != of.Name {
		n.NameNow = of.Now
	}
	d.graph.Nodes = append(d.graph.Nodes, n)
	return n.ID
}

// hide adds a node that says nothing, and returns its id.
func (d *drawing) hide(level int) string {
	d.hidden++
	id := fmt.Sprintf("hidden-%d", d.hidden)
	d.graph.Nodes = append(d.graph.Nodes, Node{ID: id, Kind: KindHidden, Level: level})
	return id
}

// closedBy returns the node for all that is closed on one side of a node: what that is made from, or what is made from
// it.
func (d *drawing) closedBy(node string, level int, up bool) string {
	key := fmt.Sprintf("%s %t", node, up)
	if d.closed[key] == "" {
		d.closed[key] = d.hide(level)
	}
	return d.closed[key]
}

// connect adds the edges of a job between nodes that were reached, and the job itself where it reads or makes nothing.
func (w *walk) connect(d *drawing, j flow.Job, depth int) {
	for _, to := range j.Makes {
		level, reached := w.levels[to]
		if !reached || w.closed[to] {
			continue
		}
		if len(j.Reads) == 0 && w.datasets[to].Readable && level <= 0 && -level < depth {
			d.link(d.job(j, KindSource, level-1), d.nodes[to], j)
		}
		for _, from := range j.Reads {
			switch _, known := w.levels[from]; {
			case !known:
			case w.closed[from]:
				d.link(d.closedBy(d.nodes[to], level-1, true), d.nodes[to], j)
			default:
				d.link(d.nodes[from], d.nodes[to], j)
			}
		}
	}

	for _, from := range j.Reads {
		level, reached := w.levels[from]
		if !reached || w.closed[from] || level < 0 {
			continue
		}
		if len(j.Makes) == 0 && level < depth {
			to := ""
			if j.Hidden {
				to = d.closedBy(d.nodes[from], level+1, false)
			} else {
				to = d.job(j, KindSink, level+1)
			}
			d.link(d.nodes[from], to, j)
		}
		for _, to := range j.Makes {
			if _, known := w.levels[to]; known && w.closed[to] {
				d.link(d.nodes[from], d.closedBy(d.nodes[from], level+1, false), j)
			}
		}
	}
}

// job adds the node of a job, unless it is there, and returns its id.
func (d *drawing) job(j flow.Job, kind string, level int) string {
	id := "job:" + j.DAG + "/" + j.Name
	if at, known := d.jobs[id]; known {
		if n := &d.graph.Nodes[at]; abs(level) < abs(n.Level) {
			n.Level = level
		}
		return id
	}
	d.jobs[id] = len(d.graph.Nodes)
	d.graph.Nodes = append(d.graph.Nodes, Node{ID: id, Kind: kind, Level: level, DAG: j.DAG, Job: j.Name,
		Source: j.Source})
	return id
}

// link adds an edge. Next to a hidden node it says nothing of the job.
func (d *drawing) link(from, to string, j flow.Job) {
	e := Edge{From: from, To: to, DAG: j.DAG, Job: j.Name}
	if isHidden(from) || isHidden(to) {
		e.DAG, e.Job = "", ""
	}
	d.graph.Edges = append(d.graph.Edges, e)
}

func isHidden(node string) bool { return strings.HasPrefix(node, "hidden-") }
