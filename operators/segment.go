package operators

import (
	"context"
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
)

// segment returns the segment of a cursor that a run has made: from the cursor's old position up to the highest
// position written, or further if the operator says that there is nothing in between. It is empty if no row is new.
func (w *work) segment(ctx context.Context, a Assignment, dirs []string, result Result) (key string, err error) {
	after := a.Cursor.Value
	column, upTo := a.PartitionBy.Column, after
	if result.Cursor != nil {
		upTo = *result.Cursor
	}

	for i, output := range a.Outputs {
		written, err := writtenTo(dirs[i])
		if err != nil {
			return "", err
		}
		if len(written.files) == 0 {
			continue
		}

		g, err := w.engine(ctx)
		if err != nil {
			return "", err
		}
		files, err := g.In(written.files...)
		if err != nil {
			return "", err
		}
		var at engine.Positioned
		if err := g.Do(ctx, engine.Positions{Files: files, Column: column}, &at); err != nil {
			return "", fmt.Errorf("output %q: positions of cursor %s: %w", output.Name, column, err)
		}

		refuse := func(format string, args ...any) error {
			return Permanent(fault.New(fault.Invalid, "output %q: "+format, append([]any{output.Name}, args...)...))
		}
		switch {
		case at.Nulls > 0:
			return "", refuse("%d rows have no %s, the cursor column", at.Nulls, column)
		case at.Lowest != nil && *at.Lowest <= after:
			return "", refuse("a row has %s %d, but the rows up to %d exist already", column, *at.Lowest, after)
		case result.Cursor != nil && at.Highest != nil && *at.Highest > *result.Cursor:
			return "", refuse("a row has %s %d, beyond the run's own cursor %d", column, *at.Highest,
				*result.Cursor)
		}

		if at.Highest != nil {
			upTo = max(upTo, *at.Highest)
		}
	}

	if upTo <= after {
		return "", nil
	}
	return dag.Segment(after, upTo), nil
}
