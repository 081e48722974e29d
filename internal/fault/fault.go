// Package fault classifies errors at their source, so that the API maps them to HTTP in one place and the CLI maps them
// to exit codes in one place.
//
// Vocabulary: a fault has a Kind, a message for people (what went wrong, and where) and perhaps a Hint (what to do
// next). It owns no tables.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is the kind of an error.
type Kind int

// The kinds, with their HTTP statuses.
const (
	Internal        Kind = iota // 500: a fault of the server
	Invalid                     // 422: the input's shape or meaning is wrong
	Unauthenticated             // 401: the caller is unknown
	Forbidden                   // 403: the caller is known, but not allowed
	NotFound                    // 404: missing, or hidden from the caller
	Conflict                    // 409: the state has changed, or forbids this
	TooLarge                    // 413: beyond a documented limit
	TooMany                     // 429: slow down
	Unavailable                 // 503: try again later
)

var kindNames = [...]string{"internal", "invalid", "unauthenticated", "forbidden", "not_found", "conflict", "too_large",
	"too_many", "unavailable"}

func (k Kind) String() string { return kindNames[k] }

// Problem is one fault of an input, with its position.
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
	Err      error     // the cause, which Message includes; may be nil
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

// WithHint returns a copy of e with a hint what to do next.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// KindOf returns the kind of any error. An unclassified error is Internal.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Text returns the text of an error with its hint, on one line.
func Text(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Hint != "" {
		return err.Error() + "; " + e.Hint
	}
	return err.Error()
}

// Hinted returns an error with its hint in its text, for those who pass on nothing but the text.
func Hinted(err error) error {
	var e *Error
	if errors.As(err, &e) && e.Hint != "" {
		return hinted{err, Text(err)}
	}
	return err
}

type hinted struct {
	error
	text string
}

func (h hinted) Error() string { return h.text }
func (h hinted) Unwrap() error { return h.error }

// Is reports whether err is of the given kind. A nil error has no kind.
func Is(err error, kind Kind) bool { return err != nil && KindOf(err) == kind }

// Wrap says in an error what was being done; nil stays nil.
func Wrap(err error, doing string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Traceback begins the line below which SDKs say where in a handler its error was raised.
const Traceback = "Traceback of the handler"

// Headline returns the text of an error without the traceback that may follow it, for lists of errors.
func Headline(text string) string {
	head, _ := CutTraceback(text)
	return head
}

// CutTraceback returns the text of an error, and the traceback that may follow it, with its first line.
func CutTraceback(text string) (head, trace string) {
	if at := strings.Index(text, "\n"+Traceback); at >= 0 {
		return text[:at], text[at+1:]
	}
	return text, ""
}
