package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/web"
)

func (c *cli) gcCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what nothing can reach any more",
		Long: `Removes dataset versions that nothing reaches: no version that is active, on its way or pinned, none that ended within the
rollback window of 7 days, no running task and no running query. Of those that stay it removes revisions that were replaced
or rejected and that nobody reads, and what attempts left that came to nothing. Servers do this every hour by themselves.`,
		Example: "  dagctl gc --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			api.patient()
			var found dispatcher.Garbage
			if err := api.post(cmd.Context(), "/v1/gc", dispatcher.GCRequest{DryRun: dryRun}, &found); err != nil {
				return err
			}
			return c.print(found, func(w io.Writer) { c.writeGarbage(w, found) })
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be removed")
	return cmd
}

func (c *cli) writeGarbage(w io.Writer, found dispatcher.Garbage) {
	var bytes int64
	if len(found.Generations) > 0 {
		t := table{style: c.style(w), header: []string{"DAG", "DATASET", "DATASET VERSION", "PARTITIONS", "SIZE"}}
		for _, g := range found.Generations {
			bytes += g.Bytes
			t.add(g.DAG, g.Dataset, g.Version.String(), fmt.Sprint(g.Partitions), web.Size(g.Bytes))
		}
		t.write(w)
	}
	verb := "Removed"
	if found.DryRun {
		verb = "Would remove"
	}
	fmt.Fprintf(w, "%s %s (%s), %s (%s), %s and the uploads of %s.\n", verb, count(len(found.Generations), "dataset version"), web.Size(bytes),
		count(found.Revisions, "old revision"), web.Size(found.RevisionBytes), count(found.Staging, "abandoned location"),
		count(found.Uploads, "attempt"))
}

// patient lets a call take as long as the server does: it ends what it cannot finish.
func (c *client) patient() { c.http.Timeout = 20 * time.Minute }
