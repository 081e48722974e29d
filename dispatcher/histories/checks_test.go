package histories_test

import (
	"context"
	"path/filepath"
	"sync"

	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// answers remembers what the runner has answered to the one check of the histories, by the text that was checked. Each
// run of a check starts a DuckDB, which takes longer than everything else in a step.
var answers sync.Map

// runChecks runs the checks of a task as the runner does. Where their inputs can be opened and the output is a file
// whose text was checked before, it gives the same answer, seven times in eight.
func (h *history) runChecks(ctx context.Context, t operators.CheckTask) ([]operators.CheckOutcome, error) {
	text, known := h.checkedText(t)
	if known && h.asked.Add(1)%8 > 0 && h.opens(ctx, t) {
		if answer, ok := answers.Load(text); ok {
			return answer.([]operators.CheckOutcome), nil
		}
	}
	outcomes, err := h.w.D.Runner.Check(ctx, t)
	if err == nil && known {
		answers.Store(text, outcomes)
	}
	return outcomes, err
}

// checkedText returns the text of the revision that a task checks, if it is a file of the test's operators.
func (h *history) checkedText(t operators.CheckTask) (string, bool) {
	var files []storage.File
	switch {
	case t.Generation.Kind != storage.Parquet || len(t.Checks) != 1:
	case t.Held != nil:
		files = t.Held.Files
	default:
		files = t.Published.Files
	}
	if len(files) != 1 {
		return "", false
	}
	return h.w.Probe.Known(filepath.Join(h.w.Data, files[0].Path))
}

// opens reports whether the inputs of a check are files that can be opened.
func (h *history) opens(ctx context.Context, t operators.CheckTask) bool {
	for _, in := range t.Inputs {
		if in.Generation.Kind != storage.Parquet {
			return false
		}
		if _, err := h.w.Storage.Open(ctx, in.Generation, in.Partitions, h.w.Scratch); err != nil {
			return false
		}
	}
	return true
}
