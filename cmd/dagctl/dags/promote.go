package dags

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/builds"
	"github.com/dagctl/dagctl/dispatcher/httpapi"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/contract"
)

// PromoteCommand returns `dagctl promote`.
func PromoteCommand(c *cli.CLI) *cobra.Command {
	var (
		wait    bool
		yes     bool
		dryRun  bool
		request httpapi.ActivateRequest
	)
	cmd := &cobra.Command{
		Use:   "promote DAG [VERSION]",
		Short: "Cut over to a version that is ready",
		Long: `Lets a version that was deployed with --no-activate catch up with new data, and cuts over to it. Without
VERSION it takes the version that is ready or being built; there is at most one.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			number, err := waitingVersion(cmd.Context(), c, api, args)
			if err != nil {
				return err
			}
			if dryRun {
				path := fmt.Sprintf("%s/versions/%d/swap", cli.DAGPath(args[0]), number)
				given := contract.Agreed{AllowRemovals: request.AllowRemovals, AllowMoves: request.AllowMoves,
					AllowBreaking: request.AllowBreaking}
				return previewSwap(cmd.Context(), c, api, path, "promotion", given)
			}
			var v registry.Version
			if err := confirmAtTerminal(c, yes, "Promote %s to version %d?", args[0], number); err != nil {
				return err
			}
			request.Version = number
			if err := api.Put(cmd.Context(), cli.DAGPath(args[0])+"/active", request, &v); err != nil {
				return err
			}

			if wait {
				if v, err = waitForVersion(cmd.Context(), c, api, v, true); err != nil {
					return err
				}
			}
			return printMoved(c, v)
		},
	}

	flags := cmd.Flags()
	flags.BoolVar(&wait, "wait", true, "wait until the version serves or has failed")
	flags.BoolVar(&dryRun, "dry-run", false, "only print what readers would see change")
	flags.BoolVar(&yes, "yes", false, "do not ask")
	flags.BoolVar(&request.AllowRemovals, "allow-removals", false,
		"let partitions go that are served and that the version does not have")
	flags.BoolVar(&request.AllowMoves, "allow-moves", false, "let published names move to other datasets")
	flags.BoolVar(&request.AllowBreaking, "allow-breaking", false,
		"let columns go or change that jobs of other DAGs may read")
	return cmd
}

// confirmAtTerminal asks before something that can be undone, where somebody is there to answer.
func confirmAtTerminal(c *cli.CLI, yes bool, question string, args ...any) error {
	return c.Confirm(yes || !cli.IsTerminal(c.In), question, args...)
}

// waitingVersion returns the number in the arguments, or else that of the version that is ready or being built.
func waitingVersion(ctx context.Context, c *cli.CLI, api *cli.Client, args []string) (int, error) {
	if len(args) == 2 {
		return versionNumber(args[1])
	}
	var dag views.DAGDetail
	if err := api.Get(ctx, cli.DAGPath(args[0]), nil, &dag); err != nil {
		return 0, err
	}
	if dag.Building == nil {
		return 0, fault.New(fault.Conflict, "no version of %s is ready or being built", args[0]).
			WithHint("`dagctl history %s` lists its versions", args[0])
	}
	return dag.Building.Number, nil
}

// versionNumber reads the number of a version, with or without a v before it.
func versionNumber(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(text, "v"))
	if err != nil || n < 1 {
		return 0, fault.New(fault.Invalid, "%q is not a version: write v3, or 3", text)
	}
	return n, nil
}

// RollbackCommand returns `dagctl rollback`.
func RollbackCommand(c *cli.CLI) *cobra.Command {
	var (
		to       string
		cancel   bool
		moves    bool
		breaking bool
		removals bool
		yes      bool
		dryRun   bool
	)
	cmd := &cobra.Command{
		Use:   "rollback DAG",
		Short: "Cut over to a version that served before",
		Long: `Swaps every dataset of the DAG, its definition and its triggers back to a version that served before, in
one transaction and without computing anything. Afterwards its generations catch up with the data that has arrived
since.`,
		Example: "  dagctl rollback us-flights\n  dagctl rollback us-flights --to v3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := builds.RollbackRequest{CancelTasks: cancel, AllowRemovals: removals, AllowMoves: moves,
				AllowBreaking: breaking}
			which := "the version before the active one"
			if to != "" {
				n, err := versionNumber(to)
				if err != nil {
					return err
				}
				request.To, which = &n, fmt.Sprintf("version %d", n)
			}

			api, err := c.Connect()
			if err != nil {
				return err
			}
			if dryRun {
				path := cli.DAGPath(args[0]) + "/rollback"
				if request.To != nil {
					path = fmt.Sprintf("%s/versions/%d/swap", cli.DAGPath(args[0]), *request.To)
				}
				return previewSwap(cmd.Context(), c, api, path, "rollback", contract.Agreed{CancelTasks: cancel,
					AllowRemovals: removals, AllowMoves: moves, AllowBreaking: breaking})
			}
			if err := c.Confirm(yes, "Roll %s back to %s?", args[0], which); err != nil {
				return err
			}
			var v registry.Version
			if err := api.Post(cmd.Context(), cli.DAGPath(args[0])+"/rollback", request, &v); err != nil {
				return err
			}
			return printMoved(c, v)
		},
	}

	cmd.Flags().StringVar(&to, "to", "", "version to go back to (default: the one before the active one)")
	cmd.Flags().BoolVar(&breaking, "allow-breaking", false,
		"go back although jobs of other DAGs read datasets or columns that the version does not have")
	cmd.Flags().BoolVar(&removals, "allow-removals", false,
		"let partitions go that are served and that the version lacks; a version whose datasets were purged as a "+
			"whole cannot serve again")
	cmd.Flags().BoolVar(&moves, "allow-moves", false,
		"let published names move to other datasets, also from and to other DAGs")
	cmd.Flags().BoolVar(&cancel, "cancel-tasks", false,
		"cancel the open tasks of manual, timer and webhook jobs that the version does not have")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what readers would see change")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// AbandonCommand returns `dagctl abandon`.
func AbandonCommand(c *cli.CLI) *cobra.Command {
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "abandon DAG",
		Short: "Stop the build of a DAG, but keep what it built",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if dryRun {
				return previewAbandon(cmd.Context(), c, api, args[0])
			}
			if err := confirmAtTerminal(c, yes, "Abandon the build of %s?", args[0]); err != nil {
				return err
			}
			var v registry.Version
			if err := api.Post(cmd.Context(), cli.DAGPath(args[0])+"/abandon", struct{}{}, &v); err != nil {
				return err
			}
			return printMoved(c, v)
		},
	}

	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be canceled")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// printMoved prints the version that a command has acted on.
func printMoved(c *cli.CLI, v registry.Version) error {
	return c.Print(v, func(w io.Writer) { writeServing(c, w, v) })
}
