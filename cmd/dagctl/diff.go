package main

import (
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) diffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff DAG V1 V2",
		Short: "Compare two versions of a DAG: their text, and their datasets",
		Long: `Prints a unified diff of the DAG file and the files it names, and what going from V1 to V2 does to each dataset, by the same
function that plans a deploy.`,
		Example: "  dagctl diff us-flights v7 v8",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			q := url.Values{}
			for i, name := range []string{"from", "to"} {
				n, err := versionNumber(args[i+1])
				if err != nil {
					return err
				}
				q.Set(name, strconv.Itoa(n))
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var diff registry.VersionDiff
			if err := api.get(cmd.Context(), dagPath(args[0])+"/diff", q, &diff); err != nil {
				return err
			}
			return c.print(diff, func(w io.Writer) {
				c.writeUnified(w, diff.Text)
				if diff.Text != "" {
					fmt.Fprintln(w)
				}
				c.writeChanges(w, diff.Changes)
			})
		},
	}
}

// writeUnified shows a unified diff, in color on a terminal. Control characters of the text do not reach it.
func (c *cli) writeUnified(w io.Writer, text string) {
	style := c.style(w)
	for line := range strings.Lines(text) {
		line = oneLine(strings.TrimRight(line, "\r\n"), 2000)
		switch {
		case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"):
			line = style.bold(line)
		case strings.HasPrefix(line, "+"):
			line = style.good(line)
		case strings.HasPrefix(line, "-"):
			line = style.bad(line)
		}
		fmt.Fprintln(w, line)
	}
}

func (c *cli) datasetsDiffCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "diff NAME FROM TO",
		Short: "Compare two versions of a dataset: columns, rows per partition, keys",
		Long: `FROM and TO are live, candidate (the version on its way), a DAG version such as v3, or a dataset version. Where the
dataset has a unique key, some of the keys that differ are shown. For writers.`,
		Example: "  dagctl datasets diff airport_delays live candidate",
		Args:    cobra.ExactArgs(3),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var diff query.Diff
			if err := api.get(cmd.Context(), datasetPath(args[0])+"/diff", url.Values{"from": {args[1]}, "to": {args[2]}}, &diff); err != nil {
				return err
			}
			return c.print(diff, func(w io.Writer) { c.writeDatasetDiff(w, diff) })
		},
	}
}

func (c *cli) writeDatasetDiff(w io.Writer, d query.Diff) {
	style := c.style(w)
	fmt.Fprintf(w, "%s: %s (%d partitions, %d rows) → %s (%d partitions, %d rows)\n", style.bold(d.Dataset),
		d.From.Name, d.From.Partitions, d.From.Rows, d.To.Name, d.To.Partitions, d.To.Rows)
	if d.From.Version == d.To.Version {
		fmt.Fprintln(w, "It is the same generation.")
		return
	}
	if len(d.Columns) > 0 {
		t := table{style: style, header: []string{"COLUMN", "FROM", "TO"}}
		for _, column := range d.Columns {
			t.add(oneLine(column.Name, 60), oneLine(column.From, 40), oneLine(column.To, 40))
		}
		fmt.Fprintln(w)
		t.write(w)
	}
	if len(d.Partitions) > 0 {
		t := table{style: style, header: []string{"PARTITION", "ROWS FROM", "ROWS TO"}}
		for _, p := range d.Partitions {
			t.add(oneLine(p.Key, 60), optionalCount(p.From), optionalCount(p.To))
		}
		fmt.Fprintln(w)
		t.write(w)
	}
	fmt.Fprintf(w, "\n%s with another number of rows, %d with the same.\n", count(int(d.Differ), "partition"), d.Same)
	if k := d.Keys; k != nil {
		fmt.Fprintf(w, "By %s, in the first %s: %d only in %s, %d only in %s, %d with other values.\n", strings.Join(k.Columns, ", "),
			count(k.Partitions, "partition"), k.OnlyFrom, d.From.Name, k.OnlyTo, d.To.Name, k.Changed)
		t := table{style: style, header: append([]string{"", "PARTITION"}, k.Columns...)}
		for _, row := range k.Sample {
			cells := []string{row.Change, oneLine(row.Partition, 40)}
			for _, value := range row.Key {
				cells = append(cells, oneLine(cell(value), 60))
			}
			t.add(cells...)
		}
		if len(k.Sample) > 0 {
			t.write(w)
		}
	}
}

func optionalCount(n *int64) string {
	if n == nil {
		return "-"
	}
	return strconv.FormatInt(*n, 10)
}
