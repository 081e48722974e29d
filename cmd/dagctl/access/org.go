package access

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// OrgCommand returns `dagctl org` with its subcommands.
func OrgCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "org",
		Short: "Show and change your org",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(orgShowCommand(c), orgSetCommand(c), orgUsageCommand(c))
	return cmd
}

func orgShowCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "show",
		Short: "Show the org's settings",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var org authz.OrgView
			if err := api.Get(cmd.Context(), "/v1/org", nil, &org); err != nil {
				return err
			}
			return printOrg(c, org)
		},
	}
}

func printOrg(c *cli.CLI, org authz.OrgView) error {
	return c.Print(org, func(w io.Writer) {
		readers := "every reader"
		if len(org.DefaultReadRoles) > 0 {
			readers = strings.Join(org.DefaultReadRoles, ", ")
		}
		fmt.Fprintf(w, "%s (%s)\nnew datasets are read by: %s\n", org.Slug, org.Name, readers)
	})
}

func orgSetCommand(c *cli.CLI) *cobra.Command {
	var roles []string
	var everybody bool
	cmd := &cobra.Command{
		Use:   "set",
		Short: "Change the org's settings",
		Long: `Sets who may read new datasets. Datasets that exist keep their read roles: dagctl datasets visibility changes
those.`,
		Example: `  dagctl org set --default-read-role role:staff
  dagctl org set --everybody-reads`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(roles) == 0 && !everybody {
				return fault.New(fault.Invalid, "nothing is to be changed").
					WithHint("name --default-read-role or --everybody-reads")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			roles = append([]string{}, roles...)
			var org authz.OrgView
			if err := api.Patch(cmd.Context(), "/v1/org", authz.OrgChange{DefaultReadRoles: &roles}, &org); err != nil {
				return err
			}
			return printOrg(c, org)
		},
	}

	f := cmd.Flags()
	f.StringArrayVar(&roles, "default-read-role", nil, "org role that may read new datasets, as role:SLUG (repeatable)")
	f.BoolVar(&everybody, "everybody-reads", false, "every reader of the org may read new datasets")
	cmd.MarkFlagsMutuallyExclusive("default-read-role", "everybody-reads")
	return cmd
}
