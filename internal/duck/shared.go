package duck

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	duckdb "github.com/duckdb/duckdb-go/v2"
)

// Shared is one session for the platform's own small statements: parsing, reading footers. After an internal error,
// which a hostile file or statement may cause, DuckDB refuses to use a database again; Get then returns a new session.
type Shared struct {
	Config Config

	mu      sync.Mutex
	session *Session
}

// Get returns the session, which the caller must not close.
func (s *Shared) Get(ctx context.Context) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && !s.session.lost.Load() {
		return s.session, nil
	}
	if err := s.close(); err != nil {
		return nil, err
	}
	session, err := Open(ctx, s.Config)
	s.session = session
	return session, err
}

// Close ends the session, if there is one.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.close()
}

func (s *Shared) close() error {
	if s.session == nil {
		return nil
	}
	err := s.session.Close()
	s.session = nil
	return err
}

// note remembers an error after which the database answers nothing any more.
func note(lost *atomic.Bool, err error) {
	var e *duckdb.Error
	if errors.As(err, &e) && (e.Type == duckdb.ErrorTypeFatal || e.Type == duckdb.ErrorTypeInternal) {
		lost.Store(true)
	}
}
