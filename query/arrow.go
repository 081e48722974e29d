package query

import (
	"context"
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
)

// MediaArrow is the media type of a stream of Arrow's IPC format.
const MediaArrow = "application/vnd.apache.arrow.stream"

// TruncatedHeader of an answer in Arrow says that there are more rows.
const TruncatedHeader = "Dagctl-Truncated"

// Stream is the answer of a statement in Arrow. It must be closed.
type Stream struct {
	Rows      int
	Truncated bool
	Size      int64 // bytes

	content *os.File
}

// RunArrow is like Run, with the rows as a stream of Arrow. It is on disk, not in memory, and complete before any byte
// of it leaves: a statement that fails late has no answer, and the audit log has all that was read.
func (q *Query) RunArrow(ctx context.Context, caller authz.Caller, s Statement) (stream *Stream, err error) {
	file, err := os.CreateTemp("", fmt.Sprintf("dagctl-arrow-%d-*", os.Getpid()))
	if err != nil {
		return nil, err
	}
	// Without its name, the file ends with its last user, whatever becomes of this process.
	if err := os.Remove(file.Name()); err != nil {
		return nil, errors.Join(err, file.Close())
	}

	s.arrow = file
	answer, err := q.Run(ctx, caller, s)
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
	return &Stream{answer.count, answer.Truncated, size, file}, nil
}

// rows takes the rows if they are wanted as a stream.
func (s Statement) rows() io.Writer {
	if s.arrow == nil {
		return nil
	}
	return s.arrow
}

func (s *Stream) Read(p []byte) (int, error) { return s.content.Read(p) }

// Close frees the stream's place on disk.
func (s *Stream) Close() error { return s.content.Close() }

// wantsArrow reports whether an Accept header names Arrow.
func wantsArrow(accept string) bool {
	for part := range strings.SplitSeq(accept, ",") {
		if kind, _, err := mime.ParseMediaType(part); err == nil && kind == MediaArrow {
			return true
		}
	}
	return false
}

// send answers a request with the stream, and closes it.
func (s *Stream) send(to huma.Context) {
	defer s.Close()
	to.SetHeader("Content-Type", MediaArrow)
	to.SetHeader("Content-Length", strconv.FormatInt(s.Size, 10))
	to.SetHeader("Cache-Control", "no-store")
	to.SetHeader(TruncatedHeader, strconv.FormatBool(s.Truncated))
	to.SetStatus(http.StatusOK)
	_, _ = io.Copy(to.BodyWriter(), s) // the reader sees by the length if it is cut short
}
