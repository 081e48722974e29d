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
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			a.sweepFolders()
			if err := a.vault.ForgetPrevious(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("previous values of secrets stay", "error", err)
			}
		}
	}
}

func (a *App) sweepFolders() {
	if err := errors.Join(a.runner.Sweep(), a.engines.Sweep(), workdir.Sweep("", workdir.Temporary)); err != nil {
		a.log.Warn("folders of killed processes stay", "error", err)
	}
}
