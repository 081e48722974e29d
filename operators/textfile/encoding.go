package textfile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/text/transform"
)

// open opens a file as UTF-8 text, decompressed and without a byte order mark.
func (f File) open(encodingName string) (io.ReadCloser, error) {
	if f.Path == "" {
		return inMemory{bytes.NewReader(f.Text)}, nil
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	closers := []func() error{file.Close}
	in, err := decompressed(file, f.Path, &closers)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name, err), file.Close())
	}

	decoder, err := decoderOf(encodingName)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if decoder != nil {
		in = transform.NewReader(in, decoder)
	}

	buffered := bufio.NewReaderSize(in, 64<<10)
	head, _ := buffered.Peek(3) // an error shows again when the text is read
	switch {
	case bytes.HasPrefix(head, []byte("\xEF\xBB\xBF")):
		_, err = buffered.Discard(3)
	case decoder == nil && (bytes.HasPrefix(head, []byte("\xFF\xFE")) || bytes.HasPrefix(head, []byte("\xFE\xFF"))):
		err = fmt.Errorf("%s is UTF-16: say so with `encoding: utf-16`", f.Name)
	}
	r := reader{buffered, closers}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// inMemory is a text that is not in a file.
type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

func decompressed(file *os.File, path string, closers *[]func() error) (io.Reader, error) {
	lower := strings.ToLower(path)
	switch {
	case strings.HasSuffix(lower, ".gz"):
		in, err := gzip.NewReader(bufio.NewReaderSize(file, 64<<10))
		switch {
		case errors.Is(err, io.EOF): // no bytes are no text
			return file, nil
		case errors.Is(err, gzip.ErrHeader), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, errors.New("is not compressed by gzip, though its name ends in .gz: compress it, or rename it")
		case err != nil:
			return nil, err
		}
		return unpacked{in, "gzip"}, nil
	case strings.HasSuffix(lower, ".zst"):
		in, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err == nil {
			*closers = append(*closers, func() error { in.Close(); return nil })
		}
		return unpacked{in, "zstd"}, err
	}
	return file, nil
}

// unpacked says of what is compressed that it is broken.
type unpacked struct {
	io.Reader
	by string
}

func (u unpacked) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("is cut off or broken where it is compressed by %s (%s): write it again, under another name "+
			"first, and rename it once it is complete", u.by, err)
	}
	return n, err
}

// reader closes what it reads from.
type reader struct {
	io.Reader
	closers []func() error
}

func (r reader) Close() (err error) {
	for _, closeOne := range r.closers {
		err = errors.Join(err, closeOne())
	}
	return err
}
