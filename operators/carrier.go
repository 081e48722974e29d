package operators

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/storage"
)

// Carrier fetches the inputs of a run and delivers its outputs. In the server's own process it moves them between
// storage and the run's folders; a worker, which has no storage, moves them over HTTP.
type Carrier interface {
	// Fetch returns local Parquet files of an input and, if it is to be keyed, the partition of each. It creates new
	// files in dir.
	Fetch(ctx context.Context, in AssignedInput, keyed bool, dir string) (files, keys []string, err error)
	// Deliver takes the *.parquet files in dirs, which has a folder for each output, and returns the outcome of the
	// run. scratch is an empty folder.
	Deliver(ctx context.Context, a Assignment, dirs []string, result Result, scratch string) (Outcome, error)
}

func (r *Runner) carrier(w *work) Carrier {
	if r.Carrier != nil {
		return r.Carrier
	}
	return storageCarrier{r.Storage, w}
}

// Seal moves the output of a run to storage: the *.parquet files in dirs, which has a folder for each output. scratch
// is an empty folder. Seal serves runs of this process as well as uploads of workers.
func (r *Runner) Seal(
	ctx context.Context, a Assignment, dirs []string, result Result, scratch string,
) (Outcome, error) {
	w := r.workOf(a)
	defer w.release()
	return storageCarrier{r.Storage, w}.Deliver(ctx, a, dirs, result, scratch)
}

// storageCarrier moves data between storage and local folders.
type storageCarrier struct {
	storage *storage.Storage
	work    *work
}

func (c storageCarrier) Fetch(
	ctx context.Context, in AssignedInput, keyed bool, dir string,
) (files, keys []string, err error) {
	partitions, err := c.storage.Open(ctx, in.Generation, in.Partitions, dir)
	if err == nil && keyed {
		keys = storage.KeysOf(in.Partitions, partitions)
	}
	return slices.Concat(partitions...), keys, err
}

func (c storageCarrier) Deliver(
	ctx context.Context, a Assignment, dirs []string, result Result, scratch string,
) (Outcome, error) {
	out := Outcome{Result: result}
	if result.Unchanged {
		return out, nil
	}
	if err := c.refuseFiner(ctx, a, dirs, scratch); err != nil {
		return Outcome{}, err
	}
	if a.SplitBy != "" {
		return c.split(ctx, a, dirs[0], result, scratch)
	}
	made := partitionOf(a)
	if a.Cursor != nil {
		var err error
		if made, err = c.work.segment(ctx, a, dirs, result); err != nil {
			return Outcome{}, err
		}
		if made == "" {
			out.Unchanged = true
			return out, nil
		}
	}

	for i, output := range a.Outputs {
		w, err := c.seal(ctx, a, output, dirs[i], scratch)
		if err != nil {
			return Outcome{}, fmt.Errorf("output %q: %w", output.Name, err)
		}
		if w != nil {
			w.Partition = made
			out.Written = append(out.Written, *w)
		}
	}
	out.Unchanged = a.Asked && len(out.Written) == 0
	return out, nil
}

// refuseFiner refuses instants that storage would cut, in what a run has written.
func (c storageCarrier) refuseFiner(ctx context.Context, a Assignment, dirs []string, scratch string) error {
	for i, output := range a.Outputs {
		files, err := filepath.Glob(filepath.Join(dirs[i], "*.parquet"))
		if err != nil {
			return err
		}
		names := make([]string, len(files))
		for n, file := range files {
			names[n] = filepath.Base(file)
		}
		if err := c.work.refuseFiner(ctx, files, names, scratch); err != nil {
			return fmt.Errorf("output %q: %w", output.Name, err)
		}
	}
	return nil
}

func partitionOf(a Assignment) string {
	if a.Partition == nil {
		return dag.WholeKey
	}
	return a.Partition.Key
}

// seal moves one output to storage. It returns nil if there is nothing to publish of it.
func (c storageCarrier) seal(
	ctx context.Context, a Assignment, output AssignedOutput, dir, scratch string,
) (*Written, error) {
	found, err := writtenTo(dir)
	if err != nil {
		return nil, err
	}
	written := found.files
	if len(written) == 0 {
		if written, err = c.work.withoutRows(ctx, a, output, found, scratch); err != nil || len(written) == 0 {
			return nil, err
		}
	}
	written, standing, err := c.work.held(ctx, a, output, written, scratch)
	if err != nil {
		return nil, err
	}
	w := &Written{Output: output.Index, Standing: standing}
	if a.Asked {
		var same bool
		if w.RowsHash, same, err = c.work.sameRows(ctx, a, output, written); err != nil || same {
			return nil, err
		}
	}

	// The location of an attempt was recorded when it began, but its segment of a cursor is known only now.
	attempt := storage.Attempt{Generation: output.Generation, Partition: partitionOf(a), Task: a.TaskID,
		Number: a.Attempt, Output: output.Index, Part: a.Part}
	if output.UpdateStrategy == dag.Append && output.Generation.Kind == storage.Parquet {
		w.Manifest, err = c.sealAppended(ctx, attempt, output.Base, written, scratch)
	} else {
		w.Manifest, err = c.storage.Seal(ctx, attempt, written)
	}
	if err != nil {
		return nil, err
	}

	if output.UpdateStrategy == dag.Append && output.Base != nil {
		w.BaseRevision = output.Base.Revision
	}
	return w, nil
}
