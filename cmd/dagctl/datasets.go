package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web"
)

func (c *cli) datasetsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "datasets",
		Short: "Search the catalogue and look into datasets",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.datasetsListCommand(), c.datasetsGetCommand(), c.datasetsPreviewCommand(), c.datasetsPartitionsCommand(), c.datasetsVersionsCommand(), c.datasetsPurgeCommand(),
		c.datasetsDiffCommand(), c.datasetsAcceptCommand(), c.datasetsRejectCommand())
	return cmd
}

// datasetPath addresses a dataset; the slashes of an unpublished one's name are part of the segment.
func datasetPath(name string) string { return "/v1/datasets/" + url.PathEscape(name) }

func (c *cli) datasetsListCommand() *cobra.Command {
	var (
		search, tag, dag string
		all, late        bool
		page             pageFlags
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the datasets you may read",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
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
			datasets, err := fetch[registry.Dataset](cmd.Context(), api, "/v1/datasets", query, page)
			if err != nil {
				return err
			}
			return c.print(datasets, func(w io.Writer) {
				now := time.Now()
				t := table{style: c.style(c.out), header: []string{"DATASET", "MADE BY", "PARTITIONS", "ROWS", "SIZE", "UPDATED", "LATE", "TAGS", "DESCRIPTION"}}
				for _, d := range datasets {
					t.add(d.Name, d.DAG+"/"+d.Job, fmt.Sprint(d.Partitions), fmt.Sprint(d.Rows), web.Size(d.Bytes), ago(d.UpdatedAt, now), lateSince(d.Late, now),
						oneLine(strings.Join(d.Tags, ","), 30), oneLine(d.Description, 60))
				}
				t.write(w)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&search, "search", "", "part of the name or of the description")
	flags.StringVar(&tag, "tag", "", "with this tag")
	flags.StringVar(&dag, "dag", "", "made by this DAG")
	flags.BoolVar(&late, "late", false, "only those that have not what was due by now")
	flags.BoolVar(&all, "all", false, "those without a published name too")
	page.add(cmd)
	return cmd
}

// lateSince says what is overdue, and since when; empty: nothing.
func lateSince(late *registry.Late, now time.Time) string {
	if late == nil {
		return ""
	}
	return strings.TrimSpace(late.Partition + " was due " + ago(&late.DueAt, now))
}

func (c *cli) datasetsGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get NAME",
		Short: "Show a dataset's columns, figures and checks",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var d registry.Dataset
			if err := api.get(cmd.Context(), datasetPath(args[0]), nil, &d); err != nil {
				return err
			}
			return c.print(d, func(w io.Writer) { c.writeDataset(w, d) })
		},
	}
}

func (c *cli) writeDataset(w io.Writer, d registry.Dataset) {
	style, now := c.style(c.out), time.Now()
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-12s %s\n", name, value)
		}
	}
	field("Dataset", style.bold(d.Name))
	field("Description", oneLine(d.Description, 300))
	field("Owner", oneLine(d.Owner, 100))
	field("Tags", oneLine(strings.Join(d.Tags, ", "), 100))
	field("Made by", fmt.Sprintf("%s/%s, output %d", d.DAG, d.Job, d.Output))
	field("Storage", d.Storage)
	field("Readers", strings.Join(d.ReadRoles, ", "))
	if d.Version == nil {
		field("Served", "nothing yet")
	} else {
		field("Served", d.Version.String())
	}
	field("Partitions", fmt.Sprint(d.Partitions))
	field("Rows", fmt.Sprint(d.Rows))
	field("Size", web.Size(d.Bytes))
	field("Updated", ago(d.UpdatedAt, now))
	field("Late", lateSince(d.Late, now))
	if len(d.Columns) > 0 {
		fmt.Fprintln(w)
		t := table{style: style, header: []string{"COLUMN", "TYPE", "DESCRIPTION"}}
		for _, column := range d.Columns {
			t.add(column.Name, column.Type, oneLine(column.Description, 100))
		}
		t.write(w)
	}
	if len(d.Checks) > 0 {
		fmt.Fprintln(w)
		t := table{style: style, header: []string{"CHECK", "PARTITION", "OUTCOME", "SEVERITY", "FAILURES", "ERROR"}, paint: map[int]func(string) string{2: style.status}}
		for _, check := range d.Checks {
			t.add(oneLine(check.Name, 40), oneLine(check.Partition, 30), check.Outcome, check.Severity, fmt.Sprint(check.Failures), oneLine(check.Error, 80))
		}
		t.write(w)
	}
	c.writeWithheld(w, d.Withheld)
}

func (c *cli) datasetsPreviewCommand() *cobra.Command {
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
			api, err := c.connect()
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
			if err := api.get(cmd.Context(), datasetPath(args[0])+"/rows", q, &rows); err != nil {
				return err
			}
			return c.print(rows, func(w io.Writer) { writeRows(w, c.style(c.out), rows) })
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 20, "rows to show")
	cmd.Flags().IntVar(&offset, "offset", 0, "rows to skip")
	cmd.Flags().StringVar(&partition, "partition", "", "of this partition only")
	cmd.Flags().StringVar(&version, "version", "", "live (default), candidate, a DAG version such as v3, or a dataset version")
	return cmd
}

// writeRows shows rows of data as a table.
func writeRows(w io.Writer, style style, rows query.Rows) {
	t := table{style: style}
	for _, column := range rows.Columns {
		t.header = append(t.header, oneLine(column.Name, 40))
	}
	for _, row := range rows.Rows {
		cells := make([]string, len(row))
		for i, value := range row {
			cells[i] = oneLine(cell(value), 60)
		}
		t.add(cells...)
	}
	t.write(w)
}

// cell is one value of data, for people.
func cell(value any) string {
	switch v := value.(type) {
	case nil:
		return ""
	case string:
		return v
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(text)
}

func (c *cli) datasetsPartitionsCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "partitions NAME",
		Short: "List the partitions that readers see",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			partitions, err := fetch[registry.Revision](cmd.Context(), api, datasetPath(args[0])+"/partitions", nil, page)
			if err != nil {
				return err
			}
			return c.print(partitions, func(w io.Writer) {
				now := time.Now()
				t := table{style: c.style(c.out), header: []string{"PARTITION", "REVISION", "ROWS", "SIZE", "MADE", "TASK"}}
				for _, p := range partitions {
					t.add(oneLine(p.Key, 60), fmt.Sprint(p.Revision), fmt.Sprint(p.Rows), web.Size(p.Bytes), ago(&p.Materialized, now), p.TaskID.String())
				}
				t.write(w)
			})
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) datasetsVersionsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "versions NAME",
		Short: "List the generations of a dataset, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			generations, err := fetch[registry.Generation](cmd.Context(), api, datasetPath(args[0])+"/versions", nil, pageFlags{limit: 500})
			if err != nil {
				return err
			}
			return c.print(generations, func(w io.Writer) {
				now := time.Now()
				t := table{style: c.style(c.out), header: []string{"", "DATASET VERSION", "SINCE", "STORAGE", "PARTITIONS", "ROWS", "SIZE", "CREATED"}}
				for _, g := range generations {
					mark := ""
					if g.Served {
						mark = "*"
					}
					partitions := fmt.Sprint(g.Partitions)
					if g.Inherited > 0 {
						partitions += fmt.Sprintf(", %d kept", g.Inherited)
					}
					t.add(mark, g.ID.String(), fmt.Sprintf("v%d", g.DAGVersion), g.Storage, partitions, fmt.Sprint(g.Rows), web.Size(g.Bytes), ago(&g.CreatedAt, now))
				}
				t.write(w)
			})
		},
	}
}
