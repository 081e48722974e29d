package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/tasklogs"
)

func (c *cli) tasksLogsCommand() *cobra.Command {
	var (
		follow        bool
		attempt, tail int
	)
	cmd := &cobra.Command{
		Use:   "logs TASK",
		Short: "Print what a task said while it ran",
		Long: `Prints the log of a task, of all its attempts unless one is named: what its program printed, or its operator or handler
logged. With --follow it goes on until the task has ended. With --output json there is one JSON object a line.`,
		Example: "  dagctl tasks logs 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --follow\n  dagctl tasks logs 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --attempt 2 --tail 50",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if tail < 0 || tail > 500 {
				return fault.New(fault.Invalid, "--tail is between 1 and 500, not %d", tail)
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			return c.showLog(cmd.Context(), api, args[0], attempt, tail, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the task has ended")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "of this attempt only")
	cmd.Flags().IntVar(&tail, "tail", 0, "begin with the last so many lines")
	return cmd
}

func (c *cli) showLog(ctx context.Context, api *client, task string, attempt, tail int, follow bool) error {
	query := url.Values{"limit": {"500"}}
	if attempt > 0 {
		query.Set("attempt", strconv.Itoa(attempt))
	}
	if tail > 0 {
		query.Set("tail", "true")
		query.Set("limit", strconv.Itoa(tail))
	}
	for {
		var page tasklogs.LogPage
		if err := api.get(ctx, "/v1/tasks/"+url.PathEscape(task)+"/logs", query, &page); err != nil {
			return err
		}
		for _, line := range page.Items {
			if err := c.printLogLine(line); err != nil {
				return err
			}
		}
		if page.Ended || !follow && (len(page.Items) == 0 || tail > 0) {
			return nil
		}
		query.Del("tail")
		query.Set("limit", "500")
		query.Set("cursor", page.NextCursor)
		if page.NextCursor == "" {
			query.Del("cursor")
		}
		if follow {
			query.Set("wait_seconds", "20")
		}
	}
}

func (c *cli) printLogLine(line tasklogs.Line) error {
	if c.output != "table" {
		return json.NewEncoder(c.out).Encode(line)
	}
	style := c.style(c.out)
	level := line.Level
	switch level {
	case "error":
		level = style.bad(level)
	case "warn":
		level = style.busy(level)
	}
	_, err := io.WriteString(c.out, style.dim(fmt.Sprintf("%s #%d ", line.At.UTC().Format("2006-01-02 15:04:05.000"), line.Attempt))+level+" "+line.Text+"\n")
	return err
}
