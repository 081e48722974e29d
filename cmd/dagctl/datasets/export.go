package datasets

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/plural"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/web"
)

// media are the media types of the formats that rows leave in, as files.
var media = map[query.Format]string{query.CSV: query.MediaCSV, query.NDJSON: query.MediaNDJSON,
	query.Parquet: query.MediaParquet, query.Arrow: query.MediaArrow}

// endings are the formats by the ends of files' names.
var endings = map[string]query.Format{".csv": query.CSV, ".ndjson": query.NDJSON, ".jsonl": query.NDJSON,
	".parquet": query.Parquet, ".arrow": query.Arrow, ".arrows": query.Arrow}

func datasetsExportCommand(c *cli.CLI) *cobra.Command {
	var (
		at, where, file, format string
		partitions              []string
	)
	cmd := &cobra.Command{
		Use:   "export NAME -o FILE",
		Short: "Write all rows of a dataset to a file",
		Long: `Writes the rows of a dataset to a Parquet, CSV, JSON lines or Arrow file, as the end of its name says: .parquet,
.csv, .ndjson or .jsonl, .arrow or .arrows. With - as the file it writes to standard output, in the --format.

Rows are read as they were at one moment, and may be any number: they leave the server while it reads them. The file
appears when it is complete; what was there stays until then, and if anything fails.`,
		Example: `  dagctl datasets export airport_delays -o delays.parquet
  dagctl datasets export airport_delays --partition 2026-01-01..2026-01-31 --where "delay > 60" -o january.csv
  dagctl datasets export airport_delays --at v3 -o - --format ndjson | gzip > delays.ndjson.gz`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			as, err := formatOf(c, file, format)
			if err != nil {
				return err
			}
			for name, values := range map[string][]string{"where": {where}, "partition": partitions} {
				if cmd.Flags().Changed(name) && (len(values) == 0 || slices.Contains(values, "")) {
					return fault.New(fault.Invalid, "--%s is empty", name).WithHint("leave it out to export all rows")
				}
			}
			api, err := c.Connect()
			if err != nil {
				return err
			}

			body := map[string]any{"dataset": args[0]}
			for name, value := range map[string]string{"at": at, "where": where} {
				if value != "" {
					body[name] = value
				}
			}
			if len(partitions) > 0 {
				body["partitions"] = partitions
			}
			return export(cmd.Context(), c, api, body, as, file)
		},
	}

	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "file to write; - is standard output")
	f.StringVar(&format, "format", "", "parquet, csv, ndjson or arrow (default: by the end of the file's name)")
	f.StringVar(&at, "at", "", "live (default), candidate, a version of its DAG such as v3, or an instant")
	f.StringVar(&where, "where", "", "only rows for which this condition holds, in SQL")
	f.StringArrayVar(&partitions, "partition", nil, "only this partition, or those of A..B, both included (repeatable)")
	_ = cmd.MarkFlagRequired("output")
	_ = cmd.RegisterFlagCompletionFunc("at", cobra.FixedCompletions([]string{"live", "candidate"},
		cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"parquet", "csv", "ndjson", "arrow"},
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// formatOf returns the format of a file.
func formatOf(c *cli.CLI, file, format string) (query.Format, error) {
	as := query.Format(format)
	if format == "" {
		as = endings[strings.ToLower(filepath.Ext(file))]
	}

	switch {
	case format != "" && media[as] == "":
		return as, fault.New(fault.Invalid, "--format %q is not known", format).
			WithHint("use parquet, csv, ndjson or arrow")
	case as == "" && file == "-":
		return as, fault.New(fault.Invalid, "standard output has no name that says the format").
			WithHint("add --format parquet, csv, ndjson or arrow")
	case as == "":
		return as, fault.New(fault.Invalid, "the name of %s does not say its format", file).
			WithHint("end it with .parquet, .csv, .ndjson, .jsonl, .arrow or .arrows, or add --format")
	}
	return as, binaryFits(c, as, file)
}

// binaryFits refuses what would write Arrow or Parquet to a terminal.
func binaryFits(c *cli.CLI, as query.Format, file string) error {
	if (as == query.Arrow || as == query.Parquet) && file == "-" && cli.IsTerminal(c.Out) {
		return fault.New(fault.Invalid, "%s is not for a terminal", cli.UpperFirst(string(as))).
			WithHint("name a file, or use a pipe")
	}
	return nil
}

// export writes rows to a file in a format; the body of the request says which.
func export(ctx context.Context, c *cli.CLI, api *cli.Client, body map[string]any, as query.Format, file string) error {
	if err := binaryFits(c, as, file); err != nil {
		return err
	}
	api.NoTimeout() // the server limits how long an export may take
	api.Wait()
	body["format"] = as

	rows := ""
	err := c.WriteFile(file, func(to io.Writer) error {
		counted, end := c.Counted(to, web.Size)
		defer end()
		header, err := api.Download(ctx, "/v1/query/export", body, media[as], counted)
		if err != nil {
			return err
		}
		if rows = header.Get(query.RowsHeader); rows == "" {
			return fault.New(fault.Unavailable, "the rows broke off").WithHint("export them again")
		}
		if header.Get(query.TruncatedHeader) == "true" {
			defer fmt.Fprintf(c.Err, "There are more rows than these %s; raise --limit to see more.\n", rows)
		}
		return nil
	})
	if err != nil || file == "-" {
		return err
	}
	n, err := strconv.Atoi(rows)
	if err != nil {
		return err
	}
	fmt.Fprintf(c.Err, "%s in %s.\n", plural.Of(n, "row"), file)
	return nil
}
