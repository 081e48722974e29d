package datasets

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web"
)

func datasetsPartitionsCommand(c *cli.CLI) *cobra.Command {
	var (
		page     cli.Page
		states   bool
		position int64
	)
	cmd := &cobra.Command{
		Use:   "partitions NAME",
		Short: "List the partitions that readers see, or the states of all",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			query := url.Values{}
			if cmd.Flags().Changed("position") {
				if position < 0 {
					return fault.New(fault.Invalid, "--position %d: positions begin at 0", position)
				}
				query.Set("position", strconv.FormatInt(position, 10))
			}
			if states {
				return printStates(cmd.Context(), c, api, args[0], page)
			}
			partitions, err := cli.Fetch[registry.Revision](cmd.Context(), api,
				cli.DatasetPath(args[0])+"/partitions", query, page)
			if err != nil {
				return err
			}

			return c.Print(partitions, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{
					"PARTITION", "REVISION", "ROWS", "SIZE", "MADE", "TASK",
				}}
				ranges := len(partitions) > 0 && partitions[0].RangeEnd != nil
				if ranges {
					t.Header = slices.Insert(t.Header, 1, "POSITIONS")
				}
				for _, p := range partitions {
					cells := []string{cli.Whole(p.Key), fmt.Sprint(p.Revision), fmt.Sprint(p.Rows),
						web.Size(p.Bytes), cli.Ago(&p.Materialized, now), p.TaskID.String()}
					if ranges {
						cells = slices.Insert(cells, 1, web.Positions(p.RangeStart, p.RangeEnd))
					}
					t.Add(cells...)
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	cmd.Flags().Int64Var(&position, "position", 0, "only the range, or the segment of a cursor, that covers this "+
		"position")
	cmd.Flags().BoolVar(&states, "states", false, "all partitions with their states, the last key first: "+
		"present, missing, held, rejected, failed, stale, building")
	cmd.MarkFlagsMutuallyExclusive("states", "position")
	return cmd
}

// printStates prints the partitions of a dataset with their states.
func printStates(ctx context.Context, c *cli.CLI, api *cli.Client, name string, page cli.Page) error {
	cells, err := cli.Fetch[views.Cell](ctx, api, cli.DatasetPath(name)+"/grid", nil, page)
	if err != nil {
		return err
	}
	return c.Print(cells, func(w io.Writer) {
		now, style := c.Now(), c.Style(c.Out)
		t := cli.Table{Style: style, Header: []string{"PARTITION", "STATE", "REVISION", "ROWS", "SIZE", "MADE", "TASK"},
			Paint: map[int]func(string) string{1: style.Status}}
		for _, cell := range cells {
			task := ""
			if cell.Task != nil {
				task = cell.Task.String()
			}
			t.Add(cli.Whole(cell.Partition), string(cell.State), fmt.Sprint(cell.Revision), fmt.Sprint(cell.Rows),
				web.Size(cell.Bytes), cli.Ago(cell.Materialized, now), task)
		}
		t.Write(w)
	})
}
