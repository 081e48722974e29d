package tasks

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/timers"
)

const timersPath = "/v1/scheduled-events"

func timerPath(id string) string { return timersPath + "/" + url.PathEscape(id) }

// TimersCommand returns `dagctl timers` with its subcommands.
func TimersCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "timers",
		Short: "Create, list, change and delete timers",
		Long: `A timer is a local time in a zone at which the server creates a task of a timer job: once, every year, or
by a cron schedule. It follows daylight saving time, and survives every edit of its job.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(timersCreateCommand(c), timersListCommand(c), timersGetCommand(c), timersUpdateCommand(c),
		timersDeleteCommand(c))
	return cmd
}

func timersCreateCommand(c *cli.CLI) *cobra.Command {
	var (
		n              timers.NewTimer
		payload, batch string
	)
	cmd := &cobra.Command{
		Use:   "create DAG/JOB --at LOCAL --timezone ZONE",
		Short: "Create a timer, or a batch of them",
		Example: `  dagctl timers create mail/birthday --at 2027-02-28T09:00 --timezone Europe/Berlin --repeat yearly \
    --group user-17 --payload '{"user": 17}'
  dagctl timers create mail/digest --schedule "0 8 * * 1-5" --timezone America/New_York
  dagctl timers create mail/birthday --batch birthdays.ndjson --timezone Europe/Berlin --repeat yearly`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var ok bool
			if n.DAG, n.Job, ok = strings.Cut(args[0], "/"); !ok || n.DAG == "" || n.Job == "" {
				return fault.New(fault.Invalid, "%q is not DAG/JOB", args[0])
			}
			if n.Payload, err = readPayload(c, payload); err != nil {
				return err
			}
			if batch != "" {
				return createTimers(cmd.Context(), c, batch, n)
			}
			byCron(&n)
			if n.Timezone == "" {
				return fault.New(fault.Invalid, "--timezone is missing").WithHint("such as Europe/Berlin")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var t timers.Timer
			if err := api.Post(cmd.Context(), timersPath, n, &t); err != nil {
				return err
			}
			return c.Print(t, func(w io.Writer) { writeTimers(c, w, []timers.Timer{t}) })
		},
	}

	f := cmd.Flags()
	f.StringVar(&n.Local, "at", "", "local time, such as 2027-03-14T09:00")
	f.StringVar(&n.Timezone, "timezone", "", "IANA zone, such as Europe/Berlin")
	f.StringVar(&n.Repeat, "repeat", "", "none, yearly or cron")
	f.StringVar(&n.Schedule, "schedule", "", "cron schedule in the local time of the zone")
	f.StringVar(&n.Group, "group", "",
		"group of timers that can be moved and deleted together, such as those of a user")
	f.StringVar(&n.EventType, "event-type", "", "note for people what the timer is for")
	f.StringVar(&n.IdempotencyKey, "idempotency-key", "",
		"if a timer was created with this key before, answer with that timer and create none")
	f.StringVar(&payload, "payload", "", "JSON for its tasks; @FILE reads a file, @- standard input")
	f.StringVar(&batch, "batch", "",
		"file with one timer a line, {\"target_timestamp_local\": …, \"delivery_payload\": …, "+
			"\"idempotency_key\": …}; the other flags give what lines lack; - reads standard input")
	cmd.MarkFlagsMutuallyExclusive("batch", "idempotency-key")
	return cmd
}

// byCron completes a timer that has a schedule and does not say that it repeats by it.
func byCron(n *timers.NewTimer) {
	if n.Schedule != "" && n.Repeat == "" {
		n.Repeat = "cron"
	}
}

// createTimers creates the timers of a file.
func createTimers(ctx context.Context, c *cli.CLI, path string, given timers.NewTimer) error {
	items, err := readBatch(c, path, given, "timers")
	if err != nil {
		return err
	}
	for i := range items {
		byCron(&items[i])
	}
	api, err := c.Connect()
	if err != nil {
		return err
	}

	all, err := inBatches(c, items, "timer", func(part []timers.NewTimer) ([]timers.Created, error) {
		var made timers.CreatedBatch
		err := api.Post(ctx, timersPath+"/batch", timers.Batch{Timers: part}, &made)
		return made.Timers, err
	})
	if err != nil {
		return err
	}
	known := 0
	for _, t := range all {
		if !t.IsNew {
			known++
		}
	}
	return c.Print(all, func(w io.Writer) {
		fmt.Fprintf(w, "%s created; %d had a known idempotency key.\n", plural.Of(len(all)-known, "timer"), known)
	})
}

func timersListCommand(c *cli.CLI) *cobra.Command {
	var (
		page cli.Page
		f    timers.Filter
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List timers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.OneOf("status", f.Status, timerStatuses...); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			query := url.Values{}
			for name, value := range map[string]string{"dag": f.DAG, "job": f.Job,
				"group": f.Group, "status": f.Status} {
				if value != "" {
					query.Set(name, value)
				}
			}

			found, err := cli.Fetch[timers.Timer](cmd.Context(), api, timersPath, query, page)
			if err == nil && len(found) == 0 {
				err = cli.RequireJob(cmd.Context(), api, f.DAG, f.Job)
			}
			if err != nil {
				return err
			}
			return c.Print(found, func(w io.Writer) { writeTimers(c, w, found) })
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&f.DAG, "dag", "", "only timers of this DAG")
	flags.StringVar(&f.Job, "job", "", "only timers of jobs with this name")
	flags.StringVar(&f.Group, "group", "", "only timers of this group")
	flags.StringVar(&f.Status, "status", "", "only timers that are PENDING, PROCESSING, COMPLETED or FAILED")
	_ = cmd.RegisterFlagCompletionFunc("status",
		cobra.FixedCompletions(timerStatuses, cobra.ShellCompDirectiveNoFileComp))
	page.AddFlags(cmd)
	return cmd
}

// timerStatuses are the words of --status.
var timerStatuses = []string{"PENDING", "PROCESSING", "COMPLETED", "FAILED"}

func writeTimers(c *cli.CLI, w io.Writer, found []timers.Timer) {
	now := c.Now()
	t := cli.Table{Style: c.Style(c.Out), Header: []string{
		"ID", "JOB", "GROUP", "STATUS", "LOCAL", "ZONE", "IN", "REPEAT", "FIRED", "PROBLEM",
	}}
	for _, timer := range found {
		repeat := timer.Repeat
		if timer.Schedule != "" {
			repeat = timer.Schedule
		}
		t.Add(timer.ID.String(), timer.DAG+"/"+timer.Job, timer.Group, timer.Status, timer.Local, timer.Timezone,
			cli.Ago(&timer.UTC, now), repeat, cli.Ago(timer.ExecutedAt, now), cli.OneLine(timer.FailureReason, 100))
	}
	t.Write(w)
}

func timersGetCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a timer",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var t timers.Timer
			if err := api.Get(cmd.Context(), timerPath(args[0]), nil, &t); err != nil {
				return err
			}

			return c.Print(t, func(w io.Writer) {
				writeTimers(c, w, []timers.Timer{t})
				if len(t.Payload) > 0 && string(t.Payload) != "null" {
					fmt.Fprintf(w, "\nPayload: %s\n", t.Payload)
				}
			})
		},
	}
}

func timersUpdateCommand(c *cli.CLI) *cobra.Command {
	var (
		at, zone, repeat, schedule, group, payload string
		version                                    int
		dryRun                                     bool
	)
	cmd := &cobra.Command{
		Use:   "update [ID]",
		Short: "Change a timer, or the zone of a group",
		Long: `Changes the fields of a timer that flags name. With a new zone alone, the timer keeps its local time.
Without an ID, --group and --timezone move all pending timers of a group to another zone.`,
		Example: `  dagctl timers update 01a1fd91-0000-7000-8000-000000000000 --at 2027-03-15T09:00
  dagctl timers update --group user-17 --timezone Asia/Tokyo`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}

			if len(args) == 0 {
				return moveTimers(cmd.Context(), c, api, group, zone, dryRun)
			}
			if dryRun {
				return errOneTimer()
			}

			// Only the fields whose flags were given change.
			changed := cmd.Flags().Changed
			var change timers.TimerChange
			for name, field := range map[string]struct {
				value *string
				to    **string
			}{
				"at": {&at, &change.Local}, "timezone": {&zone, &change.Timezone}, "repeat": {&repeat, &change.Repeat},
				"schedule": {&schedule, &change.Schedule}, "group": {&group, &change.Group},
			} {
				if changed(name) {
					*field.to = field.value
				}
			}
			if changed("payload") {
				if change.Payload, err = readPayload(c, payload); err != nil {
					return err
				}
			}

			if changed("if-version") {
				api.IfMatch(strconv.Itoa(version))
			}
			var t timers.Timer
			if err := api.Patch(cmd.Context(), timerPath(args[0]), change, &t); err != nil {
				return err
			}
			return c.Print(t, func(w io.Writer) { writeTimers(c, w, []timers.Timer{t}) })
		},
	}

	f := cmd.Flags()
	f.StringVar(&at, "at", "", "local time")
	f.StringVar(&zone, "timezone", "", "IANA zone")
	f.StringVar(&repeat, "repeat", "", "none, yearly or cron")
	f.StringVar(&schedule, "schedule", "", "cron schedule")
	f.StringVar(&group, "group", "", "group of the timer; without an ID, the group whose zone changes")
	f.StringVar(&payload, "payload", "", "JSON for its tasks; @FILE reads a file, @- standard input")
	f.IntVar(&version, "if-version", 0, "version that the timer must have")
	f.BoolVar(&dryRun, "dry-run", false, "only print how many timers the group has")
	return cmd
}

// moveTimers moves the pending timers of a group to another zone.
func moveTimers(ctx context.Context, c *cli.CLI, api *cli.Client, group, zone string, dryRun bool) error {
	if group == "" || zone == "" {
		return fault.New(fault.Invalid, "name a timer, or a group and its new zone").
			WithHint("`dagctl timers update --group G --timezone ZONE`")
	}
	if dryRun {
		if _, err := timers.Zone(zone); err != nil {
			return err
		}
		return printGroup(ctx, c, api, group, "move")
	}

	var moved timers.Counted
	path := timersPath + "?" + url.Values{"group": {group}}.Encode()
	if err := api.Patch(ctx, path, map[string]string{"target_timezone": zone}, &moved); err != nil {
		return err
	}
	return c.Print(moved, func(w io.Writer) {
		fmt.Fprintf(w, "%s of group %s moved to %s\n", plural.Of(moved.Timers, "timer"), group, zone)
	})
}

// errOneTimer returns what is wrong with a dry run for one timer.
func errOneTimer() error {
	return fault.New(fault.Invalid, "--dry-run is for a group").WithHint("`dagctl timers get ID` shows one timer")
}

// printGroup prints how many timers of a group there are to do something with.
func printGroup(ctx context.Context, c *cli.CLI, api *cli.Client, group, verb string) error {
	found, err := cli.Fetch[timers.Timer](ctx, api, timersPath, url.Values{"group": {group}},
		cli.Page{Limit: math.MaxInt})
	if err != nil {
		return err
	}
	return c.Print(timers.Counted{Timers: len(found)}, func(w io.Writer) {
		fmt.Fprintf(w, "%s to %s.\n", plural.Of(len(found), "timer"), verb)
	})
}

func timersDeleteCommand(c *cli.CLI) *cobra.Command {
	var (
		group       string
		yes, dryRun bool
	)
	cmd := &cobra.Command{
		Use:   "delete [ID]",
		Short: "Delete a timer, or all timers of a group",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (group == "") {
				return fault.New(fault.Invalid, "name either a timer or a group")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			if group == "" && dryRun {
				return errOneTimer()
			}
			if group == "" {
				return api.Delete(cmd.Context(), timerPath(args[0]))
			}
			if dryRun {
				return printGroup(cmd.Context(), c, api, group, "delete")
			}
			if err := c.Confirm(yes, "Delete every timer of group %s?", group); err != nil {
				return err
			}

			var deleted timers.Counted
			path := timersPath + "?" + url.Values{"group": {group}}.Encode()
			if err := api.Do(cmd.Context(), http.MethodDelete, path, nil, &deleted); err != nil {
				return err
			}
			return c.Print(deleted, func(w io.Writer) {
				fmt.Fprintf(w, "%s deleted\n", plural.Of(deleted.Timers, "timer"))
			})
		},
	}

	cmd.Flags().StringVar(&group, "group", "", "delete every timer of this group")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print how many timers the group has")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
