// Package access has the commands about who may do what: service tokens, secrets, the caller's own identity, and the
// first org of an installation.
package access

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// TokensCommand returns `dagctl tokens` with its subcommands.
func TokensCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tokens",
		Short: "Create, list and revoke service tokens",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(tokensCreateCommand(c), tokensListCommand(c), tokensRevokeCommand(c))
	return cmd
}

func tokensCreateCommand(c *cli.CLI) *cobra.Command {
	var (
		request authz.CreateTokenRequest
		kind    string
		role    string
		grants  []string
		ttl     time.Duration
		subject string
	)
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a service token, and print its secret once",
		Long: `Creates a service token of one of three kinds. A user token has a role and acts for its org. A worker token
claims tasks of the runtimes and operators that it names, and can do nothing else. To create a worker token for several
orgs takes access to the database: ` + "`dagctl admin create-worker-token`" + `. By a scim token, an identity provider keeps
the org's users of one issuer and their groups, and can do nothing else.`,
		Example: `  dagctl tokens create ci --role writer --ttl 720h
  dagctl tokens create sales-ci --role reader --grant 'writer:sales-*'
  dagctl tokens create finance-bi --role reader --org-role role:finance
  dagctl tokens create fleet --kind worker --runtime ecs_platform
  dagctl tokens create python --kind worker --runtime python --operator handler
  dagctl tokens create okta --kind scim --issuer https://acme.okta.com --subject-from externalId`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := errors.Join(cli.OneOf("kind", kind, tokenKinds...), checkRole(role), checkTTL(ttl))
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			request.Name, request.Kind, request.Role = args[0], authz.TokenKind(kind), authz.Role(role)
			request.TTLSeconds, request.SubjectFrom = int64(ttl.Seconds()), authz.SubjectFrom(subject)
			for _, g := range grants {
				request.Grants = append(request.Grants, authz.ParseGrant(g))
			}
			var made authz.CreatedToken
			if err := api.Post(cmd.Context(), "/v1/tokens", request, &made); err != nil {
				return err
			}
			return printToken(c, made)
		},
	}

	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(authz.KindUser), "user, worker or scim")
	f.StringVar(&role, "role", "",
		"reader, proposer, writer or admin: what a user token may do, or the users of a scim token (default: reader)")
	f.StringArrayVar(&grants, "grant", nil,
		"role of a user token on some DAGs besides, as proposer:PATTERN or writer:PATTERN (repeatable)")
	f.StringArrayVar(&request.OrgRoles, "org-role", nil,
		"org role of a user token, as role:SLUG: it reads datasets for them (repeatable)")
	f.StringArrayVar(&request.Runtimes, "runtime", nil, "runtime that a worker token may serve (repeatable)")
	f.StringArrayVar(&request.Operators, "operator", nil,
		"operator that a worker token may run (repeatable; default: all)")
	f.StringArrayVar(&request.Orgs, "org", nil, "org whose tasks a worker token may claim: the org of the target")
	f.StringVar(&request.Issuer, "issuer", "",
		"provider at which the users of a scim token sign in, exactly as its ID tokens have it")
	f.StringVar(&subject, "subject-from", "",
		"attribute that holds their subject there: externalId or userName (default: their e-mail address tells)")
	f.DurationVar(&ttl, "ttl", authz.DefaultTTL, "lifetime of the token")
	for name, values := range map[string][]string{
		"kind": tokenKinds, "subject-from": {"externalId", "userName"}, "role": roles} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
	return cmd
}

// tokenKinds are the words of --kind.
var tokenKinds = []string{"user", "worker", "scim"}

// checkTTL refuses a lifetime that no token has.
func checkTTL(ttl time.Duration) error {
	if ttl >= time.Minute && ttl <= authz.MaxTTL {
		return nil
	}
	return fault.New(fault.Invalid, "--ttl: a token lives a minute at least and a year at most, not %s", ttl).
		WithHint("write such as --ttl 720h, or --ttl %dh for a year", int(authz.MaxTTL.Hours()))
}

// roleText returns a role and those on some DAGs.
func roleText(role authz.Role, grants []authz.Grant) string {
	all := []string{string(role)}
	for _, g := range grants {
		all = append(all, g.String())
	}
	return strings.Join(all, ",")
}

// printToken prints a new token's secret, which nobody can see again.
func printToken(c *cli.CLI, made authz.CreatedToken) error {
	return c.Print(made, func(w io.Writer) {
		fmt.Fprintln(w, made.Secret)
		fmt.Fprintf(c.Err, "Keep it: it is not shown again. It expires on %s.\n", made.ExpiresAt.Format(time.DateOnly))
	})
}

func tokensListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's service tokens",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			tokens, err := cli.Fetch[authz.Token](cmd.Context(), api, "/v1/tokens", nil, page)
			if err != nil {
				return err
			}

			return c.Print(tokens, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{
					"NAME", "KIND", "ROLE", "ORG ROLES", "RUNTIMES", "OPERATORS", "BY", "CREATED", "USED", "EXPIRES",
					"REVOKED",
				}}
				for _, token := range tokens {
					t.Add(token.Name, string(token.Kind), roleText(token.Role, token.Grants),
						strings.Join(token.OrgRoles, ","), strings.Join(token.Runtimes, ","),
						strings.Join(token.Operators, ","), token.CreatedBy,
						cli.Ago(&token.CreatedAt, now), cli.Ago(token.LastUsedAt, now),
						cli.Ago(&token.ExpiresAt, now), cli.Ago(token.RevokedAt, now))
				}
				t.Write(w)
			})
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func tokensRevokeCommand(c *cli.CLI) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "revoke NAME",
		Short: "Revoke a service token at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := c.Confirm(yes, "Revoke token %s? It stops working at once.", args[0]); err != nil {
				return err
			}
			if err := api.Delete(cmd.Context(), "/v1/tokens/"+url.PathEscape(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "Token %s is revoked.\n", args[0])
			return nil
		},
	}

	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
