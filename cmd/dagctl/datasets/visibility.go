package datasets

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/registry"
)

// visibilityCommand returns `dagctl datasets visibility`.
func visibilityCommand(c *cli.CLI) *cobra.Command {
	var (
		roles                    []string
		everyone, opened, remove bool
	)
	cmd := &cobra.Command{
		Use:   "visibility [DATASET | PATTERN]",
		Short: "Show or set who may read a dataset, or datasets to come",
		Long: `Shows who may read a dataset; with flags, sets it. Only admins may do either.

A dataset with read roles is read by members of one of them. Everything that is computed from it, at any distance, also
in other DAGs, is as closed: reading that takes the read roles of all that it was made from. Where an output holds
nothing of what guards its inputs, such as a count per month, --opened lets its own read roles decide alone, until
--opened=false, whatever other flags set meanwhile. For everybody else the dataset does not exist: in lists, queries,
lineage, tasks, logs and errors.

A name with * is a pattern, for datasets that do not exist yet: those that come to have a name that fits it get its read
roles; of several patterns the longest counts. Without a name, the patterns are listed; --remove removes one.`,
		Example: `  dagctl datasets visibility payroll --role role:finance --role role:hr
  dagctl datasets visibility headcount --everyone --opened
  dagctl datasets visibility headcount
  dagctl datasets visibility 'hr_*' --role role:hr
  dagctl datasets visibility 'hr_*' --remove`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if everyone && len(roles) > 0 {
				return fault.New(fault.Invalid, "say either --everyone or --role")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if len(args) == 0 || strings.Contains(args[0], "*") {
				p := patternCommand{c, api, everyone || len(roles) > 0, remove, roles}
				if cmd.Flags().Changed("opened") {
					return fault.New(fault.Invalid, "--opened is for one dataset")
				}
				return p.run(cmd.Context(), args)
			}
			if remove {
				return fault.New(fault.Invalid, "--remove is for patterns, and %q is the name of a dataset", args[0])
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
	f.BoolVar(&remove, "remove", false, "remove the pattern; datasets that it met keep their read roles")
	f.BoolVar(&opened, "opened", false, "do not count the read roles of what it is computed from, until --opened=false")
	return cmd
}

func writeVisibility(w io.Writer, v registry.DatasetVisibility) {
	fmt.Fprintf(w, "Read by      %s\n", readersOf(v.ReadRoles))
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

// readersOf says who may read what has some read roles.
func readersOf(roles []string) string {
	if len(roles) == 0 {
		return "every reader of the org"
	}
	return "members of " + strings.Join(roles, " or ")
}

// patternCommand shows or changes who may read datasets that do not exist yet.
type patternCommand struct {
	*cli.CLI
	api         *cli.Client
	set, remove bool
	roles       []string
}

func (p patternCommand) run(ctx context.Context, args []string) error {
	const path = "/v1/visibility"
	switch {
	case p.set && p.remove:
		return fault.New(fault.Invalid, "say either --remove or who may read them")
	case len(args) == 0 && (p.set || p.remove):
		return fault.New(fault.Invalid, "name a dataset, or a pattern such as 'hr_*'")

	case p.set:
		pattern := registry.ReadRolePattern{Pattern: args[0], ReadRoles: append([]string{}, p.roles...)}
		if err := p.api.Put(ctx, path, pattern, &pattern); err != nil {
			return err
		}
		return p.Print(pattern, func(w io.Writer) {
			fmt.Fprintf(w, "Datasets that come to be called %s are read by %s\n", pattern.Pattern,
				readersOf(pattern.ReadRoles))
			if len(pattern.Others) > 0 {
				fmt.Fprintf(w, "These exist already and keep theirs: %s\n", strings.Join(pattern.Others, ", "))
			}
		})
	case p.remove:
		return p.api.Delete(ctx, path+"?"+url.Values{"pattern": args}.Encode())
	}

	var all []registry.ReadRolePattern
	if err := p.api.Get(ctx, path, nil, &all); err != nil {
		return err
	}
	if len(args) == 1 {
		all = slices.DeleteFunc(all, func(r registry.ReadRolePattern) bool { return r.Pattern != args[0] })
	}
	return p.Print(all, func(w io.Writer) {
		if len(all) == 0 {
			fmt.Fprintln(w, "No pattern: `dagctl datasets visibility 'hr_*' --role role:hr` sets one")
			return
		}
		t := cli.Table{Header: []string{"PATTERN", "READ BY", "SET BY"}}
		for _, r := range all {
			t.Add(r.Pattern, readersOf(r.ReadRoles), r.CreatedBy)
		}
		t.Write(w)
	})
}
