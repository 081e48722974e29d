package worker

import (
	"os"
	"strings"
	"sync"
)

// token is a worker's token: a text, or the present content of a file.
type token struct {
	file string // "": the token never changes

	mu   sync.Mutex
	text string
}

// read returns the token. While the file is missing or empty, that is the last one.
func (t *token) read() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.file == "" {
		return t.text
	}
	if content, err := os.ReadFile(t.file); err == nil {
		if text := strings.TrimSpace(string(content)); text != "" {
			t.text = text
		}
	}
	return t.text
}
