package child

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A child that answers with bytes, and not with a value, writes them in parts: the length of each in four bytes before
// it, and a length of 0 behind the last. A value may follow.

// maxPart is the most that a part has.
const maxPart = 1 << 20

// Parts writes a stream of bytes for Receive. It must be closed.
func Parts(out io.Writer) io.WriteCloser {
	p := &parts{out: out}
	p.buffer = bufio.NewWriterSize(partWriter{out}, maxPart)
	return p
}

type parts struct {
	out    io.Writer
	buffer *bufio.Writer
}

func (p *parts) Write(b []byte) (int, error) {
	for at := 0; at < len(b); {
		n, err := p.buffer.Write(b[at:min(len(b), at+maxPart)])
		if err != nil {
			return at, err
		}
		at += n
	}
	return len(b), nil
}

func (p *parts) Close() error {
	if err := p.buffer.Flush(); err != nil {
		return err
	}
	_, err := p.out.Write(make([]byte, 4))
	return err
}

// partWriter writes each text that it is given as a part.
type partWriter struct{ out io.Writer }

func (w partWriter) Write(b []byte) (int, error) {
	var length [4]byte
	binary.BigEndian.PutUint32(length[:], uint32(len(b)))
	if _, err := w.out.Write(length[:]); err != nil {
		return 0, err
	}
	return w.out.Write(b)
}

// Receive reads a stream that the child writes with Parts.
func (p *Process) Receive(to io.Writer) error {
	in := bufio.NewReader(io.MultiReader(p.decode.Buffered(), p.out))
	defer func() { p.decode = json.NewDecoder(in) }()

	// Behind the last value is the end of its line.
	if b, err := in.ReadByte(); err != nil || b != '\n' {
		return errors.Join(errors.New("the value before a stream has no end"), err)
	}
	for {
		var length [4]byte
		if _, err := io.ReadFull(in, length[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint32(length[:])
		if n == 0 {
			return nil
		}
		if n > maxPart {
			return fmt.Errorf("a part of a stream has %d bytes", n)
		}
		if _, err := io.CopyN(to, in, int64(n)); err != nil {
			return err
		}
	}
}
