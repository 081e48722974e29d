package access

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
)

// adminCreateTokenCommand returns `dagctl admin create-token`.
func adminCreateTokenCommand(c *cli.CLI) *cobra.Command {
	var (
		databaseURL, org, role string
		n                      authz.NewToken
	)
	cmd := &cobra.Command{
		Use:   "create-token NAME --org ORG",
		Short: "Create a token for people and programs of an org, straight in the database",
		Long: `Creates a token of an org, an admin's unless --role says otherwise. It brings back an org whose admin tokens
are lost, revoked or have ended. Whoever has a token of the org that still works uses dagctl tokens create.`,
		Example: "  dagctl admin create-token rescue --org acme --database-url postgres://dagctl@db/dagctl",
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

			n.Name, n.Role = args[0], authz.Role(role)
			secret, token, err := authz.CreateUserToken(cmd.Context(), pool, org, n)
			if err != nil {
				return err
			}
			return printToken(c, authz.CreatedToken{Token: token, Secret: secret})
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringVar(&org, "org", "", "slug of the org")
	f.StringVar(&role, "role", string(authz.RoleAdmin), "reader, proposer, writer or admin")
	f.StringArrayVar(&n.OrgRoles, "org-role", nil, "org role of the token, as role:SLUG (repeatable)")
	f.DurationVar(&n.TTL, "ttl", authz.DefaultTTL, "lifetime of the token")
	_ = cmd.MarkFlagRequired("org")
	return cmd
}

// createWorkerTokenCommand returns `dagctl admin create-worker-token`.
func createWorkerTokenCommand(c *cli.CLI) *cobra.Command {
	var (
		databaseURL string
		n           authz.NewToken
	)
	cmd := &cobra.Command{
		Use:   "create-worker-token NAME --org ORG --runtime RUNTIME",
		Short: "Create a worker token for one or several orgs, straight in the database",
		Long: `Creates a token for workers that claim tasks of several orgs. The admin of a single org may not do that,
so the command needs access to the database. The token belongs to the first org, and is in the audit log of all.`,
		Example: "  dagctl admin create-worker-token fleet --org acme --org umbrella --runtime ecs_platform " +
			"--database-url postgres://dagctl@db/dagctl",
		Args: cobra.ExactArgs(1),
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

			n.Name = args[0]
			secret, token, err := authz.CreateWorkerToken(cmd.Context(), pool, n)
			if err != nil {
				return err
			}
			return printToken(c, authz.CreatedToken{Token: token, Secret: secret})
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringArrayVar(&n.Orgs, "org", nil, "org whose tasks the token may claim (repeatable)")
	f.StringArrayVar(&n.Runtimes, "runtime", nil, "runtime that the token may serve (repeatable)")
	f.StringArrayVar(&n.Operators, "operator", nil, "operator that the token may run (repeatable; default: all)")
	f.DurationVar(&n.TTL, "ttl", authz.DefaultTTL, "lifetime of the token")
	_ = cmd.MarkFlagRequired("org")
	_ = cmd.MarkFlagRequired("runtime")
	return cmd
}

// adminRevokeTokenCommand returns `dagctl admin revoke-token`.
func adminRevokeTokenCommand(c *cli.CLI) *cobra.Command {
	var (
		databaseURL, org string
		yes              bool
	)
	cmd := &cobra.Command{
		Use:   "revoke-token NAME --org ORG",
		Short: "Revoke any token at once, straight in the database",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			if err := c.Confirm(yes, "Revoke token %s of org %s? It stops working at once.", args[0], org); err != nil {
				return err
			}
			pool, err := pg.Open(cmd.Context(), address, pg.WithMaxConns(2))
			if err != nil {
				return err
			}
			defer pool.Close()

			if err := authz.RevokeAnyToken(cmd.Context(), pool, org, args[0]); err != nil {
				return err
			}

			fmt.Fprintf(c.Err, "Token %s is revoked.\n", args[0])
			return nil
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringVar(&org, "org", "", "org that the token belongs to")
	f.BoolVar(&yes, "yes", false, "do not ask")
	_ = cmd.MarkFlagRequired("org")
	return cmd
}
