package storage

import (
	"context"
	"fmt"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/workdir"
)

// Preview returns rows of published partitions, partition by partition in the given order, as values that JSON holds
// without loss. Numbers that a float64 cannot hold exactly, instants, bytes and the like are text in DuckDB's format;
// lists and structs are JSON.
func (s *Storage) Preview(
	ctx context.Context, g Generation, partitions []Partition, limit, offset int,
) ([]Column, [][]any, error) {
	if limit < 0 || offset < 0 {
		return nil, nil, fault.New(fault.Invalid, "limit and offset must not be negative")
	}
	if s.rows == nil {
		return nil, nil, fault.New(fault.Unavailable, "rows are not shown here")
	}
	b, err := s.of(g.Kind)
	if err != nil {
		return nil, nil, err
	}
	dir, err := workdir.Make("", workdir.Temporary)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	defer dir.Remove()

	local, err := b.head(ctx, g, partitions, offset+limit, dir.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	if len(local) == 0 {
		return nil, nil, nil
	}

	columns, rows, err := s.rows.Preview(ctx, g.OrgID.String(), local, limit, offset)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	return columns, rows, nil
}
