package parquetexport

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/operators"
)

// wholeName is the name of a partition's only file. The files of a partition that is several have names of their own.
const wholeName = "data.parquet"

// write writes the rows of the task's input to files in its scratch folder, and describes them in the manifest. It
// returns their paths in the order of the manifest.
func (c config) write(ctx context.Context, t *operators.Task, m *manifest) (local []string, err error) {
	t.Progress(0, "reading the rows")
	_, columns, err := t.Rows(ctx, 0)
	if err != nil {
		return nil, err
	}
	if len(columns) == 0 {
		return nil, fault.New(fault.Invalid, "the input has no columns yet")
	}
	was := make([]dag.Column, len(columns))
	for i, of := range columns {
		was[i] = dag.Column{Name: of.Name, Type: of.Type}
		m.Columns = append(m.Columns, forOthers(was[i]))
	}
	if wrong := c.layout.clash(was); wrong != nil {
		return nil, operators.ConfigError(wrong)
	}
	if err := checkValues(ctx, t, was, m.Columns); err != nil {
		return nil, err
	}

	query := selecting(t.Inputs[0].As, was, m.Columns)
	if c.MaxRows == 0 {
		path := filepath.Join(t.Scratch, wholeName)
		m.Rows, err = t.SelectTo(ctx, query, path)
		if err != nil {
			return nil, err
		}
		f, err := describe(wholeName, path, m.Rows)
		if err == nil && c.Folder == "" {
			err = f.stamp(path, fmt.Sprintf("%s-%d", t.TaskID, t.Attempt))
		}
		m.Files = []file{f}
		return []string{path}, err
	}
	return c.writeSeveral(ctx, t, m, query)
}

// writeSeveral writes files of max_rows rows each, in the order of the rows.
func (c config) writeSeveral(
	ctx context.Context, t *operators.Task, m *manifest, query string,
) (local []string, err error) {
	found, err := t.Ask(ctx, fmt.Sprintf("SELECT count(*) FROM (%s)", query), 1)
	if err != nil {
		return nil, err
	}
	var ok bool
	if m.Rows, ok = found[0][0].(int64); !ok {
		return nil, fmt.Errorf("an engine says that there are %v rows", found[0][0])
	}
	files := c.files(m.Rows)
	if files > mostFiles {
		return nil, fault.New(fault.Invalid, "%d rows are %d files, and a partition has %d at most", m.Rows, files,
			mostFiles).WithHint("raise config.max_rows, or make smaller partitions")
	}

	for n := range files {
		t.Progress(int(50*n/files), fmt.Sprintf("making file %d of %d", n+1, files))
		name := fmt.Sprintf("%s%05d-%s-%d.parquet", partPrefix, n, t.TaskID, t.Attempt)
		path := filepath.Join(t.Scratch, name)
		rows, err := t.SelectTo(ctx, fmt.Sprintf("%s LIMIT %d OFFSET %d", query, c.MaxRows, n*c.MaxRows), path)
		if err != nil {
			return nil, err
		}
		f, err := describe(name, path, rows)
		if err != nil {
			return nil, err
		}
		m.Files, local = append(m.Files, f), append(local, path)
	}
	return local, nil
}

// describe returns what the manifest says of a file.
func describe(name, path string, rows int64) (f file, err error) {
	opened, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer opened.Close()
	f = file{Name: name, Rows: rows}
	f.Bytes, f.SHA256, err = hashOf(opened)
	f.Content = f.SHA256
	return f, err
}

func hashOf(content io.Reader) (bytes int64, hash string, err error) {
	h := sha256.New()
	bytes, err = io.Copy(h, content)
	return bytes, hex.EncodeToString(h.Sum(nil)), err
}

// footerEnd is what follows the footer of a Parquet file: its length, and four letters.
const footerEnd = 8

// stamp makes a Parquet file differ from all others: a bucket compares files by a hash of their bytes, and must not
// take the file of a newer write for that of an older one with the same rows. The stamp is between the rows and the
// footer, which is found from the end: nothing leads readers there.
func (f *file) stamp(path, stamp string) (err error) {
	opened, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, opened.Close()) }()

	end := make([]byte, footerEnd)
	if _, err := opened.ReadAt(end, f.Bytes-footerEnd); err != nil {
		return err
	}
	size := int64(binary.LittleEndian.Uint32(end)) + footerEnd
	if string(end[4:]) != "PAR1" || size > f.Bytes {
		return fmt.Errorf("%s is no Parquet file", f.Name)
	}
	footer := make([]byte, size)
	if _, err := opened.ReadAt(footer, f.Bytes-size); err != nil {
		return err
	}
	if _, err := opened.WriteAt(append([]byte(stamp), footer...), f.Bytes-size); err != nil {
		return err
	}

	f.Bytes, f.SHA256, err = hashOf(io.NewSectionReader(opened, 0, f.Bytes+int64(len(stamp))))
	return err
}
