package datasets

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/lineage"
)

// LineageCommand returns `dagctl lineage` with the given subcommands.
func LineageCommand(c *cli.CLI, subcommands ...*cobra.Command) *cobra.Command {
	var (
		up, down, columns bool
		depth, limit      int
		at, partition     string
	)
	cmd := &cobra.Command{
		Use:   "lineage DATASET[.COLUMN]",
		Short: "Show what a dataset or column is made from, and what is made from it",
		Long: `dagctl lineage shows as trees what a dataset is made from and what is made from it, over DAGs. With a column,
it shows what that comes from and what is computed from it: everything that a change of it concerns. Where nothing tells
which columns a job reads, it says so.

The argument is a dataset if there is one of that name, and otherwise a dataset, a dot and a column. Write a name that is
also a subcommand after two dashes: dagctl lineage -- NAME.

What you may not read is "hidden": nothing says what it is, or how much. --at shows the graph as it was when a version last
served (v3, or sales@v3 for one of another DAG) or at an instant; candidate is the version on its way.`,
		Example: `dagctl lineage daily_report --up
dagctl lineage daily_report.total --down
dagctl lineage daily_report --at v3
dagctl lineage daily_report --partition 2026-01-31`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if depth < 1 || depth > lineage.MaxDepth {
				return fault.New(fault.Invalid, "--depth %d is not between 1 and %d", depth, lineage.MaxDepth)
			}
			if limit < 1 || limit > lineage.MaxNodes {
				return fault.New(fault.Invalid, "--limit %d is not between 1 and %d", limit, lineage.MaxNodes)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			q := url.Values{"depth": {strconv.Itoa(depth)}, "limit": {strconv.Itoa(limit)}}
			if up != down {
				q.Set("direction", map[bool]string{true: lineage.Up, false: lineage.Down}[up])
			}
			for name, value := range map[string]string{"at": at, "partition": partition} {
				if value != "" {
					q.Set(name, value)
				}
			}
			if columns {
				q.Set("columns", "true")
			}
			g, err := askLineage(cmd.Context(), api, args[0], q)
			if err != nil {
				return err
			}
			return c.Print(g, func(w io.Writer) { writeLineage(c, w, g) })
		},
	}

	flags := cmd.Flags()
	flags.BoolVar(&up, "up", false, "only what it is made from")
	flags.BoolVar(&down, "down", false, "only what is made from it")
	flags.BoolVar(&columns, "columns", false, "also which columns are computed from which")
	flags.IntVar(&depth, "depth", lineage.DefaultDepth, "steps from the dataset")
	flags.IntVar(&limit, "limit", lineage.DefaultNodes, "the most datasets")
	flags.StringVar(&at, "at", "",
		"a version such as v3 or sales@v3, candidate, or an instant such as 2026-01-31T12:00:00Z")
	flags.StringVar(&partition, "partition", "", "also which revisions the one of this partition was made from")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"candidate"},
		cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(subcommands...)
	return cmd
}

// askLineage asks for the graph of a dataset or of a column, by what exists: the whole name is a dataset, or what is
// before one of its dots is, and the column is what comes after.
func askLineage(ctx context.Context, api *cli.Client, name string, q url.Values) (g lineage.Graph, err error) {
	whole := api.Get(ctx, cli.DatasetPath(name)+"/lineage", q, &g)
	if !fault.Is(whole, fault.NotFound) {
		return g, whole
	}

	for i, r := range name {
		if r != '.' || i == 0 || i == len(name)-1 {
			continue
		}
		q.Set("column", name[i+1:])
		missing := api.Get(ctx, cli.DatasetPath(name[:i])+"/lineage", q, &g)
		if !fault.Is(missing, fault.NotFound) {
			return g, missing
		}
		err = cmp.Or(err, missing)
	}
	return g, cmp.Or(err, whole)
}

// writeLineage writes a graph as two trees.
func writeLineage(c *cli.CLI, w io.Writer, g lineage.Graph) {
	t := lineageTree{w: w, style: c.Style(c.Out), nodes: map[string]lineage.Node{}, written: map[string]bool{}}
	for _, n := range g.Nodes {
		t.nodes[n.ID] = n
	}
	t.dag = t.nodes[g.Root].DAG

	root := g.Dataset
	if g.Column != "" {
		root += "." + g.Column
	}
	fmt.Fprintln(w, t.style.Bold(cli.OneLine(root, 400))+t.style.Dim(about(t.nodes[g.Root])+momentOf(g.At)))
	if g.Direction != lineage.Down {
		t.writeSide(g, "made from", "nothing", func(e lineage.Edge) (string, string) { return e.To, e.From })
	}
	if g.Direction != lineage.Up {
		t.writeSide(g, "read by", "nothing", func(e lineage.Edge) (string, string) { return e.From, e.To })
	}

	if len(g.Revisions) > 0 {
		fmt.Fprintln(w, "partition")
		writeRevisions(w, t.style, g.Revisions, 0, "", "└─ ", "   ", map[int]bool{})
	}
	switch {
	case g.TruncatedBy == "size":
		fmt.Fprintln(w, t.style.Busy("Truncated: there is more than --limit allows."))
	case g.Truncated:
		text := fmt.Sprintf("Truncated: it goes on beyond --depth %d, where it says more.", g.Depth)
		fmt.Fprintln(w, t.style.Busy(text))
	}
	if g.At.Records {
		const text = "Of some versions that served then, only the record is left: what they made is missing."
		fmt.Fprintln(w, t.style.Busy(text))
	}
}

// about says who makes the dataset of a node.
func about(n lineage.Node) string {
	parts := []string{}
	switch n.Kind {
	case lineage.KindHidden:
		parts = append(parts, "you may not read it")
	case lineage.KindSource:
		parts = append(parts, strings.TrimSpace(n.Source+" source"))
	case lineage.KindSink:
		parts = append(parts, "a job that makes no dataset")
	case lineage.KindExternal:
		what := "outside, in "
		if n.Job != "" {
			what = "a job outside, in "
		}
		parts = append(parts, what+n.Namespace)
	default:
		made := n.DAG + "/" + n.Job
		if n.DAGVersion > 0 {
			made += fmt.Sprintf(" v%d", n.DAGVersion)
		}
		if parts = append(parts, made); !n.Served {
			parts = append(parts, "not served")
		}

		if n.Owner != "" {
			parts = append(parts, "owner "+n.Owner)
		}
		if n.Late != nil {
			parts = append(parts, "late")
		}
		if n.NameNow != "" {
			parts = append(parts, "now "+n.NameNow)
		}
		if n.Deleted {
			parts = append(parts, "deleted since")
		}
	}
	return "  " + cli.OneLine(strings.Join(parts, ", "), 300)
}

func momentOf(m lineage.Moment) string {
	text := ""
	if m.Version > 0 {
		text += fmt.Sprintf(", as of %s v%d", m.DAG, m.Version)
	}
	if m.Time != nil {
		text += ", at " + m.Time.UTC().Format(time.RFC3339)
	}
	return text
}

// lineageTree writes the two sides of a graph. A node that is reached again is not unfolded again.
type lineageTree struct {
	w       io.Writer
	style   cli.Style
	dag     string // of the dataset in the middle
	nodes   map[string]lineage.Node
	written map[string]bool
}

// writeSide writes what is on one side of the dataset; ends returns the near and the far node of an edge.
func (t *lineageTree) writeSide(g lineage.Graph, title, none string, ends func(lineage.Edge) (near, far string)) {
	next := map[string][]lineage.Edge{}
	for _, e := range g.Edges {
		near, _ := ends(e)
		next[near] = append(next[near], e)
	}
	for _, edges := range next {
		slices.SortFunc(edges, func(a, b lineage.Edge) int {
			_, x := ends(a)
			_, y := ends(b)
			return cmp.Or(cmp.Compare(t.nodes[x].Label(), t.nodes[y].Label()), cmp.Compare(x, y))
		})
	}

	fmt.Fprintln(t.w, title)
	if len(next[g.Root]) == 0 {
		if t.nodes[g.Root].More {
			none = "more"
		}
		fmt.Fprintln(t.w, "└─ "+none)
	}
	t.written = map[string]bool{}
	t.write(next, g.Root, "", ends)
}

func (t *lineageTree) write(next map[string][]lineage.Edge, node, indent string,
	ends func(lineage.Edge) (near, far string)) {
	edges := next[node]
	for i, e := range edges {
		branch, below := "├─ ", "│  "
		if i == len(edges)-1 {
			branch, below = "└─ ", "   "
		}
		_, far := ends(e)
		n := t.nodes[far]
		text := cli.OneLine(n.Label(), 300)
		if n.DAG != "" && n.DAG != t.dag {
			text = t.style.Bold(text) // over DAGs
		}
		text += t.style.Dim(about(n)) + columnsOf(e)
		again := t.written[far] && len(next[far]) > 0
		switch {
		case again:
			text += t.style.Dim("  (as above)")
		case n.More && len(next[far]) == 0:
			text += t.style.Busy("  … more")
		}

		fmt.Fprintln(t.w, indent+branch+text)
		if t.written[far] = true; !again {
			t.write(next, far, indent+below, ends)
		}
	}
}

// columnsOf says which columns an edge is about.
func columnsOf(e lineage.Edge) string {
	if e.ColumnsUnknown {
		return "  columns unknown"
	}
	var all []string
	for _, c := range e.Columns {
		text := fmt.Sprintf("%s → %s %s", cmp.Or(c.From, "?"), cmp.Or(c.To, "?"), c.Transform)
		all = append(all, strings.TrimSpace(text))
	}
	if len(all) == 0 {
		return ""
	}
	return "  " + cli.OneLine(strings.Join(all, ", "), 300)
}

// writeRevisions writes a revision and what it was made from.
func writeRevisions(w io.Writer, style cli.Style, all []lineage.RevisionNode, at int, indent, branch, below string,
	written map[int]bool) {
	r := all[at]
	text := "hidden"
	if r.Dataset != "" {
		text = fmt.Sprintf("%s %s, revision %d", cli.OneLine(r.Dataset, 300), cli.Whole(r.Partition), r.Revision)
	}
	if r.MadeAt != nil {
		text += style.Dim(", made " + r.MadeAt.UTC().Format(time.RFC3339))
	}
	if r.TaskID != nil {
		text += style.Dim(" by task " + r.TaskID.String())
	}
	if r.TakenOver {
		text += style.Dim(", taken over")
	}
	if r.More {
		text += style.Busy("  … more")
	}
	again := written[at] && len(r.MadeFrom) > 0
	if again {
		text += style.Dim("  (as above)")
	}
	fmt.Fprintln(w, indent+branch+text)
	if written[at] = true; again {
		return
	}

	for i, from := range r.MadeFrom {
		branch, next := "├─ ", "│  "
		if i == len(r.MadeFrom)-1 && !r.HiddenInputs {
			branch, next = "└─ ", "   "
		}
		writeRevisions(w, style, all, from, indent+below, branch, next, written)
	}
	if r.HiddenInputs {
		fmt.Fprintln(w, indent+below+"└─ hidden"+style.Dim("  you may not read it"))
	}
}
