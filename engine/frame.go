package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Questions and answers travel in frames: a length in four bytes, the most significant first, and as many bytes of
// JSON.

// MaxFrame is the most bytes that a frame may have. Rows travel in files; only what is small crosses in frames.
const MaxFrame = 64 << 20

// Asked is a question on its way.
type Asked struct {
	Verb string          `json:"verb"`
	Body json.RawMessage `json:"body"`
}

// Answered is an answer on its way, or the reason why there is none.
type Answered struct {
	Body    json.RawMessage `json:"body,omitempty"`
	Failure *Failure        `json:"failure,omitempty"`
}

// WriteFrame writes a value as one frame.
func WriteFrame(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(text) > MaxFrame {
		return fmt.Errorf("a frame of %d bytes: at most %d are allowed", len(text), MaxFrame)
	}
	frame := make([]byte, 4, 4+len(text))
	binary.BigEndian.PutUint32(frame, uint32(len(text)))
	_, err = w.Write(append(frame, text...))
	return err
}

// ReadFrame reads one frame into a value. It holds no more bytes than have arrived.
func ReadFrame(r io.Reader, value any) error {
	size, err := readSize(r)
	if err != nil {
		return err
	}
	return readBody(r, size, value)
}

func readSize(r io.Reader) (uint32, error) {
	var head [4]byte
	_, err := io.ReadFull(r, head[:])
	return binary.BigEndian.Uint32(head[:]), err
}

func readBody(r io.Reader, size uint32, value any) error {
	if size > MaxFrame {
		return fmt.Errorf("a frame of %d bytes: at most %d are allowed", size, MaxFrame)
	}
	text, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err != nil {
		return err
	}
	if len(text) < int(size) {
		return io.ErrUnexpectedEOF
	}
	return json.Unmarshal(text, value)
}

// A stream of bytes, such as rows, comes in pieces before the frame of its answer. A piece begins with its length, too,
// of which the most significant bit is set.
const ofPiece = 1 << 31

// MaxPiece is the most bytes that a piece may have.
const MaxPiece = 1 << 20

// WritePiece writes bytes as one piece of a stream.
func WritePiece(w io.Writer, b []byte) error {
	if len(b) > MaxPiece {
		return fmt.Errorf("a piece of %d bytes: at most %d are allowed", len(b), MaxPiece)
	}
	head := binary.BigEndian.AppendUint32(nil, ofPiece|uint32(len(b)))
	if _, err := w.Write(head); err != nil {
		return err
	}
	_, err := w.Write(b)
	return err
}

// ReadStream copies a stream of no more than most bytes, and reads the frame behind it into a value.
func ReadStream(r io.Reader, to io.Writer, most int64, value any) error {
	for {
		size, err := readSize(r)
		if err != nil {
			return err
		}
		if size&ofPiece == 0 {
			return readBody(r, size, value)
		}

		size &^= ofPiece
		if most -= int64(size); size > MaxPiece || most < 0 {
			return fmt.Errorf("a piece of %d bytes is more than is allowed", size)
		}
		if _, err := io.CopyN(to, r, int64(size)); err != nil {
			return err
		}
	}
}
