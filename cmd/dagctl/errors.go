package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	"github.com/dagctl/dagctl/internal/fault"
)

// The exit codes, part of the public surface.
const (
	exitOK          = 0
	exitFailed      = 1
	exitChanges     = 2
	exitAborted     = 3
	exitConflict    = 4
	exitServer      = 5
	exitInterrupted = 130
)

// errAborted is a person's "no".
var errAborted = errors.New("aborted")

// errReported ends a command that has already told its reason on stdout.
var errReported = errors.New("reported")

// exitCode maps an error to the process's exit code.
func exitCode(err error) int {
	var network *url.Error
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailed
	case errors.Is(err, errChanges):
		return exitChanges
	case errors.Is(err, errAborted):
		return exitAborted
	case errors.As(err, &network):
		return exitServer
	}
	var classified *fault.Error
	if !errors.As(err, &classified) {
		return exitFailed
	}
	switch classified.Kind {
	case fault.Conflict:
		return exitConflict
	case fault.Internal, fault.Unavailable, fault.TooMany:
		return exitServer
	default:
		return exitFailed
	}
}

// printError says what went wrong, where, and what to do next.
func (c *cli) printError(err error) {
	if errors.Is(err, errReported) || errors.Is(err, errChanges) {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fault.New(fault.Unavailable, "no answer in time: %w", err)
	}
	style := c.style(c.err)
	fmt.Fprintf(c.err, "%s %s\n", style.bad("Error:"), err)
	var classified *fault.Error
	if !errors.As(err, &classified) {
		return
	}
	for _, p := range classified.Problems {
		if p.Location != "" {
			fmt.Fprintf(c.err, "  %s: ", p.Location)
		} else {
			fmt.Fprint(c.err, "  ")
		}
		fmt.Fprintln(c.err, p.Message)
		if p.Suggestion != "" {
			fmt.Fprintf(c.err, "    %s\n", p.Suggestion)
		}
	}
	if classified.Hint != "" {
		fmt.Fprintf(c.err, "Next: %s\n", classified.Hint)
	}
}
