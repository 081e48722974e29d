package access

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
)

// adminQuotasCommand returns `dagctl admin quotas`.
func adminQuotasCommand(c *cli.CLI) *cobra.Command {
	var (
		databaseURL  string
		set, cleared []string
	)
	cmd := &cobra.Command{
		Use:   "quotas ORG",
		Short: "Show what an org may use, and change it, straight in the database",
		Long: `Shows the quotas of an org, after setting and clearing some. What has no quota is not bounded. Servers
apply a change within seconds. ` + "`dagctl org usage`" + ` shows what the org uses.

The quotas are requests_per_minute, queued_tasks, uploads_per_day, storage_bytes and engines.`,
		Example: "  dagctl admin quotas acme --set queued_tasks=100000 --set storage_bytes=500000000000\n" +
			"  dagctl admin quotas acme --clear queued_tasks",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := make([]authz.OrgQuota, len(set))
			for i, text := range set {
				var err error
				if change[i], err = authz.ParseQuota(text); err != nil {
					return err
				}
			}
			gone := make([]authz.Quota, len(cleared))
			for i, name := range cleared {
				gone[i] = authz.Quota(name)
			}

			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			pool, err := pg.Open(cmd.Context(), address, pg.WithMaxConns(2))
			if err != nil {
				return err
			}
			defer pool.Close()
			quotas, err := authz.ChangeQuotas(cmd.Context(), pool, args[0], change, gone)
			if err != nil {
				return err
			}
			return c.Print(quotas, func(w io.Writer) { writeQuotas(c, w, args[0], quotas) })
		},
	}

	f := cmd.Flags()
	f.StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	f.StringArrayVar(&set, "set", nil, "NAME=NUMBER: what the org may use (repeatable)")
	f.StringArrayVar(&cleared, "clear", nil, "quota to take away (repeatable)")
	return cmd
}

func writeQuotas(c *cli.CLI, w io.Writer, org string, quotas []authz.OrgQuota) {
	if len(quotas) == 0 {
		fmt.Fprintf(w, "%s has no quotas.\n", org)
		return
	}
	t := cli.Table{Style: c.Style(c.Out), Header: []string{"QUOTA", "MOST"}}
	for _, q := range quotas {
		t.Add(string(q.Quota), fmt.Sprint(q.Most))
	}
	t.Write(w)
}

func orgUsageCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "usage",
		Short: "Show what your org uses, and what it may",
		Long: `Shows for each quota how much your org uses and may use. Without a number under MOST it may use any amount.
What needs more of a full quota waits or is refused; docs/operations.md says which. Who runs the server sets quotas.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			var usage authz.OrgUsage
			if err := api.Get(cmd.Context(), "/v1/org/usage", nil, &usage); err != nil {
				return err
			}

			return c.Print(usage, func(w io.Writer) {
				style, now := c.Style(c.Out), c.Now()
				t := cli.Table{Style: style, Header: []string{"QUOTA", "USED", "MOST", "SINCE"}}
				for _, u := range usage.Items {
					most := ""
					if u.Most != nil {
						most = fmt.Sprint(*u.Most)
					}
					t.Add(string(u.Quota), fmt.Sprint(u.Used), most, cli.Ago(u.Since, now))
				}
				t.Write(w)
				for _, u := range usage.Items {
					if u.Full {
						fmt.Fprintf(w, "\n%s: %s\n", style.Busy(string(u.Quota)), u.Text)
					}
				}
			})
		},
	}
}
