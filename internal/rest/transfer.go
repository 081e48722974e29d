package rest

import (
	"context"
	"io"
	"net/http"
	"time"
)

// Transfer as a time limit is that of operations that carry files: they may go on for as long as bytes pass, up to
// longestTransfer. Neither side may stand still for longer than another request may take altogether.
const Transfer time.Duration = -1

const longestTransfer = 6 * time.Hour

// transfer is a request that may take as long as its bytes pass.
type transfer struct {
	http.ResponseWriter
	body  io.ReadCloser
	conn  *http.ResponseController
	stall time.Duration
}

// moving returns a request and its writer with deadlines that each passing byte moves.
func moving(w http.ResponseWriter, r *http.Request, stall time.Duration) (
	http.ResponseWriter, *http.Request, context.CancelFunc,
) {
	t := &transfer{ResponseWriter: w, body: r.Body, conn: http.NewResponseController(w), stall: stall}
	_ = t.conn.SetReadDeadline(time.Now().Add(stall)) // a writer that has no deadlines, as in tests, is not bounded
	_ = t.conn.SetWriteDeadline(time.Now().Add(longestTransfer))
	ctx, cancel := context.WithTimeout(r.Context(), longestTransfer)
	r = r.WithContext(ctx)
	r.Body = received{t}
	return t, r, cancel
}

// Unwrap is for http.ResponseController.
func (t *transfer) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// Write implements io.Writer.
func (t *transfer) Write(p []byte) (int, error) {
	_ = t.conn.SetWriteDeadline(time.Now().Add(t.stall + grace))
	return t.ResponseWriter.Write(p)
}

// received is the body of a transfer.
type received struct{ t *transfer }

// Read implements io.Reader.
func (r received) Read(p []byte) (int, error) {
	_ = r.t.conn.SetReadDeadline(time.Now().Add(r.t.stall))
	n, err := r.t.body.Read(p)
	if err != nil { // all is there: what follows may take longer than the next byte could
		_ = r.t.conn.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Close implements io.Closer.
func (r received) Close() error { return r.t.body.Close() }
