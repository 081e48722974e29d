package datasets

import (
	"context"
	"encoding/csv"
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
	)
	cmd := &cobra.Command{
		Use:   "query SQL",
		Short: "Run one SELECT over the datasets that you may read",
		Long: `Runs one SELECT, in the SQL of DuckDB, over datasets by their names, and prints the rows. It reads all
datasets as they were at one moment, so that no answer has half of a deploy in it. Write the name of an unpublished
dataset as "dag/job/output", in quotation marks. With - as the statement, query reads it from standard input.

--at candidate reads a DAG's next version before it serves; --at v3 --dag DAG reads an earlier version as long as it
exists. Both are for writers. The query reads the datasets of other DAGs from the versions that serve.

Besides table, json and yaml, --output can be csv, or arrow: a stream of Arrow's IPC format, with exact types.`,
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
			if c.Output == cli.OutputArrow {
				return queryArrow(cmd.Context(), c, api, body, file)
			}
			var answer query.Answer
			if err := api.Post(cmd.Context(), "/v1/query", body, &answer); err != nil {
				return err
			}

			if answer.Truncated {
				defer fmt.Fprintf(c.Err, "There are more than these %d rows; raise --limit to see more.\n",
					len(answer.Rows))
			}
			if c.Output == cli.OutputCSV {
				return writeCSV(c.Out, answer)
			}
			return c.Print(answer, func(w io.Writer) {
				WriteRows(w, c.Style(c.Out), query.Rows{Columns: answer.Columns, Rows: answer.Rows})
			})
		},
	}

	f := cmd.Flags()
	f.StringVar(&at, "at", "", "live (default), candidate, or a version of --dag such as v3")
	f.StringVar(&dag, "dag", "", "DAG of the version that --at names")
	f.IntVar(&limit, "limit", 0, "maximum number of rows (default 1000)")
	f.StringVar(&file, "file", "", "where to write Arrow; default: standard output")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"live", "candidate"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// checkFile refuses what would write Arrow to a terminal, or something else to a file.
func checkFile(c *cli.CLI, file string) error {
	switch arrow := c.Output == cli.OutputArrow; {
	case file != "" && !arrow:
		return fault.New(fault.Invalid, "--file is for --output arrow").
			WithHint("write --output %s > %s", c.Output, file)
	case arrow && file == "" && cli.IsTerminal(c.Out):
		return fault.New(fault.Invalid, "Arrow is not for a terminal").
			WithHint("name a file with --file, or use a pipe")
	}
	return nil
}

// queryArrow writes the rows as Arrow to a file, or to standard output.
func queryArrow(ctx context.Context, c *cli.CLI, api *cli.Client, body map[string]any, file string) error {
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

	header, err := api.Download(ctx, "/v1/query", body, query.MediaArrow, to)
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

// writeCSV writes rows in the form of RFC 4180, and NULL as an empty field.
func writeCSV(w io.Writer, answer query.Answer) error {
	out := csv.NewWriter(w)
	record := make([]string, len(answer.Columns))
	for i, c := range answer.Columns {
		record[i] = c.Name
	}
	if err := out.Write(record); err != nil {
		return fmt.Errorf("write as CSV: %w", err)
	}

	for _, row := range answer.Rows {
		for i, value := range row {
			record[i] = cell(value)
		}
		if err := out.Write(record); err != nil {
			return fmt.Errorf("write as CSV: %w", err)
		}
	}

	out.Flush()
	return out.Error()
}
