package datasets

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// visibilityCommand returns `dagctl datasets visibility`.
func visibilityCommand(c *cli.CLI) *cobra.Command {
	var (
		roles            []string
		everyone, opened bool
	)
	cmd := &cobra.Command{
		Use:   "visibility DATASET",
		Short: "Show or set who may read a dataset",
		Long: `Shows who may read a dataset; with flags, sets it. Only admins may do either.

A dataset with read roles is read by members of one of them. Everything that is computed from it, at any distance, also
in other DAGs, is as closed: reading that takes the read roles of all that it was made from. Where an output holds
nothing of what guards its inputs, such as a count per month, --opened lets its own read roles decide alone. What no
flag is about stays as it is: --opened from before holds until --opened=false, also with other read roles. For everybody else the dataset does not exist: in lists, queries, lineage, tasks, logs and errors.`,
		Example: `  dagctl datasets visibility payroll --role role:finance --role role:hr
  dagctl datasets visibility headcount --everyone --opened
  dagctl datasets visibility headcount`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if everyone && len(roles) > 0 {
				return fault.New(fault.Invalid, "say either --everyone or --role")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			path := cli.DatasetPath(args[0]) + "/visibility"
			var v registry.DatasetVisibility
			if err := api.Get(cmd.Context(), path, nil, &v); err != nil {
				return err
			}

			to := v.Visibility
			if everyone || len(roles) > 0 {
				to.ReadRoles = append([]string{}, roles...)
			}
			if cmd.Flags().Changed("opened") {
				to.Opened = opened
			}
			if cmd.Flags().NFlag() > 0 {
				if err := api.Put(cmd.Context(), path, to, &v); err != nil {
					return err
				}
			}
			return c.Print(v, func(w io.Writer) { writeVisibility(w, v) })
		},
	}

	f := cmd.Flags()
	f.StringArrayVar(&roles, "role", nil, "org role whose members may read it, as role:SLUG (repeatable)")
	f.BoolVar(&everyone, "everyone", false, "no read roles of its own: every reader of the org")
	f.BoolVar(&opened, "opened", false, "do not count the read roles of what it is computed from, until --opened=false")
	return cmd
}

func writeVisibility(w io.Writer, v registry.DatasetVisibility) {
	who := "every reader of the org"
	if len(v.ReadRoles) > 0 {
		who = "members of " + strings.Join(v.ReadRoles, " or ")
	}
	fmt.Fprintf(w, "Read by      %s\n", who)
	for _, s := range v.Stopped {
		fmt.Fprintf(w, "Waits        %s: version %d runs on the authority of %s, who may not read all that it reads\n",
			s.Job, s.Version, strings.Join(s.Authority, ", "))
	}
	if v.Opened {
		fmt.Fprintln(w,
			"Opened       an admin has said that the read roles of its inputs do not count, until --opened=false")
		return
	}

	for i, g := range v.Guards {
		label := ""
		if i == 0 {
			label = "who also are"
		}
		fmt.Fprintf(w, "%-12s members of %s (it is computed from %s)\n", label, strings.Join(g.ReadRoles, " or "),
			g.Dataset)
	}
}
