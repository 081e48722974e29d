//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// The keeper is a process that does nothing but wait for the end of the one that started it, and then ends the groups
// of programs that it knows: a process that is killed cannot do that itself.

// keeperArg is the argument that makes a process the keeper.
const keeperArg = "sandbox-keeper"

// keeper is the one of this process. It starts with the first program.
var keeper struct {
	sync.Mutex
	tell   io.WriteCloser
	groups map[int]bool
}

// keep tells the keeper of a group.
func keep(group int) error {
	keeper.Lock()
	defer keeper.Unlock()
	if keeper.groups == nil {
		keeper.groups = map[int]bool{}
	}
	keeper.groups[group] = true
	if keeper.tell != nil {
		if _, err := fmt.Fprintln(keeper.tell, group); err == nil {
			return nil
		}
		_ = keeper.tell.Close() // it was ended; the next one is told of all groups
	}
	return startKeeper()
}

// letGo tells the keeper that a group has ended.
func letGo(group int) {
	keeper.Lock()
	defer keeper.Unlock()
	delete(keeper.groups, group)
	if keeper.tell != nil {
		_, _ = fmt.Fprintln(keeper.tell, -group) // the next keep sees that it was ended
	}
}

// startKeeper starts a keeper and tells it of all groups. The caller holds the lock.
func startKeeper() error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env, cmd.Dir = []string{"dagctl", keeperArg}, []string{}, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // what ends the server's group must not end the keeper
	tell, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("sandbox: start the keeper: %w", err)
	}
	go func() { _ = cmd.Wait() }()

	keeper.tell = tell
	for group := range keeper.groups {
		if _, err := fmt.Fprintln(tell, group); err != nil {
			return fmt.Errorf("sandbox: tell the keeper: %w", err)
		}
	}
	return nil
}

// beKeeper reads groups, and -group of those that have ended, until the process that writes them ends.
func beKeeper(in io.Reader) {
	_ = closeFrom(3)
	groups := map[int]bool{}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		switch group, err := strconv.Atoi(strings.TrimSpace(lines.Text())); {
		case err != nil:
		case group < 0:
			delete(groups, -group)
		case group > 1:
			groups[group] = true
		}
	}

	for group := range groups {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	os.Exit(0)
}
