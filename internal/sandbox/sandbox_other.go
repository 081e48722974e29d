//go:build !linux || !(amd64 || arm64)

package sandbox

import (
	"context"
	"runtime"

	"github.com/dagctl/dagctl/internal/fault"
)

// Available says why programs cannot be confined here.
func Available() error {
	return fault.New(fault.Unavailable, "programs cannot be confined on %s/%s; run the worker on Linux", runtime.GOOS, runtime.GOARCH)
}

// Run refuses.
func Run(context.Context, Program) error { return Available() }

// AvailableAlone says why programs cannot be confined here.
func AvailableAlone() error { return Available() }

// Hide refuses.
func Hide() error { return Available() }

// Stage does nothing: there are no stages here.
func Stage() {}
