package tasks

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/control"
)

// EventsCommand returns `dagctl events` with its subcommands.
func EventsCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Publish events of manual and webhook sources' outputs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(eventsPublishCommand(c))
	return cmd
}

func eventsPublishCommand(c *cli.CLI) *cobra.Command {
	var request control.PublishRequest
	cmd := &cobra.Command{
		Use:   "publish DATASET",
		Short: "Let the consumers of a partition run",
		Long: `Announces that a partition of a manual or webhook source's output has changed, so that its consumers run.
The event carries no data: the partition must exist, and keeps its content. An event with the same idempotency key again
changes nothing.`,
		Example: "  dagctl events publish orders --partition 2026-01-31 --idempotency-key close-of-january",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var event control.PublishedEvent
			if err := api.Post(cmd.Context(), cli.DatasetPath(args[0])+"/events", request, &event); err != nil {
				return err
			}

			return c.Print(event, func(w io.Writer) {
				if event.Duplicate {
					fmt.Fprintf(w, "Partition %s: the event was published before, as revision %d.\n",
						cli.Whole(event.Partition), event.Revision)
					return
				}
				fmt.Fprintf(w, "Partition %s: revision %d; its consumers run.\n",
					cli.Whole(event.Partition), event.Revision)
			})
		},
	}

	cmd.Flags().StringVar(&request.Partition, "partition", "", "partition; needed only if the dataset is partitioned")
	cmd.Flags().StringVar(&request.IdempotencyKey, "idempotency-key", "",
		"key of the event; for 30 days, another event with this key is ignored")
	return cmd
}
