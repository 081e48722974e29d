package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/web"
)

func (c *cli) datasetsPurgeCommand() *cobra.Command {
	var (
		request    dispatcher.PurgeRequest
		partitions string
		yes        bool
	)
	cmd := &cobra.Command{
		Use:   "purge NAME",
		Short: "Delete data of a dataset for good",
		Long: `Deletes partitions, or all of a dataset, from every dataset version: rows, files, and what the tasks that made them were
given, returned and failed with. It is for data that has to go; what nobody needs any more goes by itself.

What is purged is made again only once its inputs have changed. Where they still have the data, purge those, or mend them
first. Nobody can roll back to a version that is missing something: where that ends a promise, it takes --break-window.`,
		Example: "  dagctl datasets purge orders --partitions 2026-01-01..2026-01-31 --downstream --reason \"erasure request 17\" --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request.From, request.To = partitionRange(partitions)
			api, err := c.connect()
			if err != nil {
				return err
			}
			api.patient()
			path := datasetPath(args[0]) + "/purge"
			plan := request
			plan.DryRun = true
			var purged dispatcher.Purged
			if err := api.post(cmd.Context(), path, plan, &purged); err != nil {
				return err
			}
			if request.DryRun {
				return c.print(purged, func(w io.Writer) { c.writePurged(w, purged) })
			}
			c.writePurged(c.err, purged)
			if err := c.confirm(yes, "Delete this for good?"); err != nil {
				return err
			}
			if err := api.post(cmd.Context(), path, request, &purged); err != nil {
				return err
			}
			return c.print(purged, func(w io.Writer) {
				fmt.Fprintf(w, "Deleted %s and what %s left.\n", count(len(purged.Partitions), "partition"), count(purged.Tasks, "task"))
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&partitions, "partitions", "", "only these: one, or A..B, both included (default: all)")
	flags.BoolVar(&request.Downstream, "downstream", false, "and whatever was made from them")
	flags.StringVar(&request.Reason, "reason", "", "goes into the audit log")
	flags.BoolVar(&request.BreakWindow, "break-window", false, "even where a rollback will not be possible any more")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only say what would be deleted")
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

func (c *cli) writePurged(w io.Writer, purged dispatcher.Purged) {
	t := table{style: c.style(w), header: []string{"DAG", "DATASET", "PARTITION", "DATASET VERSION", "SERVED", "SIZE"}}
	for _, p := range purged.Partitions {
		served := ""
		if p.Live {
			served = "yes"
		}
		t.add(p.DAG, p.Dataset, oneLine(p.Key, 60), p.Version.String(), served, web.Size(p.Bytes))
	}
	t.write(w)
}
