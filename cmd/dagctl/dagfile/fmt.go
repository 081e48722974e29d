package dagfile

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
)

// FmtCommand returns `dagctl fmt`.
func FmtCommand(c *cli.CLI) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [FILE|DIR]...",
		Short: "Format DAG files",
		Long: `Rewrites DAG files in the usual form: order of fields, indentation, quotes. Comments and meaning stay. It
prints the names of the files that it changes. A folder without a dag.yaml of its own stands for all DAG files below
it.`,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			all, err := ReadAll(args, nil)
			if err != nil {
				return err
			}

			unformatted := false
			for _, src := range all {
				formatted, problems := dag.Format(src.Text)
				if len(problems) > 0 {
					for i := range problems {
						problems[i].File = src.Path
					}
					return Report(c, problems)
				}
				if bytes.Equal(formatted, src.Text) {
					continue
				}
				unformatted = true
				fmt.Fprintln(c.Out, src.Path)
				if check {
					continue
				}
				if err := replaceFile(src.Path, formatted); err != nil {
					return err
				}
			}

			if check && unformatted {
				return cli.ErrReported
			}
			return nil
		},
	}

	cmd.Flags().BoolVar(&check, "check", false,
		"write nothing; print the files that would change, and exit 1 if there are any")
	return cmd
}

// replaceFile overwrites a file and keeps its mode.
func replaceFile(path string, text []byte) error {
	info, err := os.Stat(path)
	if err == nil {
		err = os.WriteFile(path, text, info.Mode().Perm())
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
