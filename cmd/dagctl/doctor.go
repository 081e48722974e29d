package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/migrations"
)

// finding is what doctor says of one thing.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

func (c *cli) doctorCommand() *cobra.Command {
	var (
		databaseURL string
		config      string
		verifyFiles bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, the database and the server",
		Long: `Checks this machine, the server that commands would talk to and, where they are named, the database and the config of a
server: its bucket, its runtimes and the keys of tasks. It says of what is wrong how to mend it.`,
		Example: "  dagctl doctor\n  dagctl doctor --config /etc/dagctl/config.yaml --database-url postgres://dagctl@db/dagctl",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := []finding{
				{Check: "version", OK: true, Detail: buildVersion()},
				findPostgres(),
				c.checkServer(cmd.Context()),
			}
			if address, err := c.databaseURL(databaseURL); err == nil {
				findings = append(findings, checkDatabase(cmd.Context(), address))
			}
			if config != "" {
				findings = append(findings, c.checkConfig(cmd.Context(), config)...)
			}
			if verifyFiles {
				findings = append(findings, c.checkFiles(cmd.Context())...)
			}
			sick := slices.ContainsFunc(findings, func(f finding) bool { return !f.OK })
			if err := c.print(findings, func(w io.Writer) { c.writeFindings(w, findings) }); err != nil {
				return err
			}
			if sick {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&databaseURL, "database-url", "", "check this PostgreSQL too (DAGCTL_DATABASE_URL)")
	cmd.Flags().StringVar(&config, "config", c.getenv("DAGCTL_SERVER_CONFIG"), "check this config file of a server too, its bucket, runtimes and keys (DAGCTL_SERVER_CONFIG)")
	cmd.Flags().BoolVar(&verifyFiles, "verify-files", false, "check that every committed file is there with its size; for admins")
	return cmd
}

func (c *cli) writeFindings(w io.Writer, findings []finding) {
	style := c.style(c.out)
	for _, f := range findings {
		mark := style.good("ok  ")
		if !f.OK {
			mark = style.bad("FAIL")
		}
		fmt.Fprintf(w, "%s %-10s %s\n", mark, f.Check, f.Detail)
		if f.Hint != "" {
			fmt.Fprintf(w, "     %-10s %s\n", "", f.Hint)
		}
	}
}

// failed makes a finding of an error, with its hint.
func failed(check string, err error) finding {
	f := finding{Check: check, Detail: err.Error()}
	var classified *fault.Error
	if errors.As(err, &classified) {
		f.Hint = classified.Hint
	}
	return f
}

// findPostgres looks where `dagctl dev` would find one. Having none is no fault: a server needs none of its own.
func findPostgres() finding {
	if path, err := exec.LookPath("postgres"); err == nil {
		return finding{Check: "postgres", OK: true, Detail: path}
	}
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin/postgres", "/opt/homebrew/opt/postgresql@*/bin/postgres", "/usr/local/opt/postgresql@*/bin/postgres"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return finding{Check: "postgres", OK: true, Detail: found[len(found)-1]}
		}
	}
	return finding{Check: "postgres", OK: true, Detail: "not installed",
		Hint: "`dagctl dev` needs it: apt-get install postgresql, brew install postgresql@17, or --database-url"}
}

// checkServer asks the target, where there is one, whether it is ready and whether it knows us.
func (c *cli) checkServer(ctx context.Context) finding {
	t, err := c.resolveTarget()
	if err != nil {
		return finding{Check: "server", OK: true, Detail: "no target: " + err.Error()}
	}
	api := newClient(t)
	if err := api.get(ctx, "/readyz", nil, nil); err != nil {
		return failed("server", err)
	}
	var me authz.Identity
	if err := api.get(ctx, "/v1/whoami", nil, &me); err != nil {
		return failed("server", err)
	}
	return finding{Check: "server", OK: true, Detail: fmt.Sprintf("%s is ready; you are %s, %s of %s", t.URL, me.Actor, me.Role, me.Org)}
}

func checkDatabase(ctx context.Context, address string) finding {
	pool, err := pg.Open(ctx, address, pg.WithMaxConns(2))
	if err != nil {
		return failed("database", err)
	}
	defer pool.Close()
	var version string
	if err := pool.QueryRow(ctx, `SHOW server_version`).Scan(&version); err != nil {
		return failed("database", err)
	}
	pending, err := migrations.Pending(ctx, pool)
	if err != nil {
		return failed("database", err)
	}
	if len(pending) > 0 {
		return finding{Check: "database", Detail: fmt.Sprintf("PostgreSQL %s lacks %s", version, count(len(pending), "migration")), Hint: "run `dagctl migrate`"}
	}
	return finding{Check: "database", OK: true, Detail: "PostgreSQL " + version + ", schema up to date"}
}
