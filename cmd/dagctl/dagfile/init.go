package dagfile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
)

// templates has a folder for each template, with its files.
//
//go:embed templates
var templates embed.FS

// schemaFile is what the first line of each template's dag.yaml names.
const schemaFile = "dag.schema.json"

// templateNames are the templates, with what each is for. The first is the default.
var templateNames = []cobra.Completion{
	cobra.CompletionWithDesc("pipeline", "files of a folder, and SQL over them"),
	cobra.CompletionWithDesc("api", "pages of a JSON API, and SQL over them"),
	cobra.CompletionWithDesc("database", "a PostgreSQL table, SQL over it, and a report that goes back"),
	cobra.CompletionWithDesc("events", "events that another system sends, and SQL over them"),
	cobra.CompletionWithDesc("dags", "two DAGs, one of which reads what the other publishes"),
	cobra.CompletionWithDesc("operator", "a program of yours that makes rows"),
	cobra.CompletionWithDesc("worker", "functions of yours, in a process of their own"),
}

// InitCommand returns `dagctl init`.
func InitCommand(c *cli.CLI) *cobra.Command {
	var template string
	cmd := &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a first DAG that runs",
		Long: `Writes the files of a template into a folder, and none if one of them exists there. Each has data, so that it
runs at once, SQL with checks, and the schema by which editors check and complete the DAG file.

  pipeline   files of a folder, and SQL over them
  api        pages of a JSON API, with a program that stands in for it
  database   a PostgreSQL table, and a report that goes back into the database
  events     events that another system sends to a webhook
  dags       two DAGs, one of which reads what the other publishes
  operator   a program of yours as an operator, in Python
  worker     a worker with functions of yours, in Python`,
		Example: `  dagctl init weather
  dagctl init --template worker shop`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}

			files, err := templateFiles(template)
			if err != nil {
				return err
			}
			catalog, err := builtinCatalog()
			if err != nil {
				return err
			}
			if err := writeNew(dir, files, c); err != nil {
				return err
			}
			// It is that of this program, and not the user's work: it may be written over.
			schema := filepath.Join(dir, schemaFile)
			if err := os.WriteFile(schema, append(dag.Schema(catalog), '\n'), 0o644); err != nil {
				return unwritten(schema, err)
			}
			fmt.Fprintln(c.Out, schema)
			fmt.Fprintf(c.Err, "Next: `dagctl dev %s` runs it.\n", cli.Argument(dir))
			return nil
		},
	}

	cmd.Flags().StringVar(&template, "template", "pipeline",
		"what to begin with: "+strings.Join(namesOf(templateNames), ", "))
	_ = cmd.RegisterFlagCompletionFunc("template",
		cobra.FixedCompletions(templateNames, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// unwritten returns the error of a file that the system does not let us write.
func unwritten(place string, err error) error {
	var system *fs.PathError
	if errors.As(err, &system) {
		err = system.Err
	}
	return fault.New(fault.Invalid, "%s cannot be written: %w", place, err).
		WithHint("choose a folder that you may write to, with nothing in its way: `dagctl init DIR`")
}

// templateFiles returns the files of a template.
func templateFiles(name string) (fs.FS, error) {
	names := namesOf(templateNames)
	if !slices.Contains(names, name) {
		return nil, fault.New(fault.Invalid, "there is no template %q", name).
			WithHint("use --template with %s", strings.Join(names, ", "))
	}
	files, err := fs.Sub(templates, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", name, err)
	}
	return files, nil
}

// namesOf returns what completions complete, without their descriptions.
func namesOf(completions []cobra.Completion) (names []string) {
	for _, completion := range completions {
		name, _, _ := strings.Cut(completion, "\t")
		names = append(names, name)
	}
	return names
}

// writeNew writes all files below dir, or none if one of them exists.
func writeNew(dir string, files fs.FS, c *cli.CLI) error {
	var paths []string
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		paths = append(paths, path)
		place := filepath.Join(dir, filepath.FromSlash(path))
		if _, err := os.Lstat(place); err == nil {
			return fault.New(fault.Conflict, "%s already exists", place).
				WithHint("choose another folder: `dagctl init DIR`")
		} else if !errors.Is(err, fs.ErrNotExist) {
			return unwritten(place, err)
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return fmt.Errorf("file %s of a template: %w", path, err)
		}
		place := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return unwritten(place, err)
		}
		if err := os.WriteFile(place, text, 0o644); err != nil {
			return unwritten(place, err)
		}
		fmt.Fprintln(c.Out, place)
	}

	return nil
}
