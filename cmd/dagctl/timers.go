package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/timers"
)

const timersPath = "/v1/scheduled-events"

func timerPath(id string) string { return timersPath + "/" + url.PathEscape(id) }

func (c *cli) timersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "timers",
		Short: "Make, list, change and delete timers",
		Long: `A timer is a moment in local time, in a zone, at which a timer job gets a task: once, every year, or by a cron schedule.
It is right across changes of the clocks, and survives every edit of its job.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.timersCreateCommand(), c.timersListCommand(), c.timersGetCommand(), c.timersUpdateCommand(), c.timersDeleteCommand())
	return cmd
}

func (c *cli) timersCreateCommand() *cobra.Command {
	var (
		n       timers.NewTimer
		payload string
	)
	cmd := &cobra.Command{
		Use:   "create DAG/JOB --at LOCAL --timezone ZONE",
		Short: "Make a timer",
		Example: `  dagctl timers create mail/birthday --at 2027-02-28T09:00 --timezone Europe/Berlin --repeat yearly --group user-17 --payload '{"user": 17}'
  dagctl timers create mail/digest --schedule "0 8 * * 1-5" --timezone America/New_York`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			var ok bool
			if n.DAG, n.Job, ok = strings.Cut(args[0], "/"); !ok || n.DAG == "" || n.Job == "" {
				return fault.New(fault.Invalid, "%q is not DAG/JOB", args[0])
			}
			if n.Schedule != "" && n.Repeat == "" {
				n.Repeat = "cron"
			}
			if n.Payload, err = c.readPayload(payload); err != nil {
				return err
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var t timers.Timer
			if err := api.post(cmd.Context(), timersPath, n, &t); err != nil {
				return err
			}
			return c.print(t, func(w io.Writer) { c.writeTimers(w, []timers.Timer{t}) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.Local, "at", "", "local time, such as 2027-03-14T09:00")
	f.StringVar(&n.Timezone, "timezone", "", "IANA zone, such as Europe/Berlin")
	f.StringVar(&n.Repeat, "repeat", "", "none, yearly or cron")
	f.StringVar(&n.Schedule, "schedule", "", "cron schedule on the zone's wall clock")
	f.StringVar(&n.Group, "group", "", "what it is moved and deleted with, such as a user")
	f.StringVar(&n.EventType, "event-type", "", "for people")
	f.StringVar(&n.IdempotencyKey, "idempotency-key", "", "a timer made with this key before is answered, not made again")
	f.StringVar(&payload, "payload", "", "JSON for its tasks; @FILE reads a file, @- standard input")
	_ = cmd.MarkFlagRequired("timezone")
	return cmd
}

func (c *cli) timersListCommand() *cobra.Command {
	var (
		page pageFlags
		f    timers.Filter
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List timers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			query := url.Values{}
			for name, value := range map[string]string{"dag": f.DAG, "job": f.Job, "group": f.Group, "status": f.Status} {
				if value != "" {
					query.Set(name, value)
				}
			}
			found, err := fetch[timers.Timer](cmd.Context(), api, timersPath, query, page)
			if err != nil {
				return err
			}
			return c.print(found, func(w io.Writer) { c.writeTimers(w, found) })
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.DAG, "dag", "", "only of this DAG")
	flags.StringVar(&f.Job, "job", "", "only of jobs with this name")
	flags.StringVar(&f.Group, "group", "", "only of this group")
	flags.StringVar(&f.Status, "status", "", "only PENDING, COMPLETED or FAILED ones")
	page.add(cmd)
	return cmd
}

func (c *cli) writeTimers(w io.Writer, found []timers.Timer) {
	now := time.Now()
	t := table{style: c.style(c.out), header: []string{"ID", "JOB", "GROUP", "STATUS", "LOCAL", "ZONE", "IN", "REPEAT", "FIRED", "PROBLEM"}}
	for _, timer := range found {
		repeat := timer.Repeat
		if timer.Schedule != "" {
			repeat = timer.Schedule
		}
		t.add(timer.ID.String(), timer.DAG+"/"+timer.Job, timer.Group, timer.Status, timer.Local, timer.Timezone, ago(&timer.UTC, now), repeat,
			ago(timer.ExecutedAt, now), oneLine(timer.FailureReason, 100))
	}
	t.write(w)
}

func (c *cli) timersGetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get ID",
		Short: "Show a timer",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var t timers.Timer
			if err := api.get(cmd.Context(), timerPath(args[0]), nil, &t); err != nil {
				return err
			}
			return c.print(t, func(w io.Writer) {
				c.writeTimers(w, []timers.Timer{t})
				if len(t.Payload) > 0 && string(t.Payload) != "null" {
					fmt.Fprintf(w, "\nPayload: %s\n", t.Payload)
				}
			})
		},
	}
}

func (c *cli) timersUpdateCommand() *cobra.Command {
	var (
		at, zone, repeat, schedule, group, payload string
		version                                    int
	)
	cmd := &cobra.Command{
		Use:   "update [ID]",
		Short: "Change a timer, or the zone of a group",
		Long: `Changes what is said of a timer. A new zone alone keeps the local time. Without an ID, --group and --timezone move all
pending timers of a group to another zone.`,
		Example: "  dagctl timers update 01a1fd91-0000-7000-8000-000000000000 --at 2027-03-15T09:00\n  dagctl timers update --group user-17 --timezone Asia/Tokyo",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			changed := cmd.Flags().Changed
			if len(args) == 0 {
				if group == "" || zone == "" {
					return fault.New(fault.Invalid, "name a timer, or a group and its new zone").WithHint("`dagctl timers update --group G --timezone ZONE`")
				}
				var moved timers.Counted
				path := timersPath + "?" + url.Values{"group": {group}}.Encode()
				if err := api.patch(cmd.Context(), path, map[string]string{"target_timezone": zone}, &moved); err != nil {
					return err
				}
				return c.print(moved, func(w io.Writer) {
					fmt.Fprintf(w, "%s of group %s moved to %s\n", count(moved.Timers, "timer"), group, zone)
				})
			}
			var change timers.TimerChange
			for name, field := range map[string]struct {
				value *string
				to    **string
			}{"at": {&at, &change.Local}, "timezone": {&zone, &change.Timezone}, "repeat": {&repeat, &change.Repeat},
				"schedule": {&schedule, &change.Schedule}, "group": {&group, &change.Group}} {
				if changed(name) {
					*field.to = field.value
				}
			}
			if changed("payload") {
				var text json.RawMessage
				if text, err = c.readPayload(payload); err != nil {
					return err
				}
				change.Payload = text
			}
			if changed("if-version") {
				api.header.Set("If-Match", fmt.Sprintf("%q", fmt.Sprint(version)))
			}
			var t timers.Timer
			if err := api.do(cmd.Context(), http.MethodPatch, timerPath(args[0]), change, &t); err != nil {
				return err
			}
			return c.print(t, func(w io.Writer) { c.writeTimers(w, []timers.Timer{t}) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "local time")
	f.StringVar(&zone, "timezone", "", "IANA zone")
	f.StringVar(&repeat, "repeat", "", "none, yearly or cron")
	f.StringVar(&schedule, "schedule", "", "cron schedule")
	f.StringVar(&group, "group", "", "its group; without an ID, the group whose zone changes")
	f.StringVar(&payload, "payload", "", "JSON for its tasks; @FILE reads a file, @- standard input")
	f.IntVar(&version, "if-version", 0, "only if the timer has this version still")
	return cmd
}

func (c *cli) timersDeleteCommand() *cobra.Command {
	var (
		group string
		yes   bool
	)
	cmd := &cobra.Command{
		Use:   "delete [ID]",
		Short: "Delete a timer, or all of a group",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 0) == (group == "") {
				return fault.New(fault.Invalid, "name a timer or a group, one of both")
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			if group == "" {
				return api.delete(cmd.Context(), timerPath(args[0]))
			}
			if err := c.confirm(yes, "Delete every timer of group %s?", group); err != nil {
				return err
			}
			var deleted timers.Counted
			path := timersPath + "?" + url.Values{"group": {group}}.Encode()
			if err := api.do(cmd.Context(), http.MethodDelete, path, nil, &deleted); err != nil {
				return err
			}
			return c.print(deleted, func(w io.Writer) { fmt.Fprintf(w, "%s deleted\n", count(deleted.Timers, "timer")) })
		},
	}
	cmd.Flags().StringVar(&group, "group", "", "every timer of this group")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
