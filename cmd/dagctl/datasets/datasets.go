// Package datasets has the commands about datasets and their data: search, show, compare and query them, accept and
// reject revisions, invalidate and purge partitions, and collect garbage.
package datasets

import (
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
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web"
)

// Command returns `dagctl datasets` with its subcommands.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "datasets",
		Short: "Search, show, compare and change datasets",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(visibilityCommand(c),
		datasetsListCommand(c), datasetsGetCommand(c), datasetsPreviewCommand(c), datasetsExportCommand(c),
		datasetsPartitionsCommand(c),
		datasetsVersionsCommand(c), datasetsDiffCommand(c), datasetsAcceptCommand(c), datasetsRejectCommand(c),
		datasetsPurgeCommand(c),
	)
	return cmd
}

func datasetsListCommand(c *cli.CLI) *cobra.Command {
	var (
		search, tag, dag string
		all, late        bool
		page             cli.Page
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the datasets you may read",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}

			query := url.Values{}
			for name, value := range map[string]string{"search": search, "tag": tag, "dag": dag} {
				if value != "" {
					query.Set(name, value)
				}
			}

			if all {
				query.Set("unpublished", "true")
			}
			if late {
				query.Set("late", "true")
			}
			datasets, err := cli.Fetch[registry.Dataset](cmd.Context(), api, "/v1/datasets", query, page)
			if err == nil && len(datasets) == 0 {
				err = requireNamed(cmd.Context(), api, dag, tag)
			}
			if err != nil {
				return err
			}

			return c.Print(datasets, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{
					"DATASET", "MADE BY", "PARTITIONS", "ROWS", "SIZE", "UPDATED", "LATE", "TAGS", "DESCRIPTION",
				}}
				if search != "" {
					t.Header = append(t.Header, "MATCHED")
				}

				for _, d := range datasets {
					cells := []string{d.Name, d.DAG + "/" + d.Job, fmt.Sprint(d.Partitions), fmt.Sprint(d.Rows),
						web.Size(d.Bytes), cli.Ago(d.UpdatedAt, now), LateSince(d.Late, now),
						cli.OneLine(strings.Join(d.Tags, ","), 30), cli.OneLine(d.Description, 60)}
					if d.Matched != nil {
						cells = append(cells, cli.OneLine(d.Matched.Field+": "+d.Matched.Text, 60))
					}
					t.Add(cells...)
				}
				t.Write(w)
			})
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&search, "search", "", "words of name, description, columns, tags or owner, the best match first; "+
		"typing errors are forgiven")
	flags.StringVar(&tag, "tag", "", "only datasets with this tag")
	flags.StringVar(&dag, "dag", "", "only datasets of this DAG")
	flags.BoolVar(&late, "late", false, "only late datasets, which lack data that was due")
	flags.BoolVar(&all, "all", false, "also datasets without a published name")
	page.AddFlags(cmd)
	return cmd
}

// requireNamed returns an error where filters of datasets, which have selected nothing, name a DAG or a tag that is not
// there.
func requireNamed(ctx context.Context, api *cli.Client, dag, tag string) error {
	if err := cli.RequireDAG(ctx, api, dag); err != nil || tag == "" {
		return err
	}
	missing := fault.New(fault.NotFound, "no dataset has the tag %s", tag).
		WithHint("`dagctl datasets list` shows the tags")
	return cli.RequireSome(ctx, api, "/v1/datasets", url.Values{"tag": {tag}, "unpublished": {"true"}}, missing)
}

// LateSince returns what is overdue and since when, or an empty text.
func LateSince(late *registry.Late, now time.Time) string {
	if late == nil {
		return ""
	}
	return strings.TrimSpace(late.Partition + " was due " + cli.Ago(&late.DueAt, now))
}

func datasetsPreviewCommand(c *cli.CLI) *cobra.Command {
	var (
		limit, offset int
		partition     string
		version       string
	)
	cmd := &cobra.Command{
		Use:   "preview NAME",
		Short: "Show rows of a dataset",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case limit < 1 || limit > 1000:
				return fault.New(fault.Invalid, "--limit %d is not between 1 and 1000", limit)
			case offset < 0:
				return fault.New(fault.Invalid, "--offset %d is negative", offset)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			q := url.Values{"limit": {strconv.Itoa(limit)}, "offset": {strconv.Itoa(offset)}}
			if partition != "" {
				q.Set("partition", partition)
			}
			if version != "" {
				q.Set("version", version)
			}
			var rows query.Rows
			if err := api.Get(cmd.Context(), cli.DatasetPath(args[0])+"/rows", q, &rows); err != nil {
				return err
			}
			if c.Output == cli.OutputCSV {
				return query.WriteCSV(c.Out, query.Answer{Columns: rows.Columns, Rows: rows.Rows})
			}
			if len(rows.Columns) == 0 {
				defer fmt.Fprintf(c.Err, "%[1]s has no rows: `dagctl why %[1]s` says what it waits for\n", args[0])
			}
			return c.Print(rows, func(w io.Writer) { WriteRows(w, c.Style(c.Out), rows) })
		},
	}

	cmd.Flags().IntVar(&limit, "limit", 20, "number of rows to show")
	cmd.Flags().IntVar(&offset, "offset", 0, "number of rows to skip first")
	cmd.Flags().StringVar(&partition, "partition", "", "show only this partition")
	cmd.Flags().StringVar(&version, "version", "",
		"live (default), candidate, a DAG version such as v3, or a dataset version")
	return cmd
}

// WriteRows writes rows of data as a table.
func WriteRows(w io.Writer, style cli.Style, rows query.Rows) {
	t := cli.Table{Style: style}
	for _, column := range rows.Columns {
		t.Header = append(t.Header, cli.OneLine(column.Name, 40))
	}
	for _, row := range rows.Rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = cli.Cell(query.Text(value))
		}
		t.Add(cells...)
	}
	t.Write(w)
}

func datasetsVersionsCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "versions NAME",
		Short: "List the versions of a dataset, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			path := cli.DatasetPath(args[0]) + "/versions"
			generations, err := cli.FetchWhole[registry.Generation](cmd.Context(), api, path)
			if err != nil {
				return err
			}

			return c.Print(generations, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{
					"", "DATASET VERSION", "SINCE", "STORAGE", "PARTITIONS", "ROWS", "SIZE", "CREATED",
					"COLUMNS CHANGED",
				}}
				ranges := slices.ContainsFunc(generations, func(g registry.Generation) bool {
					return g.EndPosition != nil
				})
				if ranges {
					t.Header = slices.Insert(t.Header, 5, "POSITIONS")
				}
				for _, g := range generations {
					mark := ""
					if g.Served {
						mark = "*"
					}
					partitions := fmt.Sprint(g.Partitions)
					if g.Inherited > 0 {
						partitions += fmt.Sprintf(", %d kept", g.Inherited)
					}
					cells := []string{mark, g.ID.String(), fmt.Sprintf("v%d", g.DAGVersion), g.Storage,
						partitions, fmt.Sprint(g.Rows), web.Size(g.Bytes), cli.Ago(&g.CreatedAt, now),
						cli.OneLine(web.Changes(g.Changes), 100)}
					if ranges {
						cells = slices.Insert(cells, 5, web.Positions(g.FirstPosition, g.EndPosition))
					}
					t.Add(cells...)
				}

				t.Write(w)
			})
		},
	}
}
