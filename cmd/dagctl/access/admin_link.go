package access

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
)

// adminLinkCommand returns `dagctl admin sign-in-link`.
func adminLinkCommand(c *cli.CLI) *cobra.Command {
	var databaseURL, org, baseURL string
	cmd := &cobra.Command{
		Use:   "sign-in-link EMAIL --org ORG --base-url URL",
		Short: "Make a link that signs an admin in to the pages, straight in the database",
		Long: `Makes a link that works once, for an admin whom no provider knows. The user is made if the org has none with
that address. So the first person gets in, and people get in again when the provider does not answer for long.`,
		Example: "  dagctl admin sign-in-link ops@example.com --org acme --base-url https://dagctl.example.com",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			pool, err := pg.Open(cmd.Context(), address, pg.WithMaxConns(2))
			if err != nil {
				return err
			}
			defer pool.Close()

			of, err := authz.OrgBySlug(cmd.Context(), pool, org)
			if err != nil {
				return err
			}
			link, err := identity.FirstLink(cmd.Context(), pool, of, args[0], strings.TrimRight(baseURL, "/"))
			if err != nil {
				return err
			}
			return printLink(c, link)
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringVar(&org, "org", "", "slug of the org")
	f.StringVar(&baseURL, "base-url", "", "address of the server for browsers, as in its config")
	_ = cmd.MarkFlagRequired("org")
	_ = cmd.MarkFlagRequired("base-url")
	return cmd
}
