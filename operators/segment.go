package operators

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// segment returns the segment of a cursor that a run has made: from the cursor's old position up to the highest
// position written, or further if the operator says that there is nothing in between. It is empty if no row is new.
func segment(ctx context.Context, a Assignment, dirs []string, result Result) (key string, err error) {
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

		lowest, highest, nulls, err := positions(ctx, a, written.files, column)
		if err != nil {
			return "", fmt.Errorf("output %q: positions of cursor %s: %w", output.Name, column, err)
		}

		refuse := func(format string, args ...any) error {
			return Permanent(fault.New(fault.Invalid, "output %q: "+format, append([]any{output.Name}, args...)...))
		}
		switch {
		case nulls > 0:
			return "", refuse("%d rows have no %s, the cursor column", nulls, column)
		case lowest.Valid && lowest.Int64 <= after:
			return "", refuse("a row has %s %d, but the rows up to %d exist already", column, lowest.Int64, after)
		case result.Cursor != nil && highest.Valid && highest.Int64 > *result.Cursor:
			return "", refuse("a row has %s %d, beyond the run's own cursor %d", column, highest.Int64,
				*result.Cursor)
		}

		if highest.Valid {
			upTo = max(upTo, highest.Int64)
		}
	}

	if upTo <= after {
		return "", nil
	}
	return dag.Segment(after, upTo), nil
}

func positions(
	ctx context.Context, a Assignment, files []string, column string,
) (lowest, highest sql.NullInt64, nulls int64, err error) {
	session, err := duck.OpenData(ctx, duck.Data{Scope: a.Scope(),
		Limits: duck.Limits{Threads: 1}, Files: files})
	if err != nil {
		return lowest, highest, 0, err
	}
	defer session.Close()
	name, from := sqltext.Quote(column), duck.ReadParquet(files)
	if err := session.Value(ctx, &nulls, "SELECT count(*) - count("+name+") FROM "+from); err != nil {
		return lowest, highest, 0, err
	}
	if err := session.Value(ctx, &lowest, "SELECT min("+name+")::BIGINT FROM "+from); err != nil {
		return lowest, highest, 0, err
	}
	err = session.Value(ctx, &highest, "SELECT max("+name+")::BIGINT FROM "+from)
	return lowest, highest, nulls, err
}
