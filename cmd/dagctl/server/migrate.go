package server

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/migrations"
)

// MigrateCommand returns `dagctl migrate` with its subcommands.
func MigrateCommand(c *cli.CLI) *cobra.Command {
	var databaseURL, requestsURL string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the database's schema to the version of this program",
		Long: `Applies the migrations that the database lacks, and makes and mends the role by which requests log in, with
its rights. If several processes migrate at once, one works and the others wait.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			if err := migrations.UpFor(cmd.Context(), address, requestsURL); err != nil {
				return err
			}
			return printMigrations(cmd.Context(), c, address)
		},
	}

	status := &cobra.Command{
		Use:   "status",
		Short: "List the migrations, applied and pending",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.DatabaseURL(databaseURL)
			if err != nil {
				return err
			}
			return printMigrations(cmd.Context(), c, address)
		},
	}

	cmd.PersistentFlags().StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	cmd.Flags().StringVar(&requestsURL, "requests-database-url", c.Getenv("DAGCTL_REQUESTS_DATABASE_URL"),
		"by which requests log in, if the owner may make no roles (DAGCTL_REQUESTS_DATABASE_URL)")
	cmd.AddCommand(status)
	return cmd
}

type migrationView struct {
	Line      string     `json:"line"`
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

// printMigrations prints all migrations, with the time each was applied.
func printMigrations(ctx context.Context, c *cli.CLI, address string) error {
	pool, err := pg.Open(ctx, address, pg.WithMaxConns(2))
	if err != nil {
		return err
	}
	defer pool.Close()

	all, err := migrations.Status(ctx, pool)
	if err != nil {
		return err
	}

	ahead, err := migrations.Ahead(ctx, pool)
	if err != nil {
		return err
	}

	views := make([]migrationView, len(all))
	for i, m := range all {
		views[i] = migrationView{m.Line, m.Version, m.Name, m.AppliedAt}
	}
	return c.Print(views, func(w io.Writer) {
		t := cli.Table{Style: c.Style(c.Out), Header: []string{"LINE", "VERSION", "NAME", "APPLIED"}}
		for _, m := range views {
			applied := "pending"
			if m.AppliedAt != nil {
				applied = m.AppliedAt.Format(time.RFC3339)
			}
			t.Add(m.Line, fmt.Sprint(m.Version), m.Name, applied)
		}
		t.Write(w)
		if len(ahead) > 0 {
			fmt.Fprintf(c.Err, "A newer program has made %s that this one does not know: %s.\n",
				plural.Of(len(ahead), "migration"), strings.Trim(fmt.Sprint(ahead), "[]"))
		}
	})
}
