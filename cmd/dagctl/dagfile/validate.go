package dagfile

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
)

// ValidateCommand returns `dagctl validate`.
func ValidateCommand(c *cli.CLI) *cobra.Command {
	var vars []string
	cmd := &cobra.Command{
		Use:   "validate [FILE|DIR]...",
		Short: "Check DAG files without a server",
		Long: `Checks DAG files against this program's operators and reports all problems at once, each with its line
and, if there is one, a suggestion. With --output json it prints the problems as a list for programs.`,
		Example: "  dagctl validate\n  dagctl validate examples/us-flights --output json",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			catalog, err := builtinCatalog()
			if err != nil {
				return err
			}

			all := dag.Problems{}
			var sound []string
			for _, path := range args {
				src, err := Read(path, vars)
				if err != nil {
					return err
				}
				doc, problems, err := src.Parse(catalog)
				if err != nil {
					return err
				}
				all = append(all, problems...)
				if doc != nil {
					sound = append(sound, fmt.Sprintf("%s: DAG %s is valid: %s, %s", src.Path, doc.Name,
						cli.Count(len(doc.Jobs), "job"), cli.Count(len(doc.Publish), "published dataset")))
				}
			}

			if len(all) > 0 {
				return Report(c, all)
			}
			return c.Print(all, func(w io.Writer) {
				for _, line := range sound {
					fmt.Fprintln(w, line)
				}
			})
		},
	}

	VarFlag(cmd, &vars)
	return cmd
}
