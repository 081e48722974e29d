package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
)

// selectionFlags are the flags that select tasks.
type selectionFlags struct {
	views.TaskSelection
	after, before string
}

func (s *selectionFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.DAG, "dag", "", "only tasks of this DAG")
	flags.StringVar(&s.Job, "job", "", "only tasks of this job: its name, or DAG/JOB")
	flags.StringVar(&s.Status, "status", "", "only tasks that are Queued, Running, Completed, Failed or Canceled")
	flags.BoolVar(&s.Dead, "dead", false, "only tasks that have no attempts left and wait for a person")
	flags.StringVar(&s.Kind, "kind", "",
		"only tasks of this kind: reactive, source, manual, timer, build, backfill, invalidation or check")
	flags.StringVar(&s.Partition, "partition", "",
		"only tasks that write this partition, or one of A..B, both included")
	flags.StringVar(&s.Error, "error", "", "only tasks whose error contains this text")
	flags.StringVar(&s.ErrorGroup, "error-group", "",
		"only tasks whose error is in this group (\"tasks list --group-by error\" lists the groups)")
	flags.StringVar(&s.after, "created-after", "", "only tasks created then or later: a date, or an RFC 3339 time")
	flags.StringVar(&s.before, "created-before", "", "only tasks created before then")

	for name, values := range map[string][]string{"status": statuses, "kind": kinds} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// The words of --status and --kind.
var (
	statuses = []string{"Queued", "Running", "Completed", "Failed", "Canceled"}
	kinds    = []string{"reactive", "source", "manual", "timer", "build", "backfill", "invalidation", "check"}
)

// selection returns the selection of the flags, and reports whether any flag is set.
func (s *selectionFlags) selection() (sel views.TaskSelection, filters bool, err error) {
	sel = s.TaskSelection
	if dag, job, ok := strings.Cut(sel.Job, "/"); ok {
		if sel.DAG != "" && sel.DAG != dag {
			return sel, false, fault.New(fault.Invalid, "--job %s is of the DAG %s, and --dag says %s", sel.Job, dag,
				sel.DAG).WithHint("leave --dag out")
		}
		sel.DAG, sel.Job = dag, job
	}
	for text, at := range map[*string]*time.Time{&s.after: &sel.CreatedAfter, &s.before: &sel.CreatedBefore} {
		if *text == "" {
			continue
		}
		if *at, err = parseTime(*text); err != nil {
			return sel, false, err
		}
	}

	filters = sel.Dead || !sel.CreatedAfter.IsZero() || !sel.CreatedBefore.IsZero() ||
		cmp.Or(sel.DAG, sel.Job, sel.Status, sel.Kind, sel.Partition, sel.Error, sel.ErrorGroup) != ""
	return sel, filters, errors.Join(
		cli.OneOf("status", sel.Status, statuses...), cli.OneOf("kind", sel.Kind, kinds...),
		cli.InOrder("created-after", s.after, sel.CreatedAfter, "created-before", s.before, sel.CreatedBefore),
		cli.PartitionsInOrder("partition", sel.Partition))
}

// requireNamed returns an error where a selection, which has selected nothing, names what does not exist: a DAG, a job,
// a partition that no task writes, a group that no error is in.
func requireNamed(ctx context.Context, api *cli.Client, s views.TaskSelection) error {
	if err := cli.RequireJob(ctx, api, s.DAG, s.Job); err != nil {
		return err
	}
	if s.Partition != "" {
		of := views.TaskSelection{DAG: s.DAG, Job: s.Job, Partition: s.Partition}
		missing := fault.New(fault.NotFound, "no task writes the partition %s", s.Partition).
			WithHint("`dagctl tasks list` shows the partitions of tasks")
		if err := cli.RequireSome(ctx, api, "/v1/tasks", selectionQuery(of), missing); err != nil {
			return err
		}
	}

	if s.ErrorGroup != "" {
		of := views.TaskSelection{ErrorGroup: s.ErrorGroup}
		missing := fault.New(fault.NotFound, "no failed task has an error of the group %s", s.ErrorGroup).
			WithHint("`dagctl tasks list --group-by error` lists the groups")
		return cli.RequireSome(ctx, api, "/v1/tasks", selectionQuery(of), missing)
	}
	return nil
}

// parseTime reads a date, which begins at midnight in the local zone, or a time.
func parseTime(text string) (time.Time, error) {
	if t, err := time.ParseInLocation(time.DateOnly, text, time.Local); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return t, fault.New(fault.Invalid, "%q is neither a date nor a time", text).
			WithHint("write 2026-01-31 or 2026-01-31T09:00:00Z")
	}
	return t, nil
}

// selectionQuery returns a selection as the query of a URL.
func selectionQuery(s views.TaskSelection) url.Values {
	q := url.Values{}
	for name, value := range map[string]string{
		"dag": s.DAG, "job": s.Job, "status": s.Status, "kind": s.Kind, "partition": s.Partition,
		"error": s.Error, "error_group": s.ErrorGroup,
	} {
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

// parseRate reads a number of tasks per second: 100, or 100/s.
func parseRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	rate, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || rate <= 0 {
		return 0, fault.New(fault.Invalid, "%q is not a rate", text).
			WithHint("write tasks per second, such as 100/s or 0.5/s")
	}
	return rate, nil
}

// verb is something that is done to tasks, one by one or many at once.
type verb struct {
	name, short, long, example string
}

var (
	retryVerb = verb{"retry", "Retry failed or dead tasks",
		"Lets tasks that failed run again, with all of their attempts; also one, by its id, that somebody canceled.",
		`  dagctl tasks retry 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --downstream
  dagctl tasks retry --dag us-flights --dead --error timeout --rate 100/s --dry-run`}

	cancelVerb = verb{"cancel", "Cancel tasks; the workers of running ones learn of it at their next heartbeat",
		"Ends tasks: at once if they are not running, otherwise when their worker learns of it.",
		"  dagctl tasks cancel --dag us-flights --job landing --status Queued --yes"}

	skipVerb = verb{"skip", "Give up failed or dead tasks, with a reason",
		`Gives up tasks that failed for good. A build that waits for their partitions goes on without them, and its plan
says so. The same work does not come back; new input creates a task of its own.`,
		`  dagctl tasks skip 0199a2f4-5c1e-7b0c-9a3e-1f2d3c4b5a69 --reason "the file of that day is lost"
  dagctl tasks skip --dead --partition 2026-01-01..2026-01-31 --reason "the station was closed"`}
)

const bulkHelp = `With TASKs alone, the command acts on those tasks. With filters it acts on all tasks that match every
filter, after a confirmation on a terminal or with --yes. The server does the work, at --rate tasks per second, on the
tasks that match when it begins, and continues if this command is interrupted: "dagctl tasks bulk list" shows it,
"dagctl tasks bulk cancel ID" ends it.`

// tasksVerbCommand returns the command that retries, cancels or skips tasks.
func tasksVerbCommand(c *cli.CLI, v verb) *cobra.Command {
	var (
		selection     selectionFlags
		request       control.BulkRequest
		rate, ifMatch string
		yes, wait     bool
	)
	cmd := &cobra.Command{
		Use:     v.name + " [TASK...]",
		Short:   v.short,
		Long:    v.long + "\n" + bulkHelp,
		Example: v.example,
		RunE: func(cmd *cobra.Command, args []string) error {
			sel, filters, err := selection.selection()
			if err != nil {
				return err
			}
			for _, address := range args {
				if err := checkAddress(address); err != nil {
					return err
				}
			}
			if request.Rate, err = parseRate(rate); err != nil {
				return err
			}

			if !filters && len(args) == 0 {
				return fault.New(fault.Invalid, "no tasks are selected").
					WithHint("give TASKs, or filters such as --dag or --dead")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			if sel.IDs, err = findTasks(cmd.Context(), api, args); err != nil {
				return err
			}
			if !filters && request.Rate == 0 && !request.DryRun && !request.Downstream {
				return actOnEach(cmd.Context(), c, api, v.name, sel.IDs, request.Reason, ifMatch)
			}
			request.Filter = sel
			return actOnMany(cmd.Context(), c, api, v.name, request, yes, wait)
		},
	}

	selection.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&rate, "rate", "", "maximum number of tasks per second, such as 100/s")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only print how many tasks match")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	flags.BoolVar(&wait, "wait", true, "wait until the server is done")
	flags.StringVar(&ifMatch, "if-match", "", "version that a single task must have")
	if v.name == "skip" {
		flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
		_ = cmd.MarkFlagRequired("reason")
	}
	if v.name == "retry" {
		flags.BoolVar(&request.Downstream, "downstream", false, "also the dead tasks downstream of them")
	}
	return cmd
}

// actOnEach acts on tasks one after the other, and prints them.
func actOnEach(
	ctx context.Context, c *cli.CLI, api *cli.Client, verb string, ids []uuid.UUID, reason, ifMatch string,
) error {
	if ifMatch != "" {
		if len(ids) > 1 {
			return fault.New(fault.Invalid, "--if-match is for a single task")
		}
		api.IfMatch(strings.Trim(ifMatch, `"`))
	}
	tasks := []views.Task{}
	for _, id := range ids {
		var body any
		if verb == "skip" {
			body = httpapi.SkipRequest{Reason: reason}
		}
		var task views.Task
		if err := api.Post(ctx, "/v1/tasks/"+id.String()+":"+verb, body, &task); err != nil {
			return err
		}
		tasks = append(tasks, task)
	}

	return c.Print(tasks, func(w io.Writer) { writeTasks(c, w, tasks) })
}

// actOnMany lets the server act on a selection of tasks, after a confirmation.
func actOnMany(ctx context.Context, c *cli.CLI, api *cli.Client, verb string, request control.BulkRequest,
	yes, wait bool,
) error {
	path := "/v1/tasks:" + verb
	dry := request
	dry.DryRun = true
	var b control.BulkAction
	if err := api.Post(ctx, path, dry, &b); err != nil {
		return err
	}

	if b.Matched == 0 {
		if err := requireNamed(ctx, api, request.Filter); err != nil {
			return err
		}
	}
	if request.DryRun || b.Matched == 0 {
		return c.Print(b, func(w io.Writer) {
			fmt.Fprintf(w, "%s to %s.\n", plural.Of(int(b.Matched), "task"), verb)
		})
	}
	if err := c.Confirm(yes, "%s %s?", cli.UpperFirst(verb), plural.Of(int(b.Matched), "task")); err != nil {
		return err
	}
	if err := api.Post(ctx, path, request, &b); err != nil {
		return err
	}

	progress := c.NewProgress()
	defer progress.End()
	follow := cli.Follower{CLI: c, API: api, Before: progress.End, GoesOn: "the bulk action",
		Hint: "`dagctl tasks bulk list` says how far it is"}
	for wait && b.Status == "Running" {
		text := fmt.Sprintf("%s: %d of %d tasks", verb, b.Done+b.Refused, b.Matched)
		progress.Show(int(b.Done+b.Refused), int(b.Matched), text)
		if err := cli.Sleep(ctx, 500*time.Millisecond); err != nil {
			progress.End()
			fmt.Fprintf(c.Err, "The server continues; `dagctl tasks bulk cancel %s` ends it.\n", b.ID)
			return err
		}
		if err := follow.Get(ctx, bulkPath(b.ID.String()), nil, &b); err != nil {
			return err
		}
	}

	progress.End()
	return c.Print(b, func(w io.Writer) { writeBulks(c, w, []control.BulkAction{b}) })
}

// bulkPath returns the path of a bulk action in the API.
func bulkPath(id string) string { return "/v1/bulk-actions/" + url.PathEscape(id) }

func writeBulks(c *cli.CLI, w io.Writer, found []control.BulkAction) {
	style, now := c.Style(w), c.Now()
	t := cli.Table{
		Style: style, Header: []string{"ID", "VERB", "STATUS", "TASKS", "DONE", "REFUSED", "RATE", "BY", "STARTED"},
		Paint: map[int]func(string) string{2: style.Status},
	}
	for _, b := range found {
		rate := ""
		if b.Rate > 0 {
			rate = strconv.FormatFloat(b.Rate, 'f', -1, 64) + "/s"
		}
		t.Add(b.ID.String(), b.Verb, b.Status, fmt.Sprint(b.Matched), fmt.Sprint(b.Done), fmt.Sprint(b.Refused), rate,
			cli.OneLine(b.CreatedBy, 30), cli.Ago(&b.CreatedAt, now))
	}
	t.Write(w)
}

func tasksBulkCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bulk",
		Short: "List and cancel bulk retries, cancellations and skips",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var page cli.Page
	list := &cobra.Command{
		Use:   "list",
		Short: "List bulk retries, cancellations and skips, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			found, err := cli.Fetch[control.BulkAction](cmd.Context(), api, "/v1/bulk-actions", nil, page)
			if err != nil {
				return err
			}
			return c.Print(found, func(w io.Writer) { writeBulks(c, w, found) })
		},
	}

	page.AddFlags(list)
	cancel := &cobra.Command{
		Use:   "cancel ID",
		Short: "End a bulk action; the tasks that it has acted on stay as they are",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var b control.BulkAction
			if err := api.Post(cmd.Context(), bulkPath(args[0])+"/cancel", struct{}{}, &b); err != nil {
				return err
			}
			return c.Print(b, func(w io.Writer) { writeBulks(c, w, []control.BulkAction{b}) })
		},
	}

	cmd.AddCommand(list, cancel)
	return cmd
}

func writeErrorGroups(c *cli.CLI, w io.Writer, groups []views.ErrorGroup) {
	style, now := c.Style(w), c.Now()
	t := cli.Table{
		Style: style, Header: []string{"GROUP", "TASKS", "FIRST", "LAST", "JOBS", "EXAMPLE", "ERROR"},
		Paint: map[int]func(string) string{6: style.Bad},
	}
	for _, g := range groups {
		t.Add(g.Group, fmt.Sprint(g.Count), cli.Ago(&g.FirstSeen, now), cli.Ago(&g.LastSeen, now),
			cli.OneLine(strings.Join(g.Jobs, " "), 40), g.Example.String(), cli.OneLine(g.Error, 120))
	}
	t.Write(w)
}
