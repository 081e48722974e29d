package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dagctl/dagctl/worker/protocol"
)

// Format is the format of rows between a task and the server, which converts them.
type Format string

// The formats. Arrow is a stream of its IPC format, with exact types, and only inputs come in it: any library for Arrow
// reads what Input.Open returns, batch by batch.
const (
	NDJSON  Format = "ndjson"
	CSV     Format = "csv"
	Parquet Format = "parquet"
	Arrow   Format = "arrow"
)

func (f Format) mediaType() string {
	switch f {
	case NDJSON:
		return "application/x-ndjson"
	case CSV:
		return "text/csv"
	case Arrow:
		return "application/vnd.apache.arrow.stream"
	}
	return "application/vnd.apache.parquet"
}

// Input is one input of a task, as it was pinned at the claim.
type Input struct {
	protocol.Input
	task *Task
}

// Input returns the input that the job calls by a name.
func (t *Task) Input(as string) (*Input, error) {
	i := slices.IndexFunc(t.Inputs, func(in protocol.Input) bool { return in.As == as })
	if i < 0 {
		names := make([]string, len(t.Inputs))
		for n, in := range t.Inputs {
			names[n] = in.As
		}
		return nil, NotRetryable(fmt.Errorf("the job has no input %q; it has: %s", as, strings.Join(names, ", ")))
	}
	return &Input{t.Inputs[i], t}, nil
}

// Save downloads the input's rows to a file in a folder and returns its name. It repeats a download that is cut short.
func (in *Input) Save(ctx context.Context, dir string, format Format) (string, error) {
	return in.save(ctx, "", dir, format)
}

// SavePartition is Save for the rows of one partition, which the input has.
func (in *Input) SavePartition(ctx context.Context, key, dir string, format Format) (string, error) {
	return in.save(ctx, "&partition="+url.QueryEscape(key), dir, format)
}

func (in *Input) save(ctx context.Context, only, dir string, format Format) (string, error) {
	path := inputPath(in.Index, format) + only
	var name string
	err := Repeat(ctx, func(ctx context.Context) error {
		body, err := in.task.client.download(ctx, in.task.capability(), in.task.fence, path)
		if err != nil {
			return err
		}
		defer body.Close()

		file, err := os.CreateTemp(dir, fmt.Sprintf("input%d-*.%s", in.Index, format))
		if err != nil {
			return ours{err}
		}
		_, err = io.Copy(onDisk{file}, body)
		if err = errors.Join(err, file.Close()); err != nil {
			return errors.Join(fmt.Errorf("input %q was cut short: %w", in.As, err), os.Remove(file.Name()))
		}

		name = file.Name()
		return nil
	})
	return name, err
}

// onDisk marks errors of this machine's disk, to distinguish them from errors of the network.
type onDisk struct{ *os.File }

func (f onDisk) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	if err != nil {
		err = ours{err}
	}
	return n, err
}

// Open downloads the input's rows in a format and opens them.
func (in *Input) Open(ctx context.Context, format Format) (io.ReadCloser, error) {
	dir, err := in.task.Scratch()
	if err != nil {
		return nil, err
	}
	name, err := in.Save(ctx, dir, format)
	if err != nil {
		return nil, err
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	return &scratchFile{file}, nil
}

// scratchFile is a file that Close removes.
type scratchFile struct{ *os.File }

func (f *scratchFile) Close() error { return errors.Join(f.File.Close(), os.Remove(f.Name())) }

// Rows reads an input row by row. R is what a row's JSON decodes into: a struct with json tags, or a map.
func Rows[R any](ctx context.Context, in *Input) iter.Seq2[R, error] {
	return func(yield func(R, error) bool) {
		var none R
		content, err := in.Open(ctx, NDJSON)
		if err != nil {
			yield(none, err)
			return
		}
		defer content.Close()

		decoder := json.NewDecoder(bufio.NewReaderSize(content, 1<<20))
		decoder.UseNumber() // a number in an any keeps its digits
		for n := 1; ; n++ {
			var row R
			err := decoder.Decode(&row)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(none, NotRetryable(fmt.Errorf("row %d of input %q: %w", n, in.As, err)))
				return
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// Output is one output of a task.
type Output struct {
	protocol.Output
	task      *Task
	partition string
}

// Output returns the output with a name. The name may be empty if the job has only one output.
func (t *Task) Output(name string) (*Output, error) {
	if name == "" && len(t.Outputs) == 1 {
		return &Output{Output: t.Outputs[0], task: t}, nil
	}
	i := slices.IndexFunc(t.Outputs, func(o protocol.Output) bool { return o.Name == name })
	if i < 0 {
		names := make([]string, len(t.Outputs))
		for n, o := range t.Outputs {
			names[n] = o.Name
		}
		return nil, NotRetryable(fmt.Errorf("the job has no output %q; it has: %s", name, strings.Join(names, ", ")))
	}
	return &Output{Output: t.Outputs[i], task: t}, nil
}

// Of returns the output's partition with a key. Without Of, what is written is the task's own partition.
func (o *Output) Of(partition string) *Output {
	of := *o
	of.partition = partition
	return &of
}

// Upload sends a local file as one of the output's files. It is published when it is committed, with the task's end or
// by Task.Commit. A second file with the same name replaces the first.
func (o *Output) Upload(ctx context.Context, name string, format Format, path string) error {
	if format == Arrow {
		return NotRetryable(fmt.Errorf("upload %s of output %q: files of outputs are NDJSON, CSV or Parquet", name,
			o.Name))
	}
	var sent protocol.UploadedFile
	err := Repeat(ctx, func(ctx context.Context) error {
		file, err := os.Open(path)
		if err != nil {
			return ours{err}
		}
		defer file.Close()
		info, err := file.Stat()
		if err != nil {
			return ours{err}
		}
		sent, err = o.task.client.Upload(ctx, o.task.capability(), o.task.fence, o.Index, name, format, file,
			info.Size())
		return err
	})
	if err != nil {
		if errors.Is(err, ErrConflict) {
			o.task.stop(ErrFenced)
		}
		return fmt.Errorf("upload %s of output %q: %w", name, o.Name, err)
	}

	// The server keeps rows of text as Parquet under another name. The commit needs that name.
	o.task.gathered.uploaded(o.Index, o.partition, sent)
	return nil
}

// Create opens a file of the output for writing. The file stays on this machine until Close sends it, so check the
// error of Close.
func (o *Output) Create(ctx context.Context, name string, format Format) (*File, error) {
	dir, err := o.task.Scratch()
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(dir, "output-*-"+filepath.Base(name))
	if err != nil {
		return nil, err
	}
	return &File{ctx: ctx, output: o, name: name, format: format, file: file,
		buffered: bufio.NewWriterSize(file, 1<<20)}, nil
}

// File is a file of an output that is being written. It is not safe for concurrent use.
type File struct {
	ctx      context.Context // the one passed to Create, because Close takes none
	output   *Output
	name     string
	format   Format
	file     *os.File
	buffered *bufio.Writer
}

// Write implements io.Writer.
func (f *File) Write(p []byte) (int, error) { return f.buffered.Write(p) }

// Row writes a row as a line of JSON. The file must be NDJSON.
func (f *File) Row(row any) error {
	text, err := json.Marshal(row)
	if err != nil {
		return NotRetryable(fmt.Errorf("row of output %q: %w", f.output.Name, err))
	}
	if _, err := f.buffered.Write(text); err != nil {
		return err
	}
	return f.buffered.WriteByte('\n')
}

// Close sends the file.
func (f *File) Close() error {
	defer os.Remove(f.file.Name())
	if err := errors.Join(f.buffered.Flush(), f.file.Close()); err != nil {
		return err
	}
	return f.output.Upload(f.ctx, f.name, f.format, f.file.Name())
}

// Write writes rows as one file of the output.
func Write[R any](ctx context.Context, o *Output, rows iter.Seq[R]) error {
	file, err := o.Create(ctx, "rows.ndjson", NDJSON)
	if err != nil {
		return err
	}
	for row := range rows {
		if err := file.Row(row); err != nil {
			return errors.Join(err, file.abandon())
		}
	}
	return file.Close()
}

// abandon removes a file that will not be sent.
func (f *File) abandon() error { return errors.Join(f.file.Close(), os.Remove(f.file.Name())) }
