package datasets

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/rest"
)

// InvalidateCommand returns `dagctl invalidate`.
func InvalidateCommand(c *cli.CLI) *cobra.Command {
	var (
		request            dispatcher.InvalidateRequest
		partition, between string
	)
	cmd := &cobra.Command{
		Use:   "invalidate DATASET",
		Short: "Compute again everything that was made from some partitions",
		Long: `Declares that the content of some partitions of a dataset was wrong: a chain was reorganized, a
correction arrived, a schema was misread. Everything that was made from them is computed again, and everything that was
made from that. The partitions themselves stay as they are.

In a dataset that is read by a cursor, positions name the partitions, and its consumers go back to the first of them.
With --reason reorg the data at that position and beyond is withdrawn, and its source reads it again.`,
		Example: `  dagctl invalidate orders --range 2026-01-01..2026-01-31 --reason correction
  dagctl invalidate orders --range 2026-01-01..2026-01-31 --dry-run
  dagctl invalidate blocks --range 19000000.. --reason reorg`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (partition == "") == (between == "") {
				return fault.New(fault.Invalid, "name the partitions with either --partition or --range")
			}
			request.From, request.To = partition, partition
			if between != "" {
				request.From, request.To = partitionRange(between)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var made rest.List[dispatcher.Invalidated]
			if err := api.Post(cmd.Context(), cli.DatasetPath(args[0])+"/invalidate", request, &made); err != nil {
				return err
			}

			return c.Print(made.Items, func(w io.Writer) {
				t := cli.Table{Style: c.Style(w), Header: []string{"PARTITION", "REVISION"}}
				for _, i := range made.Items {
					t.Add(cli.Whole(i.Partition), fmt.Sprint(i.Revision))
				}
				t.Write(w)
			})
		},
	}

	cmd.Flags().StringVar(&partition, "partition", "", "partition to invalidate")
	cmd.Flags().StringVar(&between, "range", "",
		"partitions to invalidate: A..B, both included; ranges and positions in the order of numbers, others of text")
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only print what would be invalidated")
	cmd.Flags().StringVar(&request.Reason, "reason", "manual", "reorg, correction, manual or schema")
	return cmd
}
