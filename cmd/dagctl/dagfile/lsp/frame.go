// Package lsp is what editors ask about DAG files, by the Language Server Protocol: the problems that validate finds,
// completion of names, columns and fields, descriptions, and where a name is defined.
package lsp

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/dagctl/dagctl/internal/fault"
)

// message is a request, a notification or a response.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *failure        `json:"error,omitempty"`
}

type failure struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

const (
	noJSON         = -32700
	badRequest     = -32600
	unknownMethod  = -32601
	badParams      = -32602
	notInitialized = -32002
	mostBytes      = 64 << 20 // of a message; files have at most 2 MiB
)

// errNoJSON is the error of a message whose body is none, behind which the next one begins.
var errNoJSON = errors.New("the message is not JSON-RPC")

// read reads a message. The error is io.EOF if there is none any more.
func read(in *bufio.Reader) (m message, err error) {
	length := -1
	for first := true; ; first = false {
		line, err := in.ReadString('\n')
		if err == io.EOF && first && line == "" {
			return m, io.EOF
		}
		if err != nil {
			return m, fault.New(fault.Invalid, "a message of the editor ends in its header")
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}

		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return m, fault.New(fault.Invalid, "%.80q of the editor is no header of a message", line).
				WithHint("editors start `dagctl lsp`; people do not type to it")
		}
		if strings.EqualFold(name, "Content-Length") {
			if length, err = strconv.Atoi(strings.TrimSpace(value)); err != nil || length < 0 || length > mostBytes {
				return m, fault.New(fault.Invalid, "a message of the editor has the length %.80q", value)
			}
		}
	}
	if length < 0 {
		return m, fault.New(fault.Invalid, "a message of the editor has no Content-Length")
	}

	body := make([]byte, length)
	if _, err := io.ReadFull(in, body); err != nil {
		return m, fault.New(fault.Invalid, "a message of the editor ends before its length")
	}
	if err := json.Unmarshal(body, &m); err != nil {
		return message{}, fmt.Errorf("%w: %w", errNoJSON, err)
	}
	return m, nil
}

// writer writes messages, one at a time.
type writer struct {
	mu  sync.Mutex
	out io.Writer
	err error // of the first write that failed
}

func (w *writer) write(m message) {
	m.Version = "2.0"
	body, err := json.Marshal(m)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && w.err == nil {
		_, err = fmt.Fprintf(w.out, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	if w.err == nil {
		w.err = err
	}
}
