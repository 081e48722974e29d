package storage

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// measure reads the files' footers. It sets Files, Rows, Bytes and the schema; the files have no path yet. A file that
// is not Parquet, or has other columns than the first, is a fault of its writer.
func measure(local []string) (Manifest, error) {
	var m Manifest
	if len(local) == 0 {
		return m, fault.New(fault.Invalid, "there are no files to seal")
	}
	for i, path := range local {
		info, err := os.Lstat(path) // of the name itself: a link leads anywhere
		if err != nil {
			return m, err
		}
		if !info.Mode().IsRegular() {
			return m, fault.New(fault.Invalid, "%s is not a regular file", filepath.Base(path))
		}

		read, err := footer.Read(path)
		if err != nil {
			return m, err
		}
		if i == 0 {
			m.Schema = read.Columns
		} else if !slices.Equal(read.Columns, m.Schema) {
			return m, differing(m.Schema, read.Columns, filepath.Base(local[0]), filepath.Base(path))
		}

		m.Files = append(m.Files, File{Bytes: read.Bytes, Rows: read.Rows})
		m.Rows += read.Rows
		m.Bytes += read.Bytes
	}

	// What others wrote may have types that change on their way out.
	if _, err := sqltext.WrittenAll(m.Schema); err != nil {
		return m, err
	}
	m.SchemaHash = SchemaHash(m.Schema)
	return m, nil
}

// differing says in which column a file differs from the first.
func differing(columns, other []Column, first, file string) error {
	find := func(among []Column, name string) int {
		return slices.IndexFunc(among, func(c Column) bool { return c.Name == name })
	}

	how := fmt.Sprintf("%s has its columns in another order than %s", file, first)
	for _, c := range slices.Concat(columns, other) {
		a, b := find(columns, c.Name), find(other, c.Name)
		switch {
		case a < 0:
			how = fmt.Sprintf("%s has the column %q, and %s does not", file, c.Name, first)
		case b < 0:
			how = fmt.Sprintf("%s has the column %q, and %s does not", first, c.Name, file)
		case columns[a].Type != other[b].Type:
			how = fmt.Sprintf("column %q is %s in %s and %s in %s", c.Name, columns[a].Type, first, other[b].Type, file)
		default:
			continue
		}
		break
	}

	return fault.New(fault.Invalid, "the files of an output need the same columns, but %s", how).
		WithHint("write the same columns into each file; where their types are inferred from rows, declare them, as " +
			"`columns=` does in Python")
}

// SchemaHash returns a hash that is equal if and only if names, types and order are.
func SchemaHash(columns []Column) string {
	// Columns are plain strings: they always marshal.
	text, _ := json.Marshal(columns)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
