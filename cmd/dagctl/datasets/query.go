package datasets

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/web"
)

// QueryCommand returns `dagctl query`.
func QueryCommand(c *cli.CLI) *cobra.Command {
	var (
		at, dag, file, from string
		limit               int
		explain, page       bool
	)
	cmd := &cobra.Command{
		Use:   "query SQL | -f FILE",
		Short: "Run one SELECT over the datasets that you may read",
		Long: `Runs one SELECT, in the SQL of DuckDB, over datasets by their names, and prints the rows. It reads all
datasets as they were at one moment, so that no answer has half of a deploy in it. Write the name of an unpublished
dataset as "dag/job/output", in quotation marks. -f FILE reads the statement from a file, and - from standard input.
DESCRIBE and SUMMARIZE before a dataset or a statement show its columns, and a summary of each.

--at candidate reads a DAG's next version before it serves; --at v3 --dag DAG reads an earlier version as long as it
exists; --at 2026-01-31T12:00:00Z reads what was served at that moment, as long as its rows are kept. They are for
writers. With --dag, the query reads the datasets of other DAGs from the versions that serve.

Besides table, json and yaml, --output can be csv or ndjson, or arrow and parquet, which have exact types: a stream of
Arrow's IPC format, and a Parquet file. These have all rows, however many there are; --limit has the first of them. The
others have 1000 unless --limit says otherwise. --explain prints how the statement would be run, and does not run it.
--page prints the address of the page that has the statement: run there, its rows are drawn as a chart, too.`,
		Example: `  dagctl query "SELECT carrier, avg(delay) FROM airport_delays GROUP BY ALL ORDER BY 2 DESC"
  dagctl query "SELECT count(*) FROM airport_delays" --at candidate
  dagctl query -f report.sql --output csv > report.csv
  dagctl query "SUMMARIZE airport_delays"
  dagctl query "SELECT day, delay FROM airport_delays" --page
  dagctl query "FROM airport_delays" --output arrow --file delays.arrows`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			sql, err := statement(c, args, from)
			if err != nil {
				return err
			}
			_, streams := media[query.Format(c.Output)]
			switch {
			case strings.TrimSpace(sql) == "":
				return fault.New(fault.Invalid, "there is no statement").
					WithHint(`write one SELECT, such as "SELECT count(*) FROM airport_delays"`)
			case limit < 0:
				return fault.New(fault.Invalid, "--limit %d is negative", limit)
			case limit == 0 && cmd.Flags().Changed("limit"):
				return fault.New(fault.Invalid, "--limit 0 shows nothing").
					WithHint("give at least 1; without --limit, --output csv, ndjson, arrow and parquet have all rows")
			case page && (explain || file != "" || limit > 0 || streams):
				return fault.New(fault.Invalid, "--page prints an address, and no rows").
					WithHint("leave out --explain, --limit, --file and --output: the page has all of these")
			case explain && streams:
				return fault.New(fault.Invalid, "a plan has no form in %s", c.Output).
					WithHint("leave --output out, or write --output json")
			case file != "" && !streams:
				return fault.New(fault.Invalid, "--file is for --output arrow, csv, ndjson and parquet").
					WithHint("write --output %s > %s", c.Output, file)
			}

			api, err := c.Connect()
			if err != nil {
				return err
			}
			if page {
				return printPage(c, api, web.QueryLink(sql, at, dag))
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
			if streams {
				return export(cmd.Context(), c, api, body, query.Format(c.Output), cmp.Or(file, "-"))
			}
			if explain {
				body["explain"] = true
			}
			var answer query.Answer
			if err := api.Post(cmd.Context(), "/v1/query", body, &answer); err != nil {
				return err
			}

			if answer.Truncated {
				defer fmt.Fprintf(c.Err, "There are more rows than these %d; raise --limit to see more.\n",
					len(answer.Rows))
			}
			if explain && c.Output == "table" {
				_, err := io.WriteString(c.Out, answer.Plan)
				return err
			}
			return c.Print(answer, func(w io.Writer) {
				WriteRows(w, c.Style(c.Out), query.Rows{Columns: answer.Columns, Rows: answer.Rows})
			})
		},
	}

	f := cmd.Flags()
	f.StringVar(&at, "at", "", "live (default), candidate, a version of --dag such as v3, or an instant")
	f.StringVar(&dag, "dag", "", "DAG of the version that --at names")
	f.IntVar(&limit, "limit", 0, "maximum number of rows (default 1000; all of csv, ndjson, arrow and parquet)")
	f.StringVarP(&from, "from", "f", "", "file with the statement; - reads standard input")
	f.StringVar(&file, "file", "", "where to write csv, ndjson, arrow or parquet; default: standard output")
	f.BoolVar(&page, "page", false, "print the address of the page that has the statement")
	f.BoolVar(&explain, "explain", false, "print the plan of the statement, and do not run it")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"live", "candidate"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// printPage prints the address of a page of the server.
func printPage(c *cli.CLI, api *cli.Client, path string) error {
	if path == "" {
		return fault.New(fault.Invalid, "the statement is too long for an address").
			WithHint("paste it into %s/query", api.Target.URL)
	}
	address := strings.TrimRight(api.Target.URL, "/") + path
	return c.Print(map[string]string{"url": address}, func(w io.Writer) { fmt.Fprintln(w, address) })
}

// statement returns the statement of an argument or of a file.
func statement(c *cli.CLI, args []string, file string) (string, error) {
	switch {
	case len(args) > 0 && file != "":
		return "", fault.New(fault.Invalid, "there are two statements: an argument, and one in %s", file).
			WithHint("leave one of them out")
	case len(args) == 0 && file == "":
		return "", fault.New(fault.Invalid, "there is no statement").
			WithHint(`write one SELECT, such as "SELECT count(*) FROM airport_delays", or name its file with -f`)
	case len(args) > 0 && args[0] != "-":
		return args[0], isText("the statement", args[0])
	}

	in, name := c.In, "the statement"
	if file != "" && file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fault.New(fault.NotFound, "%w", err).WithHint("name a file that has one statement")
		}
		defer f.Close()
		in, name = f, file
	}
	text, err := io.ReadAll(io.LimitReader(in, query.MaxSQL+1))
	switch {
	case err != nil:
		return "", fault.New(fault.Invalid, "read the statement: %w", err).
			WithHint("name a file that has one statement")
	case len(text) > query.MaxSQL:
		return "", fault.New(fault.TooLarge, "%s has more than the %d bytes that a statement may have", name,
			query.MaxSQL).WithHint("name a file that has one statement: a DAG makes datasets of files with rows")
	}
	return string(text), isText(name, string(text))
}

// isText refuses bytes that are no text in UTF-8: they would not arrive as they are.
func isText(name, text string) error {
	line, column := 1, 1
	for rest := text; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		switch {
		case r == utf8.RuneError && size == 1:
			return fault.New(fault.Invalid, "%s is not UTF-8 text (line %d, column %d)", name, line, column).
				WithHint("convert it, such as by `iconv -f latin1 -t utf-8`")
		case r == '\n':
			line, column = line+1, 0
		}
		rest, column = rest[size:], column+1
	}
	return nil
}
