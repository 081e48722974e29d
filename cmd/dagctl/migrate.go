package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/migrations"
)

func (c *cli) migrateCommand() *cobra.Command {
	var databaseURL string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Bring the database's schema up to date",
		Long:  "Applies the migrations that the database lacks. Any number may run at once: one works, the others wait for it.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.databaseURL(databaseURL)
			if err != nil {
				return err
			}
			if err := migrations.Up(cmd.Context(), address); err != nil {
				return err
			}
			return c.printMigrations(cmd.Context(), address)
		},
	}
	status := &cobra.Command{
		Use:   "status",
		Short: "List the migrations, applied and pending",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := c.databaseURL(databaseURL)
			if err != nil {
				return err
			}
			return c.printMigrations(cmd.Context(), address)
		},
	}
	cmd.PersistentFlags().StringVar(&databaseURL, "database-url", "", "PostgreSQL (DAGCTL_DATABASE_URL)")
	cmd.AddCommand(status)
	return cmd
}

// databaseURL is the flag's value, else the variable's.
func (c *cli) databaseURL(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if value := c.getenv("DAGCTL_DATABASE_URL"); value != "" {
		return value, nil
	}
	return "", fault.New(fault.Invalid, "no database is named").WithHint("pass --database-url, or set DAGCTL_DATABASE_URL")
}

type migrationView struct {
	Line      string     `json:"line"`
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"applied_at"`
}

func (c *cli) printMigrations(ctx context.Context, address string) error {
	pool, err := pg.Open(ctx, address, pg.WithMaxConns(2))
	if err != nil {
		return err
	}
	defer pool.Close()
	all, err := migrations.Status(ctx, pool)
	if err != nil {
		return err
	}
	views := make([]migrationView, len(all))
	for i, m := range all {
		views[i] = migrationView{m.Line, m.Version, m.Name, m.AppliedAt}
	}
	return c.print(views, func(w io.Writer) {
		t := table{style: c.style(c.out), header: []string{"LINE", "VERSION", "NAME", "APPLIED"}}
		for _, m := range views {
			applied := "pending"
			if m.AppliedAt != nil {
				applied = m.AppliedAt.Format(time.RFC3339)
			}
			t.add(m.Line, fmt.Sprint(m.Version), m.Name, applied)
		}
		t.write(w)
	})
}
