// Command dagctl is the server, the command line and the development environment in one binary.
//
// Vocabulary: a target is a server that commands talk to; every command but serve, dev, migrate and admin is a thin
// client over the HTTP API. app.go wires the server from the slices; each command has a file of its own.
// It owns no tables.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/dagctl/dagctl/internal/sandbox"
	"github.com/dagctl/dagctl/query"
)

// Why the process was told to stop; the cause of the context's end.
var (
	errInterrupted = errors.New("interrupted")
	errTerminated  = errors.New("terminated")
)

func main() {
	sandbox.Stage()
	query.Child()
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		cause := errTerminated
		if <-signals == os.Interrupt {
			cause = errInterrupted
		}
		signal.Stop(signals) // whoever asks a second time does not want to wait for a clean end
		cancel(cause)
	}()
	os.Exit(run(ctx, os.Args[1:], environment{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}))
}
