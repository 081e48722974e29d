package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/pg"
)

func (c *cli) adminCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "admin",
		Short: "Set an installation up",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.bootstrapCommand(), c.createWorkerTokenCommand(), c.adminRevokeTokenCommand())
	return cmd
}

func (c *cli) bootstrapCommand() *cobra.Command {
	var databaseURL string
	var first authz.FirstToken
	cmd := &cobra.Command{
		Use:   "bootstrap --org SLUG",
		Short: "Make the first org and its first admin token, straight in the database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.databaseURL(databaseURL)
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
			return c.print(made, func(w io.Writer) {
				fmt.Fprintln(w, secret)
				fmt.Fprintf(c.err, "This is the admin token %q of org %s. Keep it: it is not shown again.\n", made.Token, made.Org)
				fmt.Fprintln(c.err, "Next: `dagctl target add NAME --url URL --token-file FILE`.")
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringVar(&first.OrgSlug, "org", "", "slug of the org")
	f.StringVar(&first.OrgName, "name", "", "name of the org, for people")
	f.StringVar(&first.TokenName, "token", "bootstrap", "name of the token")
	f.DurationVar(&first.TTL, "ttl", 30*24*time.Hour, "how long the token lives")
	f.BoolVar(&first.Another, "another-org", false, "make one more org where there are some already")
	_ = cmd.MarkFlagRequired("org")
	return cmd
}
