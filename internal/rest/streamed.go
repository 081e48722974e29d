package rest

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// Streamed is an answer that leaves while it is made, however long it is.
type Streamed struct {
	Header http.Header
	// Stall is how long its reader may take nothing.
	Stall time.Duration
	// Until ends the answer at once, even while its reader takes nothing; nil: only Write does.
	Until context.Context
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

	if s.Until != nil {
		stop := context.AfterFunc(s.Until, answer.interrupt)
		defer stop()
	}

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
		if s.ended() {
			answer.reset()
		}
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), trailer)
}

// ended reports whether the answer may not go on.
func (s Streamed) ended() bool { return s.Until != nil && s.Until.Err() != nil }

// streamedAnswer begins an answer with its first byte.
type streamedAnswer struct {
	Streamed

	w     http.ResponseWriter
	conn  *http.ResponseController
	mu    sync.Mutex
	begun bool
}

func (a *streamedAnswer) begin() {
	a.mu.Lock()
	defer a.mu.Unlock()
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
	if a.ended() { // before it begins, so that the reason can be told
		return 0, context.Cause(a.Until)
	}
	a.begin()
	_ = a.conn.SetWriteDeadline(time.Now().Add(a.Stall)) // a writer without deadlines, as in tests, is not bounded
	if a.ended() {                                       // or interrupt was before the line above
		return 0, context.Cause(a.Until)
	}
	return a.w.Write(p)
}

// interrupt ends a write that waits for the reader. An answer that has not begun can still tell why it does not.
func (a *streamedAnswer) interrupt() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.begun {
		_ = a.conn.SetWriteDeadline(time.Unix(1, 0))
	}
}

// reset ends the connection together with what waits there to be sent, where it has no other answers.
func (a *streamedAnswer) reset() {
	conn, _, err := a.conn.Hijack()
	if err != nil {
		return
	}
	raw := conn
	if secure, ok := conn.(*tls.Conn); ok {
		raw = secure.NetConn()
	}
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = raw.Close()
}
