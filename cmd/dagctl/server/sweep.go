package server

import (
	"context"
	"errors"
	"time"

	"github.com/dagctl/dagctl/internal/workdir"
)

// sweepEvery is how often a server looks for folders of processes that were killed.
const sweepEvery = 10 * time.Minute

// sweep removes the folders of tasks, engines and calls whose servers were killed, and values of secrets that count no
// more, until ctx ends.
func (a *App) sweep(ctx context.Context) error {
	return each(ctx, sweepEvery, func() {
		a.sweepFolders()
		if err := a.vault.ForgetPrevious(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("previous values of secrets stay", "error", err)
		}
	})
}

// each does something again and again until ctx ends, for the first time when a period has passed.
func each(ctx context.Context, period time.Duration, do func()) error {
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			do()
		}
	}
}

func (a *App) sweepFolders() {
	if err := errors.Join(a.runner.Sweep(), a.engines.Sweep(), workdir.Sweep("", workdir.Temporary)); err != nil {
		a.log.Warn("folders of killed processes stay", "error", err)
	}
}
