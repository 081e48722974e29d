package query

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/fault"
)

// Format is a form in which an answer leaves as one file.
type Format string

// The formats. CSV is that of RFC 4180, in UTF-8, with a line of names; NULL is an empty field, and no value is changed
// for the sake of spreadsheets.
const (
	CSV     Format = "csv"
	Parquet Format = "parquet"
	Arrow   Format = "arrow"  // a stream of Arrow's IPC format
	NDJSON  Format = "ndjson" // of exports: a JSON object a line
)

// MediaArrow, MediaParquet and MediaCSV are the media types of the formats.
const (
	MediaArrow   = "application/vnd.apache.arrow.stream"
	MediaParquet = "application/vnd.apache.parquet"
	MediaCSV     = "text/csv"
	MediaNDJSON  = "application/x-ndjson"
)

// formats has the media types of the formats, and the ends of their files' names.
var formats = map[Format]struct{ media, suffix string }{
	CSV: {MediaCSV, ".csv"}, Parquet: {MediaParquet, ".parquet"}, Arrow: {MediaArrow, ".arrows"},
	NDJSON: {MediaNDJSON, ".ndjson"},
}

// ParseFormat returns the format of a name.
func ParseFormat(name string) (Format, error) {
	f := Format(name)
	if _, ok := formats[f]; !ok || f == NDJSON {
		return "", fault.New(fault.Invalid, "%q is no format", name).WithHint("csv, parquet or arrow")
	}
	return f, nil
}

// Media returns the media type of a format.
func (f Format) Media() string { return formats[f].media }

// Suffix returns how the names of its files end, such as ".csv".
func (f Format) Suffix() string { return formats[f].suffix }

// TruncatedHeader of a download says that there are more rows.
const TruncatedHeader = "Dagctl-Truncated"

// Stream is the answer of a statement as one file. It must be closed.
type Stream struct {
	Format    Format
	Rows      int
	Truncated bool
	Size      int64 // bytes

	content *os.File
}

// Download is like Run, with the rows as one file. It is on disk, not in memory, and complete before any byte of it
// leaves: a statement that fails late has no answer, and the audit log has all that was read.
func (q *Query) Download(ctx context.Context, caller authz.Caller, s Statement, as Format) (*Stream, error) {
	file, err := os.CreateTemp("", fmt.Sprintf("dagctl-answer-%d-*", os.Getpid()))
	if err != nil {
		return nil, err
	}
	// Without its name, the file ends with its last user, whatever becomes of this process.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	switch as {
	case Arrow:
		s.as, s.to = engine.AsArrow, file
	case Parquet:
		s.as, s.to = engine.AsParquet, file
	}
	answer, err := q.Run(ctx, caller, s)
	if err == nil && as == CSV {
		err = WriteCSV(file, answer)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}

	size, err := file.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Stream{as, answer.count, answer.Truncated, size, file}, nil
}

func (s *Stream) Read(p []byte) (int, error) { return s.content.Read(p) }

// Close frees the stream's place on disk.
func (s *Stream) Close() error { return s.content.Close() }

// accepted returns the format that an Accept header names first; empty if it names none.
func accepted(accept string) Format {
	for part := range strings.SplitSeq(accept, ",") {
		kind, _, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		for format, f := range formats {
			if kind == f.media && format != NDJSON {
				return format
			}
		}
	}
	return ""
}

// header sets the headers of an answer that is the stream. By its length, a reader sees whether it was cut short.
func (s *Stream) header(set func(name, value string)) {
	media := s.Format.Media()
	if s.Format == CSV {
		media += "; charset=utf-8; header=present"
	}
	set("Content-Type", media)
	set("Content-Length", strconv.FormatInt(s.Size, 10))
	set("Cache-Control", "no-store")
	set(TruncatedHeader, strconv.FormatBool(s.Truncated))
}

// send answers an operation with the stream, and closes it.
func (s *Stream) send(to huma.Context) {
	defer s.Close()
	s.header(to.SetHeader)
	to.SetStatus(http.StatusOK)
	_, _ = io.Copy(to.BodyWriter(), s) // the reader sees by the length if it is cut short
}

// Save answers a browser with the stream as a file of that name, and closes it.
func (s *Stream) Save(w http.ResponseWriter, name string) {
	defer s.Close()
	s.header(w.Header().Set)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment",
		map[string]string{"filename": name + s.Format.Suffix()}))
	w.WriteHeader(http.StatusOK)
	_, _ = io.Copy(w, s)
}

// WriteCSV writes rows as CSV.
func WriteCSV(w io.Writer, answer Answer) error {
	out := csv.NewWriter(w)
	record := make([]string, len(answer.Columns))
	for i, c := range answer.Columns {
		record[i] = c.Name
	}
	if err := out.Write(record); err != nil {
		return fmt.Errorf("write as CSV: %w", err)
	}

	for _, row := range answer.Rows {
		for i, value := range row {
			record[i] = Text(value)
		}
		if err := out.Write(record); err != nil {
			return fmt.Errorf("write as CSV: %w", err)
		}
	}

	out.Flush()
	return out.Error()
}
