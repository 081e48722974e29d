package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

func (c *cli) backfillCommand() *cobra.Command {
	var (
		request dispatcher.BackfillRequest
		wait    bool
	)
	cmd := &cobra.Command{
		Use:   "backfill DAG/JOB",
		Short: "Compute partitions of a job, again or for the first time",
		Long: `Has a job of the active version compute its partitions from one to another, both included: in place, a few at a time, after
live work and builds. It is tracked: "backfill list" shows how far it is, "backfill cancel" makes no more tasks of it.

--existing says what to do with what is there: skip computes only what is not, failed that and what failed for good, all
everything. --propagate says how consumers follow: each partition, once at the end, or none of this at all.`,
		Example: "  dagctl backfill us-flights/airport_delays --from 2001-01-01 --to 2001-01-31 --existing all --propagate once",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dag, job, found := strings.Cut(args[0], "/")
			if !found {
				return fault.New(fault.Invalid, "%q names no job: write DAG/JOB", args[0])
			}
			request.Job = job
			api, err := c.connect()
			if err != nil {
				return err
			}
			var b dispatcher.Backfill
			if err := api.post(cmd.Context(), dagPath(dag)+"/backfills", request, &b); err != nil {
				return err
			}
			if wait {
				if b, err = c.waitForBackfill(cmd.Context(), api, b); err != nil {
					return err
				}
			}
			if err := c.print(b, func(w io.Writer) { c.writeBackfills(w, []dispatcher.Backfill{b}) }); err != nil {
				return err
			}
			if wait && b.Status != "Completed" {
				return errReported
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.From, "from", "", "first partition")
	flags.StringVar(&request.To, "to", "", "last partition")
	flags.StringVar(&request.Existing, "existing", "skip", "what is there: skip, failed or all")
	flags.StringVar(&request.Propagate, "propagate", "each", "consumers follow: none, once or each")
	flags.IntVar(&request.Concurrency, "concurrency", 4, "tasks at once")
	flags.BoolVar(&wait, "wait", true, "wait until it has ended")
	_ = cmd.MarkFlagRequired("from")
	_ = cmd.MarkFlagRequired("to")
	cmd.AddCommand(c.backfillListCommand(), c.backfillCancelCommand())
	return cmd
}

func (c *cli) waitForBackfill(ctx context.Context, api *client, b dispatcher.Backfill) (dispatcher.Backfill, error) {
	progress := c.progress()
	defer progress.end()
	for b.Status == "Running" {
		all := b.Pending + b.Open + b.Done + b.Skipped + b.Failed
		progress.show(all-b.Pending-b.Open, all, fmt.Sprintf("%s/%s: %d of %d partitions done", b.DAG, b.Job, b.Done, all))
		if err := pause(ctx, 300*time.Millisecond); err != nil {
			return b, err
		}
		if err := api.get(ctx, backfillPath(b.DAG, b.ID.String()), nil, &b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func backfillPath(dag, id string) string { return dagPath(dag) + "/backfills/" + url.PathEscape(id) }

func (c *cli) backfillListCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list DAG",
		Short: "List a DAG's backfills, the newest first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			found, err := fetch[dispatcher.Backfill](cmd.Context(), api, dagPath(args[0])+"/backfills", nil, page)
			if err != nil {
				return err
			}
			return c.print(found, func(w io.Writer) { c.writeBackfills(w, found) })
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) backfillCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel DAG ID",
		Short: "Make no more tasks of a backfill",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var b dispatcher.Backfill
			if err := api.post(cmd.Context(), backfillPath(args[0], args[1])+"/cancel", struct{}{}, &b); err != nil {
				return err
			}
			return c.print(b, func(w io.Writer) { c.writeBackfills(w, []dispatcher.Backfill{b}) })
		},
	}
}

func (c *cli) writeBackfills(w io.Writer, found []dispatcher.Backfill) {
	style, now := c.style(w), time.Now()
	t := table{style: style, header: []string{"BACKFILL", "JOB", "PARTITIONS", "STATUS", "DONE", "OPEN", "LEFT", "SKIPPED", "FAILED", "BY", "STARTED"},
		paint: map[int]func(string) string{3: style.status}}
	for _, b := range found {
		t.add(b.ID.String(), b.Job, oneLine(b.From+".."+b.To, 50), b.Status, fmt.Sprint(b.Done), fmt.Sprint(b.Open), fmt.Sprint(b.Pending),
			fmt.Sprint(b.Skipped), fmt.Sprint(b.Failed), oneLine(b.CreatedBy, 30), ago(&b.CreatedAt, now))
	}
	t.write(w)
}
