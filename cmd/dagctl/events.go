package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
)

func (c *cli) eventsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Publish events of manual and webhook sources' outputs",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.eventsPublishCommand())
	return cmd
}

func (c *cli) eventsPublishCommand() *cobra.Command {
	var request dispatcher.PublishRequest
	cmd := &cobra.Command{
		Use:   "publish DATASET",
		Short: "Have the consumers of a partition run",
		Long: `Says that a partition of a manual or webhook source's output has something new to tell, so that what reads it runs. The event
brings no data: the partition is to be there, and keeps its content. The same idempotency key again changes nothing.`,
		Example: "  dagctl events publish orders --partition 2026-01-31 --idempotency-key close-of-january",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var event dispatcher.PublishedEvent
			if err := api.post(cmd.Context(), datasetPath(args[0])+"/events", request, &event); err != nil {
				return err
			}
			return c.print(event, func(w io.Writer) {
				if event.Duplicate {
					fmt.Fprintf(w, "Partition %s: the event was published before, as revision %d.\n", oneLine(event.Partition, 60), event.Revision)
					return
				}
				fmt.Fprintf(w, "Partition %s: revision %d, and what reads it runs.\n", oneLine(event.Partition, 60), event.Revision)
			})
		},
	}
	cmd.Flags().StringVar(&request.Partition, "partition", "", "the partition; without it, the only one of what is not partitioned")
	cmd.Flags().StringVar(&request.IdempotencyKey, "idempotency-key", "", "the same key again is the same event, for 30 days")
	return cmd
}
