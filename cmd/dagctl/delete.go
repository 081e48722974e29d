package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/web"
)

func (c *cli) deleteCommand() *cobra.Command {
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "delete DAG",
		Short: "Delete a DAG with its datasets",
		Long: `Takes a DAG out of service: readers do not find its datasets any more, its sources and timers end, open tasks are canceled. It
is refused while another DAG reads one of them. Until the rollback window has passed, "dagctl rollback DAG --to VERSION"
brings it back; after that gc has its data.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var plan registry.Deletion
			if err := api.get(cmd.Context(), dagPath(args[0])+"/deletion", nil, &plan); err != nil {
				return err
			}
			if dryRun {
				return c.print(plan, func(w io.Writer) { c.writeDeletion(w, plan) })
			}
			c.writeDeletion(c.err, plan)
			if err := c.confirm(yes, "Delete %s?", args[0]); err != nil {
				return err
			}
			var deleted registry.Deletion
			if err := api.do(cmd.Context(), http.MethodDelete, dagPath(args[0]), nil, &deleted); err != nil {
				return err
			}
			return c.print(deleted, func(w io.Writer) {
				fmt.Fprintf(w, "%s is deleted; its data is kept until %s\n", deleted.DAG, deleted.KeptUntil.UTC().Format(time.DateOnly))
			})
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would go")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (c *cli) writeDeletion(w io.Writer, d registry.Deletion) {
	t := table{style: c.style(w), header: []string{"DATASET", "PARTITIONS", "SIZE", "READ BY"}}
	for _, dataset := range d.Datasets {
		t.add(dataset.Name, fmt.Sprint(dataset.Partitions), web.Size(dataset.Bytes), strings.Join(dataset.Consumers, ", "))
	}
	t.write(w)
	fmt.Fprintf(w, "%s open would be canceled.\n", count(d.OpenTasks, "task"))
}
