//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
)

// looks is how often what a program holds is counted. Between two looks one process may pass the limit, by what
// RLIMIT_DATA leaves it at most.
const looks = 100 * time.Millisecond

// watch ends the program when its processes together hold more memory, or its folder more bytes, than it may.
func watch(ctx context.Context, held func() int64, work string, limits Limits, stop context.CancelCauseFunc) {
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		if memory := held(); memory > limits.Memory {
			stop(fault.New(fault.TooLarge, "it took more than %d MiB of memory", limits.Memory>>20))
			return
		}
		if n%10 == 0 && below(work) > limits.Disk {
			stop(fault.New(fault.TooLarge, "it wrote more than %d MiB", limits.Disk>>20))
			return
		}
	}
}

// family returns a function that measures the memory that a program's processes hold, in bytes.
func (p Program) family(pid int) (held func() int64) {
	if p.Alone {
		return func() int64 { return heldByGroup(pid) }
	}
	space, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid_for_children")
	if err != nil {
		return func() int64 { return 0 } // it has ended
	}
	return func() int64 { return heldIn(space) }
}

// heldIn is what the processes of a PID namespace hold in memory, in bytes.
func heldIn(space string) (total int64) {
	processes, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, ns := range processes {
		if its, err := os.Readlink(ns); err != nil || its != space {
			continue
		}
		total += share(filepath.Dir(filepath.Dir(ns)))
	}
	return total
}

// share is what a process holds: its own pages, and its part of those that it shares.
func share(process string) int64 {
	text, _ := os.ReadFile(filepath.Join(process, "smaps_rollup")) // it may have ended
	for line := range bytes.Lines(text) {
		if rest, ok := bytes.CutPrefix(line, []byte("Pss:")); ok {
			fields := bytes.Fields(rest)
			if len(fields) == 0 {
				return 0
			}
			kilobytes, _ := strconv.ParseInt(string(fields[0]), 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}

// below is how many bytes there are below a folder.
func below(dir string) (total int64) {
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				total += info.Size()
			}
		}
		return nil // it changes while it is looked at
	})
	return total
}
