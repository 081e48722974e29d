package access

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// TrustCommand returns `dagctl trust` with its subcommands.
func TrustCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trust",
		Short: "Say for whom the org trusts an issuer: groups of people, and pipelines",
		Long: `A rule gives a role to those for whom an issuer vouches. One of kind user admits people who sign in at the
issuer, such as those of a group. One of kind workload admits programs with a token of the issuer, such as the job of a
CI service, which so needs no stored secret. One of kind group is for the members of groups that the issuer's provider
keeps by SCIM, while they are members: its one claim is group, with the groups' names.

Claims are what the issuer's token says. Each that the rule names must be one of the rule's texts; in a text, * stands
for anything without / and : in it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(trustListCommand(c), trustAddCommand(c), trustRemoveCommand(c))
	return cmd
}

func trustAddCommand(c *cli.CLI) *cobra.Command {
	var (
		n      identity.NewRule
		g      given
		kind   string
		claims []string
	)
	cmd := &cobra.Command{
		Use:   "add NAME --issuer URL --claim CLAIM=TEXT --role ROLE",
		Short: "Add a rule",
		Example: `  dagctl trust add deploy-main --issuer https://token.actions.githubusercontent.com \
    --claim repository_id=123456 --claim ref=refs/heads/main --role reader --grant 'writer:sales-*'
  dagctl trust add data-team --kind user --issuer https://acme.okta.com --claim groups=data --role writer
  dagctl trust add everybody --kind user --issuer https://acme.okta.com --claim email_domain=acme.com --role reader`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(cli.OneOf("kind", kind, "user", "workload", "group"), checkRole(g.role)); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			n.Name, n.Kind, n.Role = args[0], identity.RuleKind(kind), authz.Role(g.role)
			n.Grants, n.OrgRoles, n.Claims = g.allGrants(), g.orgRoles, identity.Conditions{}
			for _, text := range claims {
				name, value, ok := strings.Cut(text, "=")
				if !ok {
					return fault.New(fault.Invalid, "--claim %q: write CLAIM=TEXT", text)
				}
				n.Claims[name] = append(n.Claims[name], value)
			}

			var made identity.Rule
			if err := api.Post(cmd.Context(), "/v1/trust", n, &made); err != nil {
				return err
			}
			return c.Print(made, func(w io.Writer) {
				fmt.Fprintf(w, "Rule %s is added.\n", made.Name)
				if made.Audience != "" {
					fmt.Fprintf(w, "Tokens must be made for the audience %s, and are sent as DAGCTL_TOKEN.\n",
						made.Audience)
				}
			})
		},
	}

	f := cmd.Flags()
	f.StringVar(&kind, "kind", string(identity.ForWorkloads), "user, workload or group")
	f.StringVar(&n.Issuer, "issuer", "", "issuer, exactly as its tokens have it")
	f.StringArrayVar(&claims, "claim", nil,
		"CLAIM=TEXT that the token must have; several texts of one claim are alternatives (repeatable)")
	g.addFlags(cmd)
	for _, name := range []string{"issuer", "claim", "role"} {
		_ = cmd.MarkFlagRequired(name)
	}
	_ = cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"user", "workload", "group"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// conditionsText returns conditions in one line.
func conditionsText(claims identity.Conditions) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		all = append(all, name+"="+strings.Join(claims[name], "|"))
	}
	return strings.Join(all, " ")
}

func trustListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's rules",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			rules, err := cli.Fetch[identity.Rule](cmd.Context(), api, "/v1/trust", nil, page)
			if err != nil {
				return err
			}

			return c.Print(rules, func(w io.Writer) {
				now := c.Now()
				t := cli.Table{Style: c.Style(c.Out), Header: []string{"NAME", "KIND", "ISSUER", "CLAIMS", "ROLE",
					"ORG ROLES", "BY", "CREATED"}}
				for _, r := range rules {
					t.Add(r.Name, string(r.Kind), r.Issuer, conditionsText(r.Claims), roleText(r.Role, r.Grants),
						strings.Join(r.OrgRoles, ","), r.CreatedBy, cli.Ago(&r.CreatedAt, now))
				}
				t.Write(w)
			})
		},
	}
	page.AddFlags(cmd)
	return cmd
}

func trustRemoveCommand(c *cli.CLI) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove NAME",
		Short: "Take a rule away; whoever came by it alone is out at once",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := c.Confirm(yes, "Take rule %s away? Whoever came by it alone is out at once.",
				args[0]); err != nil {
				return err
			}
			if err := api.Delete(cmd.Context(), "/v1/trust/"+url.PathEscape(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "Rule %s is gone.\n", args[0])
			return nil
		},
	}

	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
