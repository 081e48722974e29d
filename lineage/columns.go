package lineage

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// between is a pair of datasets, the second of which is made from the first.
type between struct{ from, to uuid.UUID }

// columns adds to each edge between datasets the columns that one was computed from in the other. If column is given,
// the dataset in the middle must have it.
func (w *walk) columns(ctx context.Context, d *drawing, column string) error {
	byGeneration := map[uuid.UUID]uuid.UUID{}
	for id := range d.nodes {
		if g := w.datasets[id].Generation; g != nil {
			byGeneration[*g] = id
		}
	}
	edges, whole, err := columnsInto(ctx, w.tx, w.caller.OrgID, slices.Collect(maps.Keys(byGeneration)))
	if err != nil {
		return err
	}
	if !whole {
		d.graph.Truncated, d.graph.TruncatedBy = true, "size"
	}

	says, found := map[uuid.UUID]bool{}, map[between][]ColumnEdge{}
	for _, e := range edges {
		to := byGeneration[e.Output.DatasetVersion]
		says[to] = true
		found[between{e.Input.DatasetUUID, to}] = append(found[between{e.Input.DatasetUUID, to}], e)
	}

	datasets := map[string]uuid.UUID{}
	for id, node := range d.nodes {
		datasets[node] = id
	}
	for i := range d.graph.Edges {
		e := &d.graph.Edges[i]
		from, known := datasets[e.From]
		to, made := datasets[e.To]
		switch {
		case known && made && says[to]:
			e.Columns = w.current(found[between{from, to}])
		case !isJob(e.From): // nothing is said of it, or it is closed, or the job makes nothing
			e.ColumnsUnknown = true
		}
	}

	if column == "" {
		return nil
	}
	return w.requireColumn(ctx, d, column)
}

// current returns the edges of columns between two datasets. Those count that were computed from the generation that is
// read now; before the first task after a change of the input they are those of its earlier generations.
func (w *walk) current(all []ColumnEdge) (columns []Columns) {
	read := slices.DeleteFunc(slices.Clone(all), func(e ColumnEdge) bool {
		g := w.datasets[e.Input.DatasetUUID].Generation
		return g == nil || *g != e.Input.DatasetVersion
	})
	if len(read) == 0 {
		read = all
	}
	for _, e := range read {
		columns = append(columns, Columns{From: e.Input.Name, To: e.Output.Name, Transform: e.Transform})
	}
	return distinct(columns)
}

// distinct sorts edges of columns, and leaves each of them in once.
func distinct(columns []Columns) []Columns {
	slices.SortFunc(columns, func(a, b Columns) int {
		return slices.Compare([]string{a.To, a.From, string(a.Transform)}, []string{b.To, b.From, string(b.Transform)})
	})
	return slices.Compact(columns)
}

// redact removes the columns of hidden nodes, and how others were computed from them. It comes after the trace, which
// goes through them.
func (g *Graph) redact() {
	for i := range g.Edges {
		e := &g.Edges[i]
		from, to := isHidden(e.From), isHidden(e.To)
		if !from && !to {
			continue
		}
		for k := range e.Columns {
			c := &e.Columns[k]
			if c.Transform = ""; from {
				c.From = ""
			}
			if to {
				c.To = ""
			}
		}
		e.Columns = slices.DeleteFunc(distinct(e.Columns), func(c Columns) bool { return c == Columns{} })
	}

	for i := range g.Nodes {
		if g.Nodes[i].Kind == KindHidden {
			g.Nodes[i].Columns = nil
		}
	}
}

// requireColumn refuses a column that the dataset does not have, as far as that is known.
func (w *walk) requireColumn(ctx context.Context, d *drawing, column string) error {
	root := w.datasets[w.root]
	for _, e := range d.graph.Edges {
		for _, c := range e.Columns {
			if e.To == d.graph.Root && c.To == column || e.From == d.graph.Root && c.From == column {
				return nil
			}
		}
	}
	if root.Generation == nil {
		return fault.New(fault.Conflict, "the columns of dataset %s are not known yet", root.Name).
			WithHint("`dagctl status %s` shows what its DAG is doing", root.DAG)
	}

	known, err := registry.ColumnsOf(ctx, w.tx, []uuid.UUID{*root.Generation})
	if err != nil {
		return err
	}
	var names []string
	for _, c := range known[*root.Generation] {
		names = append(names, c.Name)
	}
	if len(names) == 0 || slices.Contains(names, column) {
		return nil
	}
	return fault.New(fault.NotFound, "dataset %s has no column %q", root.Name, column).
		WithHint("it has %s", strings.Join(names, ", "))
}

// columnsInto returns the edges into the columns of some dataset versions, as many as an answer has, and whether these
// are all. It relies on column_lineage_pkey. The caller must check what may be shown.
func columnsInto(ctx context.Context, tx pgx.Tx, org uuid.UUID, versions []uuid.UUID) (edges []ColumnEdge, whole bool,
	err error) {
	rows, err := tx.Query(ctx, `
		SELECT output_dataset_uuid, output_dataset_version, output_column,
			input_dataset_uuid, input_dataset_version, input_column, transform
		FROM column_lineage
		WHERE org_id = $1 AND output_dataset_version = ANY($2)
		ORDER BY output_dataset_version, output_column, input_dataset_version, input_column, transform
		LIMIT $3`, org, versions, maxColumns+1)
	if err != nil {
		return nil, false, fmt.Errorf("column lineage of %d dataset versions: %w", len(versions), err)
	}
	if edges, err = collectEdges(rows); err != nil {
		return nil, false, fmt.Errorf("column lineage of %d dataset versions: %w", len(versions), err)
	}
	if whole = len(edges) <= maxColumns; !whole {
		edges = edges[:maxColumns]
	}
	return edges, whole, nil
}

// at is a column of a node.
type at struct{ node, column string }

// trace marks what a column of the dataset in the middle comes from, and what is computed from it, as far as the graph
// goes. Where nothing says which columns a job reads, that edge is marked and the trace ends with it.
func (g *Graph) trace(column string) {
	columns := map[string]map[string]bool{}
	for _, up := range []bool{true, false} {
		near := map[string][]int{} // edges by the node where the trace enters them
		for i, e := range g.Edges {
			if up {
				near[e.To] = append(near[e.To], i)
			} else {
				near[e.From] = append(near[e.From], i)
			}
		}
		g.follow(columns, near, up, at{g.Root, column})
	}

	for i := range g.Nodes {
		n := &g.Nodes[i]
		n.Traced, n.Columns = columns[n.ID] != nil, slices.Sorted(maps.Keys(columns[n.ID]))
	}
	for i := range g.Edges {
		e := &g.Edges[i]
		from, to := columns[e.From], columns[e.To]
		e.Columns = slices.DeleteFunc(e.Columns, func(c Columns) bool { return !from[c.From] || !to[c.To] })
	}
}

// follow marks edges from a column on, in one direction, and notes the columns that it comes to by node.
func (g *Graph) follow(columns map[string]map[string]bool, near map[string][]int, up bool, start at) {
	note := func(a at) {
		if columns[a.node] == nil {
			columns[a.node] = map[string]bool{}
		}
		if a.column != "" {
			columns[a.node][a.column] = true
		}
	}

	seen, todo := map[at]bool{}, []at{start}
	for len(todo) > 0 {
		here := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[here] {
			continue
		}
		seen[here] = true
		note(here)

		for _, i := range near[here.node] {
			e := &g.Edges[i]
			far := e.To
			if up {
				far = e.From
			}
			if e.ColumnsUnknown || isJob(far) {
				e.Traced = true
				note(at{node: far})
			}
			for _, c := range e.Columns {
				enters, leaves := c.From, c.To
				if up {
					enters, leaves = c.To, c.From
				}
				if enters == here.column {
					e.Traced = true
					todo = append(todo, at{far, leaves})
				}
			}
		}
	}
}

// prune leaves out of the graph what is not in the trace.
func (g *Graph) prune() {
	g.Nodes = slices.DeleteFunc(g.Nodes, func(n Node) bool { return !n.Traced })
	g.Edges = slices.DeleteFunc(g.Edges, func(e Edge) bool { return !e.Traced })
}
