package worker

import (
	"errors"
	"fmt"
	"net/http"
	"time"
)

// Why a run's context ended: context.Cause says which.
var (
	ErrCanceled = errors.New("the task was canceled")
	ErrFenced   = errors.New("the lease was lost: the task may run elsewhere")
	ErrTimedOut = errors.New("the task ran longer than its timeout")
	ErrStopped  = errors.New("the worker was stopped")
)

// What a server refuses, for errors.Is. A StatusError has the details.
var (
	ErrUnauthorized = errors.New("the token is not accepted")   // 401
	ErrForbidden    = errors.New("the token does not allow it") // 403
	ErrNotFound     = errors.New("there is none")               // 404
	ErrConflict     = errors.New("the fence is stale")          // 409: a newer attempt, an ended task, or another body
	ErrInvalid      = errors.New("the call is wrong")           // 400, 413, 422
)

// StatusError is an answer that refuses a call.
type StatusError struct {
	Status     int // of HTTP
	Call       string
	Message    string
	Hint       string
	Problems   []string      // every fault of a call with a bad shape
	RetryAfter time.Duration // what the server asks for, if anything
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

// Is lets errors.Is tell the refusals apart.
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
		return e.Status == http.StatusUnprocessableEntity || e.Status == http.StatusBadRequest || e.Status == http.StatusRequestEntityTooLarge
	}
	return false
}

// lasting reports whether the same call would be refused again.
func (e *StatusError) lasting() bool {
	return e.Status < 500 && e.Status != http.StatusTooManyRequests && e.Status != http.StatusRequestTimeout && e.Status != http.StatusTooEarly
}

// refused reports whether there is no use in making a call again: the server has answered that it will not have it, or
// the call failed on this side.
func refused(err error) bool {
	var (
		status *StatusError
		here   ours
	)
	return errors.As(err, &status) && status.lasting() || errors.As(err, &here)
}

// ours is an error of this machine, and not of the way to the server.
type ours struct{ error }

func (e ours) Unwrap() error { return e.error }

// fenced reports whether a task's call was refused for what it is and not for what it says: it is another's now, or over.
func fenced(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrUnauthorized) || errors.Is(err, ErrForbidden) || errors.Is(err, ErrNotFound)
}

type notRetryable struct{ error }

func (e notRetryable) Unwrap() error { return e.error }

// NotRetryable marks an error that another attempt would meet again. Nil stays nil.
func NotRetryable(err error) error {
	if err == nil {
		return nil
	}
	return notRetryable{err}
}

// Retryable reports whether another attempt could help: the error was not marked otherwise.
func Retryable(err error) bool {
	var lasting notRetryable
	return !errors.As(err, &lasting)
}
