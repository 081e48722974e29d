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
)

func (c *cli) tasksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tasks",
		Short: "List tasks, look into one, retry, cancel or skip it",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.tasksListCommand(), c.tasksGetCommand(), c.tasksEventsCommand(),
		c.tasksActCommand("retry", "Take a failed or dead task up again"),
		c.tasksActCommand("cancel", "Cancel a task; a running one hears of it at its next heartbeat"), c.tasksSkipCommand())
	return cmd
}

func (c *cli) tasksListCommand() *cobra.Command {
	var (
		dag, job, status, partition string
		dead                        bool
		page                        pageFlags
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List tasks, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			query := url.Values{}
			for name, value := range map[string]string{"dag": dag, "job": job, "status": status, "partition": partition} {
				if value != "" {
					query.Set(name, value)
				}
			}
			if dead {
				query.Set("dead", "true")
			}
			tasks, err := fetch[dispatcher.Task](cmd.Context(), api, "/v1/tasks", query, page)
			if err != nil {
				return err
			}
			return c.print(tasks, func(w io.Writer) { c.writeTasks(w, tasks) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&dag, "dag", "", "of this DAG")
	flags.StringVar(&job, "job", "", "of this job")
	flags.StringVar(&status, "status", "", "Queued, Running, Completed, Failed or Canceled")
	flags.StringVar(&partition, "partition", "", "that make this partition")
	flags.BoolVar(&dead, "dead", false, "out of attempts, waiting for a person")
	_ = cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(
		[]string{"Queued", "Running", "Completed", "Failed", "Canceled"}, cobra.ShellCompDirectiveNoFileComp))
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

func (c *cli) tasksActCommand(action, short string) *cobra.Command {
	return &cobra.Command{
		Use:   action + " ID...",
		Short: short,
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			tasks := []dispatcher.Task{}
			for _, id := range args {
				var task dispatcher.Task
				if err := api.post(cmd.Context(), "/v1/tasks/"+url.PathEscape(id)+":"+action, nil, &task); err != nil {
					return err
				}
				tasks = append(tasks, task)
			}
			return c.print(tasks, func(w io.Writer) { c.writeTasks(w, tasks) })
		},
	}
}
