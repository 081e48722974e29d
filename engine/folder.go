package engine

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/internal/workdir"
)

// folderPrefix begins the names of engines' folders.
const folderPrefix = "engine-"

// makeFolder makes the folder of an engine: in/ for what it reads, out/ for what it writes, spill/ for what does not
// fit into its memory.
func makeFolder(parent string) (*workdir.Dir, error) {
	f, err := workdir.Make(parent, folderPrefix)
	if err != nil {
		return nil, err
	}
	for _, part := range []string{"in", "out", "spill"} {
		if err := os.Mkdir(filepath.Join(f.Path, part), 0o700); err != nil {
			return nil, errors.Join(err, f.Remove())
		}
	}
	return f, nil
}

// Sweep removes the folders of engines whose servers were killed.
func (e *Engines) Sweep() error { return workdir.Sweep(e.config.Dir, folderPrefix) }
