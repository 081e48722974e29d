package access

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/identity"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// UsersCommand returns `dagctl users` with its subcommands.
func UsersCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "users",
		Short: "Invite users, change what they may do, and disable them",
		Long: `A user is a person in the org. Users sign in at an OpenID provider of the server, or by one-time links where
the server has none. Whole groups come in by a rule: see dagctl trust.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(usersListCommand(c), usersInviteCommand(c), usersSetCommand(c),
		usersDisableCommand(c, true), usersDisableCommand(c, false), usersSignOutCommand(c), usersLinkCommand(c),
		usersRemoveCommand(c))
	return cmd
}

// userPath returns the path of a user, by id or e-mail address.
func userPath(user string) string { return "/v1/users/" + url.PathEscape(user) }

func usersListCommand(c *cli.CLI) *cobra.Command {
	var page cli.Page
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the org's users",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			users, err := cli.Fetch[identity.User](cmd.Context(), api, "/v1/users", nil, page)
			if err != nil {
				return err
			}
			return c.Print(users, func(w io.Writer) { writeUsers(c, w, users) })
		},
	}

	page.AddFlags(cmd)
	return cmd
}

func writeUsers(c *cli.CLI, w io.Writer, users []identity.User) {
	now := c.Now()
	t := cli.Table{Style: c.Style(c.Out), Header: []string{"EMAIL", "NAME", "STATE", "ROLE", "ORG ROLES", "ISSUER",
		"SEEN",
		"SESSIONS", "ID"}}
	for _, u := range users {
		role := "by rules"
		if u.Role != "" || len(u.Grants) > 0 {
			role = roleText(u.Role, u.Grants)
		}
		t.Add(u.Email, cli.OneLine(u.Name, 40), u.State(now), role, strings.Join(u.OrgRoles, ","), u.Issuer,
			cli.Ago(u.LastSeenAt, now), fmt.Sprint(u.Sessions), u.ID.String())
	}
	t.Write(w)
}

// roles are the words of --role.
var roles = []string{"reader", "proposer", "writer", "admin"}

// checkRole refuses a --role that is none; without it, there is nothing to refuse.
func checkRole(role string) error { return cli.OneOf("role", role, roles...) }

// given are the flags by which somebody is given roles.
type given struct {
	role     string
	grants   []string
	orgRoles []string
}

func (g *given) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&g.role, "role", "", "reader, proposer, writer or admin")
	f.StringArrayVar(&g.grants, "grant", nil,
		"role on some DAGs besides, as proposer:PATTERN or writer:PATTERN (repeatable)")
	f.StringArrayVar(&g.orgRoles, "org-role", nil, "org role, as role:SLUG: it reads datasets for them (repeatable)")
	_ = cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions(roles, cobra.ShellCompDirectiveNoFileComp))
}

func (g *given) allGrants() []authz.Grant {
	all := []authz.Grant{}
	for _, text := range g.grants {
		all = append(all, authz.ParseGrant(text))
	}
	return all
}

func usersInviteCommand(c *cli.CLI) *cobra.Command {
	var (
		n     identity.NewUser
		g     given
		local bool
	)
	cmd := &cobra.Command{
		Use:   "invite EMAIL --role ROLE",
		Short: "Invite a user, who comes in with the first sign-in",
		Long: `Invites whoever signs in at the provider with the e-mail address, which the provider must have verified. On a
server without a provider, or with --local, the user signs in by links: dagctl users link makes one.`,
		Example: `  dagctl users invite ana@example.com --role writer
  dagctl users invite bo@example.com --role reader --grant 'writer:sales-*' --org-role role:finance
  dagctl users invite ops@example.com --role admin --local`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRole(g.role); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			n.Email, n.Role, n.Grants, n.OrgRoles = args[0], authz.Role(g.role), g.allGrants(), g.orgRoles
			if local {
				n.Issuer = identity.Local
			}
			var made identity.User
			if err := api.Post(cmd.Context(), "/v1/users", n, &made); err != nil {
				return err
			}
			return c.Print(made, func(w io.Writer) {
				fmt.Fprintf(w, "%s is invited as %s, and signs in at %s.\n", made.Email, roleText(made.Role,
					made.Grants),
					made.Issuer)
			})
		},
	}

	g.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&n.Name, "name", "", "name for people, until the provider says it")
	f.StringVar(&n.Issuer, "issuer", "", "issuer of the provider, if the server has several")
	f.IntVar(&n.Days, "days", 14, "how long the invitation holds")
	f.BoolVar(&local, "local", false, "no provider knows the user: links sign the user in")
	cmd.MarkFlagsMutuallyExclusive("issuer", "local")
	_ = cmd.MarkFlagRequired("role")
	return cmd
}

func usersSetCommand(c *cli.CLI) *cobra.Command {
	var g given
	var noGrants, noOrgRoles bool
	cmd := &cobra.Command{
		Use:   "set USER",
		Short: "Change a user's role, grants or org roles",
		Long:  "Changes what is named and leaves the rest. It holds from the user's next request on.",
		Example: `  dagctl users set ana@example.com --role admin
  dagctl users set bo@example.com --grant 'writer:sales-*' --grant 'writer:orders'
  dagctl users set bo@example.com --no-org-roles`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkRole(g.role); err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var change identity.UserChange
			if role := authz.Role(g.role); cmd.Flags().Changed("role") {
				change.Role = &role
			}
			if grants := g.allGrants(); len(grants) > 0 || noGrants {
				change.Grants = &grants
			}
			if len(g.orgRoles) > 0 || noOrgRoles {
				change.OrgRoles = &g.orgRoles
			}
			if change == (identity.UserChange{}) {
				return fault.New(fault.Invalid, "nothing is to be changed").
					WithHint("name --role, --grant or --org-role")
			}
			return patchUser(cmd, c, api, args[0], change)
		},
	}

	g.addFlags(cmd)
	cmd.Flags().BoolVar(&noGrants, "no-grants", false, "take all grants away")
	cmd.Flags().BoolVar(&noOrgRoles, "no-org-roles", false, "take all org roles away")
	cmd.MarkFlagsMutuallyExclusive("grant", "no-grants")
	cmd.MarkFlagsMutuallyExclusive("org-role", "no-org-roles")
	return cmd
}

func patchUser(cmd *cobra.Command, c *cli.CLI, api *cli.Client, user string, change identity.UserChange) error {
	var changed identity.User
	if err := api.Patch(cmd.Context(), userPath(user), change, &changed); err != nil {
		return err
	}
	return c.Print(changed, func(w io.Writer) { writeUsers(c, w, []identity.User{changed}) })
}

func usersDisableCommand(c *cli.CLI, disable bool) *cobra.Command {
	use, short := "disable USER", "Disable a user, who is out everywhere at once"
	if !disable {
		use, short = "enable USER", "Let a disabled user sign in again"
	}

	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := patchUser(cmd, c, api, args[0], identity.UserChange{Disabled: &disable}); err != nil || !disable {
				return err
			}
			return warnOfTokens(cmd, c, api, args[0])
		},
	}
}

// warnOfTokens names the service tokens that a disabled user has created: they are the org's, and go on.
func warnOfTokens(cmd *cobra.Command, c *cli.CLI, api *cli.Client, user string) error {
	var u identity.User
	if err := api.Get(cmd.Context(), userPath(user), nil, &u); err != nil {
		return err
	}
	tokens, err := cli.Fetch[authz.Token](cmd.Context(), api, "/v1/tokens", nil, cli.Page{Limit: 100_000})
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if t.CreatedBy == "user:"+u.ID.String() && t.RevokedAt == nil && t.ExpiresAt.After(c.Now()) {
			fmt.Fprintf(c.Err,
				"Token %s, which the user created, still works: `dagctl tokens revoke %[1]s` ends it.\n", t.Name)
		}
	}
	return nil
}

func usersSignOutCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "sign-out USER",
		Short: "End all sessions of a user, who may sign in again",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := api.Post(cmd.Context(), userPath(args[0])+"/sign-out", nil, nil); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "%s is signed out everywhere.\n", args[0])
			return nil
		},
	}
}

func usersLinkCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "link USER",
		Short: "Make a link that signs in, once, a user whom no provider knows",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var link identity.Link
			if err := api.Post(cmd.Context(), userPath(args[0])+"/link", nil, &link); err != nil {
				return err
			}
			return printLink(c, link)
		},
	}
}

func printLink(c *cli.CLI, link identity.Link) error {
	return c.Print(link, func(w io.Writer) {
		fmt.Fprintln(w, link.URL)
		fmt.Fprintf(c.Err, "Give it to the user alone. It works once, until %s.\n", link.ExpiresAt.Format(time.RFC3339))
	})
}

func usersRemoveCommand(c *cli.CLI) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove USER",
		Short: "Remove a user, or take back an invitation",
		Long:  "Removes a user with all sessions. A rule may let the same person in again: disable who must stay out.",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := c.Confirm(yes, "Remove %s? All sessions end at once.", args[0]); err != nil {
				return err
			}
			if err := api.Delete(cmd.Context(), userPath(args[0])); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "%s is removed.\n", args[0])
			return nil
		},
	}

	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}
