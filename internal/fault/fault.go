// Package fault classifies errors at their source, so that the API maps them to HTTP in one place
// and the CLI to exit codes in one place.
//
// Vocabulary: a fault has a Kind (what sort of thing went wrong), a message for people (what and where)
// and, where there is one, a Hint (what to do next). It owns no tables.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what sort of thing went wrong.
type Kind int

// The kinds, with the HTTP status each becomes.
const (
	Internal        Kind = iota // 500: ours to mend
	Invalid                     // 422: the input's shape or meaning is wrong
	Unauthenticated             // 401: nobody we know
	Forbidden                   // 403: known, but not allowed
	NotFound                    // 404: missing, or hidden from the caller
	Conflict                    // 409: the state has moved, or forbids this
	TooLarge                    // 413: beyond a documented limit
	TooMany                     // 429: slow down
	Unavailable                 // 503: try again later
)

var kindNames = [...]string{"internal", "invalid", "unauthenticated", "forbidden", "not_found", "conflict", "too_large", "too_many", "unavailable"}

func (k Kind) String() string { return kindNames[k] }

// Problem is one thing wrong with an input, with its place.
type Problem struct {
	Location   string `json:"location,omitempty"` // where: "dag.yaml:3:7" or a JSON path such as "body.jobs[0].name"
	Message    string `json:"message"`
	Suggestion string `json:"suggestion,omitempty"`
	Code       string `json:"code,omitempty"`
}

// Error is a classified error.
type Error struct {
	Kind     Kind
	Message  string
	Hint     string    // what to do next; may be empty
	Problems []Problem // every fault of an invalid input
	Err      error     // the cause, already told in Message; may be nil
}

func (e *Error) Error() string {
	if e.Message == "" && e.Err != nil {
		return e.Err.Error()
	}
	return e.Message
}

func (e *Error) Unwrap() error { return e.Err }

// New returns a fault of the given kind. The format follows fmt.Errorf, %w included.
func New(kind Kind, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Message: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint returns a copy of e that says what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// KindOf classifies any error; an unclassified one is Internal.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is of the given kind. A nil error is of none.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }
