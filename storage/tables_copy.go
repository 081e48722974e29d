package storage

import (
	"bufio"
	"context"
	"crypto/sha256"
	"database/sql/driver"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// copyHeader begins Postgres's binary COPY format: signature, flags, and the length of an extension. Each row has the
// number of its values, and each value its length, -1 for NULL. After the last row comes the number -1.
var copyHeader = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")

const (
	copyEnd   = 0xffff     // in place of the number of values
	nullValue = 0xffffffff // in place of a value's length
	copyChunk = 256 << 10  // bytes that travel at once
)

// outgoing is the rows of local files on their way to Postgres.
type outgoing struct {
	columns []Column
	local   []string
}

// copyTo copies the rows to a table and returns the hash of what it sent.
func (o outgoing) copyTo(ctx context.Context, tx pgx.Tx, table string) (hash string, err error) {
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		var err error
		hash, err = o.write(ctx, to)
		to.CloseWithError(err)
		done <- err
	}()

	_, err = tx.Conn().PgConn().CopyFrom(ctx, from, fmt.Sprintf("COPY %s FROM STDIN (FORMAT binary)", table))
	from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if failed := <-done; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return "", failed
	}
	if e := new(pgconn.PgError); errors.As(err, &e) && strings.HasPrefix(e.Code, "22") { // data exceptions
		what, _, _ := strings.Cut(e.Message, `"`) // the rest may quote the value
		return "", fault.New(fault.Invalid, "postgres storage cannot hold a value: %s (SQLSTATE %s)",
			strings.TrimSpace(what), e.Code)
	}
	return hash, err
}

// write writes the rows with their numbers in the binary format, and returns its hash.
func (o outgoing) write(ctx context.Context, to io.Writer) (string, error) {
	dir := filepath.Dir(o.local[0])
	session, err := duck.OpenData(ctx, duck.Data{Scope: relations.UTC, Limits: duck.Limits{Threads: 1},
		Files: slices.Clone(o.local), Dirs: []string{dir}, Spill: dir})
	if err != nil {
		return "", err
	}
	defer session.Close()

	wires, values := make([]wire, len(o.columns)), make([]string, len(o.columns))
	for i, c := range o.columns {
		if wires[i], err = wireOf(c); err != nil {
			return "", err
		}
		values[i] = fmt.Sprintf(wires[i].give, sqltext.Quote(c.Name))
	}

	hash := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(hash, to), copyChunk)
	_, err = out.Write(copyHeader)
	var (
		number int64
		line   []byte
	)
	query := fmt.Sprintf("SELECT %s FROM %s", strings.Join(values, ", "), duck.ReadParquet(o.local))
	err = errors.Join(err, session.Each(ctx, query, func(row []driver.Value) error {
		number++
		line = binary.BigEndian.AppendUint16(line[:0], uint16(len(row)+1))
		for i, v := range row {
			if line, err = putValue(line, wires[i], v); err != nil {
				return o.unfit(i, err)
			}
		}
		line = binary.BigEndian.AppendUint32(line, 8)
		line = binary.BigEndian.AppendUint64(line, uint64(number))
		_, err := out.Write(line)
		return err
	}))

	if err != nil {
		return "", err
	}
	_, err = out.Write(binary.BigEndian.AppendUint16(nil, copyEnd))
	err = errors.Join(err, out.Flush())
	return hex.EncodeToString(hash.Sum(nil)), err
}

// unfit returns the error of a value that Postgres cannot hold.
func (o outgoing) unfit(column int, err error) error {
	name := o.columns[column].Name
	hint := "CAST(%[1]s AS VARCHAR) AS %[1]s"
	if errors.Is(err, errNUL) {
		hint = "replace(%[1]s, chr(0), '') AS %[1]s"
	}
	return fault.New(fault.Invalid, "column %q has %w", name, err).
		WithHint("write "+hint+", or keep the output in parquet", sqltext.Quote(name))
}

func putValue(to []byte, w wire, v any) ([]byte, error) {
	if v == nil {
		return binary.BigEndian.AppendUint32(to, nullValue), nil
	}
	at := len(to)
	to, err := w.put(append(to, 0, 0, 0, 0), v)
	if err == nil {
		binary.BigEndian.PutUint32(to[at:], uint32(len(to)-at-4))
	}
	return to, err
}

// incoming takes rows in the binary format, in pieces of any length, and adds them to a table of DuckDB.
type incoming struct {
	wires []wire
	add   func(row ...driver.Value) error
	row   []driver.Value
	rest  []byte // of a row that is not complete
	begun bool
	ended bool
	err   error // of a row, which Write cannot return as it is
}

func (in *incoming) Write(piece []byte) (int, error) {
	data := piece
	if len(in.rest) > 0 {
		in.rest = append(in.rest, piece...)
		data = in.rest
	}
	for in.err == nil && !in.ended {
		n := in.take(data)
		if n == 0 {
			break
		}
		data = data[n:]
	}
	in.rest = append(in.rest[:0], data...)
	return len(piece), in.err
}

// take takes the header or one row from the front of data, and returns its length, 0 if it is not complete.
func (in *incoming) take(data []byte) int {
	if !in.begun {
		if len(data) < len(copyHeader) {
			return 0
		}
		in.begun = true
		return len(copyHeader)
	}
	if len(data) < 2 {
		return 0
	}
	if count := binary.BigEndian.Uint16(data); count == copyEnd {
		in.ended = true
		return 2
	} else if int(count) != len(in.wires) {
		in.err = fmt.Errorf("postgres sent %d values for %d columns", count, len(in.wires))
		return 0
	}

	at := 2
	for i, w := range in.wires {
		if len(data) < at+4 {
			return 0
		}
		length := binary.BigEndian.Uint32(data[at:])
		at += 4
		if length == nullValue {
			in.row[i] = nil
			continue
		}
		if len(data) < at+int(length) {
			return 0
		}
		if in.row[i], in.err = w.get(data[at : at+int(length)]); in.err != nil {
			return 0
		}
		at += int(length)
	}
	in.err = in.add(in.row...)
	return at
}
