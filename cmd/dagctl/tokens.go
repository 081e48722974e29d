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
		request authz.CreateTokenRequest
		kind    string
		role    string
		ttl     time.Duration
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a service token; its secret is printed once",
		Long: `Makes a service token of one of two kinds. A user token has a role and acts for its org. A worker token claims tasks of
the runtimes and operators that it names, and can do nothing else. Worker tokens for several orgs are made by whoever runs
the server: ` + "`dagctl admin create-worker-token`.",
		Example: `  dagctl tokens create ci --role writer --ttl 720h
  dagctl tokens create fleet --kind worker --runtime ecs_platform
  dagctl tokens create python --kind worker --runtime python --operator handler`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.connect()
			if err != nil {
				return err
			}
			request.Name, request.Kind, request.Role, request.TTLSeconds = args[0], authz.TokenKind(kind), authz.Role(role), int64(ttl.Seconds())
			var made authz.CreatedToken
			if err := api.post(cmd.Context(), "/v1/tokens", request, &made); err != nil {
				return err
			}
			return c.printToken(made)
		},
	}
	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(authz.KindUser), "user or worker")
	f.StringVar(&role, "role", "", "of a user token: reader, writer or admin")
	f.StringArrayVar(&request.Runtimes, "runtime", nil, "runtime that a worker token may serve (repeatable)")
	f.StringArrayVar(&request.Operators, "operator", nil, "operator that a worker token may run; all unless given (repeatable)")
	f.StringArrayVar(&request.Orgs, "org", nil, "org whose tasks a worker token may claim: the target's own")
	f.DurationVar(&ttl, "ttl", authz.DefaultTTL, "how long it lives")
	for name, values := range map[string][]string{"kind": {"user", "worker"}, "role": {"reader", "writer", "admin"}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

// printToken shows a new token's secret, this once.
func (c *cli) printToken(made authz.CreatedToken) error {
	return c.print(made, func(w io.Writer) {
		fmt.Fprintln(w, made.Secret)
		fmt.Fprintf(c.err, "Keep it: it is not shown again. It expires on %s.\n", made.ExpiresAt.Format(time.DateOnly))
	})
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
				t := table{style: c.style(c.out), header: []string{"NAME", "KIND", "ROLE", "RUNTIMES", "OPERATORS", "BY", "CREATED", "USED", "EXPIRES", "REVOKED"}}
				for _, token := range tokens {
					t.add(token.Name, string(token.Kind), string(token.Role), strings.Join(token.Runtimes, ","), strings.Join(token.Operators, ","), token.CreatedBy,
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
