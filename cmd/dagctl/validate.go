package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/dag"
)

func (c *cli) validateCommand() *cobra.Command {
	var vars []string
	cmd := &cobra.Command{
		Use:   "validate [FILE|DIR]...",
		Short: "Check DAG files without a server",
		Long: `Checks DAG files against this binary's operators and reports everything that is wrong at once, each with its
line and, where there is one, a suggestion. With --output json the problems are a list for programs.`,
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
				src, err := readSource(path, vars)
				if err != nil {
					return err
				}
				doc, problems, err := src.parse(catalog)
				if err != nil {
					return err
				}
				all = append(all, problems...)
				if doc != nil {
					sound = append(sound, fmt.Sprintf("%s: DAG %s is valid: %s, %s", src.path, doc.Name,
						count(len(doc.Jobs), "job"), count(len(doc.Publish), "published dataset")))
				}
			}
			if len(all) > 0 {
				return c.reportProblems(all)
			}
			return c.print(all, func(w io.Writer) {
				for _, line := range sound {
					fmt.Fprintln(w, line)
				}
			})
		},
	}
	varFlag(cmd, &vars)
	return cmd
}

// varFlag adds --var, which every command that reads a DAG file has.
func varFlag(cmd *cobra.Command, vars *[]string) {
	cmd.Flags().StringArrayVar(vars, "var", nil, "value of a variable, NAME=VALUE (repeatable)")
}

// count is a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
