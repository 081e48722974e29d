package worker

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Reasons why a run's context ends; context.Cause returns one of them.
var (
	ErrCanceled = errors.New("the task was canceled")
	ErrFenced   = errors.New("the lease was lost: the task may run elsewhere")
	ErrTimedOut = errors.New("the task ran longer than its timeout")
	ErrStopped  = errors.New("the worker was stopped")
)

// Kinds of refusals, for errors.Is. A StatusError has the details.
var (
	ErrUnauthorized = errors.New("the token is not accepted")   // 401
	ErrForbidden    = errors.New("the token does not allow it") // 403
	ErrNotFound     = errors.New("not found")                   // 404
	// 409: a newer attempt runs, the task has ended, or the call was made before with another body
	ErrConflict = errors.New("the fence is stale")
	ErrInvalid  = errors.New("the call is invalid") // 400, 413, 422, or it has no form in JSON
)

// StatusError is the answer of a server that refuses a call.
type StatusError struct {
	Status     int // HTTP status
	Call       string
	Message    string
	Hint       string
	Problems   []string      // all that is wrong with a malformed call
	RetryAfter time.Duration // how long the server asks to wait; 0: it does not say
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("%s: %s (%d)", e.Call, e.Message, e.Status)
	for _, p := range e.Problems {
		text += "; " + p
	}
	if e.Hint != "" {
		text += "; " + e.Hint
	}
	return text
}

// Is reports whether the refusal is of a kind, for errors.Is.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrUnauthorized:
		return e.Status == http.StatusUnauthorized
	case ErrForbidden:
		return e.Status == http.StatusForbidden
	case ErrNotFound:
		return e.Status == http.StatusNotFound
	case ErrConflict:
		return e.Status == http.StatusConflict
	case ErrInvalid:
		return e.Status == http.StatusUnprocessableEntity || e.Status == http.StatusBadRequest ||
			e.Status == http.StatusRequestEntityTooLarge
	}
	return false
}

// lasting reports whether the server would refuse the same call again.
func (e *StatusError) lasting() bool {
	return e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout &&
		e.Status != http.StatusTooEarly
}

// refused reports whether repeating a call is useless: the server has refused it for good, or it failed on this side.
func refused(err error) bool {
	var (
		status *StatusError
		here   ours
	)
	return errors.As(err, &status) && status.lasting() || errors.As(err, &here)
}

// ours marks an error of this machine, rather than of the network or the server.
type ours struct{ error }

func (e ours) Unwrap() error { return e.error }

// fenced reports whether a call was refused because of the attempt that made it, and not because of what it says: the
// task has ended or runs elsewhere.
// over.
func fenced(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrForbidden) ||
		errors.Is(err, ErrNotFound)
}

type notRetryable struct{ error }

func (e notRetryable) Unwrap() error { return e.error }

// NotRetryable marks an error that would occur in every attempt. It returns nil for nil.
func NotRetryable(err error) error {
	if err == nil {
		return nil
	}
	return notRetryable{err}
}

type columnsUnknown struct{ error }

func (e columnsUnknown) Unwrap() error { return e.error }

// ColumnsUnknown marks the error of a source of files whose files say nothing of their columns while nothing else does:
// the task waits for a file that shows them, and no failure is counted. It returns nil for nil.
func ColumnsUnknown(err error) error {
	if err == nil {
		return nil
	}
	return columnsUnknown{err}
}

// Retryable reports whether another attempt could succeed, that is, whether err is not marked with NotRetryable.
func Retryable(err error) bool {
	var lasting notRetryable
	return !errors.As(err, &lasting)
}
