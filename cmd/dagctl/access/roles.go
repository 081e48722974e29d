package access

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// RolesCommand returns `dagctl roles` with its subcommands.
func RolesCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "roles",
		Short: "Create, list and delete org roles, which datasets name as their readers",
		Long: `Org roles are visibility groups. A dataset that names some is read by their members only: tokens that were
created with --org-role. What anybody may do in the org is another matter: the role reader, writer or admin.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(rolesCreateCommand(c), rolesListCommand(c), rolesDeleteCommand(c))
	return cmd
}

func rolesCreateCommand(c *cli.CLI) *cobra.Command {
	var request authz.CreateOrgRoleRequest
	cmd := &cobra.Command{
		Use:   "create SLUG",
		Short: "Create an org role",
		Example: `  dagctl roles create finance --name "Finance department"
  dagctl tokens create finance-bi --role reader --org-role role:finance
  dagctl datasets visibility payroll --role role:finance`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			request.Slug = strings.TrimPrefix(args[0], "role:")
			var made authz.OrgRole
			if err := api.Post(cmd.Context(), "/v1/roles", request, &made); err != nil {
				return err
			}
			return c.Print(made, func(w io.Writer) { fmt.Fprintf(w, "role:%s\n", made.Slug) })
		},
	}

	cmd.Flags().StringVar(&request.Name, "name", "", "name for people (default: the slug)")
	return cmd
}

func rolesListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's roles with the number of their members",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			roles, err := cli.Fetch[authz.OrgRole](cmd.Context(), api, "/v1/roles", nil, page)
			if err != nil {
				return err
			}

			return c.Print(roles, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{"ROLE", "NAME", "TOKENS", "USERS", "CREATED"}}
				for _, r := range roles {
					t.Add("role:"+r.Slug, cli.OneLine(r.Name, 60), fmt.Sprint(r.Tokens), fmt.Sprint(r.Users),
						cli.Ago(&r.CreatedAt, now))
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func rolesDeleteCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "delete SLUG",
		Short: "Delete an org role that nothing uses",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			slug := strings.TrimPrefix(args[0], "role:")
			if err := api.Delete(cmd.Context(), "/v1/roles/"+url.PathEscape(slug)); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "role:%s is deleted.\n", slug)
			return nil
		},
	}
}
