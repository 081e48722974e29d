package dagfile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/internal/fault"
)

//go:embed starter
var starter embed.FS

// InitCommand returns `dagctl init`.
func InitCommand(c *cli.CLI) *cobra.Command {
	return &cobra.Command{
		Use:   "init [DIR]",
		Short: "Write a first DAG that runs",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) == 1 {
				dir = args[0]
			}

			files, err := fs.Sub(starter, "starter")
			if err != nil {
				return fmt.Errorf("starter files: %w", err)
			}
			if err := writeNew(dir, files, c); err != nil {
				return err
			}
			fmt.Fprintf(c.Err, "Next: `dagctl dev %s` runs it.\n", dir)
			return nil
		},
	}
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
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}

	for _, path := range paths {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return fmt.Errorf("starter file %s: %w", path, err)
		}
		place := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", place, err)
		}
		if err := os.WriteFile(place, text, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", place, err)
		}
		fmt.Fprintln(c.Out, place)
	}

	return nil
}
