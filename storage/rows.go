package storage

import (
	"context"
	"io"
)

// Rows reads and writes the rows of local Parquet files, which may be anybody's, for an org. This package never opens
// them: engines do, which are processes of their own.
type Rows interface {
	// CopyOut writes rows of the columns, with their numbers from 1 behind them, in Postgres's binary COPY format. A
	// value that Postgres cannot hold is a fault.Invalid.
	CopyOut(ctx context.Context, org string, columns []Column, files []string, to io.Writer) error
	// CopyIn writes the rows of a file in that format, without numbers, to a new Parquet file, and returns how many
	// there are.
	CopyIn(ctx context.Context, org string, columns []Column, file, target string) (int64, error)
	// Head writes the first rows of a file to a new one. Of the file, only what they need must be there.
	Head(ctx context.Context, org, file string, rows int64, target string) error
	// Preview returns rows of the files, file by file, as values that JSON holds without loss.
	Preview(ctx context.Context, org string, files []string, limit, offset int) ([]Column, [][]any, error)
}
