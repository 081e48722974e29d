package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/internal/wait"
)

// memoryFigure: the memory of a dispatcher's process, as the operating system measures it, while very many tasks are
// queued and it works on them; the baseline is an idle dispatcher.
func memoryFigure(ctx context.Context, b *bench) (result, error) {
	dsn, drop, err := b.migrated(ctx)
	if err != nil {
		return result{}, err
	}
	r, err := b.memory(ctx, dsn)
	return r, errors.Join(err, drop())
}

func (b *bench) memory(ctx context.Context, dsn string) (r result, err error) {
	var caller authz.Caller
	err = b.setUp(ctx, dsn, func(w *world) error {
		caller, err = w.backlogged(ctx, "many")
		return err
	})
	if err != nil {
		return r, err
	}

	idle, err := b.watchDispatcher(ctx, dsn, min(b.patience, 10*time.Second))
	if err != nil {
		return r, err
	}
	if err := b.queue(ctx, dsn, caller, b.backlog); err != nil {
		return r, err
	}

	busy, err := b.watchDispatcher(ctx, dsn, b.patience)
	return result{value: busy, baseline: idle,
		params: map[string]any{"backlog": b.backlog, "workers": b.workers, "conns": b.conns,
			"watched_s": round(b.patience.Seconds())}}, err
}

// watchDispatcher runs a dispatcher as a process of its own for a while and returns its peak memory in MiB.
func (b *bench) watchDispatcher(ctx context.Context, dsn string, span time.Duration) (most float64, err error) {
	program, err := os.Executable()
	if err != nil {
		return 0, err
	}

	// Its standard input ends with this process, which ends it, too.
	cmd := exec.CommandContext(ctx, program, "-dispatch", "-dsn", dsn, "-storage", b.root,
		"-workers", strconv.Itoa(b.workers), "-conns", strconv.Itoa(b.conns))
	stop, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = b.stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, stop.Close(), cmd.Wait()) }()

	for end := time.Now().Add(span); time.Now().Before(end); {
		if err := wait.For(ctx, 5*look); err != nil {
			return 0, err
		}
		resident, err := residentMemory(ctx, cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		most = max(most, resident)
	}
	return most, nil
}

// residentMemory returns a process's resident set in MiB: as /proc shows it, or where there is none as ps does.
func residentMemory(ctx context.Context, pid int) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err == nil {
		for line := range strings.Lines(string(status)) {
			if text, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 64)
				return kib / 1024, err
			}
		}
		return 0, fmt.Errorf("look at the dispatcher's memory: process %d has ended", pid)
	}

	out, err := exec.CommandContext(ctx, "ps", "-o", "rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return 0, fmt.Errorf("look at the dispatcher's memory: %w", err)
	}
	kib, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return kib / 1024, err
}

// dispatchOnly is the process that watchDispatcher starts.
func (b *bench) dispatchOnly(ctx context.Context) error {
	w, err := b.world(ctx, b.dsn, runtimes[0])
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		ended <- err
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
	}
	return errors.Join(err, w.close())
}
