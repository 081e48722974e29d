package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
)

// Engines are the storage.Rows of a server: what they do is asked of engines of the org whose files they are.

const (
	// copyTime is how much of the processor's time one copy may take, and maxCopied how many bytes it may have.
	copyTime  = time.Hour
	maxCopied = 1 << 40

	// The same of what people look at, and how long they wait for it at most.
	lookTime, lookWithin = 10 * time.Second, 30 * time.Second
	lookMemory           = 512 << 20
	maxLook              = 32 << 20
)

func copying(org string) Purpose {
	return Purpose{Kind: Copy, Org: org, Each: copyTime, Limits: relations.Limits{Threads: 1}}
}

// CopyOut writes the rows of files in Postgres's binary COPY format, with their numbers behind them.
func (e *Engines) CopyOut(
	ctx context.Context, org string, columns []relations.Column, files []string, to io.Writer,
) error {
	g, err := e.Take(ctx, copying(org))
	if err != nil {
		return err
	}
	defer g.Release()

	inside, err := g.In(files...)
	if err != nil {
		return err
	}
	return g.Stream(ctx, CopyOut{inside, columns}, to, maxCopied, nil)
}

// CopyIn writes the rows of a file in that format, without numbers, to a new Parquet file, and returns how many there
// are.
func (e *Engines) CopyIn(
	ctx context.Context, org string, columns []relations.Column, file, target string,
) (rows int64, err error) {
	return rows, e.rewrite(ctx, org, file, target, func(file, target string) Question {
		return CopyIn{file, columns, target}
	}, &rows)
}

// Head writes the first rows of a Parquet file to a new one.
func (e *Engines) Head(ctx context.Context, org, file string, rows int64, target string) error {
	return e.rewrite(ctx, org, file, target, func(file, target string) Question {
		return Head{file, rows, target}
	}, nil)
}

// rewrite asks for a file that is made of another one.
func (e *Engines) rewrite(
	ctx context.Context, org, file, target string, question func(file, target string) Question, answer any,
) error {
	g, err := e.Take(ctx, copying(org))
	if err != nil {
		return err
	}
	defer g.Release()

	given, err := g.In(file)
	if err != nil {
		return err
	}
	made := g.Out(filepath.Base(target))
	if err := g.Do(ctx, question(given[0], made), answer); err != nil {
		return err
	}
	return g.Fetch(made, target)
}

// Preview returns rows of Parquet files, file by file, as values that JSON holds without loss: lists and objects are
// json.RawMessage, whole numbers int64.
func (e *Engines) Preview(
	ctx context.Context, org string, files []string, limit, offset int,
) ([]relations.Column, [][]any, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, lookWithin,
		fault.New(fault.TooLarge, "the rows could not be read within %s", lookWithin))
	defer cancel()
	g, err := e.Take(ctx, Purpose{Kind: Query, Org: org, Each: lookTime,
		Limits: relations.Limits{Threads: 1, Memory: lookMemory}})
	if err != nil {
		return nil, nil, err
	}
	defer g.Release()

	inside, err := g.In(files...)
	if err != nil {
		return nil, nil, err
	}
	read, rows, err := g.Rows(ctx, Rows{Scope: relations.UTC,
		SQL:       fmt.Sprintf("SELECT * FROM files LIMIT %d OFFSET %d", limit, offset),
		Relations: []relations.Relation{{Name: "files", Files: inside}}, Rows: limit, Bytes: maxLook})
	if err != nil {
		return nil, nil, err
	}
	if read.Truncated {
		return nil, nil, fault.New(fault.TooLarge, "%d rows have more than the %d MB that are shown at once", limit,
			maxLook>>20).WithHint("ask for fewer rows")
	}
	return read.Columns, rows, nil
}

// Rows asks for the rows of a statement, as values that JSON holds without loss: see Preview.
func (g *Engine) Rows(ctx context.Context, q Rows) (read RowsRead, rows [][]any, err error) {
	var lines bytes.Buffer
	if err := g.Stream(ctx, q, &lines, 2*q.Bytes+16<<20, &read); err != nil {
		return read, nil, err
	}
	if err := read.Failed.Err(); err != nil {
		return read, nil, err
	}
	rows, err = cells(lines.Bytes(), read.Count)
	return read, rows, err
}

// cells returns rows that an engine streamed as lines of JSON.
func cells(lines []byte, count int) ([][]any, error) {
	rows := make([][]any, 0, min(count, len(lines)))
	for line := range bytes.Lines(lines) {
		var texts []json.RawMessage
		if err := json.Unmarshal(line, &texts); err != nil {
			return nil, fmt.Errorf("read row %d: %w", len(rows), err)
		}
		row := make([]any, len(texts))
		for i, text := range texts {
			var err error
			if row[i], err = cell(text); err != nil {
				return nil, fmt.Errorf("read row %d: %w", len(rows), err)
			}
		}
		rows = append(rows, row)
	}

	if len(rows) != count {
		return nil, fmt.Errorf("an engine says that it returns %d rows, and returns %d", count, len(rows))
	}
	return rows, nil
}

func cell(text json.RawMessage) (v any, err error) {
	if len(text) == 0 {
		return nil, errors.New("a value is missing")
	}
	if text[0] == '{' || text[0] == '[' {
		return text, nil
	}
	if whole, err := strconv.ParseInt(string(text), 10, 64); err == nil && string(text) != "-0" {
		return whole, nil
	}

	if text[0] == '-' || '0' <= text[0] && text[0] <= '9' {
		f, err := strconv.ParseFloat(string(text), 64)
		if same, _ := json.Marshal(f); err != nil || !bytes.Equal(same, text) {
			return text, nil // a number of JSON, with more digits than a DOUBLE has
		}
		return f, nil
	}
	return v, json.Unmarshal(text, &v)
}
