package evm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators"
)

// Read is what was read of a range of blocks.
type Read struct {
	First, Last Header
	Rows        map[Record]int64
}

// reader reads blocks in their order and writes the rows of each.
type reader struct {
	*Client
	files map[Record]*rowFile
	read  Read
	begun bool
}

// ReadRange reads the blocks from one to another, both included, and writes their rows to the outputs of a task, one
// for each record. All rows are of one chain: each block has the hash of the one before it, and logs are asked for by
// the hash of their block. A chain that changes meanwhile, or a block that the node does not have, is an error that a
// retry may mend.
func (c *Client) ReadRange(
	ctx context.Context, t *operators.Task, engines *engine.Engines, from, to int64,
) (Read, error) {
	r := &reader{Client: c, files: map[Record]*rowFile{}, read: Read{Rows: map[Record]int64{}}}
	for _, record := range c.node.Records {
		f, err := newRowFile(record, filepath.Join(t.Scratch, string(record)+".pgcopy"))
		if err != nil {
			return r.read, err
		}
		defer f.file.Close()
		r.files[record] = f
	}

	for n := from; n <= to; n += int64(c.node.Batch) {
		t.Progress(int(90*(n-from)/(to-from+1)), fmt.Sprintf("reading block %d of %d", n, to))
		if err := r.blocks(ctx, n, min(n+int64(c.node.Batch)-1, to)); err != nil {
			return r.read, err
		}
	}

	for i, record := range c.node.Records {
		f := r.files[record]
		if err := f.end(); err != nil {
			return r.read, err
		}
		rows, err := engines.CopyIn(ctx, t.OrgID.String(), record.relation(), f.file.Name(),
			filepath.Join(t.OutputDirs[i], "part.parquet"))
		if err := errors.Join(err, os.Remove(f.file.Name())); err != nil {
			return r.read, err
		}
		r.read.Rows[record] = rows
	}
	return r.read, nil
}

// blocks reads some blocks.
func (r *reader) blocks(ctx context.Context, from, to int64) error {
	_, whole := r.files[Transactions]
	var calls, logs []Call
	for n := from; n <= to; n++ {
		calls = append(calls, Call{"eth_getBlockByNumber", []any{Quantity(n), whole}})
	}
	err := r.Do(ctx, calls, func(i int, result json.RawMessage) error {
		n := from + int64(i)
		h, err := r.take(n, result)
		logs = append(logs, Call{"eth_getLogs", []any{map[string]string{"blockHash": h.Hash}}})
		return err
	})
	if _, wanted := r.files[Logs]; err != nil || !wanted {
		return err
	}

	return r.Do(ctx, logs, func(i int, result json.RawMessage) error {
		var list []fields
		if err := decode(result, &list, "list of objects"); err != nil {
			return r.odd("a list of logs", err)
		}
		for _, log := range list {
			err := flatten(log)
			if err == nil {
				err = r.files[Logs].add(log)
			}
			if err != nil {
				return r.odd(fmt.Sprintf("logs of block %d as they have to be", from+int64(i)), err)
			}
		}
		return nil
	})
}

// take takes one block, which has to follow the one before.
func (r *reader) take(n int64, result json.RawMessage) (h Header, err error) {
	if string(result) == "null" {
		return h, fault.New(fault.Unavailable, "%s: the node does not have block %d", r.url.Host, n).
			WithHint("it lags behind another node at the same address, or its chain has just become shorter")
	}
	b, h, err := r.Client.block(n, result)
	if err != nil {
		return h, err
	}
	if r.begun && h.Parent != r.read.Last.Hash {
		return h, fault.New(fault.Unavailable, "%s: block %d does not follow block %d: the chain has changed while it "+
			"was read", r.url.Host, n, n-1)
	}
	if r.read.Last = h; !r.begun {
		r.read.First, r.begun = h, true
	}

	if err := r.rowsOf(b); err != nil {
		return h, r.odd(fmt.Sprintf("block %d as it has to be", n), err)
	}
	return h, nil
}

// rowsOf writes the rows of a block that the block itself has.
func (r *reader) rowsOf(b fields) error {
	if f := r.files[Blocks]; f != nil {
		if err := f.add(b); err != nil {
			return err
		}
	}
	f := r.files[Transactions]
	if f == nil {
		return nil
	}

	var list []fields
	if err := decode(b["transactions"], &list, "list of whole transactions"); err != nil {
		return fmt.Errorf("transactions: %w", err)
	}
	for i, transaction := range list {
		if err := f.add(transaction); err != nil {
			return fmt.Errorf("transaction %d: %w", i, err)
		}
	}
	return nil
}

// flatten gives each topic of a log a field of its own.
func flatten(log fields) error {
	var topics []json.RawMessage
	if err := decode(log["topics"], &topics, "list"); err != nil {
		return fmt.Errorf("topics: %w", err)
	}
	if len(topics) > 4 {
		return fmt.Errorf("a log has %d topics", len(topics))
	}
	for i, topic := range topics {
		log[fmt.Sprintf("topic%d", i)] = topic
	}
	return nil
}

// rowFile is a file of a record's rows.
type rowFile struct {
	record Record
	file   *os.File
	to     *bufio.Writer
	rows   *pgcopy.RawWriter
}

func newRowFile(record Record, path string) (*rowFile, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	f := &rowFile{record: record, file: file, to: bufio.NewWriterSize(file, 1<<16)}
	f.rows, err = pgcopy.NewRawWriter(f.to)
	return f, err
}

func (f *rowFile) add(object fields) error {
	row, err := f.record.row(object)
	if err != nil {
		return err
	}
	return f.rows.Row(row)
}

func (f *rowFile) end() error { return errors.Join(f.rows.End(), f.to.Flush(), f.file.Close()) }

// relation returns the columns of a record's rows.
func (r Record) relation() (list []relations.Column) {
	for _, c := range r.columns() {
		list = append(list, relations.Column{Name: c.name, Type: c.kind.duck()})
	}
	return list
}
