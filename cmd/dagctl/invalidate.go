package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

func (c *cli) invalidateCommand() *cobra.Command {
	var (
		request            dispatcher.InvalidateRequest
		partition, between string
	)
	cmd := &cobra.Command{
		Use:   "invalidate DATASET",
		Short: "Have everything computed again that was made from some partitions",
		Long: `Says that partitions of a dataset are not what they were taken for: a chain was reorganized, a correction came, a schema was
misread. Whatever was made from them is computed again, and what was made from that. The partitions themselves stay as they are.

Of a dataset by cursor, partitions are told by positions, and those who follow it are put back to the first of them. With
--reason reorg what lies at that position or beyond is withdrawn, and its source reads it again.`,
		Example: `  dagctl invalidate orders --range 2026-01-01..2026-01-31 --reason correction
  dagctl invalidate blocks --range 19000000.. --reason reorg`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (partition == "") == (between == "") {
				return fault.New(fault.Invalid, "say which partitions: either --partition or --range")
			}
			request.From, request.To = partition, partition
			if between != "" {
				request.From, request.To = partitionRange(between)
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			var made rest.List[dispatcher.Invalidated]
			if err := api.post(cmd.Context(), datasetPath(args[0])+"/invalidate", request, &made); err != nil {
				return err
			}
			return c.print(made.Items, func(w io.Writer) {
				t := table{style: c.style(w), header: []string{"PARTITION", "REVISION"}}
				for _, i := range made.Items {
					t.add(oneLine(i.Partition, 60), fmt.Sprint(i.Revision))
				}
				t.write(w)
			})
		},
	}
	cmd.Flags().StringVar(&partition, "partition", "", "this partition")
	cmd.Flags().StringVar(&between, "range", "", "these partitions: A..B, both included, compared as text, or positions of a cursor as numbers")
	cmd.Flags().StringVar(&request.Reason, "reason", "manual", "reorg, correction, manual or schema")
	return cmd
}
