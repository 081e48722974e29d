package lineage

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry/flow"
)

// RevisionNode is one revision of one partition, and what it was made from. Of one in a dataset that the caller may not
// see, there is only that it exists.
type RevisionNode struct {
	ID           int        `json:"id" doc:"Its place in the list"`
	Node         string     `json:"node,omitempty" doc:"Of its dataset, if the graph has that"`
	Dataset      string     `json:"dataset,omitempty"`
	Generation   *uuid.UUID `json:"generation,omitempty" doc:"The dataset version"`
	Partition    string     `json:"partition,omitempty"`
	Revision     int64      `json:"revision,omitempty"`
	State        string     `json:"state,omitempty" doc:"Now: Published, Replaced or Purged"`
	MadeAt       *time.Time `json:"made_at,omitempty" doc:"Absent if nothing is left of it"`
	Rows         int64      `json:"rows,omitempty"`
	TaskID       *uuid.UUID `json:"task_id,omitempty" doc:"That made it"`
	Attempt      int        `json:"attempt,omitempty"`
	TakenOver    bool       `json:"taken_over,omitempty" doc:"From an earlier generation of the dataset"`
	MadeFrom     []int      `json:"made_from" nullable:"false" doc:"The revisions that its task read"`
	HiddenInputs bool       `json:"hidden_inputs,omitempty" doc:"Its task read also what the caller may not"`
	More         bool       `json:"more,omitempty" doc:"It was made from more than is listed"`
}

// revisions adds the served revision of a partition, and what it was made from, step by step.
func (w *walk) revisions(ctx context.Context, d *drawing, q Query) error {
	root := w.datasets[w.root]
	if root.Generation == nil {
		return fault.New(fault.Conflict, "dataset %s has no data yet", root.Name).
			WithHint("`dagctl status %s` shows what its DAG is doing", root.DAG)
	}
	first, found, err := flow.ServedRevision(ctx, w.tx, w.caller.OrgID, *root.Generation, q.Partition, w.at.At)
	if err != nil {
		return err
	}
	if !found {
		return fault.New(fault.NotFound, "readers of dataset %s see no partition %q", root.Name, q.Partition).
			WithHint("`dagctl datasets partitions %s` lists those there are", root.Name)
	}

	guarded := map[string]bool{} // nodes with inputs that are closed
	for _, e := range d.graph.Edges {
		guarded[e.To] = guarded[e.To] || d.isClosed(e.From)
	}
	places := map[flow.RevisionRef]int{first: 0}
	edge := []flow.RevisionRef{first}
	d.graph.Revisions = []RevisionNode{{}}
	for step := 0; len(edge) > 0; step++ {
		made, more, err := flow.Inputs(ctx, w.tx, w.caller, edge, maxInputs)
		if err != nil {
			return err
		}
		if more {
			d.cut("size")
		}
		if edge, err = w.place(ctx, d, made, places, step < q.Depth); err != nil {
			return err
		}
		for _, m := range made {
			r := &d.graph.Revisions[places[m.RevisionRef]]
			r.HiddenInputs = r.Node != "" && guarded[r.Node]
		}
	}
	return nil
}

// place fills in the revisions of one step, and returns those of the next. Without further, there is no next one.
func (w *walk) place(ctx context.Context, d *drawing, made []flow.MadeFrom, places map[flow.RevisionRef]int,
	further bool) (next []flow.RevisionRef, err error) {
	if err := w.loadAll(ctx, made); err != nil {
		return nil, err
	}

	for _, m := range made {
		place := places[m.RevisionRef]
		r := w.revision(d, place, m)
		for _, in := range m.Inputs {
			at, known := places[in]
			switch {
			case w.closed[in.Dataset]:
				continue
			case !known && (!further || len(places) == maxRevisions):
				if r.More = true; further {
					d.cut("size")
				} else {
					d.cut("depth")
				}
				continue
			case !known:
				at = len(places)
				places[in] = at
				d.graph.Revisions = append(d.graph.Revisions, RevisionNode{})
				next = append(next, in)
			}
			r.MadeFrom = append(r.MadeFrom, at)
		}
		d.graph.Revisions[place] = r
	}
	return next, nil
}

// loadAll loads the datasets that revisions were made from; some may have left the graph since.
func (w *walk) loadAll(ctx context.Context, made []flow.MadeFrom) error {
	missing := map[uuid.UUID]bool{}
	for _, m := range made {
		for _, in := range m.Inputs {
			if _, known := w.datasets[in.Dataset]; !known {
				missing[in.Dataset] = true
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}

	ids := make([]uuid.UUID, 0, len(missing))
	for id := range missing {
		ids = append(ids, id)
	}
	return w.load(ctx, ids)
}

// revision returns what may be told of a revision.
func (w *walk) revision(d *drawing, place int, m flow.MadeFrom) RevisionNode {
	of := w.datasets[m.Dataset]
	r := RevisionNode{ID: place, MadeFrom: []int{}}
	if !of.Readable {
		return r
	}
	r.Node, r.Dataset, r.Generation, r.Partition, r.Revision = d.nodes[m.Dataset], of.Name, &m.Version, m.Key,
		m.RevisionRef.Revision
	r.State, r.MadeAt, r.Rows, r.TakenOver = m.State, m.Made, m.Rows, m.Inherited
	r.TaskID, r.Attempt = m.Task, m.Attempt
	return r
}

// cut says that the answer is not whole.
func (d *drawing) cut(by string) {
	if d.graph.Truncated = true; d.graph.TruncatedBy != "size" {
		d.graph.TruncatedBy = by
	}
}

// isClosed reports whether a node stands for what is closed on one side of a dataset.
func (d *drawing) isClosed(node string) bool {
	for _, closed := range d.closed {
		if closed == node {
			return true
		}
	}
	return false
}
