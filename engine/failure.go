package engine

import (
	"errors"
	"syscall"

	"github.com/dagctl/dagctl/internal/fault"
)

// Failure is an error on its way from an engine. It holds no values of rows.
type Failure struct {
	Text string `json:"text"`
	// The fault within, if there is one
	Fault *Fault `json:"fault,omitempty"`
	// Running it again must fail again: it lies in the statement or in the data
	Lasting bool `json:"lasting,omitempty"`
	// It needed more memory than it may have
	Memory bool `json:"memory,omitempty"`
	// It lies in what was asked, and says nothing of the server
	OfStatement bool `json:"of_statement,omitempty"`
	// What the system said of a file; 0: it was none of the system's, or that is not known
	System syscall.Errno `json:"system,omitempty"`
}

// Fault is a fault.Error on its way.
type Fault struct {
	Kind    fault.Kind `json:"kind"`
	Message string     `json:"message"`
	Hint    string     `json:"hint,omitempty"`
}

// Error is an error from inside an engine.
type Error struct {
	Failure
	within []error
}

func (e *Error) Error() string { return e.Text }

// Unwrap returns the fault inside and what the system said.
func (e *Error) Unwrap() []error { return e.within }

// Err returns the failure as an error, with the fault that it was inside the engine.
func (f *Failure) Err() error {
	if f == nil {
		return nil
	}
	e := &Error{Failure: *f}
	if f.Fault != nil {
		known := &fault.Error{Kind: f.Fault.Kind, Message: f.Fault.Message, Hint: f.Fault.Hint}
		if f.Text == known.Message && !f.Lasting && !f.Memory && f.System == 0 {
			return known
		}
		e.within = append(e.within, known)
	}
	if f.System != 0 {
		e.within = append(e.within, f.System)
	}
	return e
}

// FailureOf returns what an error of fault.Error's kinds becomes on its way.
func FailureOf(err error) *Failure {
	f := &Failure{Text: err.Error()}
	var known *fault.Error
	if errors.As(err, &known) {
		f.Fault = &Fault{known.Kind, known.Error(), known.Hint}
	}
	return f
}

// Deterministic reports whether err lies in a statement or in data, so that running it again must fail again.
func Deterministic(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Lasting
}

// OutOfMemory reports whether a statement needed more memory than it may have.
func OutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Memory
}

// OfStatement reports whether err is about a statement, and not about a file or the engine.
func OfStatement(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.OfStatement
}
