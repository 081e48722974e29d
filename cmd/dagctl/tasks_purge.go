package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
)

func (c *cli) tasksPurgeCommand() *cobra.Command {
	var (
		selection selectionFlags
		request   dispatcher.PurgeTasksRequest
		where     []string
		yes       bool
	)
	cmd := &cobra.Command{
		Use:   "purge [ID...]",
		Short: "Delete for good what tasks were given, returned and failed with",
		Long: `Deletes payloads, metadata, results, errors, audit trails, idempotency keys and what attempts left in staging, of all tasks
that meet every filter. It is for data that has to go; what is old goes by itself. That there were such tasks remains, and
so does what they made: "dagctl datasets purge" is for that.

Open tasks, dead ones included, are refused: cancel or skip them first. Tasks that a rollback would take up again take
--break-window.`,
		Example: "  dagctl tasks purge --where payload.customer=17 --reason \"erasure request 17\" --dry-run\n  dagctl tasks purge --dag mail --created-before 2026-01-01 --reason \"kept for a year\" --yes",
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if request.Filter, _, err = selection.selection(args); err != nil {
				return err
			}
			request.Where = map[string]string{}
			for _, text := range where {
				path, value, found := strings.Cut(text, "=")
				if !found {
					return fault.New(fault.Invalid, "--where %s: it is no PATH=VALUE", text).WithHint("write payload.customer=17")
				}
				request.Where[path] = value
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			api.patient()
			dry := request
			dry.DryRun = true
			var purged dispatcher.PurgedTasks
			if err := api.post(cmd.Context(), "/v1/tasks:purge", dry, &purged); err != nil {
				return err
			}
			if request.DryRun {
				return c.print(purged, func(w io.Writer) { fmt.Fprintf(w, "%s to purge.\n", count(purged.Tasks, "task")) })
			}
			if err := c.confirm(yes, "Delete what %s held, for good?", count(purged.Tasks, "task")); err != nil {
				return err
			}
			if err := api.post(cmd.Context(), "/v1/tasks:purge", request, &purged); err != nil {
				return err
			}
			return c.print(purged, func(w io.Writer) { fmt.Fprintf(w, "Deleted what %s held.\n", count(purged.Tasks, "task")) })
		},
	}
	selection.add(cmd)
	flags := cmd.Flags()
	flags.StringArrayVar(&where, "where", nil, "what they say: payload.FIELD=VALUE, metadata.FIELD=VALUE or result.FIELD=VALUE; may be repeated")
	flags.StringVar(&request.Reason, "reason", "", "goes into the audit log")
	flags.BoolVar(&request.BreakWindow, "break-window", false, "even tasks that a rollback would take up again")
	flags.BoolVar(&request.DryRun, "dry-run", false, "only say how many tasks it would be")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	_ = cmd.MarkFlagRequired("reason")
	return cmd
}
