package datasets

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/query"
)

func datasetsDiffCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "diff NAME FROM TO",
		Short: "Compare two versions of a dataset: columns, rows per partition, keys",
		Long: `FROM and TO are live, candidate (the version being built), a DAG version such as v3, or a dataset
version. If the dataset has a unique key, the output shows some of the keys that differ. For writers.`,
		Example: "  dagctl datasets diff airport_delays live candidate",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var diff query.Diff
			if err := api.Get(cmd.Context(), cli.DatasetPath(args[0])+"/diff",
				url.Values{"from": {args[1]}, "to": {args[2]}}, &diff); err != nil {
				return err
			}

			return c.Print(diff, func(w io.Writer) { writeDatasetDiff(c, w, diff) })
		},
	}
}

func writeDatasetDiff(c *cli.CLI, w io.Writer, d query.Diff) {
	style := c.Style(w)
	fmt.Fprintf(w, "%s: %s (%d partitions, %d rows) → %s (%d partitions, %d rows)\n", style.Bold(d.Dataset),
		d.From.Name, d.From.Partitions, d.From.Rows, d.To.Name, d.To.Partitions, d.To.Rows)
	if d.From.Version == d.To.Version {
		fmt.Fprintln(w, "Both are the same dataset version.")
		return
	}
	if len(d.Columns) > 0 {
		t := cli.Table{Style: style, Header: []string{"COLUMN", "FROM", "TO"}}
		for _, column := range d.Columns {
			t.Add(cli.OneLine(column.Name, 60), cli.OneLine(column.From, 40), cli.OneLine(column.To, 40))
		}
		fmt.Fprintln(w)
		t.Write(w)
	}

	if len(d.Partitions) > 0 {
		t := cli.Table{Style: style, Header: []string{"PARTITION", "ROWS FROM", "ROWS TO"}}
		for _, p := range d.Partitions {
			t.Add(cli.Whole(p.Key), optionalCount(p.From), optionalCount(p.To))
		}
		fmt.Fprintln(w)
		t.Write(w)
	}

	fmt.Fprintf(w, "\n%s with different numbers of rows, %d with the same.\n",
		plural.Of(int(d.Differ), "partition"), d.Same)
	if k := d.Keys; k != nil {
		fmt.Fprintf(w, "By %s, in the first %s: %d only in %s, %d only in %s, %d with different values.\n",
			strings.Join(k.Columns, ", "),
			plural.Of(k.Partitions, "partition"), k.OnlyFrom, d.From.Name, k.OnlyTo, d.To.Name, k.Changed)
		t := cli.Table{Style: style, Header: append([]string{"", "PARTITION"}, k.Columns...)}
		for _, row := range k.Sample {
			cells := []string{row.Change, cli.Whole(row.Partition)}
			for _, value := range row.Key {
				cells = append(cells, cli.Cell(query.Text(value)))
			}
			t.Add(cells...)
		}
		if len(k.Sample) > 0 {
			t.Write(w)
		}
	}
}

func optionalCount(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}
