package storage

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/internal/footer"
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
			err := b.firstRows(ctx, g, file, wanted, dir, local[i])
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
func (b *bucket) firstRows(ctx context.Context, g Generation, file File, rows int64, dir, local string) error {
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
	fetch := func(from, to int64) error {
		return b.read(ctx, b.key(file.Path), Upload{Bytes: file.Bytes, ETag: file.ETag}, from, to-from, partial)
	}

	// Parquet ends with the footer, four bytes of its length, and PAR1.
	const guess, tail = 64 << 10, 8
	if err := errors.Join(fetch(file.Bytes-guess, file.Bytes), fetch(0, 4)); err != nil {
		return err
	}
	var end [tail]byte
	if _, err := partial.ReadAt(end[:], file.Bytes-tail); err != nil {
		return err
	}

	length := int64(binary.LittleEndian.Uint32(end[:4])) + tail
	if string(end[4:]) != "PAR1" || length > file.Bytes {
		return errors.New("the object does not end like a Parquet file")
	}
	if length > guess {
		if err := fetch(file.Bytes-length, file.Bytes-guess); err != nil {
			return err
		}
	}

	read, err := footer.Read(partial.Name())
	if err != nil {
		return err
	}
	until, left := int64(0), rows
	for _, group := range read.Groups {
		if left <= 0 {
			break
		}
		until, left = max(until, group.End), left-group.Rows
	}
	if until > 4 {
		if err := fetch(4, until); err != nil {
			return err
		}
	}

	return b.rows.Head(ctx, g.OrgID.String(), partial.Name(), rows, local)
}
