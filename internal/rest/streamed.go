package rest

import (
	"bufio"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Streamed is an answer that leaves while it is made, however long it is.
type Streamed struct {
	Header http.Header
	// Stall is how long its reader may take nothing.
	Stall time.Duration
	// Write writes the answer, and returns the headers that follow it. Their names are those of Trailers.
	Write    func(to io.Writer) (http.Header, error)
	Trailers []string
}

// heldBack is how much of an answer waits for more, so that one that fails early is an error and not half an answer.
const heldBack = 1 << 20

// Send answers an operation. An answer that cannot be completed is cut off, so that nobody takes it for the whole.
func (s Streamed) Send(to huma.Context) {
	r, w := humago.Unwrap(to)
	answer := &streamedAnswer{Streamed: s, w: w, conn: http.NewResponseController(w)}
	held := bufio.NewWriterSize(answer, heldBack)

	trailer, err := s.Write(held)
	if err != nil && !answer.begun {
		WriteProblem(w, r, ProblemOf(err))
		return
	}
	if err == nil {
		answer.begin()
		err = held.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), trailer)
}

// streamedAnswer begins an answer with its first byte.
type streamedAnswer struct {
	Streamed

	w     http.ResponseWriter
	conn  *http.ResponseController
	begun bool
}

func (a *streamedAnswer) begin() {
	if a.begun {
		return
	}
	a.begun = true
	maps.Copy(a.w.Header(), a.Header)
	a.w.Header().Set("Trailer", strings.Join(slices.Sorted(slices.Values(a.Trailers)), ", "))
	a.w.WriteHeader(http.StatusOK)
}

// Write implements io.Writer.
func (a *streamedAnswer) Write(p []byte) (int, error) {
	a.begin()
	_ = a.conn.SetWriteDeadline(time.Now().Add(a.Stall)) // a writer without deadlines, as in tests, is not bounded
	return a.w.Write(p)
}
