package operators

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/dagctl/dagctl/internal/workdir"
)

// scratchPrefix begins the names of tasks' folders.
const scratchPrefix = "run-"

// Scratch makes a folder for what belongs to one attempt while it runs. The caller removes it; if its process is
// killed, Sweep does.
func (r *Runner) Scratch(task uuid.UUID, attempt int) (*workdir.Dir, error) {
	f, err := workdir.Make(r.ScratchDir, fmt.Sprintf("%s%s-%d-", scratchPrefix, task, attempt))
	if err != nil {
		return nil, fmt.Errorf("make scratch folder: %w", err)
	}
	return f, nil
}

// Sweep removes the folders of tasks whose processes were killed.
func (r *Runner) Sweep() error { return workdir.Sweep(r.ScratchDir, scratchPrefix) }
