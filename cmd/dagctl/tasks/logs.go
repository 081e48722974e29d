package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/tasklogs"
)

func tasksLogsCommand(c *cli.CLI) *cobra.Command {
	var (
		follow        bool
		attempt, tail int
	)
	cmd := &cobra.Command{
		Use:   "logs TASK",
		Short: "Print the log of a task",
		Long: `Prints what the task's program printed, or what its operator or handler logged, in all attempts or in
one. With --follow it continues until the task ends. With --output json it prints one JSON object per line.`,
		Example: `  dagctl tasks logs 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --follow
  dagctl tasks logs 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --attempt 2 --tail 50`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if tail < 0 || tail > 500 {
				return fault.New(fault.Invalid, "--tail %d is not between 1 and 500", tail)
			}
			if attempt < 0 {
				return fault.New(fault.Invalid, "--attempt %d is negative", attempt).
					WithHint("attempts count from 1; without it, the logs of all are shown")
			}
			api, path, err := connectTo(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			return showLog(cmd.Context(), c, api, path, attempt, tail, follow)
		},
	}

	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "continue until the task ends")
	cmd.Flags().IntVar(&attempt, "attempt", 0, "print only this attempt")
	cmd.Flags().IntVar(&tail, "tail", 0, "start with the last lines, this many")
	return cmd
}

// showLog prints the log of the task at a path of the API, page by page.
func showLog(ctx context.Context, c *cli.CLI, api *cli.Client, path string, attempt, tail int, follow bool) error {
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
		if err := api.Get(ctx, path+"/logs", query, &page); err != nil {
			return err
		}

		for _, line := range page.Items {
			if err := printLogLine(c, line); err != nil {
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

func printLogLine(c *cli.CLI, line tasklogs.Line) error {
	if c.Output != "table" {
		return json.NewEncoder(c.Out).Encode(line)
	}
	style := c.Style(c.Out)
	level := line.Level
	switch level {
	case "error":
		level = style.Bad(level)
	case "warn":
		level = style.Busy(level)
	}
	head := style.Dim(fmt.Sprintf("%s #%d ", line.At.UTC().Format("2006-01-02 15:04:05.000"), line.Attempt))
	_, err := io.WriteString(c.Out, head+level+" "+line.Text+"\n")
	return err
}
