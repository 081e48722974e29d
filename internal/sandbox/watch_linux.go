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
// RLIMIT_DATA leaves it at most. A look at many processes takes long; the next one waits the longer.
const looks = 100 * time.Millisecond

// kin are the processes of a program.
type kin struct {
	leader    int                            // the first, which leads their session
	processes func() []string                // their folders in /proc
	held      func(processes []string) int64 // what they hold in memory, in bytes
}

// bounds are what the processes of a program may have together; the zero value of each is any amount.
type bounds struct {
	memory  int64 // bytes
	threads int
	wrote   *scratch
}

// watch looks at a program until ctx ends, and keeps its priority. It returns the limit that the program has passed.
func watch(ctx context.Context, of kin, most bounds) error {
	first := priority{leader: of.leader, nice: programNice}
	for pause := looks; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}

		began := time.Now()
		processes := of.processes()
		threads := first.keep(processes)
		if most.memory > 0 && of.held(processes) > most.memory {
			return fault.New(fault.TooLarge, "it took more than %d MiB of memory", most.memory>>20)
		}
		if most.threads > 0 && threads > most.threads {
			return fault.New(fault.TooLarge, "it started more than %d processes and threads", most.threads)
		}
		if most.wrote != nil {
			if err := most.wrote.exceeded(processes); err != nil {
				return err
			}
		}
		pause = max(looks, 4*time.Since(began))
	}
}

// kin returns the processes of a program.
func (p Program) kin(pid int) kin {
	if p.Alone {
		return kin{pid, func() []string { return ofGroup(pid) }, heldByStat}
	}
	space, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid_for_children")
	if err != nil { // it has ended
		return kin{pid, func() []string { return nil }, heldByShare}
	}
	return kin{pid, func() []string { return ofSpace(space) }, heldByShare}
}

// bounds returns those of memory and of a program's folder.
func (l Limits) bounds(work string) bounds {
	return bounds{memory: l.Memory, wrote: &scratch{folders: []string{work}, bytes: l.Disk, files: l.Files}}
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

// heldByShare is what processes hold in memory, in bytes: their own pages, and their parts of those that they share.
func heldByShare(processes []string) (total int64) {
	for _, process := range processes {
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
