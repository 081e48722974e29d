package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/query"
)

// outputCSV is for spreadsheets and other programs; only query has it.
const outputCSV = "csv"

func (c *cli) queryCommand() *cobra.Command {
	var (
		at, dag string
		limit   int
	)
	cmd := &cobra.Command{
		Use:   "query SQL",
		Short: "Answer one SELECT over the datasets you may read",
		Long: `Runs one SELECT, in DuckDB's SQL, over datasets by their names, and prints its rows. All datasets are read as they are at one
moment, so no deploy that happens meanwhile is ever half in the answer. An unpublished dataset is "dag/job/output", in
quotation marks. The statement - is read from standard input.

--at candidate reads what a DAG's next version has, before it serves; --at v3 --dag DAG reads what an earlier one had, while
that is still there. Both are for writers. The datasets of other DAGs are read as they serve.

--output takes csv besides table, json and yaml.`,
		Example: `  dagctl query "SELECT carrier, avg(delay) FROM airport_delays GROUP BY ALL ORDER BY 2 DESC"
  dagctl query "SELECT count(*) FROM airport_delays" --at candidate
  dagctl query - --limit 10000 --output csv < report.sql > report.csv`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			sql := args[0]
			if sql == "-" {
				text, err := io.ReadAll(io.LimitReader(c.in, 1<<20))
				if err != nil {
					return fmt.Errorf("read the statement: %w", err)
				}
				sql = string(text)
			}
			if limit < 0 {
				return fault.New(fault.Invalid, "--limit %d is negative", limit)
			}
			api, err := c.connect()
			if err != nil {
				return err
			}
			api.http = &http.Client{CheckRedirect: api.http.CheckRedirect} // the server knows how long a query may take
			body := map[string]any{"sql": sql}
			for name, value := range map[string]string{"at": at, "dag": dag} {
				if value != "" {
					body[name] = value
				}
			}
			if limit > 0 {
				body["limit"] = limit
			}
			var answer query.Answer
			if err := api.post(cmd.Context(), "/v1/query", body, &answer); err != nil {
				return err
			}
			if answer.Truncated {
				defer fmt.Fprintf(c.err, "There are more rows than these %d; --limit asks for more of them.\n", len(answer.Rows))
			}
			if c.output == outputCSV {
				return writeCSV(c.out, answer)
			}
			return c.print(answer, func(w io.Writer) {
				writeRows(w, c.style(c.out), query.Rows{Columns: answer.Columns, Rows: answer.Rows})
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "at", "", "live (default), candidate, or a version of --dag such as v3")
	f.StringVar(&dag, "dag", "", "whose version --at means")
	f.IntVar(&limit, "limit", 0, "rows to answer with at most (default 1000)")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"live", "candidate"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// writeCSV writes rows as RFC 4180 has them, a NULL as nothing.
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
