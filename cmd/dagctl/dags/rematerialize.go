package dags

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

// RematerializeCommand returns `dagctl rematerialize`.
func RematerializeCommand(c *cli.CLI) *cobra.Command {
	var (
		request deploy.RematerializeRequest
		wait    bool
	)
	cmd := &cobra.Command{
		Use:   "rematerialize DATASET",
		Short: "Compute a whole dataset again, beside the live data",
		Long: `Builds the active document as a new version that computes the dataset and everything downstream of it in
its DAG again, and cuts over once all of it is built. Deploying the same file afterwards changes nothing. DAGs that read
the dataset follow in place, partition by partition; with --downstream each of them, too, is rebuilt beside its live
data, in a version of its own. If one of these DAGs refuses, none is rebuilt.

Where partitions that are served cannot be computed again, the command is refused unless it has --allow-removals. After a
failure, "dagctl deploy --resume" with the same DAG file continues; another rematerialize begins again.`,
		Example: "  dagctl rematerialize airport_delays --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var made rest.List[deploy.Rematerialized]
			if err := api.Post(cmd.Context(), cli.DatasetPath(args[0])+"/rematerialize", request, &made); err != nil {
				return err
			}

			for i, m := range made.Items {
				writePlanned(c, c.Err, m.Plan)
				writeMeeting(c.Err, m.Plan.Meets)
				writeCanceled(c.Err, m.Plan.Cancels)
				writeFindings(c.Err, "deploy", m.Plan.Findings, registry.DeployRequest{
					AllowRemovals: request.AllowRemovals, AllowBreaking: request.AllowBreaking}.Consents())
				if m.Version == nil || !wait {
					continue
				}
				v, err := waitForVersion(cmd.Context(), c, api, *m.Version, true)
				if err != nil {
					return err
				}
				made.Items[i].Version = &v
			}

			return c.Print(made.Items, func(w io.Writer) {
				for _, m := range made.Items {
					if v := m.Version; v != nil {
						writeServing(c, w, *v)
					}
				}
			})
		},
	}

	cmd.Flags().BoolVar(&request.Downstream, "downstream", false,
		"also rebuild the DAGs that read it beside their live data")
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only print what would be rebuilt")
	cmd.Flags().BoolVar(&request.Supersede, "supersede", false,
		"abandon running builds of these DAGs, but keep what they built")
	cmd.Flags().BoolVar(&request.CancelTasks, "cancel-tasks", false,
		"cancel open tasks that the rebuilt jobs cannot take over (the plan says how many)")
	cmd.Flags().BoolVar(&request.AllowBreaking, "allow-breaking", false,
		"let columns go or change that jobs of other DAGs may read")
	cmd.Flags().BoolVar(&request.AllowRemovals, "allow-removals", false,
		"let partitions go that are served and cannot be computed again (the plan says which)")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the versions serve or have failed")
	return cmd
}
