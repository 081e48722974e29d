package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

// selectionFlags say which tasks a command is about, by what is true of them.
type selectionFlags struct {
	dispatcher.TaskSelection
	after, before string
}

func (s *selectionFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.DAG, "dag", "", "of this DAG")
	flags.StringVar(&s.Job, "job", "", "of this job")
	flags.StringVar(&s.Status, "status", "", "Queued, Running, Completed, Failed or Canceled")
	flags.BoolVar(&s.Dead, "dead", false, "out of attempts, waiting for a person")
	flags.StringVar(&s.Kind, "kind", "", "reactive, source, manual, timer, build, backfill, invalidation or check")
	flags.StringVar(&s.Partition, "partition", "", "that make this partition, or one of A..B, both included")
	flags.StringVar(&s.Error, "error", "", "whose error contains this text")
	flags.StringVar(&s.ErrorGroup, "error-group", "", "whose error is of this group (`tasks list --group-by error` names them)")
	flags.StringVar(&s.after, "created-after", "", "made then or later: a date, or an RFC 3339 time")
	flags.StringVar(&s.before, "created-before", "", "made before then")
	for name, values := range map[string][]string{
		"status": {"Queued", "Running", "Completed", "Failed", "Canceled"},
		"kind":   {"reactive", "source", "manual", "timer", "build", "backfill", "invalidation", "check"},
	} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// selection reads the times and ids, and reports whether it says anything besides ids.
func (s *selectionFlags) selection(ids []string) (sel dispatcher.TaskSelection, filters bool, err error) {
	sel = s.TaskSelection
	for text, at := range map[*string]*time.Time{&s.after: &sel.CreatedAfter, &s.before: &sel.CreatedBefore} {
		if *text == "" {
			continue
		}
		if *at, err = parseTime(*text); err != nil {
			return sel, false, err
		}
	}
	filters = sel.DAG != "" || sel.Job != "" || sel.Status != "" || sel.Dead || sel.Kind != "" || sel.Partition != "" || sel.Error != "" ||
		sel.ErrorGroup != "" || !sel.CreatedAfter.IsZero() || !sel.CreatedBefore.IsZero()
	for _, text := range ids {
		id, err := uuid.Parse(text)
		if err != nil {
			return sel, filters, fault.New(fault.Invalid, "%q is not the id of a task", text)
		}
		sel.IDs = append(sel.IDs, id)
	}
	return sel, filters, nil
}

// parseTime reads a day, in the zone of whoever asks, or an instant.
func parseTime(text string) (time.Time, error) {
	if t, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fault.New(fault.Invalid, "%q is neither a date nor a time", text).WithHint("write 2026-01-31 or 2026-01-31T09:00:00Z")
	}
	return t, nil
}

// selectionQuery is a selection for an address.
func selectionQuery(s dispatcher.TaskSelection) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"dag": s.DAG, "job": s.Job, "status": s.Status, "kind": s.Kind, "partition": s.Partition,
		"error": s.Error, "error_group": s.ErrorGroup} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if s.Dead {
		q.Set("dead", "true")
	}
	for name, at := range map[string]time.Time{"created_after": s.CreatedAfter, "created_before": s.CreatedBefore} {
		if !at.IsZero() {
			q.Set(name, at.UTC().Format(time.RFC3339Nano))
		}
	}
	return q
}

// parseRate reads tasks a second: 100, or 100/s.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || rate <= 0 {
		return 0, fault.New(fault.Invalid, "%q is no rate", text).WithHint("write tasks a second, such as 100/s or 0.5/s")
	}
	return rate, nil
}

const bulkHelp = `
With IDs alone it is done to those. With filters it is done to all tasks that meet every one of them, after a question on a
terminal or with --yes, by the server and at --rate tasks a second: it goes on when this command is interrupted
("dagctl tasks bulk list" shows it, "dagctl tasks bulk cancel ID" ends it). Its tasks are fixed when it begins.`

// tasksVerbCommand is retry, cancel or skip: of some tasks by id, or of all that meet filters.
func (c *cli) tasksVerbCommand(verb, short, long, example string) *cobra.Command {
	var (
		selection         selectionFlags
		request           dispatcher.BulkRequest
		rate, ifMatch     string
		yes, wait, single bool
	)
	cmd := &cobra.Command{
		Use:     verb + " [ID...]",
		Short:   short,
		Long:    long + "\n" + strings.TrimPrefix(bulkHelp, "\n"),
		Example: example,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, filters, err := selection.selection(args)
			if err != nil {
				return err
			}
			if request.Rate, err = parseRate(rate); err != nil {
				return err
			}
			if !filters && len(args) == 0 {
				return fault.New(fault.Invalid, "which tasks?").WithHint("give IDs, or filters such as --dag or --dead")
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			single = !filters && request.Rate == 0 && !request.DryRun && !request.Downstream
			if single {
				return c.actOnEach(cmd.Context(), api, verb, args, request.Reason, ifMatch)
			}
			request.Filter = sel
			return c.actOnMany(cmd.Context(), api, verb, request, yes, wait)
		},
	}
	selection.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&rate, "rate", "", "at most so many tasks a second, such as 100/s")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only say how many tasks it would be")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	flags.BoolVar(&wait, "wait", true, "wait until the server has done it")
	flags.StringVar(&ifMatch, "if-match", "", "of a single task: only while its version is this one")
	if verb == "skip" {
		flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
		_ = cmd.MarkFlagRequired("reason")
	}
	if verb == "retry" {
		flags.BoolVar(&request.Downstream, "downstream", false, "the dead tasks of what is made from theirs, too")
	}
	return cmd
}

// actOnEach does a verb to tasks one after the other, and tells what became of them.
func (c *cli) actOnEach(ctx context.Context, api *client, verb string, ids []string, reason, ifMatch string) error {
	if ifMatch != "" {
		if len(ids) > 1 {
			return fault.New(fault.Invalid, "--if-match is for a single task")
		}
		api.header.Set("If-Match", strconv.Quote(strings.Trim(ifMatch, `"`)))
	}
	tasks := []dispatcher.Task{}
	for _, id := range ids {
		var body any
		if verb == "skip" {
			body = dispatcher.SkipRequest{Reason: reason}
		}
		var task dispatcher.Task
		if err := api.post(ctx, "/v1/tasks/"+url.PathEscape(id)+":"+verb, body, &task); err != nil {
			return err
		}
		tasks = append(tasks, task)
	}
	return c.print(tasks, func(w io.Writer) { c.writeTasks(w, tasks) })
}

// actOnMany has the server do a verb to a selection of tasks.
func (c *cli) actOnMany(ctx context.Context, api *client, verb string, request dispatcher.BulkRequest, yes, wait bool) error {
	path := "/v1/tasks:" + verb
	dry := request
	dry.DryRun = true
	var b dispatcher.BulkAction
	if err := api.post(ctx, path, dry, &b); err != nil {
		return err
	}
	if request.DryRun || b.Matched == 0 {
		return c.print(b, func(w io.Writer) { fmt.Fprintf(w, "%s to %s.\n", count(int(b.Matched), "task"), verb) })
	}
	if err := c.confirm(yes, "%s %s?", upperFirst(verb), count(int(b.Matched), "task")); err != nil {
		return err
	}
	if err := api.post(ctx, path, request, &b); err != nil {
		return err
	}
	progress := c.progress()
	defer progress.end()
	for wait && b.Status == "Running" {
		progress.show(int(b.Done+b.Refused), int(b.Matched), fmt.Sprintf("%s: %d of %d tasks", verb, b.Done+b.Refused, b.Matched))
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			progress.end()
			fmt.Fprintf(c.err, "The server goes on; `dagctl tasks bulk cancel %s` ends it.\n", b.ID)
			return err
		}
		if err := api.do(ctx, http.MethodGet, bulkPath(b.ID.String()), nil, &b); err != nil {
			return err
		}
	}
	progress.end()
	return c.print(b, func(w io.Writer) { c.writeBulks(w, []dispatcher.BulkAction{b}) })
}

func bulkPath(id string) string { return "/v1/bulk-actions/" + url.PathEscape(id) }

func (c *cli) writeBulks(w io.Writer, found []dispatcher.BulkAction) {
	style, now := c.style(w), time.Now()
	t := table{style: style, header: []string{"ID", "VERB", "STATUS", "TASKS", "DONE", "REFUSED", "RATE", "BY", "STARTED"}, paint: map[int]func(string) string{2: style.status}}
	for _, b := range found {
		rate := ""
		if b.Rate > 0 {
			rate = strconv.FormatFloat(b.Rate, 'f', -1, 64) + "/s"
		}
		t.add(b.ID.String(), b.Verb, b.Status, fmt.Sprint(b.Matched), fmt.Sprint(b.Done), fmt.Sprint(b.Refused), rate, oneLine(b.CreatedBy, 30), ago(&b.CreatedAt, now))
	}
	t.write(w)
}

func (c *cli) tasksBulkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bulk",
		Short: "List what is being done to many tasks, or end it",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var page pageFlags
	list := &cobra.Command{
		Use:   "list",
		Short: "List bulk retries, cancellations and skips, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			found, err := fetch[dispatcher.BulkAction](cmd.Context(), api, "/v1/bulk-actions", nil, page)
			if err != nil {
				return err
			}
			return c.print(found, func(w io.Writer) { c.writeBulks(w, found) })
		},
	}
	page.add(list)
	cancel := &cobra.Command{
		Use:   "cancel ID",
		Short: "Do it to no more tasks",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var b dispatcher.BulkAction
			if err := api.post(cmd.Context(), bulkPath(args[0])+"/cancel", struct{}{}, &b); err != nil {
				return err
			}
			return c.print(b, func(w io.Writer) { c.writeBulks(w, []dispatcher.BulkAction{b}) })
		},
	}
	cmd.AddCommand(list, cancel)
	return cmd
}

func (c *cli) writeErrorGroups(w io.Writer, groups []dispatcher.ErrorGroup) {
	style, now := c.style(w), time.Now()
	t := table{style: style, header: []string{"GROUP", "TASKS", "FIRST", "LAST", "JOBS", "EXAMPLE", "ERROR"}, paint: map[int]func(string) string{6: style.bad}}
	for _, g := range groups {
		t.add(g.Group, fmt.Sprint(g.Count), ago(&g.FirstSeen, now), ago(&g.LastSeen, now), oneLine(strings.Join(g.Jobs, " "), 40), g.Example.String(), oneLine(g.Error, 120))
	}
	t.write(w)
}
