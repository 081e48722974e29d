package duck

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// WriteParquet writes the query's rows, in the query's order, as a Parquet file to a stream: it needs no place on disk,
// which a query has not. Its memory is that of one group of rows. Types are those of WriteArrow; one that Parquet lacks
// is a fault.Invalid that names its column.
func (s *Session) WriteParquet(ctx context.Context, query string, to io.Writer, most ArrowLimits) (Streamed, error) {
	return s.writeBatches(ctx, query, most, func(schema *arrow.Schema) (batches, error) {
		properties := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd),
			parquet.WithCreatedBy("dagctl"), parquet.WithMaxRowGroupLength(122_880))
		for _, f := range schema.Fields() {
			one := arrow.NewSchema([]arrow.Field{f}, nil)
			if _, err := pqarrow.ToParquet(one, properties, pqarrow.DefaultWriterProps()); err != nil {
				return nil, fault.New(fault.Invalid, "column %q has a type that Parquet lacks", f.Name).
					WithHint("write CAST(%[1]s AS VARCHAR) AS %[1]s", sqltext.Quote(f.Name))
			}
		}

		out, err := pqarrow.NewFileWriter(schema, onlyWriter{to}, properties, pqarrow.DefaultWriterProps())
		if err != nil {
			return nil, err
		}
		return &inGroups{FileWriter: out}, nil
	})
}

// inGroups gathers batches into groups of rows. A group is in memory until it is full, of rows or of bytes.
type inGroups struct {
	*pqarrow.FileWriter

	bytes int64 // of the group
}

// groupBytes is how many bytes of values a group has, roughly.
const groupBytes = 32 << 20

func (g *inGroups) Write(batch arrow.RecordBatch) error {
	if g.bytes > groupBytes {
		g.bytes = 0
		g.NewBufferedRowGroup()
	}
	for _, column := range batch.Columns() {
		g.bytes += int64(column.Data().SizeInBytes())
	}
	return g.WriteBuffered(batch)
}

// onlyWriter hides that a writer can be closed, which the end of a file would do.
type onlyWriter struct{ io.Writer }
