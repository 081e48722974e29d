// Package tasks has the commands about work: make tasks, list, retry, cancel, skip and purge them, read their logs,
// publish events, set timers, run backfills, and explain why something does not run.
package tasks

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/tasks"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/rest"
)

// Command returns `dagctl tasks` with its subcommands.
func Command(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List, show, retry, cancel, skip and purge tasks",
		Long: `List, show, retry, cancel, skip and purge tasks. Where a command wants a TASK, give its id, the first
characters of it, or DAG/JOB[@PARTITION]: the newest task of that job, or of that partition.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		tasksListCommand(c), tasksGetCommand(c), tasksEventsCommand(c), tasksLogsCommand(c),
		tasksVerbCommand(c, retryVerb), tasksVerbCommand(c, cancelVerb), tasksVerbCommand(c, skipVerb),
		tasksBulkCommand(c), tasksPurgeCommand(c),
	)
	return cmd
}

func tasksListCommand(c *cli.CLI) *cobra.Command {
	var (
		selection selectionFlags
		groupBy   string
		page      cli.Page
	)
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tasks, the newest first, or the errors that they failed with",
		Example: "  dagctl tasks list --dag us-flights --status Running\n  dagctl tasks list --dead --group-by error",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sel, _, err := selection.selection()
			if err != nil {
				return err
			}
			if groupBy != "" && groupBy != "error" {
				return fault.New(fault.Invalid, "--group-by %q is not known; tasks can be grouped by error", groupBy)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if groupBy == "error" {
				var groups rest.List[views.ErrorGroup]
				if err := api.Get(cmd.Context(), "/v1/tasks/errors", selectionQuery(sel), &groups); err != nil {
					return err
				}
				if len(groups.Items) == 0 {
					if err := requireNamed(cmd.Context(), api, sel); err != nil {
						return err
					}
				}
				return c.Print(groups.Items, func(w io.Writer) { writeErrorGroups(c, w, groups.Items) })
			}
			tasks, err := cli.Fetch[views.Task](cmd.Context(), api, "/v1/tasks", selectionQuery(sel), page)
			if err == nil && len(tasks) == 0 {
				err = requireNamed(cmd.Context(), api, sel)
			}
			if err != nil {
				return err
			}
			return c.Print(tasks, func(w io.Writer) { writeTasks(c, w, tasks) })
		},
	}

	selection.add(cmd)
	cmd.Flags().StringVar(&groupBy, "group-by", "",
		"error: one line per error, where ids, dates and numbers do not count")
	_ = cmd.RegisterFlagCompletionFunc("group-by",
		cobra.FixedCompletions([]string{"error"}, cobra.ShellCompDirectiveNoFileComp))
	page.AddFlags(cmd)
	return cmd
}

func writeTasks(c *cli.CLI, w io.Writer, tasks []views.Task) {
	style, now := c.Style(c.Out), c.Now()
	t := cli.Table{Style: style, Header: []string{
		"ID", "JOB", "PARTITION", "STATUS", "KIND", "ATTEMPT", "CREATED", "TOOK", "ERROR",
	}, Paint: map[int]func(string) string{3: style.Status}}
	for _, task := range tasks {
		status := task.Status
		if task.Waiting != "" {
			status = task.Waiting
		}
		t.Add(task.ID.String(), task.DAG+"/"+task.Job, cli.Whole(task.Partition), status, task.Kind,
			fmt.Sprintf("%d/%d", task.Tries(), task.MaxAttempts), cli.Ago(&task.CreatedAt, now), took(task),
			cli.OneLine(task.Error, 60))
	}
	t.Write(w)
}

// took returns how long the last attempt ran, or an empty text where the task does not tell.
func took(t views.Task) string {
	d, ended := t.Took()
	if !ended {
		return ""
	}
	return cli.Duration(d)
}

func tasksGetCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "get TASK",
		Short: "Show a task with its attempts and its last events",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, path, err := connectTo(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			var task views.TaskDetail
			if err := api.Get(cmd.Context(), path, nil, &task); err != nil {
				return err
			}

			return c.Print(task, func(w io.Writer) { writeTask(c, w, task) })
		},
	}
}

// writeTask writes a task with its attempts and events.
func writeTask(c *cli.CLI, w io.Writer, t views.TaskDetail) {
	style, now := c.Style(c.Out), c.Now()
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-14s %s\n", name, value)
		}
	}
	field("Task", t.ID.String())
	field("Job", t.DAG+"/"+t.Job)
	field("Kind", t.Kind)
	field("Status", strings.TrimSpace(style.Status(t.Status)+" "+t.Reason))
	field("Waiting", t.Waiting)
	if t.Retired && tasks.Retryable(tasks.Status(t.Status), tasks.Reason(t.Reason)) {
		field("Retry", "only by deploying its document again: no version runs this definition of its job any more")
	}
	field("Partition", cli.Whole(t.Partition))
	field("Attempt", fmt.Sprintf("%d, %d of %d failed", t.Attempt, t.Failures, t.MaxAttempts))
	field("Worker", t.Worker)
	field("State", cli.OneLine(t.State, 200))
	field("Created", strings.TrimSpace(cli.Ago(&t.CreatedAt, now)+by(t.CreatedBy)))
	field("Started", cli.Ago(t.StartedAt, now))
	if len(t.Attempts) > 0 {
		field("Ran", fmt.Sprintf("%s in %s", cli.Duration(time.Duration(t.RanSeconds*float64(time.Second))),
			plural.Of(len(t.Attempts), "attempt")))
	}
	field("Waited", cli.Duration(time.Duration(t.WaitedSeconds*float64(time.Second))))
	field("Next retry", cli.Ago(t.NextRetryAt, now))
	field("Error", cli.OneLine(t.Error, 2000))
	cli.WriteTraceback(w, "               ", t.Error)
	field("Metadata", cli.OneLine(compact(t.Metadata), 2000))
	field("Payload", cli.OneLine(compact(t.Payload), 2000))
	field("Inputs", cli.OneLine(compact(t.InputVersions), 2000))
	field("Outputs", cli.OneLine(compact(t.Outputs), 2000))
	field("Result", cli.OneLine(compact(t.Result), 2000))
	if len(t.Attempts) > 0 {
		fmt.Fprintln(w)
		attempts := cli.Table{
			Style: style, Header: []string{"ATTEMPT", "WORKER", "STARTED", "OUTCOME", "STATE", "ERROR"},
			Paint: map[int]func(string) string{3: style.Status},
		}
		for _, a := range t.Attempts {
			attempts.Add(fmt.Sprint(a.Number), cli.OneLine(a.Worker, 40), cli.Ago(&a.StartedAt, now), a.Outcome,
				cli.OneLine(a.Reached(), 40), cli.OneLine(a.Error, 100))
		}
		attempts.Write(w)
	}

	if len(t.Events) > 0 {
		fmt.Fprintln(w)
		writeEvents(c, w, t.Events)
	}
}

// by returns who asked for a task, as a part of a line.
func by(principal string) string {
	if principal == "" {
		return ""
	}
	return " by " + cli.OneLine(principal, 60)
}

func tasksEventsCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "events TASK",
		Short: "List a task's audit trail, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, path, err := connectTo(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			events, err := cli.Fetch[views.TaskEvent](cmd.Context(), api, path+"/events", nil, page)
			if err != nil {
				return err
			}
			return c.Print(events, func(w io.Writer) { writeEvents(c, w, events) })
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func writeEvents(c *cli.CLI, w io.Writer, events []views.TaskEvent) {
	style := c.Style(c.Out)
	t := cli.Table{
		Style: style, Header: []string{"AT", "ATTEMPT", "FROM", "TO", "ACTOR", "STATE", "DETAIL"},
		Paint: map[int]func(string) string{3: style.Status},
	}
	for _, e := range events {
		t.Add(e.At.Local().Format(time.DateTime), fmt.Sprint(e.Attempt), e.From, e.To, cli.OneLine(e.Actor, 30),
			cli.OneLine(e.State, 40), cli.OneLine(compact(e.Detail), 80))
	}
	t.Write(w)
}

// compact returns JSON for a cell, and an empty text for null.
func compact(v json.RawMessage) string {
	if len(v) == 0 || string(v) == "null" {
		return ""
	}
	return string(v)
}
