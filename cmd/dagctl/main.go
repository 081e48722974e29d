// Command dagctl is the server, the command line and the development environment in one binary.
//
// Vocabulary: a target is a server that commands talk to; every command but serve, dev, migrate and admin is a thin
// client over the HTTP API. The commands are in the packages below, by subject; root.go has the table of them. The
// server is wired in server/app.go. It owns no tables.
package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/engine/inside"
	"github.com/dagctl/dagctl/internal/sandbox"
)

// The causes of the end of the context that commands run in.
var (
	errInterrupted = errors.New("interrupted")
	errTerminated  = errors.New("terminated")
)

func main() {
	sandbox.Stage()
	inside.Main()

	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		cause := errTerminated
		if <-signals == os.Interrupt {
			cause = errInterrupted
		}
		signal.Stop(signals) // a second signal ends the process at once
		cancel(cause)
	}()

	env := cli.Environment{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv}
	os.Exit(run(ctx, os.Args[1:], env))
}
