package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

func (c *cli) promoteCommand() *cobra.Command {
	var wait bool
	cmd := &cobra.Command{
		Use:   "promote DAG [VERSION]",
		Short: "Cut over to a version that is ready",
		Long: `Has a version that was deployed with --no-activate caught up and cut over to. Without VERSION it is the one that is
ready, or being built: there is at most one.`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			number, err := c.waitingVersion(cmd.Context(), api, args)
			if err != nil {
				return err
			}
			var v registry.Version
			if err := api.put(cmd.Context(), dagPath(args[0])+"/active", dispatcher.ActivateRequest{Version: number}, &v); err != nil {
				return err
			}
			if wait {
				if v, err = c.waitForVersion(cmd.Context(), api, v, true); err != nil {
					return err
				}
			}
			return c.printMoved(v)
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", true, "wait until the version serves, or has failed")
	return cmd
}

// waitingVersion is the number given, or that of the version on its way.
func (c *cli) waitingVersion(ctx context.Context, api *client, args []string) (int, error) {
	if len(args) == 2 {
		return versionNumber(args[1])
	}
	var dag dispatcher.DAGDetail
	if err := api.get(ctx, dagPath(args[0]), nil, &dag); err != nil {
		return 0, err
	}
	if dag.Building == nil {
		return 0, fault.New(fault.Conflict, "no version of %s is being built or ready", args[0]).WithHint("`dagctl history %s` lists its versions", args[0])
	}
	return dag.Building.Number, nil
}

func versionNumber(text string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(text, "v"))
	if err != nil || n < 1 {
		return 0, fault.New(fault.Invalid, "%q is not a version: write v3, or 3", text)
	}
	return n, nil
}

func (c *cli) rollbackCommand() *cobra.Command {
	var (
		to     string
		cancel bool
		yes    bool
	)
	cmd := &cobra.Command{
		Use:   "rollback DAG",
		Short: "Cut over to a version that served before",
		Long: `Swaps every dataset of the DAG, its definition and its triggers back to a version that served before, in one transaction and
with nothing computed. Afterwards the old generations catch up with what arrived since.`,
		Example: "  dagctl rollback us-flights\n  dagctl rollback us-flights --to v3 --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			request := dispatcher.RollbackRequest{CancelTasks: cancel}
			which := "the version before the active one"
			if to != "" {
				n, err := versionNumber(to)
				if err != nil {
					return err
				}
				request.To, which = &n, fmt.Sprintf("version %d", n)
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			if err := c.confirm(yes, "Roll %s back to %s?", args[0], which); err != nil {
				return err
			}
			var v registry.Version
			if err := api.post(cmd.Context(), dagPath(args[0])+"/rollback", request, &v); err != nil {
				return err
			}
			return c.printMoved(v)
		},
	}
	cmd.Flags().StringVar(&to, "to", "", "version to go back to (default: the one before the active one)")
	cmd.Flags().BoolVar(&cancel, "cancel-tasks", false, "cancel the open tasks of manual, timer and webhook jobs that the version does not have")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (c *cli) abandonCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "abandon DAG",
		Short: "Stop the build of a DAG, and keep what it built",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			var v registry.Version
			if err := api.post(cmd.Context(), dagPath(args[0])+"/abandon", struct{}{}, &v); err != nil {
				return err
			}
			return c.printMoved(v)
		},
	}
}

func (c *cli) printMoved(v registry.Version) error {
	return c.print(v, func(w io.Writer) {
		fmt.Fprintf(w, "%s v%d (%s) is %s\n", v.DAG, v.Number, short(v.Hash), c.style(c.out).status(string(v.Status)))
	})
}

func dagPath(dag string) string { return "/v1/dags/" + url.PathEscape(dag) }
