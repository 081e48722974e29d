package dagfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/columnlineage"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// The statement and the schema are read into memory, and the statement is looked at for so long.
const (
	maxExplained  = 1 << 20  // bytes of the statement
	maxSchema     = 16 << 20 // bytes
	explainWithin = 30 * time.Second
	explainMemory = 512 << 20
)

// LineageExplainCommand returns `dagctl lineage explain`.
func LineageExplainCommand(c *cli.CLI) *cobra.Command {
	var schema string
	cmd := &cobra.Command{
		Use:   "explain QUERY.sql --schema SCHEMA.json",
		Short: "Print which columns a statement's columns are computed from, without a server",
		Long: `Prints the column lineage of one SELECT as JSON, without a server and without data:

  {"outputs": [{"column": "total", "sources": [{"table": "sales", "column": "price"}], "transform": "aggregate"}]}

The schema maps the tables' names to their columns, and those to DuckDB's types; the order of columns counts:

  {"sales": {"day": "DATE", "price": "DECIMAL(12, 2)"}}

The transform is the strongest on the way: identity, expression or aggregate. An output that says "unsure" may have more
sources than it lists. QUERY.sql may be -, for the standard input.`,
		Example: "  dagctl lineage explain --schema schema.json query.sql\n" +
			"  echo 'SELECT sum(price) AS total FROM sales' | dagctl lineage explain --schema schema.json -",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			tables, err := readTables(schema)
			if err != nil {
				return err
			}
			query, err := readLimited(c, args[0], maxExplained)
			if err != nil {
				return err
			}
			explained, err := explain(cmd.Context(), string(query), tables)
			if err != nil {
				return err
			}

			outputs := map[string]any{"outputs": explained.Columns}
			return c.Print(outputs, func(w io.Writer) {
				text, _ := json.MarshalIndent(outputs, "", "  ")
				fmt.Fprintf(w, "%s\n", text)
			})
		},
	}
	cmd.Flags().StringVar(&schema, "schema", "", "file with the tables' columns and their types")
	_ = cmd.MarkFlagRequired("schema")
	return cmd
}

func readTables(path string) (map[string][]relations.Column, error) {
	text, err := readLimited(nil, path, maxSchema)
	if err != nil {
		return nil, err
	}
	tables, err := columnlineage.ReadSchema(text)
	var wrong *fault.Error
	if errors.As(err, &wrong) {
		return nil, fault.New(fault.Invalid, "%s, %s", path, wrong.Message).WithHint("%s", wrong.Hint)
	}
	return tables, err
}

// readLimited reads a file or, with a CLI, the standard input.
func readLimited(c *cli.CLI, path string, most int) ([]byte, error) {
	in := io.Reader(nil)
	if path == "-" && c != nil {
		in = c.In
	} else {
		file, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.NotFound, "there is no file %s", path)
		}
		if err != nil {
			return nil, fault.New(fault.Invalid, "%w", err)
		}
		defer file.Close()
		in = file
	}

	text, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "read %s: %w", path, err)
	}
	if len(text) > most {
		return nil, fault.New(fault.TooLarge, "%s is larger than %d bytes", path, most)
	}
	return text, nil
}

// explain looks at a statement in an engine of its own: its text may crash DuckDB.
func explain(
	ctx context.Context, query string, tables map[string][]relations.Column,
) (explained engine.Explained, err error) {
	engines, err := engine.New(engine.Config{})
	if err != nil {
		return explained, err
	}
	defer engines.Close()

	ctx, cancel := context.WithTimeoutCause(ctx, explainWithin,
		fault.New(fault.TooLarge, "the statement could not be followed within %s", explainWithin))
	defer cancel()

	taken, err := engines.Take(ctx, engine.Purpose{Kind: engine.Parse, Org: "local", Each: explainWithin,
		Limits: relations.Limits{Memory: explainMemory, Threads: 1}})
	if err != nil {
		return explained, err
	}
	defer taken.Release()
	err = taken.Do(ctx, engine.Explain{SQL: query, Relations: tables}, &explained)
	return explained, err
}
