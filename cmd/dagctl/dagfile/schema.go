package dagfile

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
)

// SchemaCommand returns `dagctl schema`.
func SchemaCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of DAG files, for editors",
		Example: `  dagctl schema > dag.schema.json
  # then, as the first line of dag.yaml:
  # yaml-language-server: $schema=dag.schema.json`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			catalog, err := builtinCatalog()
			if err != nil {
				return err
			}

			_, err = fmt.Fprintf(c.Out, "%s\n", dag.Schema(catalog))
			return err
		},
	}
}
