package datasets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
)

// QueryCommand returns `dagctl query`.
func QueryCommand(c *cli.CLI) *cobra.Command {
	var (
		at, dag, file string
		limit         int
		explain       bool
	)
	cmd := &cobra.Command{
		Use:   "query SQL",
		Short: "Run one SELECT over the datasets that you may read",
		Long: `Runs one SELECT, in the SQL of DuckDB, over datasets by their names, and prints the rows. It reads all
datasets as they were at one moment, so that no answer has half of a deploy in it. Write the name of an unpublished
dataset as "dag/job/output", in quotation marks. With - as the statement, query reads it from standard input.

--at candidate reads a DAG's next version before it serves; --at v3 --dag DAG reads an earlier version as long as it
exists; --at 2026-01-31T12:00:00Z reads what was served at that moment, as long as its rows are kept. They are for
writers. With --dag, the query reads the datasets of other DAGs from the versions that serve.

Besides table, json and yaml, --output can be csv, or arrow and parquet, which have exact types: a stream of Arrow's IPC
format, and a Parquet file. --explain prints how the statement would be run, and does not run it.`,
		Example: `  dagctl query "SELECT carrier, avg(delay) FROM airport_delays GROUP BY ALL ORDER BY 2 DESC"
  dagctl query "SELECT count(*) FROM airport_delays" --at candidate
  dagctl query - --limit 10000 --output csv < report.sql > report.csv
  dagctl query "FROM airport_delays" --output arrow --file delays.arrows`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			sql := args[0]
			if sql == "-" {
				text, err := io.ReadAll(io.LimitReader(c.In, 1<<20))
				if err != nil {
					return fmt.Errorf("read the statement: %w", err)
				}
				sql = string(text)
			}

			switch {
			case strings.TrimSpace(sql) == "":
				return fault.New(fault.Invalid, "there is no statement").
					WithHint(`write one SELECT, such as "SELECT count(*) FROM airport_delays"`)
			case limit < 0:
				return fault.New(fault.Invalid, "--limit %d is negative", limit)
			case explain && (files[c.Output] != "" || c.Output == cli.OutputCSV):
				return fault.New(fault.Invalid, "a plan has no form in %s", c.Output).
					WithHint("leave --output out, or write --output json")
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			if err := checkFile(c, file); err != nil {
				return err
			}
			api.NoTimeout() // the server limits how long a query may take
			body := map[string]any{"sql": sql}
			for name, value := range map[string]string{"at": at, "dag": dag} {
				if value != "" {
					body[name] = value
				}
			}

			if limit > 0 {
				body["limit"] = limit
			}
			if media := files[c.Output]; media != "" && !explain {
				return queryFile(cmd.Context(), c, api, body, media, file)
			}
			if explain {
				body["explain"] = true
			}
			var answer query.Answer
			if err := api.Post(cmd.Context(), "/v1/query", body, &answer); err != nil {
				return err
			}

			if answer.Truncated {
				defer fmt.Fprintf(c.Err, "There are more than these %d rows; raise --limit to see more.\n",
					len(answer.Rows))
			}
			if explain && c.Output == "table" {
				_, err := io.WriteString(c.Out, answer.Plan)
				return err
			}
			if c.Output == cli.OutputCSV {
				return query.WriteCSV(c.Out, answer)
			}
			return c.Print(answer, func(w io.Writer) {
				WriteRows(w, c.Style(c.Out), query.Rows{Columns: answer.Columns, Rows: answer.Rows})
			})
		},
	}

	f := cmd.Flags()
	f.StringVar(&at, "at", "", "live (default), candidate, a version of --dag such as v3, or an instant")
	f.StringVar(&dag, "dag", "", "DAG of the version that --at names")
	f.IntVar(&limit, "limit", 0, "maximum number of rows (default 1000)")
	f.StringVar(&file, "file", "", "where to write Arrow or Parquet; default: standard output")
	f.BoolVar(&explain, "explain", false, "print the plan of the statement, and do not run it")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"live", "candidate"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// files are the media types of the outputs that are files.
var files = map[string]string{cli.OutputArrow: query.MediaArrow, cli.OutputParquet: query.MediaParquet}

// checkFile refuses what would write Arrow or Parquet to a terminal, or something else to a file.
func checkFile(c *cli.CLI, file string) error {
	switch binary := files[c.Output] != ""; {
	case file != "" && !binary:
		return fault.New(fault.Invalid, "--file is for --output arrow and parquet").
			WithHint("write --output %s > %s", c.Output, file)
	case binary && file == "" && cli.IsTerminal(c.Out):
		return fault.New(fault.Invalid, "%s is not for a terminal", strings.ToUpper(c.Output[:1])+c.Output[1:]).
			WithHint("name a file with --file, or use a pipe")
	}
	return nil
}

// queryFile writes the rows, as a media type, to a file or to standard output.
func queryFile(ctx context.Context, c *cli.CLI, api *cli.Client, body map[string]any, media, file string) error {
	to := c.Out
	if file != "" {
		// Whoever looks for the file finds all of it or nothing.
		part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-*")
		if err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
		defer os.Remove(part.Name())
		defer part.Close()
		to = part
	}

	header, err := api.Download(ctx, "/v1/query", body, media, to)
	if err != nil {
		return err
	}
	if part, ok := to.(*os.File); ok && file != "" {
		if err := errors.Join(part.Close(), os.Chmod(part.Name(), 0o644), os.Rename(part.Name(), file)); err != nil {
			return fault.New(fault.Invalid, "%w", err)
		}
	}
	if header.Get(query.TruncatedHeader) == "true" {
		fmt.Fprintln(c.Err, "There are more than these rows; raise --limit to see more.")
	}
	return nil
}
