package dags

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/registry/contract"
	"github.com/dagctl/dagctl/registry/deploy"
	"github.com/dagctl/dagctl/web"
)

// DeleteCommand returns `dagctl delete`.
func DeleteCommand(c *cli.CLI) *cobra.Command {
	var yes, dryRun, allowMoves bool
	cmd := &cobra.Command{
		Use:   "delete DAG",
		Short: "Delete a DAG with its datasets",
		Long: `Takes a DAG out of service: readers no longer find its datasets, its sources and timers end, and its open
tasks are canceled. The server refuses to delete a DAG while another one reads its datasets. Until the rollback window
has passed, "dagctl rollback DAG --to VERSION" restores it; after that gc removes its data. Pauses stay with the names:
what comes back by a rollback or a deploy is paused as it was.

A name that the DAG took over from another one goes back to that one, if --allow-moves agrees to it.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var plan deploy.Deletion
			if err := api.Get(cmd.Context(), cli.DAGPath(args[0])+"/deletion", nil, &plan); err != nil {
				return err
			}

			if dryRun {
				return c.Print(plan, func(w io.Writer) { writeDeletion(c, w, plan, nil) })
			}
			writeDeletion(c, c.Err, plan, contract.Agreed{AllowMoves: allowMoves}.Consents())
			if err := c.Confirm(yes, "Delete %s?", args[0]); err != nil {
				return err
			}
			var deleted deploy.Deletion
			path := cli.DAGPath(args[0])
			if allowMoves {
				path += "?allow_moves=true"
			}
			if err := api.Do(cmd.Context(), http.MethodDelete, path, nil, &deleted); err != nil {
				return err
			}

			return c.Print(deleted, func(w io.Writer) {
				keptUntil := deleted.KeptUntil.UTC().Format(time.DateOnly)
				fmt.Fprintf(w, "%s is deleted; its data is kept until %s\n", deleted.DAG, keptUntil)
			})
		},
	}

	cmd.Flags().BoolVar(&allowMoves, "allow-moves", false,
		"let names go back to the DAGs that they were taken over from")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be deleted")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// writeDeletion writes what a deletion removes and cancels, and what keeps it from happening.
func writeDeletion(c *cli.CLI, w io.Writer, d deploy.Deletion, given []contract.Consent) {
	t := cli.Table{Style: c.Style(w), Header: []string{"DATASET", "PARTITIONS", "SIZE", "READ BY"}}
	for _, dataset := range d.Datasets {
		t.Add(dataset.Name, fmt.Sprint(dataset.Partitions), web.Size(dataset.Bytes),
			strings.Join(dataset.Consumers, ", "))
	}
	t.Write(w)
	fmt.Fprintf(w, "%s would be canceled.\n", plural.Of(d.OpenTasks, "open task"))
	for _, f := range d.Findings {
		if f.Level != contract.Says {
			writeObstacle(w, "deletion", f, given)
		}
	}
}
