package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
)

func (c *cli) tokensCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokens",
		Short: "Make, list and revoke service tokens",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.tokensCreateCommand(), c.tokensListCommand(), c.tokensRevokeCommand())
	return cmd
}

func (c *cli) tokensCreateCommand() *cobra.Command {
	var (
		role string
		ttl  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create NAME --role ROLE",
		Short: "Make a service token; its secret is printed once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			request := authz.CreateTokenRequest{Name: args[0], Role: authz.Role(role), TTLSeconds: int64(ttl.Seconds())}
			var made authz.CreatedToken
			if err := api.post(cmd.Context(), "/v1/tokens", request, &made); err != nil {
				return err
			}
			return c.print(made, func(w io.Writer) {
				fmt.Fprintln(w, made.Secret)
				fmt.Fprintf(c.err, "Keep it: it is not shown again. It expires on %s.\n", made.ExpiresAt.Format(time.DateOnly))
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", "", "reader, writer or admin")
	cmd.Flags().DurationVar(&ttl, "ttl", authz.DefaultTTL, "how long it lives")
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

func (c *cli) tokensListCommand() *cobra.Command {
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's service tokens",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			tokens, err := fetch[authz.Token](cmd.Context(), api, "/v1/tokens", nil, page)
			if err != nil {
				return err
			}
			return c.print(tokens, func(w io.Writer) {
				now := time.Now()
				t := table{style: c.style(c.out), header: []string{"NAME", "KIND", "ROLE", "RUNTIMES", "BY", "CREATED", "USED", "EXPIRES", "REVOKED"}}
				for _, token := range tokens {
					t.add(token.Name, string(token.Kind), string(token.Role), strings.Join(token.Runtimes, ","), token.CreatedBy,
						ago(&token.CreatedAt, now), ago(token.LastUsedAt, now), ago(&token.ExpiresAt, now), ago(token.RevokedAt, now))
				}
				t.write(w)
			})
		},
	}
	page.add(cmd)
	return cmd
}

func (c *cli) tokensRevokeCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a service token at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			if err := c.confirm(yes, "Revoke token %s? Whoever uses it is locked out at once.", args[0]); err != nil {
				return err
			}
			if err := api.delete(cmd.Context(), "/v1/tokens/"+url.PathEscape(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.err, "Token %s is revoked.\n", args[0])
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
