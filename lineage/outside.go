package lineage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/registry"
)

// maxOutside is how many edges outside a graph has at most.
const maxOutside = 3000

// outward goes on from a graph to the datasets and jobs of other systems that are around its datasets. What those are
// made from decides who sees them: where it is closed to the caller, they are absent.
type outward struct {
	*walk
	d     *drawing
	q     Query
	place map[string]int  // of nodes in the graph
	drawn map[string]bool // edges outside
}

// outside adds to a graph what is outside, as far as the query goes.
func (w *walk) outside(ctx context.Context, d *drawing, q Query) error {
	o := &outward{walk: w, d: d, q: q, place: map[string]int{}, drawn: map[string]bool{}}
	for i, n := range d.graph.Nodes {
		o.place[n.ID] = i
	}

	for _, up := range []bool{true, false} {
		if q.Direction != Both && up != (q.Direction == Up) {
			continue
		}
		edge := map[string]int{} // levels, by node
		for _, n := range d.graph.Nodes {
			if n.Kind == KindDataset && (n.Level == 0 || up == (n.Level < 0)) {
				edge[n.ID] = n.Level
			}
		}
		for len(edge) > 0 {
			var err error
			if edge, err = o.step(ctx, up, edge); err != nil {
				return err
			}
		}
	}

	d.graph.Edges = sorted(d.graph.Edges)
	slices.SortStableFunc(d.graph.Nodes, func(a, b Node) int { return cmp.Compare(abs(a.Level), abs(b.Level)) })
	return nil
}

// step goes one step over jobs outside, and returns the nodes that it came to first.
func (o *outward) step(ctx context.Context, up bool, edge map[string]int) (map[string]int, error) {
	found, err := o.edges(ctx, up, edge)
	if err != nil {
		return nil, err
	}
	next := map[string]int{}
	for _, e := range found {
		near, far, level := e.from, e.to, 1
		if up {
			near, far, level = e.to, e.from, -1
		}
		level += edge[near]

		if _, known := o.place[far]; !known {
			if o.bounded(near, level) {
				continue
			}
			reached, err := o.reach(ctx, far, level)
			if err != nil {
				return nil, err
			}
			if !reached {
				continue
			}
			next[far] = level
		}
		o.add(e)
	}
	return next, nil
}

// bounded reports whether a node beyond another one would be too far away, or one too many, and notes that.
func (o *outward) bounded(near string, level int) bool {
	by := ""
	if abs(level) > o.q.Depth {
		by = "depth"
	} else if len(o.d.graph.Nodes)-o.d.hidden >= o.most {
		by = "size"
	}
	if by == "" {
		return false
	}
	g := &o.d.graph
	if g.Truncated = true; g.TruncatedBy != "size" {
		g.TruncatedBy = by
	}
	g.Nodes[o.place[near]].More = true
	return true
}

// reach adds the node at the far end of an edge. It reports false for a dataset that the caller may not read.
func (o *outward) reach(ctx context.Context, far string, level int) (bool, error) {
	id, err := uuid.Parse(far)
	if err != nil {
		is, job := outsideOf(far)
		n := Node{ID: far, Kind: KindExternal, Level: level, Namespace: is.Namespace, Dataset: is.Name}
		if job {
			n.Dataset, n.Job = "", is.Name
		}
		o.place[far] = len(o.d.graph.Nodes)
		o.d.graph.Nodes = append(o.d.graph.Nodes, n)
		return true, nil
	}

	// A dataset of dagctl again. The graph around it is another one.
	if err := o.load(ctx, []uuid.UUID{id}); err != nil || !o.datasets[id].Readable {
		return false, err
	}
	o.place[far] = len(o.d.graph.Nodes)
	o.d.nodes[id] = o.d.add(o.datasets[id], level, true)
	return true, nil
}

// add adds an edge between two nodes, unless it is there.
func (o *outward) add(e outsideEdge) {
	edge := Edge{From: e.from, To: e.to, Namespace: e.job.Namespace, Job: e.job.Name}
	key := edge.From + " " + edge.To + " " + edge.Namespace + " " + edge.Job
	if o.drawn[key] {
		return
	}
	o.drawn[key] = true
	if len(o.drawn) > maxOutside {
		o.d.graph.Truncated, o.d.graph.TruncatedBy = true, "size"
		return
	}
	if o.q.Columns || o.q.Column != "" {
		edge.Columns = e.columns
		edge.ColumnsUnknown = len(e.columns) == 0 && !isJob(e.from) && !isJob(e.to)
	}
	o.d.graph.Edges = append(o.d.graph.Edges, edge)
}

// isJob reports whether a node is a job.
func isJob(node string) bool {
	return strings.HasPrefix(node, "job:") || strings.HasPrefix(node, jobOutside)
}

// edges returns the edges of jobs outside into some nodes, or out of them, that the caller may know of. It relies
// on idx_external_edges_from and idx_external_edges_to.
func (o *outward) edges(ctx context.Context, up bool, nodes map[string]int) ([]outsideEdge, error) {
	names := make([]string, 0, len(nodes))
	for n := range nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	args := []any{o.caller.OrgID, names, o.at.At}

	near, shown := "from_node", "true"
	if up {
		near = "to_node"
	}
	if !o.caller.ReadsAll() {
		from := registry.HiddenFrom(o.caller, &args)
		shown = `NOT ` + registry.HiddenDataset("e.from_dataset", from) + `
			AND NOT ` + registry.HiddenDataset("e.to_dataset", from) + `
			AND e.from_node NOT IN (SELECT hidden_externals(` + from + `))
			AND e.to_node NOT IN (SELECT hidden_externals(` + from + `))`
	}
	rows, err := o.tx.Query(ctx, `
		SELECT e.job_namespace, e.job_name, e.from_node, e.to_node, e.columns FROM external_edges e
		WHERE e.org_id = $1 AND e.`+near+` = ANY($2) AND ($3::timestamptz IS NULL OR e.first_seen <= $3) AND `+shown+`
		ORDER BY e.from_node, e.to_node, e.job_namespace, e.job_name`, args...)
	if err != nil {
		return nil, fmt.Errorf("edges outside: %w", err)
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (e outsideEdge, err error) {
		return e, row.Scan(&e.job.Namespace, &e.job.Name, &e.from, &e.to, &e.columns)
	})
}
