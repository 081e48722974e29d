package datasets

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/web"
)

// GCCommand returns `dagctl gc`.
func GCCommand(c *cli.CLI) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove data that nothing can reach any more",
		Long: `Removes dataset versions that nothing reaches: no DAG version that is active, being built or pinned, none
that ended within the rollback window of 7 days, no running task and no running query. From the dataset versions that
remain, it removes revisions that were replaced or rejected and that nobody reads, and what unsuccessful attempts left
behind. Servers do this by themselves every hour.`,
		Example: "  dagctl gc --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			api.Patient()
			var found upkeep.Garbage
			if err := api.Post(cmd.Context(), "/v1/gc", httpapi.GCRequest{DryRun: dryRun}, &found); err != nil {
				return err
			}
			return c.Print(found, func(w io.Writer) { writeGarbage(c, w, found) })
		},
	}

	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be removed")
	return cmd
}

// writeGarbage writes what a collection removes.
func writeGarbage(c *cli.CLI, w io.Writer, found upkeep.Garbage) {
	var bytes int64
	if len(found.Generations) > 0 {
		t := cli.Table{Style: c.Style(w), Header: []string{"DAG", "DATASET", "DATASET VERSION", "PARTITIONS", "SIZE"}}
		for _, g := range found.Generations {
			bytes += g.Bytes
			t.Add(g.DAG, g.Dataset, g.Version.String(), fmt.Sprint(g.Partitions), web.Size(g.Bytes))
		}
		t.Write(w)
	}

	verb := "Removed"
	if found.DryRun {
		verb = "Would remove"
	}
	fmt.Fprintf(w, "%s %s (%s), %s (%s), %s and the uploads of %s.\n", verb,
		plural.Of(len(found.Generations), "dataset version"), web.Size(bytes),
		plural.Of(found.Revisions, "old revision"), web.Size(found.RevisionBytes),
		plural.Of(found.Staging, "abandoned location"),
		plural.Of(found.Uploads, "attempt"))
}
