package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
)

// The exit codes. Scripts rely on them.
const (
	ExitOK          = 0
	ExitFailed      = 1
	exitChanges     = 2
	ExitAborted     = 3
	ExitConflict    = 4
	ExitServer      = 5
	ExitInterrupted = 130
	ExitTerminated  = 143 // by SIGTERM, before it was done
)

// ErrAborted ends a command that a person did not confirm.
var ErrAborted = errors.New("aborted")

// ErrReported ends a command that failed and has printed why.
var ErrReported = errors.New("reported")

// ExitCode returns the exit code for the error of a command.
func ExitCode(err error) int {
	var network *url.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, ErrReported):
		return ExitFailed
	case errors.Is(err, ErrChanges):
		return exitChanges
	case errors.Is(err, ErrAborted):
		return ExitAborted
	case errors.As(err, &network):
		return ExitServer
	}

	var classified *fault.Error
	if !errors.As(err, &classified) {
		return ExitFailed
	}

	switch classified.Kind {
	case fault.Conflict:
		return ExitConflict
	case fault.Internal, fault.Unavailable, fault.TooMany:
		return ExitServer
	default:
		return ExitFailed
	}
}

// PrintError prints what went wrong, where, and what to do next.
func (c *CLI) PrintError(err error) {
	if errors.Is(err, ErrReported) || errors.Is(err, ErrChanges) {
		return
	}

	if errors.Is(err, context.DeadlineExceeded) {
		err = fault.New(fault.Unavailable, "the server did not answer in time: %w", err)
	}
	if c.Output == "json" {
		c.printErrorAsJSON(err)
		return
	}
	style := c.Style(c.Err)
	fmt.Fprintf(c.Err, "%s %s\n", style.Bad("Error:"), err)
	var classified *fault.Error
	if !errors.As(err, &classified) {
		return
	}

	for _, p := range classified.Problems {
		// Of a request, which the user has not written, the error says it all where there is one problem.
		where, ofRequest := strings.CutPrefix(p.Location, "body.")
		if ofRequest && len(classified.Problems) == 1 {
			continue
		}
		if where != "" {
			fmt.Fprintf(c.Err, "  %s: ", where)
		} else {
			fmt.Fprint(c.Err, "  ")
		}
		fmt.Fprintln(c.Err, p.Message)
		if p.Suggestion != "" {
			fmt.Fprintf(c.Err, "    %s\n", p.Suggestion)
		}
	}

	if classified.Hint != "" {
		fmt.Fprintf(c.Err, "Next: %s\n", classified.Hint)
	}
}

// failure is an error for programs.
type failure struct {
	Code     string          `json:"code"` // the kind of error: invalid, not_found, conflict, …
	Message  string          `json:"message"`
	Hint     string          `json:"hint,omitempty"`
	Problems []fault.Problem `json:"problems,omitempty"`
}

// printErrorAsJSON prints an error as one object on one line.
func (c *CLI) printErrorAsJSON(err error) {
	f := failure{Code: "failed", Message: err.Error()}
	var classified *fault.Error
	switch {
	case errors.Is(err, ErrAborted):
		f.Code = "aborted"
	case errors.As(err, &classified):
		f.Code, f.Hint, f.Problems = classified.Kind.String(), classified.Hint, classified.Problems
	}
	text := json.NewEncoder(c.Err)
	text.SetEscapeHTML(false)
	_ = text.Encode(f) // there is nowhere else to tell
}

// ErrChanges ends a plan with changes where --detailed-exitcode asks for that.
var ErrChanges = errors.New("changes are present")
