package main

import (
	"bytes"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dag"
)

func (c *cli) fmtCommand() *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "fmt [FILE|DIR]...",
		Short: "Write DAG files in the usual form",
		Long:  "Rewrites DAG files in the usual form: order of fields, indentation, quotes. Comments and meaning stay.",
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			unformatted := false
			for _, path := range args {
				src, err := readSource(path, nil)
				if err != nil {
					return err
				}
				formatted, problems := dag.Format(src.text)
				if len(problems) > 0 {
					for i := range problems {
						problems[i].File = src.path
					}
					return c.reportProblems(problems)
				}
				if bytes.Equal(formatted, src.text) {
					continue
				}
				unformatted = true
				fmt.Fprintln(c.out, src.path)
				if check {
					continue
				}
				if err := replaceFile(src.path, formatted); err != nil {
					return err
				}
			}
			if check && unformatted {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "write nothing; name the files that would change and exit 1")
	return cmd
}

// replaceFile writes a file anew, keeping its mode.
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
