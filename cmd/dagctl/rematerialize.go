package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/rest"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) rematerializeCommand() *cobra.Command {
	var (
		request registry.RematerializeRequest
		wait    bool
	)
	cmd := &cobra.Command{
		Use:   "rematerialize DATASET",
		Short: "Compute a dataset anew as a whole, beside what serves",
		Long: `Builds the active document as a new version in which the dataset, and what is downstream of it in its DAG, are computed
anew, and swaps once all of it is there. Deploying the same file afterwards changes nothing. DAGs that read it follow in
place, partition by partition; with --downstream each of them is rebuilt beside what serves, too, in a version of its own.`,
		Example: "  dagctl rematerialize airport_delays --dry-run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var made rest.List[registry.Rematerialized]
			if err := api.post(cmd.Context(), datasetPath(args[0])+"/rematerialize", request, &made); err != nil {
				return err
			}
			for i, m := range made.Items {
				fmt.Fprintf(c.err, "%s · %s → v%d (%s)\n", c.style(c.err).bold(m.Plan.DAG), baseName(m.Plan), m.Plan.Version, short(m.Plan.Hash))
				c.printChanges(c.err, m.Plan.Changes, m.Plan.CriticalSeconds)
				if m.Version == nil || !wait {
					continue
				}
				v, err := c.waitForVersion(cmd.Context(), api, *m.Version, true)
				if err != nil {
					return err
				}
				made.Items[i].Version = &v
			}
			return c.print(made.Items, func(w io.Writer) {
				for _, m := range made.Items {
					if v := m.Version; v != nil {
						fmt.Fprintf(w, "%s v%d (%s) is %s\n", v.DAG, v.Number, short(v.Hash), c.style(c.out).status(string(v.Status)))
					}
				}
			})
		},
	}
	cmd.Flags().BoolVar(&request.Downstream, "downstream", false, "rebuild the DAGs that read it beside what serves, too")
	cmd.Flags().BoolVar(&request.DryRun, "dry-run", false, "only say what would be rebuilt")
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the versions serve, or have failed")
	return cmd
}
