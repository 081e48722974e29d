package access

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
)

// WhoamiCommand returns `dagctl whoami`.
func WhoamiCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show who the server takes you for, and what you may do",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var me authz.Identity
			if err := api.Get(cmd.Context(), "/v1/whoami", nil, &me); err != nil {
				return err
			}

			return c.Print(me, func(w io.Writer) {
				fmt.Fprintf(w, "%s, %s of %s\n", nameOf(me), roleText(me.Role, me.Grants), me.Org)
				if len(me.OrgRoles) > 0 {
					fmt.Fprintf(w, "in %s\n", strings.Join(me.OrgRoles, ", "))
				}
				if me.ExpiresAt != nil {
					fmt.Fprintf(w, "until %s\n", me.ExpiresAt.Format(time.RFC3339))
				}
			})
		},
	}
}
