package operators

import (
	"encoding/json"
	"sync"
)

// remembered keeps answers about statements, by what was asked.
type remembered struct {
	mu      sync.Mutex
	answers map[string][]byte // JSON
	bytes   int
}

// maxRemembered bounds the memory, in bytes; a full one is emptied.
const maxRemembered = 64 << 20

// recall decodes what is remembered of a question into answer; otherwise find sets it, and it is remembered. Errors are
// not: what ended an engine may not end the next.
func (r *remembered) recall(answer any, of []any, find func() error) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	key := string(text)
	r.mu.Lock()
	known, ok := r.answers[key]
	r.mu.Unlock()
	if ok {
		return json.Unmarshal(known, answer)
	}

	if err := find(); err != nil {
		return err
	}
	known, err = json.Marshal(answer)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bytes += len(key) + len(known); r.answers == nil || r.bytes > maxRemembered {
		r.answers, r.bytes = map[string][]byte{}, len(key)+len(known)
	}
	r.answers[key] = known
	return nil
}
