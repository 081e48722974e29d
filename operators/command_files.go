package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/storage"
)

// Rows returns Parquet files of an input with only the rows that the job reads, and the columns of each of them.
func (t *Task) Rows(ctx context.Context, input int) (files []string, columns []storage.Column, err error) {
	files, err = filtered(ctx, t, input, "parquet")
	if err != nil || len(files) == 0 {
		return files, t.Inputs[input].Schema, err
	}
	read, err := footer.Read(files[0])
	return files, read.Columns, err
}

// filtered returns files of an input with only the rows that the job reads: the input's own files if that is all rows
// and they are wanted as Parquet, otherwise one beside the program's folder. A CSV file of no rows names the columns.
func filtered(ctx context.Context, t *Task, input int, format string) ([]string, error) {
	rel, err := t.relation(input)
	if err != nil {
		return nil, Permanent(err)
	}
	whole := len(rel.Files) == 0 || len(rel.Where) == 0 && rel.Range == nil && !rel.Fill
	if whole && format == "parquet" {
		return slices.Concat([]string{}, rel.Files), nil
	}

	t.Progress(0, "preparing input "+rel.Name)
	target := filepath.Join(t.Scratch, fmt.Sprintf("input%d.%s", input, format))
	if err := t.work.open(ctx, t.Scope(), []relations.Relation{rel}); err != nil {
		return nil, err
	}
	err = t.work.write(ctx, target, func(inside string) engine.Question {
		return engine.Export{Relation: rel.Name, Target: inside, Format: format}
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("input %q as %s: %w", rel.Name, format, err)
	}
	return []string{target}, nil
}

// resolveArgv replaces arguments that name files of the org's folders by their absolute paths.
func resolveArgv(argv, roots []string) ([]string, error) {
	resolved := slices.Clone(argv)
	for i, arg := range argv {
		program := i == 0 && strings.Contains(arg, "/") && !filepath.IsAbs(arg)
		if !program && !strings.HasPrefix(arg, "./") {
			continue
		}

		path, err := rootedFile(filepath.Clean(filepath.FromSlash(arg)), roots)
		switch {
		case err != nil:
			return nil, err
		case path != "":
			resolved[i] = path
		case program:
			return nil,
				Permanent(fault.New(fault.NotFound,
					"program %s is not in any of the folders that the org's sources may read", arg).
					WithHint("give an absolute path, or the name of a program on PATH"))
		}
	}
	return resolved, nil
}

// rootedFile returns the absolute path of a regular file in the first root that has it, or "" if none has.
func rootedFile(name string, roots []string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", escapes(name)
	}

	for _, folder := range roots {
		root, err := os.OpenRoot(folder)
		if err != nil {
			return "", fmt.Errorf("open source folder: %w", err)
		}

		info, err := root.Stat(name)
		if closing := root.Close(); closing != nil {
			return "", closing
		}
		switch {
		case os.IsNotExist(err):
		case err != nil:
			return "", Permanent(fault.New(fault.Forbidden, "%s: %w", name, err))
		case info.Mode().IsRegular():
			return filepath.Abs(filepath.Join(folder, name))
		}
	}
	return "", nil
}
