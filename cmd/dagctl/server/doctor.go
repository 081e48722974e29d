package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dispatcher/workitems"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/migrations"
)

// finding is the result of one check of doctor.
type finding struct {
	Check  string `json:"check"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
	Hint   string `json:"hint,omitempty"`
}

// DoctorCommand returns `dagctl doctor`.
func DoctorCommand(c *cli.CLI) *cobra.Command {
	var (
		databaseURL string
		config      string
		verifyFiles bool
	)
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine, the database and the server",
		Long: `Checks this machine and the server that commands talk to. With --database-url it also checks the
database, with --config the config of a server: its bucket, its runtimes and the keys of tasks. It prints a hint for
what fails.`,
		Example: "  dagctl doctor\n" +
			"  dagctl doctor --config /etc/dagctl/config.yaml --database-url postgres://dagctl@db/dagctl",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings := []finding{
				{Check: "version", OK: true, Detail: cli.Version()},
				findPostgres(),
				checkServer(cmd.Context(), c),
			}
			address, err := c.DatabaseURL(databaseURL)
			if err == nil {
				cfg := configOr(c, config)
				findings = append(findings, checkDatabase(cmd.Context(), address, cfg)...)
			}
			if config != "" {
				findings = append(findings, checkConfig(cmd.Context(), c, config, address)...)
			}
			if verifyFiles {
				findings = append(findings, checkFiles(cmd.Context(), c)...)
			}

			findings = append(findings, findWalls()...)

			unwell := slices.ContainsFunc(findings, func(f finding) bool { return !f.OK })
			if err := c.Print(findings, func(w io.Writer) { writeFindings(c, w, findings) }); err != nil {
				return err
			}

			if unwell {
				return cli.ErrReported
			}
			return nil
		},
	}

	cmd.Flags().StringVar(&databaseURL, "database-url", "", "also check this PostgreSQL (DAGCTL_DATABASE_URL)")
	cmd.Flags().StringVar(&config, "config", c.Getenv("DAGCTL_SERVER_CONFIG"),
		"also check this config file of a server, with its bucket, runtimes and keys (DAGCTL_SERVER_CONFIG)")
	cmd.Flags().BoolVar(&verifyFiles, "verify-files", false,
		"also check that every committed file exists and has its size; for admins")
	return cmd
}

// findWalls says which walls stand around what users run. Without namespaces, the others do.
func findWalls() (findings []finding) {
	for _, wall := range sandbox.Standing() {
		needed := runtime.GOOS == "linux" && wall.Name != "namespaces"
		findings = append(findings,
			finding{Check: "wall: " + wall.Name, OK: wall.Stands || !needed, Detail: wall.Detail})
	}
	return findings
}

// writeFindings writes one line per finding, and its hint below it.
func writeFindings(c *cli.CLI, w io.Writer, findings []finding) {
	style := c.Style(c.Out)
	for _, f := range findings {
		mark := style.Good("ok  ")
		if !f.OK {
			mark = style.Bad("FAIL")
		}
		fmt.Fprintf(w, "%s %-10s %s\n", mark, f.Check, f.Detail)
		if f.Hint != "" {
			fmt.Fprintf(w, "     %-10s %s\n", "", f.Hint)
		}
	}
}

// failed returns the finding of an error, with its hint.
func failed(check string, err error) finding {
	f := finding{Check: check, Detail: err.Error()}
	var classified *fault.Error
	if errors.As(err, &classified) {
		f.Hint = classified.Hint
	}
	return f
}

// findPostgres looks for the PostgreSQL that `dagctl dev` would start. A machine without one passes the check, because
// a server does not need it.
func findPostgres() finding {
	if path, err := exec.LookPath("postgres"); err == nil {
		return finding{Check: "postgres", OK: true, Detail: path}
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin/postgres", "/opt/homebrew/opt/postgresql@*/bin/postgres",
		"/usr/local/opt/postgresql@*/bin/postgres",
	} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return finding{Check: "postgres", OK: true, Detail: found[len(found)-1]}
		}
	}
	return finding{
		Check: "postgres", OK: true, Detail: "not installed",
		Hint: "`dagctl dev` needs it: apt-get install postgresql, brew install postgresql@17, or --database-url",
	}
}

// checkServer asks the target, if there is one, whether it is ready and who the caller is.
func checkServer(ctx context.Context, c *cli.CLI) finding {
	t, err := c.ResolveTarget()
	if err != nil {
		return finding{Check: "server", OK: true, Detail: "no target: " + err.Error()}
	}
	api := cli.NewClient(t)
	if err := api.Get(ctx, "/readyz", nil, nil); err != nil {
		return failed("server", err)
	}

	var me authz.Identity
	if err := api.Get(ctx, "/v1/whoami", nil, &me); err != nil {
		return failed("server", err)
	}
	return finding{
		Check: "server", OK: true,
		Detail: fmt.Sprintf("%s is ready; you are %s, %s of %s", t.URL, me.Actor, me.Role, me.Org),
	}
}

// configOr returns the config of a server, or as much of it as the environment has where it cannot be read.
func configOr(c *cli.CLI, path string) Config {
	cfg, err := loadConfig(path, c.Getenv)
	if err != nil { // which checkConfig reports
		cfg = Config{RequestsDatabaseURL: c.Getenv("DAGCTL_REQUESTS_DATABASE_URL")}
	}
	return cfg
}

// checkDatabase checks that the database answers, that its schema is up to date, and that requests can use it.
func checkDatabase(ctx context.Context, address string, cfg Config) []finding {
	pool, err := pg.Open(ctx, address, pg.WithMaxConns(2))
	if err != nil {
		return []finding{failed("database", err)}
	}
	defer pool.Close()
	schema := checkSchema(ctx, pool)
	if !schema.OK {
		return []finding{schema}
	}
	return []finding{schema, checkRequests(ctx, pool, address, cfg.RequestsDatabaseURL), checkBackground(ctx, pool),
		checkSecretKeys(ctx, pool, cfg.SecretKeys)}
}

// checkBackground checks that no background work fails.
func checkBackground(ctx context.Context, pool *pgxpool.Pool) finding {
	failing, err := workitems.ListFailing(ctx, pool, 3)
	if err != nil {
		return failed("background", err)
	}
	if len(failing) == 0 {
		return finding{Check: "background", OK: true, Detail: "no work fails"}
	}

	var said []string
	for _, f := range failing {
		said = append(said, fmt.Sprintf("%s failed %s, next at %s: %s", strings.TrimSpace(f.Kind+" "+f.Object),
			plural.Of(f.Failures, "time"), f.DueAt.UTC().Format(time.RFC3339), f.Error))
	}
	return finding{Check: "background", Detail: strings.Join(said, "; "),
		Hint: "it goes on by itself once the cause is mended"}
}

// checkRequests checks the role by which requests log in, and that they can.
func checkRequests(ctx context.Context, pool *pgxpool.Pool, address, requestsURL string) finding {
	login, err := pg.RequestLogin(address, requestsURL)
	if err != nil {
		return failed("requests", err)
	}
	lacks, err := migrations.Lacks(ctx, pool, requestsURL)
	if err != nil {
		return failed("requests", err)
	}
	if len(lacks) > 0 {
		f := finding{Check: "requests", Detail: migrations.Describe(lacks), Hint: "run `dagctl migrate`"}
		if login.Given {
			f.Hint += "; what it cannot mend, an administrator of the database must: see docs/operations.md"
		}
		return f
	}

	requests, err := pg.OpenRequests(ctx, address, pg.WithRequestsURL(requestsURL), pg.WithMaxConns(1))
	if err != nil {
		return failed("requests", err)
	}
	requests.Close()
	return finding{Check: "requests", OK: true, Detail: "log in as " + login.Name + ", which is nobody else"}
}

// checkSchema checks that the database has every migration.
func checkSchema(ctx context.Context, pool *pgxpool.Pool) finding {

	var version string
	if err := pool.QueryRow(ctx, `SHOW server_version`).Scan(&version); err != nil {
		return failed("database", err)
	}
	pending, err := migrations.Pending(ctx, pool)
	if err != nil {
		return failed("database", err)
	}

	if len(pending) > 0 {
		return finding{
			Check: "database", Hint: "run `dagctl migrate`",
			Detail: fmt.Sprintf("PostgreSQL %s lacks %s", version, plural.Of(len(pending), "migration")),
		}
	}
	ahead, err := migrations.Ahead(ctx, pool)
	if err != nil {
		return failed("database", err)
	}
	detail := "PostgreSQL " + version + ", schema up to date"
	if len(ahead) > 0 {
		detail = "PostgreSQL " + version + ", " + newerSchema(ahead)
	}
	return finding{Check: "database", OK: true, Detail: detail}
}
