package operators

import (
	"crypto/sha256"
	"encoding/json"
	"sync"
)

// remembered keeps answers about statements, by what was asked. Those that were asked for lately stay: once the newer
// half is full it becomes the older one, which is dropped.
type remembered struct {
	mu    sync.Mutex
	newer map[question][]byte // JSON
	older map[question][]byte
	bytes int // of the newer half
}

// question is the hash of what was asked, which may be much longer than the answer.
type question [sha256.Size]byte

const (
	// maxRemembered bounds each half in bytes: about 5,000 answers, of which a job takes four.
	maxRemembered = 2 << 20
	// entryBytes is what an entry of a map takes besides its answer.
	entryBytes = 100
)

// recall decodes what is remembered of a question into answer; otherwise find sets it, and it is remembered. Errors are
// not: what ended an engine may not end the next.
func (r *remembered) recall(answer any, of []any, find func() error) error {
	text, err := json.Marshal(of)
	if err != nil {
		return err
	}
	key := question(sha256.Sum256(text))
	if known, ok := r.known(key); ok {
		return json.Unmarshal(known, answer)
	}

	if err := find(); err != nil {
		return err
	}
	known, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keep(key, known)
	return nil
}

func (r *remembered) known(key question) (answer []byte, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if answer, ok = r.newer[key]; ok {
		return answer, true
	}
	if answer, ok = r.older[key]; ok {
		r.keep(key, answer)
	}
	return answer, ok
}

// keep adds an answer to the newer half, if it fits there.
func (r *remembered) keep(key question, answer []byte) {
	size := len(answer) + entryBytes
	if size > maxRemembered {
		return
	}
	if r.newer == nil || r.bytes+size > maxRemembered {
		r.older, r.newer, r.bytes = r.newer, map[question][]byte{}, 0
	}
	if _, again := r.newer[key]; !again {
		r.bytes += size
	}
	r.newer[key] = answer
}
