//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// looks is how often what a program holds is counted. Between two looks one process may pass the limit, by what
// RLIMIT_DATA leaves it at most.
const looks = 100 * time.Millisecond

// watch ends the program when its processes together hold more memory, or its folder more bytes or files, than it may.
// processes lists the folders of its processes in /proc, held measures their memory.
func watch(
	ctx context.Context, processes func() []string, held func() int64, work string, limits Limits,
	stop context.CancelCauseFunc,
) {
	wrote := scratch{folders: []string{work}, bytes: limits.Disk, files: limits.Files}
	tick := time.NewTicker(looks)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}

		if memory := held(); memory > limits.Memory {
			stop(fault.New(fault.TooLarge, "it took more than %d MiB of memory", limits.Memory>>20))
			return
		}
		if err := wrote.exceeded(processes()); err != nil {
			stop(err)
			return
		}
	}
}

// family returns functions that list a program's processes, and measure the memory that they hold, in bytes.
func (p Program) family(pid int) (processes func() []string, held func() int64) {
	if p.Alone {
		return func() []string { return ofGroup(pid) }, func() int64 { return heldByGroup(pid) }
	}
	space, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid_for_children")
	if err != nil { // it has ended
		return func() []string { return nil }, func() int64 { return 0 }
	}
	return func() []string { return ofSpace(space) }, func() int64 { return heldIn(space) }
}

// ofSpace lists the processes of a PID namespace, by their folders in /proc.
func ofSpace(space string) (processes []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, ns := range all {
		if its, err := os.Readlink(ns); err == nil && its == space {
			processes = append(processes, filepath.Dir(filepath.Dir(ns)))
		}
	}
	return processes
}

// ofGroup lists the processes of a process group, by their folders in /proc.
func ofGroup(group int) (processes []string) {
	all, _ := os.ReadDir("/proc")
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if its, err := unix.Getpgid(pid); err == nil && its == group {
			processes = append(processes, "/proc/"+entry.Name())
		}
	}
	return processes
}

// heldIn is what the processes of a PID namespace hold in memory, in bytes.
func heldIn(space string) (total int64) {
	for _, process := range ofSpace(space) {
		total += share(process)
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
