package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// wholeBytes is the size up to which an object is read whole: two more requests would cost as much.
const wholeBytes = 8 << 20

// head reads only the footer and the first row groups of a large object.
func (b *bucket) head(ctx context.Context, g Generation, partitions []Partition, n int, dir string) ([]string, error) {
	list := firstFiles(partitions, n)
	if err := ofGeneration(g, list); err != nil {
		return nil, err
	}

	local := make([]string, len(list))
	left := int64(max(n, 0))
	for i, file := range list {
		wanted := min(left, file.Rows)
		left -= wanted
		if file.Bytes > wholeBytes && wanted < file.Rows {
			local[i] = filepath.Join(dir, "head-"+localName(file, i))
			err := b.firstRows(ctx, file, wanted, dir, local[i])
			if err == nil {
				continue
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			// Reading the whole file either works or reports what is wrong with it.
		}

		whole, err := b.fetch(ctx, g, list[i:i+1], dir)
		if err != nil {
			return nil, err
		}
		local[i] = whole[0]
	}
	return local, nil
}

// firstRows writes a Parquet file of an object's first rows. It creates a file of the object's size with only the
// bytes of the footer and of the needed row groups, and copies the rows from it.
func (b *bucket) firstRows(ctx context.Context, file File, rows int64, dir, local string) error {
	if err := plainPath(file.Path); err != nil {
		return err
	}
	partial, err := os.CreateTemp(dir, "partial-*.parquet")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name())
	defer partial.Close()

	if err := partial.Truncate(file.Bytes); err != nil {
		return err
	}
	read := func(from, to int64) error {
		return b.read(ctx, b.key(file.Path), Upload{Bytes: file.Bytes, ETag: file.ETag}, from, to-from, partial)
	}

	// Parquet ends with the footer, four bytes of its length, and PAR1.
	const guess, tail = 64 << 10, 8
	if err := errors.Join(read(file.Bytes-guess, file.Bytes), read(0, 4)); err != nil {
		return err
	}
	var end [tail]byte
	if _, err := partial.ReadAt(end[:], file.Bytes-tail); err != nil {
		return err
	}

	footer := int64(binary.LittleEndian.Uint32(end[:4])) + tail
	if string(end[4:]) != "PAR1" || footer > file.Bytes {
		return errors.New("the object does not end like a Parquet file")
	}
	if footer > guess {
		if err := read(file.Bytes-footer, file.Bytes-guess); err != nil {
			return err
		}
	}

	session, err := b.footers.Get(ctx)
	if err != nil {
		return err
	}
	until, err := rowGroups(ctx, session, partial.Name(), rows)
	if err != nil {
		return err
	}
	if until > 4 {
		if err := read(4, min(until, file.Bytes-footer)); err != nil {
			return err
		}
	}

	_, err = session.CopyToParquet(ctx, fmt.Sprintf("SELECT * FROM %s LIMIT %d",
		duck.ReadParquet([]string{partial.Name()}), rows), local)
	return err
}

// rowGroups returns the offset of the end of the row groups that hold the first rows, in bytes.
func rowGroups(ctx context.Context, session *duck.Session, file string, rows int64) (until int64, err error) {
	groups, err := session.Query(ctx, fmt.Sprintf(`
		SELECT any_value(row_group_num_rows), max(CASE
			WHEN dictionary_page_offset > 3 THEN least(dictionary_page_offset, data_page_offset)
			ELSE data_page_offset END + total_compressed_size)
		FROM parquet_metadata(%s) GROUP BY row_group_id ORDER BY row_group_id`, sqltext.Literal(file)))
	if err != nil {
		return 0, err
	}
	defer groups.Close()

	for groups.Next() && rows > 0 {
		var held, end int64
		if err := groups.Scan(&held, &end); err != nil {
			return 0, err
		}
		rows -= held
		until = max(until, end)
	}
	return until, groups.Err()
}
