package storage

import (
	"context"
	"fmt"
	"os"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
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
	b, err := s.of(g.Kind)
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "dagctl-preview-*")
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	defer os.RemoveAll(dir)

	local, err := b.head(ctx, g, partitions, offset+limit, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	if len(local) == 0 {
		return nil, nil, nil
	}

	session, err := duck.OpenData(ctx, duck.Data{Scope: relations.UTC,
		Limits: duck.Limits{Threads: 1, Memory: 512 << 20}, Files: local})
	if err != nil {
		return nil, nil, err
	}
	defer session.Close()

	columns, rows, err := duck.JSONRows(ctx, session, "SELECT * FROM "+duck.ReadParquet(local), limit, offset)
	if err != nil {
		return nil, nil, fmt.Errorf("preview: %w", err)
	}
	return columns, rows, nil
}
