package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

func (c *cli) createWorkerTokenCommand() *cobra.Command {
	var (
		databaseURL string
		n           authz.NewToken
	)
	cmd := &cobra.Command{
		Use:   "create-worker-token NAME --org ORG --runtime RUNTIME",
		Short: "Make a worker token for one or several orgs, straight in the database",
		Long: `Makes a token for workers that claim tasks of several orgs, which no admin of one of them may: whoever runs the server names
the database. It belongs to the first org, and is in the audit log of all.`,
		Example: "  dagctl admin create-worker-token fleet --org acme --org umbrella --runtime ecs_platform --database-url postgres://dagctl@db/dagctl",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := c.databaseURL(databaseURL)
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
			return c.printToken(authz.CreatedToken{Token: token, Secret: secret})
		},
	}
	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringArrayVar(&n.Orgs, "org", nil, "org whose tasks it may claim (repeatable)")
	f.StringArrayVar(&n.Runtimes, "runtime", nil, "runtime that it may serve (repeatable)")
	f.StringArrayVar(&n.Operators, "operator", nil, "operator that it may run; all unless given (repeatable)")
	f.DurationVar(&n.TTL, "ttl", authz.DefaultTTL, "how long it lives")
	_ = cmd.MarkFlagRequired("org")
	_ = cmd.MarkFlagRequired("runtime")
	return cmd
}

func (c *cli) adminRevokeTokenCommand() *cobra.Command {
	var (
		databaseURL, org string
		yes              bool
	)
	cmd := &cobra.Command{
		Use:   "revoke-token NAME --org ORG",
		Short: "Revoke any token at once, straight in the database",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			address, err := c.databaseURL(databaseURL)
			if err != nil {
				return err
			}
			if err := c.confirm(yes, "Revoke token %s of org %s? Whoever uses it is locked out at once.", args[0], org); err != nil {
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
			fmt.Fprintf(c.err, "Token %s is revoked.\n", args[0])
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
