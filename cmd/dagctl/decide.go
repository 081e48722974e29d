package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) datasetsDecideCommand(verb, short, long string) *cobra.Command {
	var request dispatcher.DecideRequest
	cmd := &cobra.Command{
		Use:     verb + " NAME",
		Short:   short,
		Long:    long,
		Example: fmt.Sprintf("  dagctl datasets %s daily_revenue --partition 2024-01-31 --reason \"the shop was closed\"", verb),
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var decided dispatcher.Decided
			if err := api.post(cmd.Context(), datasetPath(args[0])+"/"+verb, request, &decided); err != nil {
				return err
			}
			return c.print(decided, func(w io.Writer) {
				fmt.Fprintf(w, "revision %d of partition %s of %s is %s\n", decided.Revision, oneLine(decided.Partition, 100), decided.Dataset,
					c.style(c.out).status(decided.State))
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&request.Partition, "partition", "", "which partition")
	flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
	flags.StringVar(&request.Version, "version", "", "of which generation: live (default), candidate, a DAG version or a dataset version")
	_ = cmd.MarkFlagRequired("partition")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}

func (c *cli) datasetsAcceptCommand() *cobra.Command {
	return c.datasetsDecideCommand("accept", "Publish a partition although its checks failed",
		`Lets readers see the newest revision of a partition that checks rejected, or have not decided over, and tells its consumers.
For admins. "dagctl datasets get NAME" lists what is withheld. A build that failed on it is taken up again with "dagctl deploy --resume".`)
}

func (c *cli) datasetsRejectCommand() *cobra.Command {
	return c.datasetsDecideCommand("reject", "Keep a held revision of a partition from ever being seen",
		`Decides over the newest revision of a partition in place of a check that does not come to an end. For admins.`)
}

// writeWithheld lists the partitions whose newest revision readers do not see.
func (c *cli) writeWithheld(w io.Writer, list []registry.Withheld) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w)
	style, now := c.style(w), time.Now()
	t := table{style: style, header: []string{"WITHHELD", "REVISION", "STATE", "OF", "ROWS", "MADE", "CHECKS"}, paint: map[int]func(string) string{2: style.status}}
	for _, p := range list {
		of := registry.Live
		if p.Candidate {
			of = registry.Candidate
		}
		t.add(oneLine(p.Partition, 40), fmt.Sprint(p.Revision), p.State, of, fmt.Sprint(p.Rows), ago(&p.Materialized, now), oneLine(p.Why, 100))
	}
	t.write(w)
}
