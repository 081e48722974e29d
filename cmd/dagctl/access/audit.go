package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/authz/auditlog"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

// AuditCommand returns `dagctl audit` with its subcommands.
func AuditCommand(c *cli.CLI) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "List, export and verify the audit log: who did what, and who was refused what",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(auditListCommand(c), auditExportCommand(c), auditVerifyCommand(c))
	return cmd
}

// auditFilter has the flags that select entries.
type auditFilter struct {
	actor, action, object, dataset, outcome string
	since, until                            string
}

func (f *auditFilter) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.actor, "actor", "", "only by this actor, such as token:ci")
	flags.StringVar(&f.action, "action", "", "only this action, such as dag.deploy, or all that begin so: token.*")
	flags.StringVar(&f.object, "object", "", "only on this object, such as token:ci")
	flags.StringVar(&f.dataset, "dataset", "", "only queries and previews that read this dataset")
	flags.StringVar(&f.outcome, "outcome", "", "only what was done, or what was refused")
	flags.StringVar(&f.since, "since", "", "only at or after this time: 2026-01-31, 2026-01-31T12:00:00Z, or 24h ago")
	flags.StringVar(&f.until, "until", "", "only before this time, written as for --since")
	_ = cmd.RegisterFlagCompletionFunc("outcome", cobra.FixedCompletions(
		[]string{string(authz.Done), string(authz.Refused)}, cobra.ShellCompDirectiveNoFileComp))
}

// query returns the filter as parameters of a request.
func (f *auditFilter) query(now time.Time) (url.Values, error) {
	if err := cli.OneOf("outcome", authz.Outcome(f.outcome), authz.Done, authz.Refused); err != nil {
		return nil, err
	}
	query := url.Values{}
	for name, value := range map[string]string{"actor": f.actor, "action": f.action, "object": f.object,
		"dataset": f.dataset, "outcome": f.outcome} {
		if value != "" {
			query.Set(name, value)
		}
	}

	times := map[string]time.Time{}
	for name, text := range map[string]string{"since": f.since, "until": f.until} {
		if text == "" {
			continue
		}
		at, err := timeOf(text, now)
		if err != nil {
			return nil, fault.New(fault.Invalid, "--%s %q is not a time", name, text).
				WithHint("write a day (2026-01-31), a time (2026-01-31T12:00:00Z), or how long ago it was (24h)")
		}
		times[name] = at
		query.Set(name, at.UTC().Format(time.RFC3339Nano))
	}
	return query, cli.InOrder("since", f.since, times["since"], "until", f.until, times["until"])
}

// requireNamed returns an error where one of the filters alone selects no entry, or names a dataset that is not there.
func (f *auditFilter) requireNamed(ctx context.Context, api *cli.Client) error {
	for _, filter := range []struct{ name, value string }{
		{"actor", f.actor}, {"action", f.action}, {"object", f.object},
	} {
		if filter.value == "" {
			continue
		}
		missing := fault.New(fault.NotFound, "no entry of the audit log has the %s %s", filter.name, filter.value).
			WithHint("`dagctl audit list` shows how they are written")
		query := url.Values{filter.name: {filter.value}}
		if err := cli.RequireSome(ctx, api, "/v1/audit", query, missing); err != nil {
			return err
		}
	}
	return cli.RequireDataset(ctx, api, f.dataset)
}

// timeOf reads a day in UTC, a time, or how long before now something was.
func timeOf(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil {
		return now.Add(-ago), nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return day, nil
	}
	return time.Parse(time.RFC3339, text)
}

func auditListCommand(c *cli.CLI) *cobra.Command {
	var (
		filter auditFilter
		page   cli.Page
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List who did what, latest first",
		Example: `  dagctl audit list --actor token:ci --since 24h
  dagctl audit list --dataset payroll
  dagctl audit list --outcome refused --action 'request.*' -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := filter.query(time.Now())
			if err != nil {
				return err
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			entries, err := cli.Fetch[authz.AuditEntry](cmd.Context(), api, "/v1/audit", query, page)
			if err == nil && len(entries) == 0 {
				err = filter.requireNamed(cmd.Context(), api)
			}
			if err != nil {
				return err
			}

			return c.Print(entries, func(w io.Writer) {
				t := cli.Table{Style: c.Style(c.Out),
					Header: []string{"SEQ", "AT", "ACTOR", "ACTION", "OUTCOME", "OBJECT", "DETAIL"}}
				for _, e := range entries {
					seq := ""
					if e.Seq > 0 {
						seq = strconv.FormatInt(e.Seq, 10)
					}
					t.Add(seq, e.At.UTC().Format(time.RFC3339), cli.OneLine(e.Actor, 40), e.Action,
						string(e.Outcome), cli.OneLine(e.Object, 50), cli.OneLine(string(e.Detail), 80))
				}
				t.Write(w)
			})
		},
	}

	filter.addFlags(cmd)
	page.AddFlags(cmd)
	return cmd
}

func auditExportCommand(c *cli.CLI) *cobra.Command {
	var (
		filter       auditFilter
		format, file string
	)
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Export the sealed entries of the audit log, with their numbers and hashes",
		Long: `Writes the sealed entries in the order of the chain, one a line. Entries are sealed within about a second; how
many were not yet is said. An export as NDJSON without a filter can be verified without a server:
` + "`dagctl audit verify --file FILE`.",
		Example: `  dagctl audit export --out audit.ndjson
  dagctl audit export --format csv --since 2026-01-01 --until 2026-02-01 --out january.csv`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query, err := filter.query(time.Now())
			if err != nil {
				return err
			}
			if auditlog.Media(format) == "" {
				return fault.New(fault.Invalid, "--format %q is neither ndjson nor csv", format)
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if err := filter.requireNamed(cmd.Context(), api); err != nil {
				return err
			}
			query.Set("format", format)
			return writeExport(cmd.Context(), c, api, query, format, file)
		},
	}

	filter.addFlags(cmd)
	cmd.Flags().StringVar(&format, "format", "ndjson", "ndjson or csv")
	cmd.Flags().StringVar(&file, "out", "", "file to write (default: standard output)")
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"ndjson", "csv"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// writeExport writes an export to a file, or to standard output. Whoever looks for the file finds all of it or nothing.
func writeExport(
	ctx context.Context, c *cli.CLI, api *cli.Client, query url.Values, format, file string,
) error {
	to := c.Out
	if file != "" {
		part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*") // for its owner only
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		defer os.Remove(part.Name())
		defer part.Close()
		to = part
	}

	api.NoTimeout()
	header, err := api.GetTo(ctx, "/v1/audit/export", query, auditlog.Media(format), to)
	if err != nil {
		return err
	}
	if part, ok := to.(*os.File); ok && file != "" {
		if err := errors.Join(part.Sync(), part.Close(), os.Rename(part.Name(), file)); err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
	}
	if n, _ := strconv.Atoi(header.Get(auditlog.UnsealedHeader)); n > 0 {
		fmt.Fprintf(c.Err, "Not in the export: entries that are not sealed yet, %d of them.\n", n)
	}
	return nil
}

func auditVerifyCommand(c *cli.CLI) *cobra.Command {
	var head, file string
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Find out whether the audit log was changed: exit code 1 if it was",
		Long: `Computes the chain of the audit log again, and names the first sealed entry that was changed, removed, put in or
moved. Whoever can write the database as its owner can write a whole chain anew. Keep the head that this prints
elsewhere, and give it with --head the next time: that shows it.`,
		Example: `  dagctl audit verify
  dagctl audit verify --head 1204:5f2c…
  dagctl audit verify --file audit.ndjson`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			found, err := verifyAudit(cmd.Context(), c, head, file)
			if err != nil {
				return err
			}
			if err := c.Print(found, func(w io.Writer) { printCheck(w, found) }); err != nil {
				return err
			}
			if !found.Whole {
				return cli.ErrReported
			}
			return nil
		},
	}

	cmd.Flags().StringVar(&head, "head", "", "head that the chain must have had, as SEQ:HASH")
	cmd.Flags().StringVar(&file, "file", "", "export as NDJSON to verify, instead of the target's audit log")
	return cmd
}

// verifyAudit verifies the audit log of the target, or an export.
func verifyAudit(ctx context.Context, c *cli.CLI, head, file string) (found auditlog.ChainCheck, err error) {
	var remembered auditlog.Head
	query := url.Values{}
	if head != "" {
		if remembered, err = auditlog.ParseHead(head); err != nil {
			return found, err
		}
		query.Set("head", head)
	}
	if file != "" {
		from, err := os.Open(file)
		if err != nil {
			return found, fault.New(fault.Invalid, "%w", err)
		}
		defer from.Close()
		return auditlog.VerifyExport(from, remembered)
	}

	api, err := c.Connect()
	if err != nil {
		return found, err
	}
	api.NoTimeout() // the server limits how long it may take
	err = api.Get(ctx, "/v1/audit/verify", query, &found)
	return found, err
}

// printCheck says what a look at a chain found.
func printCheck(w io.Writer, found auditlog.ChainCheck) {
	if !found.Whole {
		fmt.Fprintf(w, "The audit log is broken: %s.\n", found.Break.Text)
		fmt.Fprintf(w, "The %d sealed entries before that are whole.\n", found.Entries)
		return
	}
	fmt.Fprintf(w, "The audit log is whole: %d sealed entries", found.Entries)
	if found.Entries > 0 {
		fmt.Fprintf(w, ", %d to %d", found.First, found.Last)
	}
	fmt.Fprintf(w, ", and %d that are not sealed yet.\n", found.Unsealed)
	if found.Head != "" {
		fmt.Fprintf(w, "Head: %s\n", found.Head)
	}
}
