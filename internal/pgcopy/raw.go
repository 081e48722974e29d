package pgcopy

import (
	"encoding/binary"
	"io"
	"math"
)

// RawWriter writes rows whose values are in the binary format of their types already, as a query returns them, without
// numbers.
type RawWriter struct {
	to      io.Writer
	line    []byte
	written int64
}

// NewRawWriter begins the format.
func NewRawWriter(to io.Writer) (*RawWriter, error) {
	n, err := to.Write(copyHeader)
	return &RawWriter{to: to, written: int64(n)}, err
}

// Row writes a row; nil stands for NULL.
func (w *RawWriter) Row(values [][]byte) error {
	w.line = binary.BigEndian.AppendUint16(w.line[:0], uint16(len(values)))
	for _, v := range values {
		if v == nil {
			w.line = binary.BigEndian.AppendUint32(w.line, nullValue)
			continue
		}
		w.line = binary.BigEndian.AppendUint32(w.line, uint32(len(v)))
		w.line = append(w.line, v...)
	}
	n, err := w.to.Write(w.line)
	w.written += int64(n)
	return err
}

// Written returns how many bytes were written so far.
func (w *RawWriter) Written() int64 { return w.written }

// End ends the format.
func (w *RawWriter) End() error {
	_, err := w.to.Write(binary.BigEndian.AppendUint16(nil, copyEnd))
	return err
}

// Finite reports whether a numeric in the binary format is a number; NULL counts as one.
func Finite(numeric []byte) bool {
	if len(numeric) < 8 {
		return numeric == nil
	}
	sign := binary.BigEndian.Uint16(numeric[4:])
	return sign == 0 || sign == negativeNumeric
}

// Instant reports whether a timestamp in the binary format, microseconds since 2000, is one that DuckDB has, which
// counts them from 1970 and ends in the year 294247; NULL and the infinities are.
func Instant(timestamp []byte) bool {
	if len(timestamp) != 8 {
		return timestamp == nil
	}
	at := int64(binary.BigEndian.Uint64(timestamp))
	return at == math.MaxInt64 || at < math.MaxInt64-sinceUnix // the last one is infinity there
}
