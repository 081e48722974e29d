package secret

import (
	"bytes"
	"strings"
)

// Stream removes values from a text that comes in pieces, before anybody splits it or keeps only a part of it. It keeps
// back what may be the beginning of a value, so that no seam between two pieces hides one. It is an io.Writer, and not
// safe for concurrent use.
type Stream struct {
	redactor *Redactor
	next     func(text string)

	held    []byte // a margin of what was passed on, for the escapes behind it, and what was not
	passed  int    // bytes of held that were passed on
	covered int    // bytes behind these that belong to a value that was replaced already
	fresh   int    // bytes that nobody has looked at
}

const (
	// margin is how many bytes are kept back in the middle of a line. It holds the least that a Redactor recognises as
	// the beginning of a value, in any escapes.
	margin = 64 * shortest
	// mostHeld is how many bytes are kept back at most, for what may be one value.
	mostHeld = 512 << 10
	// lookEvery is how many bytes a line may grow by before it is looked at.
	lookEvery = 4 << 10
)

// Stream returns a writer that passes on what is written to it without the values: at least up to the last end of a
// line, unless a value may go on in the next one. The caller must call End.
func (r *Redactor) Stream(next func(text string)) *Stream { return &Stream{redactor: r, next: next} }

// Write implements io.Writer. It always takes all of p.
func (s *Stream) Write(p []byte) (int, error) {
	if s.redactor.finds() == 0 {
		s.next(string(p))
		return len(p), nil
	}
	s.held = append(s.held, p...)
	s.fresh += len(p)
	if bytes.IndexByte(p, '\n') >= 0 || s.fresh >= max(lookEvery, len(s.held)/4) {
		s.pass(false)
	}
	return len(p), nil
}

// End passes on the rest.
func (s *Stream) End() {
	if len(s.held) > s.passed {
		s.pass(true)
	}
}

// pass passes on what cannot be a part of a value any more; at the end, everything.
func (s *Stream) pass(end bool) {
	text, at := string(s.held), s.passed
	limit := len(text)
	if !end {
		limit = max(strings.LastIndexByte(text, '\n')+1, len(text)-margin, s.passed)
	}
	for _, f := range s.spans(text, end) {
		if f.end <= at {
			continue
		}
		if f.start >= limit {
			break
		}
		replaced := s.covered > 0 && f.start < s.passed // with its beginning
		if !end && !replaced && (f.open || f.end > limit) && len(text)-f.start <= mostHeld {
			limit = max(at, f.start)
			break
		}
		if !replaced {
			s.next(text[at:max(at, f.start)] + mask)
		}
		at = f.end
	}

	s.covered = max(at-limit, 0)
	if at < limit {
		s.next(text[at:limit])
	}
	context := max(limit-margin, 0)
	s.held = append(s.held[:0], s.held[context:]...)
	s.passed, s.fresh = limit-context, 0
}

// spans returns what shows a value in what is held, in order.
func (s *Stream) spans(text string, end bool) []span {
	spans := s.redactor.search(text, escapesWithin, false)
	if !end {
		spans = append(spans, s.redactor.opened(text)...)
	}
	if s.covered > 0 {
		spans = append(spans, span{start: s.passed - 1, end: s.passed + s.covered})
	}
	return merged(spans)
}
