package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

func (c *cli) tasksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List tasks, look into one, retry, cancel or skip it",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.tasksListCommand(), c.tasksGetCommand(), c.tasksEventsCommand(), c.tasksLogsCommand(), c.tasksBulkCommand(), c.tasksPurgeCommand(),
		c.tasksVerbCommand("retry", "Take failed or dead tasks up again", "Takes up tasks that failed, with all their attempts anew.",
			"  dagctl tasks retry 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --downstream\n  dagctl tasks retry --dag us-flights --dead --error timeout --rate 100/s --dry-run"),
		c.tasksVerbCommand("cancel", "Cancel tasks; running ones hear of it at their next heartbeat", "Ends tasks: at once where they are not running, otherwise when their worker hears of it.",
			"  dagctl tasks cancel --dag us-flights --job landing --status Queued --yes"),
		c.tasksVerbCommand("skip", "Give failed or dead tasks up, with a reason",
			"Gives up tasks that failed for good. A build that waits for their partitions goes on without them, and its plan says so.\nThe same work is not wanted again; new input makes a task of its own.",
			"  dagctl tasks skip 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --reason \"the file of that day is lost\"\n  dagctl tasks skip --dead --partition 2026-01-01..2026-01-31 --reason \"the station was closed\""))
	return cmd
}

func (c *cli) tasksListCommand() *cobra.Command {
	var (
		selection selectionFlags
		groupBy   string
		page      pageFlags
	)
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List tasks, the newest first, or what they failed with",
		Example: "  dagctl tasks list --dag us-flights --status Running\n  dagctl tasks list --dead --group-by error",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sel, _, err := selection.selection(nil)
			if err != nil {
				return err
			}
			if groupBy != "" && groupBy != "error" {
				return fault.New(fault.Invalid, "tasks are grouped by error, not by %q", groupBy)
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			if groupBy == "error" {
				var groups rest.List[dispatcher.ErrorGroup]
				if err := api.get(cmd.Context(), "/v1/tasks/errors", selectionQuery(sel), &groups); err != nil {
					return err
				}
				return c.print(groups.Items, func(w io.Writer) { c.writeErrorGroups(w, groups.Items) })
			}
			tasks, err := fetch[dispatcher.Task](cmd.Context(), api, "/v1/tasks", selectionQuery(sel), page)
			if err != nil {
				return err
			}
			return c.print(tasks, func(w io.Writer) { c.writeTasks(w, tasks) })
		},
	}
	selection.add(cmd)
	cmd.Flags().StringVar(&groupBy, "group-by", "", "error: one line for each fault, not counting ids, dates and numbers")
	_ = cmd.RegisterFlagCompletionFunc("group-by", cobra.FixedCompletions([]string{"error"}, cobra.ShellCompDirectiveNoFileComp))
	page.add(cmd)
	return cmd
}

func (c *cli) writeTasks(w io.Writer, tasks []dispatcher.Task) {
	style, now := c.style(c.out), time.Now()
	t := table{style: style, header: []string{"ID", "JOB", "PARTITION", "STATUS", "KIND", "ATTEMPT", "CREATED", "TOOK", "ERROR"},
		paint: map[int]func(string) string{3: style.status}}
	for _, task := range tasks {
		status := task.Status
		if task.Waiting != "" {
			status = task.Waiting
		}
		t.add(task.ID.String(), task.DAG+"/"+task.Job, oneLine(task.Partition, 30), status, task.Kind, fmt.Sprintf("%d/%d", task.Attempt, task.MaxAttempts),
			ago(&task.CreatedAt, now), took(task), oneLine(task.Error, 60))
	}
	t.write(w)
}

// took is how long the current attempt ran.
func took(t dispatcher.Task) string {
	if t.StartedAt == nil || t.CompletedAt == nil {
		return ""
	}
	return duration(t.CompletedAt.Sub(*t.StartedAt))
}

func (c *cli) tasksGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a task with its attempts and last events",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var task dispatcher.TaskDetail
			if err := api.do(cmd.Context(), http.MethodGet, "/v1/tasks/"+url.PathEscape(args[0]), nil, &task); err != nil {
				return err
			}
			return c.print(task, func(w io.Writer) { c.writeTask(w, task) })
		},
	}
}

func (c *cli) writeTask(w io.Writer, t dispatcher.TaskDetail) {
	style, now := c.style(c.out), time.Now()
	field := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%-14s %s\n", name, value)
		}
	}
	field("Task", t.ID.String())
	field("Job", t.DAG+"/"+t.Job)
	field("Kind", t.Kind)
	field("Status", strings.TrimSpace(style.status(t.Status)+" "+t.Reason))
	field("Waiting", t.Waiting)
	field("Partition", oneLine(t.Partition, 200))
	field("Attempt", fmt.Sprintf("%d, %d of %d failed", t.Attempt, t.Failures, t.MaxAttempts))
	field("Worker", t.Worker)
	field("State", oneLine(t.State, 200))
	field("Created", ago(&t.CreatedAt, now))
	field("Started", ago(t.StartedAt, now))
	field("Took", took(t.Task))
	field("Next retry", ago(t.NextRetryAt, now))
	field("Error", oneLine(t.Error, 2000))
	field("Payload", oneLine(compact(t.Payload), 2000))
	field("Inputs", oneLine(compact(t.InputVersions), 2000))
	field("Outputs", oneLine(compact(t.Outputs), 2000))
	field("Result", oneLine(compact(t.Result), 2000))
	if len(t.Attempts) > 0 {
		fmt.Fprintln(w)
		attempts := table{style: style, header: []string{"ATTEMPT", "WORKER", "STARTED", "OUTCOME", "ERROR"}, paint: map[int]func(string) string{3: style.status}}
		for _, a := range t.Attempts {
			attempts.add(fmt.Sprint(a.Number), oneLine(a.Worker, 40), ago(&a.StartedAt, now), a.Outcome, oneLine(a.Error, 100))
		}
		attempts.write(w)
	}
	if len(t.Events) > 0 {
		fmt.Fprintln(w)
		c.writeEvents(w, t.Events)
	}
}

func (c *cli) tasksEventsCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "events ID",
		Short: "List a task's audit trail, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			events, err := fetch[dispatcher.TaskEvent](cmd.Context(), api, "/v1/tasks/"+url.PathEscape(args[0])+"/events", nil, page)
			if err != nil {
				return err
			}
			return c.print(events, func(w io.Writer) { c.writeEvents(w, events) })
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) writeEvents(w io.Writer, events []dispatcher.TaskEvent) {
	style := c.style(c.out)
	t := table{style: style, header: []string{"AT", "ATTEMPT", "FROM", "TO", "ACTOR", "STATE", "DETAIL"}, paint: map[int]func(string) string{3: style.status}}
	for _, e := range events {
		t.add(e.At.Local().Format(time.DateTime), fmt.Sprint(e.Attempt), e.From, e.To, oneLine(e.Actor, 30), oneLine(e.State, 40), oneLine(compact(e.Detail), 80))
	}
	t.write(w)
}
