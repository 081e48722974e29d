package tasks

import (
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
)

func tasksPurgeCommand(c *cli.CLI) *cobra.Command {
	var (
		selection selectionFlags
		request   upkeep.PurgeTasksRequest
		where     []string
		yes       bool
	)
	cmd := &cobra.Command{
		Use:   "purge [TASK...]",
		Short: "Delete the payloads, results and errors of tasks for good",
		Long: `Deletes payloads, metadata, results, errors, audit trails, idempotency keys and staged files of all tasks
that match every filter. It is for data that must be deleted; servers remove old data by themselves. The tasks stay in
the list. So do the datasets that they wrote: "dagctl datasets purge" deletes those.

The server refuses to purge open tasks, including dead ones: cancel or skip them first. Tasks that a rollback would
resume need --break-window.`,
		Example: `  dagctl tasks purge --where payload.customer=17 --reason "erasure request 17" --dry-run
  dagctl tasks purge --dag mail --created-before 2026-01-01 --reason "kept for a year" --yes`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if request.Filter, _, err = selection.selection(); err != nil {
				return err
			}

			request.Where = map[string]string{}
			for _, text := range where {
				path, value, found := strings.Cut(text, "=")
				if !found {
					return fault.New(fault.Invalid, "--where %q is not PATH=VALUE", text).
						WithHint("write payload.customer=17")
				}
				request.Where[path] = value
			}

			api, err := c.Connect()
			if err != nil {
				return err
			}

			api.Patient()
			if request.Filter.IDs, err = findTasks(cmd.Context(), api, args); err != nil {
				return err
			}
			dry := request
			dry.DryRun = true
			var purged upkeep.PurgedTasks
			if err := api.Post(cmd.Context(), "/v1/tasks:purge", dry, &purged); err != nil {
				if fault.Is(err, fault.NotFound) { // there are no such tasks
					err = cmp.Or(requireNamed(cmd.Context(), api, request.Filter), err)
				}
				return err
			}

			if request.DryRun {
				return c.Print(purged, func(w io.Writer) {
					fmt.Fprintf(w, "%s to purge.\n", plural.Of(purged.Tasks, "task"))
				})
			}
			if err := c.Confirm(yes, "Delete the data of %s for good?", plural.Of(purged.Tasks, "task")); err != nil {
				return err
			}
			if err := api.Post(cmd.Context(), "/v1/tasks:purge", request, &purged); err != nil {
				return err
			}
			return c.Print(purged, func(w io.Writer) {
				fmt.Fprintf(w, "Deleted the data of %s.\n", plural.Of(purged.Tasks, "task"))
			})
		},
	}

	selection.add(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&where, "where", nil,
		"content of the tasks: payload.FIELD=VALUE, metadata.FIELD=VALUE or result.FIELD=VALUE (repeatable)")
	flags.StringVar(&request.Reason, "reason", "", "why; kept in the audit log")
	flags.BoolVar(&request.BreakWindow, "break-window", false, "purge even tasks that a rollback would resume")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only print how many tasks match")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}
