package storage

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// measure reads the files' footers. It sets Files, Rows, Bytes and the schema; the files have no path yet. A file that
// is not Parquet, or has other columns than the first, is a fault of its writer.
func (s *Storage) measure(ctx context.Context, local []string) (Manifest, error) {
	var m Manifest
	if len(local) == 0 {
		return m, fault.New(fault.Invalid, "there are no files to seal")
	}
	for i, path := range local {
		info, err := os.Lstat(path)
		if err != nil {
			return m, err
		}
		if !info.Mode().IsRegular() {
			return m, fault.New(fault.Invalid, "%s is not a regular file", filepath.Base(path))
		}

		file := File{Bytes: info.Size()}
		var columns []Column
		if columns, file.Rows, err = s.columnsOf(ctx, path); err != nil {
			return m, err
		}
		if i == 0 {
			m.Schema = columns
		} else if !slices.Equal(columns, m.Schema) {
			return m, fault.New(fault.Invalid, "the columns of %s differ from those of %s", filepath.Base(path),
				filepath.Base(local[0]))
		}

		m.Files = append(m.Files, file)
		m.Rows += file.Rows
		m.Bytes += file.Bytes
	}

	// What others wrote may have types that change on their way out.
	if _, err := sqltext.WrittenAll(m.Schema); err != nil {
		return m, err
	}
	m.SchemaHash = SchemaHash(m.Schema)
	return m, nil
}

// columnsOf returns the columns of a file, as DuckDB reads them, and the number of its rows. Of several files with a
// new schema at the same time, one asks DuckDB and the others wait.
func (s *Storage) columnsOf(ctx context.Context, path string) ([]Column, int64, error) {
	f, err := readFooter(path)
	if err != nil {
		return s.askColumns(ctx, path)
	}
	if columns, known := s.columns.get(f.schema); known {
		return columns, f.rows, nil
	}

	answer, err, _ := s.columns.asked.Do(f.schema, func() (any, error) {
		columns, _, err := s.askColumns(ctx, path)
		if err == nil {
			s.columns.put(f.schema, columns)
		}
		return columns, err
	})
	if err != nil { // it may be the error of another file
		return s.askColumns(ctx, path)
	}
	return slices.Clone(answer.([]Column)), f.rows, nil
}

// askColumns is columnsOf without the memory.
func (s *Storage) askColumns(ctx context.Context, path string) (columns []Column, rows int64, err error) {
	footers, err := s.footers.Get(ctx)
	if err != nil {
		return nil, 0, err
	}
	from := duck.ReadParquet([]string{path})
	if columns, err = footers.Describe(ctx, "SELECT * FROM "+from); err == nil {
		// The count comes from the footer: DuckDB reads no row for it.
		err = footers.Value(ctx, &rows, "SELECT count(*) FROM "+from)
	}
	if err != nil && ctx.Err() == nil {
		err = fault.New(fault.Invalid, "%s cannot be read as Parquet: %w", filepath.Base(path), err)
	}
	return columns, rows, err
}

// SchemaHash returns a hash that is equal if and only if names, types and order are.
func SchemaHash(columns []Column) string {
	// Columns are plain strings: they always marshal.
	text, _ := json.Marshal(columns)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
