//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// What users run comes after the server where both want the processor. A program begins at programNice (early_linux.go
// has it, too), and goes down with the number of its threads: together they weigh as much as a few, so that who starts
// a thousand of them has no more than others. Where the kernel shares the processors by session, the session goes down
// as well: it is the program's own.
const (
	programNice = 5
	idleNice    = 20 // below the lowest: only while nobody else wants the processor
)

// niceOf returns the nice value at which threads weigh as much as eight per processor do at programNice. Each step of
// nice values takes a fifth of the weight.
func niceOf(threads, processors int) int {
	nice := programNice
	for times := float64(threads) / float64(8*processors); times > 1 && nice < idleNice; times /= 1.25 {
		nice++
	}
	return nice
}

// priority lowers a program as its threads become more. It is for one goroutine.
type priority struct {
	leader int // the process that leads the program's session
	nice   int // of the threads that were seen; it never falls
	told   int // of the session
}

// keep gives the program's threads the priority of their number, and returns that number. processes are the folders of
// its processes in /proc. A thread that was started meanwhile has the priority of the one that did.
func (p *priority) keep(processes []string) (threads int) {
	var all []int
	for _, process := range processes {
		entries, _ := os.ReadDir(filepath.Join(process, "task")) // it may have ended
		for _, entry := range entries {
			if id, err := strconv.Atoi(entry.Name()); err == nil {
				all = append(all, id)
			}
		}
	}

	p.nice = max(p.nice, niceOf(len(all), runtime.NumCPU()))
	if p.nice > programNice {
		for _, id := range all {
			lower(id, p.nice)
		}
	}
	p.tell()
	return len(all)
}

// tell gives the session its priority. Not every kernel has such, and it takes a change of somebody who is not root ten
// times a second at most, so the next look tries again.
func (p *priority) tell() {
	nice := min(p.nice, idleNice-1)
	if nice == p.told {
		return
	}
	file := "/proc/" + strconv.Itoa(p.leader) + "/autogroup"
	err := os.WriteFile(file, []byte(strconv.Itoa(nice)), 0)
	if err == nil || os.IsNotExist(err) {
		p.told = nice
	}
}

// lower gives a thread a nice value. It may have ended.
func lower(thread, nice int) {
	if nice < idleNice {
		_ = unix.Setpriority(unix.PRIO_PROCESS, thread, nice)
		return
	}
	_ = unix.SchedSetAttr(thread, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE,
		Nice: idleNice - 1}, 0)
}
