package lineage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/flow"
)

// Lineage answers where datasets, their columns and their revisions come from, and what is made from them.
type Lineage struct {
	requests *pgxpool.Pool
	registry *registry.Registry
	near     int // steps from the root that walks take one by one
}

// New returns a Lineage that reads as requests do, under row-level security.
func New(requests *pgxpool.Pool, r *registry.Registry) (*Lineage, error) {
	if requests == nil || r == nil {
		return nil, errors.New("lineage: the requests' pool and the registry are needed")
	}
	return &Lineage{requests, r, nearSteps}, nil
}

// The directions of a graph.
const (
	Up   = "up"   // what the dataset is made from
	Down = "down" // what is made from it
	Both = "both"
)

// The bounds of a graph.
const (
	DefaultDepth = 10
	MaxDepth     = 100
	DefaultNodes = 1000
	MaxNodes     = 5000
	maxColumns   = 50_000 // edges of columns
	maxRevisions = 1000
	maxInputs    = 500 // of one revision
)

// Query says which graph is asked for. Zero bounds are the defaults.
type Query struct {
	Dataset   string // name or id
	Direction string // Up, Down or Both, which is the default
	Depth     int    // steps from the dataset
	Nodes     int    // the most nodes
	At        string // a moment as flow.ServingAt takes it; empty: now
	Columns   bool   // edges have their edges of columns
	Column    string // only what this column of the dataset comes from, and what is computed from it
	Whole     bool   // with Column: also what does not concern it, which is not traced
	Partition string // with the revisions that the one of this partition was made from
}

// Kinds of nodes.
const (
	KindDataset = "dataset"
	KindSource  = "source" // a job that reads no dataset
	KindSink    = "sink"   // a job that makes no dataset
	KindHidden  = "hidden" // something that the caller may not read
	// KindExternal is a dataset of another system, or a job of one that only reads or only makes.
	KindExternal = "external"
)

// Graph is a part of the graph of datasets, around one of them.
type Graph struct {
	Dataset     string         `json:"dataset" doc:"Its name at that moment"`
	Root        string         `json:"root" doc:"Its node"`
	At          Moment         `json:"at"`
	Direction   string         `json:"direction" enum:"up,down,both"`
	Depth       int            `json:"depth" doc:"Steps from the dataset, at most"`
	Column      string         `json:"column,omitempty"`
	Nodes       []Node         `json:"nodes" nullable:"false" doc:"The dataset first, then by their distance"`
	Edges       []Edge         `json:"edges" nullable:"false"`
	Truncated   bool           `json:"truncated" doc:"The graph goes on where nodes have more"`
	TruncatedBy string         `json:"truncated_by,omitempty" enum:"depth,size" doc:"What ended it; size: there are more nodes or columns than an answer has"`
	Revisions   []RevisionNode `json:"revisions,omitempty" doc:"Of the partition that was asked for: its revision first, then what that was made from"`
}

// Moment says when a graph is.
type Moment struct {
	Time    *time.Time `json:"time,omitempty" doc:"The instant, or the last one at which the version served; absent: now"`
	DAG     string     `json:"dag,omitempty" doc:"Whose version was asked for"`
	Version int        `json:"version,omitempty"`
	Records bool       `json:"records,omitempty" doc:"Of some versions that served then, only the record is left: what they read and made is missing"`
}

// Node is a dataset or a job. What is hidden has an id of this answer, a kind and a level, and nothing else.
type Node struct {
	ID         string         `json:"id" doc:"Of a dataset, its id; of a job, job:DAG/JOB; of what is outside, external:NAMESPACE/NAME or external-job:NAMESPACE/NAME; of what is hidden, a number that means nothing in another answer"`
	Kind       string         `json:"kind" enum:"dataset,source,sink,hidden,external" doc:"source: a job that reads no dataset; sink: a job that makes none; hidden: something that the caller may not read; external: a dataset of another system, or a job of one that only reads or only makes"`
	Level      int            `json:"level" doc:"Steps from the dataset: negative for what it is made from"`
	Dataset    string         `json:"dataset,omitempty" doc:"Its name at that moment"`
	Namespace  string         `json:"namespace,omitempty" doc:"Of what is outside"`
	NameNow    string         `json:"name_now,omitempty" doc:"If it is called otherwise now"`
	Deleted    bool           `json:"deleted,omitempty" doc:"The dataset was deleted since"`
	DAG        string         `json:"dag,omitempty"`
	Job        string         `json:"job,omitempty" doc:"That makes the dataset, or is the node"`
	Output     *int           `json:"output,omitempty"`
	DAGVersion int            `json:"dag_version,omitempty" doc:"The version of the DAG; absent if that serves nothing"`
	Generation *uuid.UUID     `json:"generation,omitempty" doc:"The dataset version"`
	Served     bool           `json:"served" doc:"Readers see the generation, or saw it at that moment"`
	Published  bool           `json:"published,omitempty"`
	Owner      string         `json:"owner,omitempty"`
	Source     string         `json:"source,omitempty" doc:"Kind of a source: cron, poll, webhook, manual, timer or always_on"`
	Late       *registry.Late `json:"late,omitempty"`
	Columns    []string       `json:"columns,omitempty" doc:"With column: those that it comes from, or that are computed from it"`
	More       bool           `json:"more,omitempty" doc:"The graph goes on here"`
	Traced     bool           `json:"-"` // with the query's Column
}

// Edge says that a job reads From and makes To. Where one of them is hidden, it says nothing of the job, and nothing of
// the hidden one's columns.
type Edge struct {
	From           string    `json:"from" doc:"A node" example:"flights.raw"`
	To             string    `json:"to" doc:"A node" example:"flights.daily"`
	DAG            string    `json:"dag,omitempty" doc:"Of the job"`
	Namespace      string    `json:"namespace,omitempty" doc:"Of the job, if it is outside"`
	Job            string    `json:"job,omitempty"`
	Columns        []Columns `json:"columns,omitempty" doc:"If columns were asked for"`
	ColumnsUnknown bool      `json:"columns_unknown,omitempty" doc:"Nothing says which columns the job reads of it: it may be any"`
	Traced         bool      `json:"-"` // with the query's Column
}

// Columns is an edge of columns.
type Columns struct {
	From      string    `json:"from,omitempty"`
	To        string    `json:"to,omitempty"`
	Transform Transform `json:"transform,omitempty" enum:"identity,expression,aggregate"`
}

// Graph returns the graph around a dataset that the caller may read, all of one moment.
func (l *Lineage) Graph(ctx context.Context, caller authz.Caller, q Query) (g Graph, err error) {
	q.defaults()
	err = pg.InOrgSnapshot(ctx, l.requests, caller.OrgID, func(ctx context.Context, tx pgx.Tx) error {
		g, err = l.graph(ctx, tx, caller, q)
		return err
	})
	if err != nil {
		return Graph{}, fmt.Errorf("lineage of %s: %w", q.Dataset, err)
	}
	return g, nil
}

func (q *Query) defaults() {
	if q.Direction == "" {
		q.Direction = Both
	}
	if q.Depth <= 0 {
		q.Depth = DefaultDepth
	}
	if q.Nodes <= 0 {
		q.Nodes = DefaultNodes
	}
	q.Depth, q.Nodes = min(q.Depth, MaxDepth), min(q.Nodes, MaxNodes)
}

func (l *Lineage) graph(ctx context.Context, tx pgx.Tx, caller authz.Caller, q Query) (Graph, error) {
	root, err := l.registry.FindDataset(ctx, tx, caller, q.Dataset)
	if err != nil {
		return Graph{}, err
	}
	at, err := flow.ServingAt(ctx, tx, caller, root.DAG, q.At)
	if err != nil {
		return Graph{}, err
	}

	closed, err := flow.Closed(ctx, tx, caller, at)
	if err != nil {
		return Graph{}, err
	}
	w := &walk{tx: tx, caller: caller, at: at, most: q.Nodes, count: 1, root: root.ID, closed: closed,
		near: l.near, whole: newWhole(), jobs: map[uuid.UUID]flow.Job{}, datasets: map[uuid.UUID]flow.Dataset{},
		levels: map[uuid.UUID]int{root.ID: 0}, more: map[uuid.UUID]bool{}}
	if err := w.load(ctx, []uuid.UUID{root.ID}); err != nil {
		return Graph{}, err
	}
	start := w.datasets[root.ID]
	switch {
	case !start.Readable: // as it is served it can be read, but not as it was
		return Graph{}, fault.New(fault.NotFound, "there is no dataset %q at that moment", q.Dataset).
			WithHint("leave the moment out to see it as it is served")
	case start.Generation == nil && (at.At != nil || at.Version != 0):
		return Graph{}, fault.New(fault.NotFound, "dataset %s did not exist at that moment", root.Name).
			WithHint("`dagctl history %s` lists when which version of its DAG served", root.DAG)
	}

	if err := w.follow(ctx, q.Direction, q.Depth); err != nil {
		return Graph{}, err
	}
	return l.finish(ctx, w, q)
}

// finish draws the walk, and adds the columns and revisions that were asked for.
func (l *Lineage) finish(ctx context.Context, w *walk, q Query) (Graph, error) {
	d := w.draw(q.Depth)
	g := &d.graph
	g.Dataset, g.Direction, g.Depth, g.Column = w.datasets[w.root].Name, q.Direction, q.Depth, q.Column
	g.At = Moment{Time: w.at.At, DAG: w.at.DAG, Version: w.at.Version, Records: w.at.Records}

	if q.Columns || q.Column != "" {
		if err := w.columns(ctx, d, q.Column); err != nil {
			return Graph{}, err
		}
	}
	if err := w.outside(ctx, d, q); err != nil {
		return Graph{}, err
	}
	if q.Column != "" {
		if g.trace(q.Column); !q.Whole {
			g.prune()
		}
	}
	g.redact()

	if q.Partition != "" {
		if err := w.revisions(ctx, d, q); err != nil {
			return Graph{}, err
		}
	}
	return *g, nil
}

// Node returns a node by its id.
func (g *Graph) Node(id string) *Node {
	if i := slices.IndexFunc(g.Nodes, func(n Node) bool { return n.ID == id }); i >= 0 {
		return &g.Nodes[i]
	}
	return nil
}

// Label names a node for people.
func (n Node) Label() string {
	switch n.Kind {
	case KindDataset:
		return n.Dataset
	case KindHidden:
		return "hidden"
	case KindExternal:
		return cmp.Or(n.Dataset, n.Job)
	}
	return strings.Trim(n.DAG+"/"+n.Job, "/")
}
