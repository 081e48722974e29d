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
)

// measure reads the files' footers. Files, Rows, Bytes and the schema are set; the files have no path yet.
// What is not Parquet, or differs from the first file in its columns, is a fault of whoever wrote it.
func (s *Storage) measure(ctx context.Context, local []string) (Manifest, error) {
	var m Manifest
	if len(local) == 0 {
		return m, fault.New(fault.Invalid, "there are no files to seal")
	}
	footers, err := s.footers.Get(ctx)
	if err != nil {
		return m, err
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
		from := duck.ReadParquet([]string{path})
		columns, err := footers.Describe(ctx, "SELECT * FROM "+from)
		if err == nil {
			// The count comes from the footer: DuckDB reads no row for it.
			err = footers.Value(ctx, &file.Rows, "SELECT count(*) FROM "+from)
		}
		if err != nil {
			if ctx.Err() != nil {
				return m, err
			}
			return m, fault.New(fault.Invalid, "%s cannot be read as Parquet: %w", filepath.Base(path), err)
		}
		if i == 0 {
			m.Schema = columns
		} else if !slices.Equal(columns, m.Schema) {
			return m, fault.New(fault.Invalid, "%s has other columns than %s", filepath.Base(path), filepath.Base(local[0]))
		}
		m.Files = append(m.Files, file)
		m.Rows += file.Rows
		m.Bytes += file.Bytes
	}
	m.SchemaHash = SchemaHash(m.Schema)
	return m, nil
}

// SchemaHash is equal exactly where names, types and order are.
func SchemaHash(columns []Column) string {
	// Columns are plain strings: they always marshal.
	text, _ := json.Marshal(columns)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
