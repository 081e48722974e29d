package operators

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/storage"
)

// A run checks what it has written before it ends, so that its completion also decides whether readers see it. The
// checks read what was sealed, as the check task of a revision does, and the inputs that the run has open.

// checkWritten runs the checks of a run's sealed outputs and stores their outcomes in out. An output whose checks
// cannot run for now has none: a check task runs them later, and the run need not be repeated for them.
func (r *Runner) checkWritten(ctx context.Context, t *Task, out *Outcome, scratch string) error {
	for i := range out.Written {
		w := &out.Written[i]
		checks := slices.DeleteFunc(slices.Clone(t.Checks), func(c dag.Check) bool { return c.Output != w.Output })
		if len(checks) == 0 {
			continue
		}

		output := t.Outputs[slices.IndexFunc(t.Outputs, func(o AssignedOutput) bool { return o.Index == w.Output })]
		switch {
		case out.Split != nil:
			t.Progress(checkingPercent, fmt.Sprintf("checking partition %s, %d of %d", w.Partition, i+1,
				len(out.Written)))
		case len(t.Outputs) == 1:
			t.Progress(checkingPercent, "checking the output")
		default:
			t.Progress(checkingPercent, "checking output "+output.Name)
		}
		dir := filepath.Join(scratch, fmt.Sprintf("check%d", i))
		outcomes, err := r.checkSealed(ctx, t, output.Generation, *w, checks, dir)
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), errChecking)
		}
		if err != nil {
			t.Log.WarnContext(ctx, "the checks of an output could not run here: a task of their own runs them",
				"output", output.Name, "error", err)
			continue
		}
		w.Checks = outcomes
	}
	return nil
}

// checkingPercent is the progress of a run that has written and sealed its outputs.
const checkingPercent = 99

// checkSealed checks one sealed output. It makes files only in dir, which does not exist yet.
func (r *Runner) checkSealed(
	ctx context.Context, t *Task, g storage.Generation, w Written, checks []dag.Check, dir string,
) ([]CheckOutcome, error) {
	if r.Storage.Copies(g.Kind) { // otherwise nothing is written there
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("make scratch folder: %w", err)
		}
	}
	partition, err := t.partitionAt(w.Partition)
	if err != nil {
		return nil, err
	}

	data := checkedData{scope: scopeOf(t.PartitionBy, partition)}
	if data.output, err = r.Storage.OpenSealed(ctx, g, w.Manifest, dir); err != nil {
		return nil, fmt.Errorf("open the output: %w", err)
	}
	for i, in := range t.Inputs {
		if readBy(checks, in.As) {
			rel := relation(in, t.InputFiles[i])
			t.key(&rel, i)
			data.inputs = append(data.inputs, rel)
		}
	}
	return t.work.check(ctx, data, checks, time.Now())
}

// partitionAt returns a partition that the run has made: its own, the segment of a cursor, or one that a source named.
func (a Assignment) partitionAt(key string) (*PartitionRange, error) {
	p := &PartitionRange{Key: key}
	if a.PartitionBy.Kind != dag.ByTime {
		return p, nil
	}
	start, end, err := a.PartitionBy.Bounds(key)
	p.Start, p.End = &start, &end
	return p, err
}
