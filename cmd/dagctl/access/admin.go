package access

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
)

// AdminCommand returns `dagctl admin` with its subcommands.
func AdminCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Set up an installation, straight in its database",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(bootstrapCommand(c), adminCreateTokenCommand(c), createWorkerTokenCommand(c),
		adminRevokeTokenCommand(c), adminQuotasCommand(c), adminLinkCommand(c), adminRotateSecretsCommand(c))
	return cmd
}

func bootstrapCommand(c *cli.CLI) *cobra.Command {
	var databaseURL string
	var first authz.FirstToken
	cmd := &cobra.Command{
		Use:   "bootstrap --org SLUG",
		Short: "Create the first org and its first admin token, straight in the database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			pool, err := pg.Open(cmd.Context(), address, pg.WithMaxConns(2))
			if err != nil {
				return err
			}
			defer pool.Close()

			secret, org, err := authz.Bootstrap(cmd.Context(), pool, first)
			if err != nil {
				return err
			}

			made := struct {
				Org    string `json:"org"`
				Token  string `json:"token"`
				Secret string `json:"secret"`
			}{org.Slug, first.TokenName, secret}
			return c.Print(made, func(w io.Writer) {
				fmt.Fprintln(w, secret)
				fmt.Fprintf(c.Err, "This is the admin token %q of org %s. Keep it: it is not shown again.\n",
					made.Token, made.Org)
				fmt.Fprintln(c.Err, "Next: `dagctl target add NAME --url URL --token-file FILE`, and `dagctl admin "+
					"sign-in-link` for the pages.")
			})
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringVar(&first.OrgSlug, "org", "", "slug of the org")
	f.StringVar(&first.OrgName, "name", "", "name of the org for people")
	f.StringVar(&first.TokenName, "token", "bootstrap", "name of the token")
	f.DurationVar(&first.TTL, "ttl", 30*24*time.Hour, "lifetime of the token")
	f.BoolVar(&first.Another, "another-org", false, "create another org although there are some")
	_ = cmd.MarkFlagRequired("org")
	return cmd
}
