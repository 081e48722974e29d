package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
)

// BackfillCommand returns `dagctl backfill` with its subcommands.
func BackfillCommand(c *cli.CLI) *cobra.Command {
	var (
		request control.BackfillRequest
		wait    bool
	)
	cmd := &cobra.Command{
		Use:   "backfill DAG/JOB",
		Short: "Compute a range of partitions of a job",
		Long: `Lets a job of the active version compute its partitions in a range, both ends included: in place, a few
at a time, and after live work and builds. "backfill list" shows its progress, "backfill cancel" stops it from creating
tasks. One backfill has 100,000 partitions at most: split a longer range.

--existing chooses the partitions: skip computes missing partitions, failed also those that failed for good, and
all every partition. --propagate chooses when consumers run: each runs them after every partition, once runs them at the
end, and none does not run them.`,
		Example: "  dagctl backfill us-flights/airport_delays --from 2001-01-01 --to 2001-01-31 --existing all " +
			"--propagate once",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dag, job, found := strings.Cut(args[0], "/")
			if !found {
				return fault.New(fault.Invalid, "%q names no job: write DAG/JOB", args[0])
			}
			request.Job = job
			if err := errors.Join(cli.OneOf("existing", request.Existing, "skip", "failed", "all"),
				cli.OneOf("propagate", request.Propagate, "none", "once", "each")); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var b control.Backfill
			if err := api.Post(cmd.Context(), cli.DAGPath(dag)+"/backfills", request, &b); err != nil {
				return cli.OfJob(cmd.Context(), api, dag, job, err)
			}

			if b.Pending+b.Open+b.Done+b.Skipped+b.Failed == 0 {
				defer fmt.Fprintln(c.Err, nothingToDo(b))
			}
			if request.DryRun {
				return c.Print(b, func(w io.Writer) {
					fmt.Fprintf(w, "%s would be computed.\n", plural.Of(b.Pending, "partition"))
				})
			}
			if wait {
				if b, err = waitForBackfill(cmd.Context(), c, api, b); err != nil {
					return err
				}
			}
			if err := c.Print(b, func(w io.Writer) { writeBackfills(c, w, []control.Backfill{b}) }); err != nil {
				return err
			}

			if wait && b.Status != "Completed" {
				return cli.ErrReported
			}
			return nil
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&request.From, "from", "", "first partition")
	flags.StringVar(&request.To, "to", "", "last partition")
	flags.StringVar(&request.Existing, "existing", "skip", "partitions to compute: skip, failed or all")
	flags.StringVar(&request.Propagate, "propagate", "each", "when consumers run: none, once or each")
	flags.IntVar(&request.Concurrency, "concurrency", 4, "number of tasks that run at once")
	flags.BoolVar(&wait, "wait", true, "wait until it ends")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only print how many partitions would be computed")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	cmd.AddCommand(backfillListCommand(c), backfillCancelCommand(c))
	return cmd
}

// nothingToDo says why a backfill has no partitions, and what would give it some.
func nothingToDo(b control.Backfill) string {
	if b.Existing == "all" {
		return fmt.Sprintf("%s/%s can make nothing from %s to %s: `dagctl why %[1]s/%[2]s` says what it waits for.",
			b.DAG, b.Job, b.From, b.To)
	}
	return fmt.Sprintf("Nothing that %s/%s can make from %s to %s is missing; --existing all computes what is there "+
		"again.", b.DAG, b.Job, b.From, b.To)
}

// waitForBackfill shows the progress of a backfill until it ends.
func waitForBackfill(ctx context.Context, c *cli.CLI, api *cli.Client, b control.Backfill) (
	control.Backfill, error,
) {
	progress := c.NewProgress()
	defer progress.End()
	follow := cli.Follower{CLI: c, API: api, Before: progress.End, GoesOn: "the backfill",
		Hint: fmt.Sprintf("`dagctl backfill list %s` says how far it is", b.DAG)}

	for b.Status == "Running" {
		all := b.Pending + b.Open + b.Done + b.Skipped + b.Failed
		text := fmt.Sprintf("%s/%s: %d of %d partitions done", b.DAG, b.Job, b.Done, all)
		progress.Show(all-b.Pending-b.Open, all, text)
		if err := cli.Sleep(ctx, 300*time.Millisecond); err != nil {
			return b, err
		}
		if err := follow.Get(ctx, backfillPath(b.DAG, b.ID.String()), nil, &b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func backfillPath(dag, id string) string {
	return cli.DAGPath(dag) + "/backfills/" + url.PathEscape(id)
}

func backfillListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list DAG",
		Short: "List a DAG's backfills, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			found, err := cli.Fetch[control.Backfill](cmd.Context(), api,
				cli.DAGPath(args[0])+"/backfills", nil, page)
			if err == nil && len(found) == 0 {
				err = cli.RequireDAG(cmd.Context(), api, args[0])
			}
			if err != nil {
				return err
			}
			return c.Print(found, func(w io.Writer) { writeBackfills(c, w, found) })
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func backfillCancelCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "cancel DAG ID",
		Short: "Stop a backfill from creating tasks",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var b control.Backfill
			if err := api.Post(cmd.Context(), backfillPath(args[0], args[1])+"/cancel", struct{}{}, &b); err != nil {
				return err
			}

			return c.Print(b, func(w io.Writer) { writeBackfills(c, w, []control.Backfill{b}) })
		},
	}
}

func writeBackfills(c *cli.CLI, w io.Writer, found []control.Backfill) {
	style, now := c.Style(w), c.Now()
	t := cli.Table{Style: style, Header: []string{
		"BACKFILL", "JOB", "PARTITIONS", "STATUS", "DONE", "OPEN", "LEFT", "SKIPPED", "FAILED", "BY", "STARTED",
		"REASON",
	}, Paint: map[int]func(string) string{3: style.Status}}
	for _, b := range found {
		t.Add(b.ID.String(), b.Job, cli.Whole(b.From+".."+b.To), b.Status,
			fmt.Sprint(b.Done), fmt.Sprint(b.Open), fmt.Sprint(b.Pending), fmt.Sprint(b.Skipped), fmt.Sprint(b.Failed),
			cli.OneLine(b.CreatedBy, 30), cli.Ago(&b.CreatedAt, now), cli.OneLine(b.Reason, 60))
	}
	t.Write(w)
}
