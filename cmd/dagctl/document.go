package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// dagFileName is what a DAG file is called where only its folder is named.
const dagFileName = "dag.yaml"

// source is a DAG file on disk, with the variables it is to be read with.
type source struct {
	path string
	text []byte
	vars map[string]string
}

// readSource reads a DAG file; a folder stands for the dag.yaml in it.
func readSource(path string, vars []string) (source, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, dagFileName)
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return source{}, fault.New(fault.NotFound, "there is no file %s", path).
			WithHint("name a DAG file or its folder, or write a first one with `dagctl init`")
	}
	if err != nil {
		return source{}, fmt.Errorf("read DAG file: %w", err)
	}
	values, err := parseVars(vars)
	return source{path: path, text: text, vars: values}, err
}

// parseVars reads the values of repeated --var flags.
func parseVars(vars []string) (map[string]string, error) {
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

// parse validates the document against a catalog. Files are read below the DAG file's own folder only, links that
// lead out of it included.
func (s source) parse(catalog dag.Catalog) (*dag.Document, dag.Problems, error) {
	root, err := os.OpenRoot(filepath.Dir(s.path))
	if err != nil {
		return nil, nil, fmt.Errorf("open the DAG file's folder: %w", err)
	}
	defer root.Close()
	doc, problems := dag.Parse(dag.File{Name: s.path, Text: s.text, Files: root.FS(), Vars: s.vars}, catalog)
	return doc, problems, nil
}

// builtinCatalog is what this binary can validate against without a server: its own operators, any runtime.
func builtinCatalog() (dag.Catalog, error) {
	builtin, err := operators.Builtin(operators.Options{AllowCommand: true})
	if err != nil {
		return dag.Catalog{}, fmt.Errorf("built-in operators: %w", err)
	}
	return builtin.Catalog(nil), nil
}

// reportProblems shows what is wrong with a DAG file, and ends the command.
func (c *cli) reportProblems(problems dag.Problems) error {
	if c.output != "table" {
		if err := c.print(problems, nil); err != nil {
			return err
		}
		return errReported
	}
	fmt.Fprint(c.err, problems.Pretty())
	return errReported
}
