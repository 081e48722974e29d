package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"
)

// serve runs the API as a real server on a real socket.
func serve(t *testing.T, api *API) (addr string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(nil)
	srv.Config = NewServer("", api.Handler())
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

// raw sends bytes that no client would and reads one answer.
func raw(t *testing.T, addr, request string) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, request)
	require.NoError(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	return answer
}

func TestHostileConnections(t *testing.T) {
	t.Parallel()
	api, lines := newTestAPI(t, Config{})
	Register(api, huma.Operation{OperationID: "slow", Method: "POST", Path: "/slow",
		BodyReadTimeout: 20 * time.Millisecond},
		func(_ context.Context, in *itemInput) (*itemOutput, error) { return &itemOutput{in.Body}, nil })
	failing(api, nil)
	addr := serve(t, api)
	const head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"

	slow := raw(t, addr, fmt.Sprintf(head, "/slow")+"Content-Length: 100\r\n\r\n{")
	require.Equal(t, 408, slow.StatusCode)
	var p Problem
	require.NoError(t, json.NewDecoder(slow.Body).Decode(&p))
	require.Equal(t, "unavailable", p.Kind)

	endless := fmt.Sprintf(head, "/item") + "Transfer-Encoding: chunked\r\n\r\n" +
		strings.Repeat("1000\r\n"+strings.Repeat("x", 0x1000)+"\r\n", 350)
	require.Equal(t, 413, raw(t, addr, endless).StatusCode)

	injected := raw(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\r\n Set-Cookie: b=c\r\n\r\n")
	require.Empty(t, injected.Header.Get("Set-Cookie"))
	require.NotContains(t, injected.Header.Get(RequestIDHeader), "Cookie")
	require.Equal(t, 400, raw(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nX-Request-Id: a\x00b\r\n\r\n").StatusCode)
	require.Equal(t, 431, raw(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 80<<10)+"\r\n\r\n").
		StatusCode)
	require.Empty(t, lines.String())
}

// A file passes for as long as its bytes do, and one that stands still ends.
func TestTransfersTakeAsLongAsTheirBytesPass(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second
	api, _ := newTestAPI(t, Config{Timeout: limit})
	var failed = make(chan error, 2)
	RegisterRaw(api, WithTimeout(huma.Operation{OperationID: "put", Method: "PUT", Path: "/file"}, Transfer), 1<<20,
		func(w http.ResponseWriter, r *http.Request) {
			n, err := io.Copy(io.Discard, r.Body)
			failed <- err
			fmt.Fprint(w, n)
		})
	addr := serve(t, api)
	const head = "PUT /file HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\n"

	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	_, err = io.WriteString(conn, head)
	require.NoError(t, err)
	tick := time.NewTicker(limit / 4)
	defer tick.Stop()
	for range 6 { // one and a half times the limit
		<-tick.C
		_, err = io.WriteString(conn, "x")
		require.NoError(t, err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, 200, answer.StatusCode)
	require.NoError(t, <-failed)

	still, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = still.Close() })
	_, err = io.WriteString(still, head+"x")
	require.NoError(t, err)
	require.ErrorIs(t, <-failed, os.ErrDeadlineExceeded)
}

// A body that is cut off or broken is the sender's fault.
func TestBrokenBodies(t *testing.T) {
	t.Parallel()
	api, _ := newTestAPI(t, Config{})
	failing(api, nil)
	answer := raw(t, serve(t, api), "POST /item HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
		"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}")
	require.Equal(t, 400, answer.StatusCode)
}
