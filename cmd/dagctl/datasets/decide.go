package datasets

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/registry"
)

// datasetsDecideCommand returns the command that accepts or rejects a revision.
func datasetsDecideCommand(c *cli.CLI, verb, short, long string) *cobra.Command {
	var request control.DecideRequest
	cmd := &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Long:    long,
		Example: "  dagctl datasets " + verb + " daily_revenue --partition 2024-01-31 --reason \"the shop was closed\"",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var decided control.Decided
			if err := api.Post(cmd.Context(), cli.DatasetPath(args[0])+"/"+verb, request, &decided); err != nil {
				return err
			}
			return c.Print(decided, func(w io.Writer) {
				fmt.Fprintf(w, "revision %d of partition %s of %s is %s\n", decided.Revision,
					cli.Whole(decided.Partition), decided.Dataset, c.Style(c.Out).Status(decided.State))
			})
		},
	}

	flags := cmd.Flags()
	flags.StringVar(&request.Partition, "partition", "", "partition to decide about")
	flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
	flags.StringVar(&request.Version, "version", "", "live (default), candidate, a DAG version, or a dataset version")
	_ = cmd.MarkFlagRequired("partition")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

func datasetsAcceptCommand(c *cli.CLI) *cobra.Command {
	return datasetsDecideCommand(c, "accept", "Publish a partition although its checks failed",
		`Publishes the newest revision of a partition that checks rejected or have not decided about, and lets its
consumers run. For admins. "dagctl datasets get NAME" lists the withheld partitions. If a build failed because of the
partition, "dagctl deploy --resume" continues it.`)
}

func datasetsRejectCommand(c *cli.CLI) *cobra.Command {
	return datasetsDecideCommand(c, "reject", "Reject a held revision of a partition for good",
		`Rejects the newest revision of a partition, in place of a check that does not end. Readers never see it. For
admins.`)
}

// writeWithheld writes the partitions whose newest revision readers do not see.
func writeWithheld(c *cli.CLI, w io.Writer, list []registry.Withheld) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w)
	style, now := c.Style(w), c.Now()
	t := cli.Table{
		Style: style, Header: []string{"WITHHELD", "REVISION", "STATE", "OF", "ROWS", "MADE", "CHECKS"},
		Paint: map[int]func(string) string{2: style.Status},
	}

	for _, p := range list {
		of := registry.Live
		if p.Candidate {
			of = registry.Candidate
		}
		t.Add(cli.Whole(p.Partition), fmt.Sprint(p.Revision), p.State, of, fmt.Sprint(p.Rows),
			cli.Ago(&p.Materialized, now), cli.OneLine(p.Why, 100))
	}

	t.Write(w)
}
