package dagfile

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/plural"
)

// ValidateCommand returns `dagctl validate`; connect connects to the server that --server asks.
func ValidateCommand(c *cli.CLI, connect func() (Server, error)) *cobra.Command {
	var (
		vars     []string
		onServer bool
	)
	cmd := &cobra.Command{
		Use:   "validate [FILE|DIR]...",
		Short: "Check DAG files, without a server or with one",
		Long: `Checks DAG files against this program's operators and reports all problems at once, each with its line
and, if there is one, a suggestion. With --output json it prints the problems as a list for programs. A folder without
a dag.yaml of its own stands for all DAG files below it, and files that are checked together know each other: columns
and partitions of datasets that one publishes and another reads are checked, too.

It asks no server, unless --server is given: then it checks against the operators of the target, and has it plan each
valid file, which changes nothing. So it finds what only a server knows, as "dagctl plan" does: inputs from other DAGs
that do not exist or whose partitions do not fit, columns that they do not have, programs that may not run. Datasets
that one of the files publishes and another reads are those of the files, also where the server has others, or none.`,
		Example: "  dagctl validate\n  dagctl validate examples/us-flights --output json\n" +
			"  dagctl validate --server --target prod",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				args = []string{"."}
			}
			if !onServer {
				connect = nil
			}
			against, err := validatingAgainst(cmd.Context(), connect)
			if err != nil {
				return err
			}

			sources, err := ReadAll(args, vars)
			if err != nil {
				return err
			}
			all := dag.Problems{}
			var sound []string
			var files []*File
			for _, seen := range NewGroup(against.catalog).Look(sources) {
				doc, problems, err := against.validate(cmd.Context(), seen)
				if err != nil {
					return err
				}
				all = append(all, problems...)
				if doc != nil {
					files = append(files, &File{Source: seen.Source, Doc: doc})
					sound = append(sound, fmt.Sprintf("%s: DAG %s is valid: %s, %s", seen.Path, doc.Name,
						plural.Of(len(doc.Jobs), "job"), plural.Of(len(doc.Publish), "published dataset")))
				}
			}

			if len(all) > 0 {
				return Report(c, all)
			}
			if err := RefuseCircle(files); err != nil {
				return err
			}
			return c.Print(all, func(w io.Writer) {
				for _, line := range sound {
					fmt.Fprintln(w, line)
				}
			})
		},
	}

	VarFlag(cmd, &vars)
	cmd.Flags().BoolVar(&onServer, "server", false,
		"also check what only the server knows, such as other DAGs' datasets")
	return cmd
}

// validator is what files are validated against.
type validator struct {
	catalog dag.Catalog
	server  Server // nil: none
}

// validatingAgainst returns a validator with this program's own operators or, if connect is given, with a server.
func validatingAgainst(ctx context.Context, connect func() (Server, error)) (v validator, err error) {
	if connect == nil {
		v.catalog, err = builtinCatalog()
		return v, err
	}
	if v.server, err = connect(); err != nil {
		return v, err
	}
	if v.catalog, err = v.server.Catalog(ctx); err != nil {
		return v, err
	}
	own, err := builtinCatalog()
	v.catalog = withColumns(v.catalog, own)
	return v, err
}

// withColumns lets a server's catalog tell the columns of jobs, which files that are checked together know of each
// other, by the operators that this program has in the same version.
func withColumns(server, own dag.Catalog) dag.Catalog {
	for name, op := range server.Operators {
		if mine, ok := own.Operators[name]; ok && mine.Version == op.Version {
			op.Shape, op.Queries, op.SQL = mine.Shape, mine.Queries, mine.SQL
			server.Operators[name] = op
		}
	}
	server.Names, server.Expand = own.Names, own.Expand
	return server
}

// validate returns a file's document, if nothing is wrong with it, and what is.
func (v validator) validate(ctx context.Context, s Seen) (*dag.Document, dag.Problems, error) {
	if s.Err != nil || len(s.Problems) > 0 {
		return nil, s.Problems, s.Err
	}
	if v.server == nil {
		return s.Doc, nil, nil
	}
	problems, err := s.onServer(ctx, v.server)
	return s.Doc, problems, err
}
