//go:build !linux || !(amd64 || arm64)

package sandbox

import (
	"context"
	"runtime"

	"github.com/dagctl/dagctl/internal/fault"
)

// Available returns an error: programs cannot be confined on this system.
func Available() error {
	return fault.New(fault.Unavailable, "programs cannot be confined on %s/%s; run the worker on Linux",
		runtime.GOOS, runtime.GOARCH)
}

// Run returns an error.
func Run(context.Context, Program) error { return Available() }

// AvailableAlone returns an error: programs cannot be confined on this system.
func AvailableAlone() error { return Available() }

// Hide returns an error.
func Hide() error { return Available() }

// Stage does nothing: there are no stages here.
func Stage() {}
