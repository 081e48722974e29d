package datasets

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/web"
)

func datasetsPurgeCommand(c *cli.CLI) *cobra.Command {
	var (
		request    upkeep.PurgeRequest
		partitions string
		yes        bool
	)
	cmd := &cobra.Command{
		Use:   "purge NAME",
		Short: "Delete data of a dataset for good",
		Long: `Deletes partitions, or a whole dataset, from every dataset version: rows, files, and the payloads,
results and errors of the tasks that made them. It is for data that must be deleted; gc removes by itself what nobody
needs any more. Bytes that somebody keeps in use, such as rows of a view in an open transaction, go as soon as they can;
the command says so. Exports and queries that read the data end within about two seconds.

A purged partition is computed again when its inputs or the definition of its job change. If the inputs still contain
the data, purge or correct them first. So does what http_source, http_api, postgres_query and mysql_query read: their
next run publishes it again if it is still there. A version that can still be rolled back to and has the data needs --break-window:
afterwards, a rollback to it goes without the purged partitions, and asks for --allow-removals if readers have them
then. So does a deploy of its definition. There is no rollback where a dataset was purged as a whole, without
--partition; a deploy of an earlier definition makes it anew.`,
		Example: "  dagctl datasets purge orders --partition 2026-01-01..2026-01-31 --downstream " +
			"--reason \"erasure request 17\" --dry-run",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			named := "partition"
			if cmd.Flags().Changed("partitions") {
				named = "partitions"
			}
			if cmd.Flags().Changed(named) && partitions == "" {
				return fault.New(fault.Invalid, "--%s names no partition", named).
					WithHint("leave it out to purge all of the dataset")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			api.Patient()
			path := cli.DatasetPath(args[0]) + "/purge"
			request.From, request.To = partitions, partitions
			if strings.Contains(partitions, "..") && !isKey(cmd.Context(), api, path, request) {
				if err := cli.PartitionsInOrder(named, partitions); err != nil {
					return err
				}
				request.From, request.To = partitionRange(partitions)
			}
			plan := request
			plan.DryRun = true
			var purged upkeep.Purged
			if err := api.Post(cmd.Context(), path, plan, &purged); err != nil {
				return err
			}

			if request.DryRun {
				return c.Print(purged, func(w io.Writer) { writePurged(c, w, purged) })
			}
			writePurged(c, c.Err, purged)
			if err := c.Confirm(yes, "Delete this for good?"); err != nil {
				return err
			}
			if err := api.Post(cmd.Context(), path, request, &purged); err != nil {
				return err
			}

			return c.Print(purged, func(w io.Writer) {
				fmt.Fprintf(w, "Deleted %s and the traces of %s.\n",
					plural.Of(len(purged.Partitions), "partition"), plural.Of(purged.Tasks, "task"))
				if purged.Left != "" {
					fmt.Fprintf(w, "Nobody can read them any more, but some of the bytes are still there: %s\n"+
						"The server tries again by itself, and at once with `dagctl gc`.\n", purged.Left)
				}
			})
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&partitions, "partition", "", "partitions to purge: one, or A..B, both included (default: all)")
	flags.StringVar(&partitions, "partitions", "", "the same, as it was called before")
	_ = flags.MarkHidden("partitions")
	cmd.MarkFlagsMutuallyExclusive("partition", "partitions")
	flags.BoolVar(&request.Downstream, "downstream", false, "also purge everything that was made from them")
	flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
	flags.BoolVar(&request.BreakWindow, "break-window", false, "purge even data that a rollback still needs")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only print what would be deleted")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

// partitionRange reads A..B, or one partition.
func partitionRange(text string) (from, to string) {
	if from, to, found := strings.Cut(text, ".."); found {
		return from, to
	}
	return text, text
}

// isKey reports whether what is to be purged is one partition that there is: its key may look like a range.
func isKey(ctx context.Context, api *cli.Client, path string, request upkeep.PurgeRequest) bool {
	request.DryRun = true
	err := api.Post(ctx, path, request, new(upkeep.Purged))
	return err == nil || fault.Is(err, fault.Conflict)
}

// writePurged writes the partitions that a purge deletes, and which jobs of other DAGs read what goes.
func writePurged(c *cli.CLI, w io.Writer, purged upkeep.Purged) {
	t := cli.Table{Style: c.Style(w), Header: []string{
		"DAG", "DATASET", "PARTITION", "DATASET VERSION", "SERVED", "SIZE",
	}}
	for _, p := range purged.Partitions {
		served := ""
		if p.Live {
			served = "yes"
		}
		t.Add(p.DAG, p.Dataset, cli.Whole(p.Key), p.Version.String(), served, web.Size(p.Bytes))
	}
	t.Write(w)
	for _, r := range purged.Readers {
		fmt.Fprintf(w, "%s reads %s.\n", r.Job, r.Dataset)
	}
}
