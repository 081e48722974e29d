// Package dagfile reads DAG files from disk, and has the commands that write, check and format them: init, validate,
// fmt and schema. They ask no server, but for validate with --server.
package dagfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

// FileName is the name of the DAG file where a command names only its folder.
const FileName = "dag.yaml"

// Source is the text of a DAG file, with the values of its variables.
type Source struct {
	Path string
	Text []byte
	Vars map[string]string
}

// Read reads a DAG file. Of a folder it reads the dag.yaml.
func Read(path string, vars []string) (Source, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, FileName)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Source{}, fault.New(fault.NotFound, "there is no file %s", path).
			WithHint("name a DAG file or its folder, or write a first one with `dagctl init`")
	}
	if err != nil {
		return Source{}, fmt.Errorf("read DAG file: %w", err)
	}
	values, err := ParseVars(vars)
	return Source{Path: path, Text: text, Vars: values}, err
}

// Several reports whether a path stands for all DAG files below it, as a folder without a DAG file of its own does.
func Several(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return false
	}
	_, err = os.Stat(filepath.Join(path, FileName))
	return errors.Is(err, fs.ErrNotExist)
}

// ReadAll reads DAG files. A folder without one of its own stands for all that are below it.
func ReadAll(paths, vars []string) (all []Source, err error) {
	for _, path := range paths {
		folders := []string{path}
		if Several(path) {
			if folders, err = Folders(path); err != nil {
				return nil, err
			}
			if len(folders) == 0 {
				return nil, noneBelow(path)
			}
		}

		for _, folder := range folders {
			src, err := Read(folder, vars)
			if err != nil {
				return nil, err
			}
			all = append(all, src)
		}
	}
	return all, nil
}

// noneBelow says that a folder has no DAG file.
func noneBelow(dir string) error {
	return fault.New(fault.NotFound, "there is no file %s, and none in the folders below",
		filepath.Join(dir, FileName)).
		WithHint("name a DAG file or its folder, or write a first one with `dagctl init`")
}

// ParseVars returns the variables that --var flags set.
func ParseVars(vars []string) (map[string]string, error) {
	values := map[string]string{}
	for _, v := range vars {
		name, value, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, fault.New(fault.Invalid, "--var %q is not NAME=VALUE", v)
		}
		values[name] = value
	}
	return values, nil
}

// Parse validates the document against a catalog. It reads files in the DAG file's own folder and below it only, and
// does not follow links that lead elsewhere.
func (s Source) Parse(catalog dag.Catalog) (*dag.Document, dag.Problems, error) {
	doc, problems, err := s.Look(catalog)
	if len(problems) > 0 {
		doc = nil
	}
	return doc, problems, err
}

// Look is Parse for editors: it returns what can be read of a document that has problems, too.
func (s Source) Look(catalog dag.Catalog) (*dag.Document, dag.Problems, error) {
	return s.lookWith(catalog, foreign{})
}

// lookWith is Look, with what is known of datasets of other DAGs.
func (s Source) lookWith(catalog dag.Catalog, reads foreign) (*dag.Document, dag.Problems, error) {
	root, err := os.OpenRoot(filepath.Dir(s.Path))
	if err != nil {
		return nil, nil, fmt.Errorf("open the DAG file's folder: %w", err)
	}
	defer root.Close()
	doc, problems := dag.Look(dag.File{Name: s.Path, Text: s.Text, Files: root.FS(), Vars: s.Vars,
		Datasets: reads.by, Columns: reads.columns}, catalog)
	return doc, problems, nil
}

// BuiltinCatalog returns what this program validates against without a server.
func BuiltinCatalog() (dag.Catalog, error) { return builtinCatalog() }

// builtinCatalog returns what this program validates against without a server: its own operators, and any runtime. It
// is one for the whole process, because its operators have an engine to parse queries with: `dagctl dev` looks at the
// files again and again.
var builtinCatalog = sync.OnceValues(func() (dag.Catalog, error) {
	engines, err := engine.New(engine.Config{})
	if err != nil {
		return dag.Catalog{}, err
	}
	builtin, err := standard.New(operators.Options{Engines: engines,
		Command: operators.CommandOptions{Every: true}})
	if err != nil {
		return dag.Catalog{}, fmt.Errorf("built-in operators: %w", err)
	}
	return builtin.Catalog(nil), nil
})

// Report prints what is wrong with a DAG file, and returns the error that ends the command.
func Report(c *cli.CLI, problems dag.Problems) error {
	if c.Output != "table" {
		if err := c.Print(problems, nil); err != nil {
			return err
		}
		return cli.ErrReported
	}
	fmt.Fprint(c.Err, problems.Pretty())
	return cli.ErrReported
}

// VarFlag adds --var, which every command that reads DAG files has.
func VarFlag(cmd *cobra.Command, vars *[]string) {
	cmd.Flags().StringArrayVar(vars, "var", nil, "value of a variable, NAME=VALUE (repeatable)")
}
