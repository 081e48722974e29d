//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// Some machines let nobody create namespaces and serve only one function, as Lambda's do. There, a program that is
// Alone shares the user and the files of its supervisor. The remaining protection needs no rights: the supervisor
// hides itself; the program has no sockets, so it reaches neither the network nor a server on this machine; it cannot
// trace, and the processes that it starts stay in its process group and end with it.

// Hide hides the memory, the environment and the open files of this process from all other processes of its user, and
// from core dumps. A supervisor of programs that are Alone must call it before it does anything else.
func Hide() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("hide the process: %w", err)
	}
	return nil
}

// AvailableAlone tries to confine a program without namespaces. It returns the reason if this machine cannot, or nil.
var AvailableAlone = sync.OnceValue(func() error {
	refused := func(err error) error {
		return fault.New(fault.Unavailable, "this process cannot confine programs by itself: %w", err)
	}
	if shown, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || shown != 0 {
		return refused(errors.New("it is not hidden"))
	}
	header, rights := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capget(&header, &rights[0]); err != nil {
		return refused(err)
	}
	if os.Geteuid() == 0 || rights[0].Permitted|rights[1].Permitted != 0 {
		// the program would have them too
		return refused(errors.New("it has rights of root, from which nothing is hidden"))
	}
	dir, err := os.MkdirTemp("", "dagctl-sandbox-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := run(context.Background(), Program{Command: []string{"/bin/sh", "-c", "exit 0"}, Work: dir, Alone: true,
		Limits: Limits{Wall: 20 * time.Second}}); err != nil {
		return refused(err)
	}
	return nil
})

// endGroup waits for the end of a program and ends all that it has started with it. The program is not reaped before,
// so nobody else has its number yet.
func endGroup(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL) // there may be nobody left
}

// heldByStat is what processes hold in memory, in bytes, as everybody may see it. What they share is counted for each.
func heldByStat(processes []string) (total int64) {
	for _, process := range processes {
		text, _ := os.ReadFile(filepath.Join(process, "stat")) // it may have ended
		_, rest, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(rest) // state, parent, group, ... : proc(5)
		if len(fields) < 22 {
			continue
		}
		pages, _ := strconv.ParseInt(fields[21], 10, 64)
		total += pages * int64(os.Getpagesize())
	}
	return total
}
