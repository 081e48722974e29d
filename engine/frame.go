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
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
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
