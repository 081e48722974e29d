//go:build linux && (amd64 || arm64)

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// strangerID is the user and group that programs run as where the supervisor is root: nobody's, and not even nobody's.
const strangerID = 64533

// Available returns why this machine cannot confine programs, or nil.
func Available() error {
	spaces := Namespaces()
	if spaces == nil || AvailableBare() == nil {
		return nil
	}
	return spaces
}

// Namespaces tries to confine a program in namespaces of its own. It returns the reason if this machine cannot, or nil.
var Namespaces = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "dagctl-sandbox-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	p := Program{Command: []string{"/bin/sh", "-c", "exit 0"}, Work: dir,
		Limits: Limits{Wall: 20 * time.Second}}
	if err := run(context.Background(), p); err != nil {
		return missingWall(err)
	}
	return nil
})

// errStart is the error of a process that could not be started in namespaces of its own.
var errStart = errors.New("sandbox: start")

// missingWall says which of the walls around programs this machine does not give.
func missingWall(err error) error {
	if errors.Is(err, errStart) {
		return fault.New(fault.Unavailable,
			"this machine cannot confine programs: it gives no user namespaces: %w", err).
			WithHint("allow them: sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0, " +
				"no chroot, and a container with SYS_ADMIN or seccomp=unconfined")
	}
	return fault.New(fault.Unavailable, "this machine cannot confine programs: %w", err).
		WithHint("it must allow what the message names: mounts, seccomp filters and limits within user namespaces")
}

// Run runs the program until it ends, or until ctx or one of its limits ends it with all that it started. An *ExitError
// is the program's own failure; a fault.TooLarge names the limit that it exceeded.
func Run(ctx context.Context, p Program) error {
	switch {
	case p.Alone:
		if err := AvailableAlone(); err != nil {
			return err
		}
	case p.Bare || Namespaces() != nil:
		if err := Available(); err != nil {
			return err
		}
		return runBare(ctx, p)
	}
	return run(ctx, p)
}

// stage is what a supervisor sends the stage, on its file 3. File 4 reports failures to confine the process; the
// program that takes the stage's place never has it.
type stage struct {
	Command []string
	Env     []string
	Code    string
	Work    string
	Become  int // user and group to become once the process is confined, as the namespace numbers them; 0: stay
	Expose  []string
	Network bool
	Alone   bool
	Limits  Limits
}

func run(ctx context.Context, p Program) (err error) {
	if err := p.validate(); err != nil {
		return err
	}
	limits := p.Limits.orDefault()
	ctx, cancel := context.WithTimeoutCause(ctx, limits.Wall,
		fault.New(fault.TooLarge, "it took longer than %s", limits.Wall))
	defer cancel()
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	attributes, become, err := p.outside()
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	words, tell, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	defer tell.Close()
	trouble, complain, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("sandbox: %w", errors.Join(err, words.Close()))
	}
	defer trouble.Close()

	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{stageName, stageArg}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin, p.Stdout, p.Stderr
	cmd.ExtraFiles = []*os.File{words, complain}
	cmd.WaitDelay = 5 * time.Second // for pipes that a process outside of its own would hold; there can be none
	cmd.SysProcAttr = attributes
	err = cmd.Start()
	_, _ = words.Close(), complain.Close() // the stage has its own
	if err != nil {
		return fmt.Errorf("%w: %w", errStart, err)
	}

	encoded := json.NewEncoder(tell).Encode(stage{Command: p.Command, Env: p.Env, Code: p.Code, Work: p.Work,
		Become: become, Expose: p.Expose,
		Network: p.Network, Alone: p.Alone, Limits: limits})
	tell.Close()

	var watched sync.WaitGroup
	its := p.kin(cmd.Process.Pid)
	watched.Go(func() { stop(watch(ctx, its, limits.bounds(p.Work))) })

	var failure string
	_ = json.NewDecoder(trouble).Decode(&failure) // nothing, once the program has taken over
	if p.Alone {
		endGroup(cmd.Process.Pid)
	}
	waited := cmd.Wait()
	stop(nil)
	watched.Wait()

	switch cause := context.Cause(ctx); {
	case failure != "":
		return fmt.Errorf("sandbox: %s", failure)
	case waited == nil:
		return encoded
	case cause != nil && !errors.Is(cause, context.Canceled):
		return cause
	}
	return ended(waited)
}

// outside says how the stage is started: in which namespaces, and as whom. It is to become another user there, unless
// that is 0. The stage is root in its namespaces, which is this process's user outside; the program is a stranger there
// where this process may give itself one.
func (p Program) outside() (attributes *syscall.SysProcAttr, become int, err error) {
	if p.Alone {
		return &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}, 0, nil
	}
	users := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	if os.Geteuid() == 0 {
		become = 1
		stranger := syscall.SysProcIDMap{ContainerID: become, HostID: strangerID, Size: 1}
		users, groups = append(users, stranger), append(groups, stranger)
		if err := own(p.Work, strangerID, strangerID); err != nil {
			return nil, 0, err
		}
	}

	flags := uintptr(syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
		syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS)
	if !p.Network {
		flags |= syscall.CLONE_NEWNET
	}
	return &syscall.SysProcAttr{
		Cloneflags:                 flags,
		UidMappings:                users,
		GidMappings:                groups,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: become == 0},
		GidMappingsEnableSetgroups: become != 0,
		Setsid:                     true,
		Pdeathsig:                  syscall.SIGKILL,
	}, become, nil
}

// ended says how a program ended.
func ended(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("sandbox: %w", err)
	}
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		if status.Signal() == syscall.SIGXFSZ {
			return fault.New(fault.TooLarge, "it wrote a file larger than it may")
		}
		return &ExitError{Code: -1, Signal: unix.SignalName(status.Signal())}
	}
	return &ExitError{Code: status.ExitStatus()}
}

// own gives a folder and all in it to the program's user.
func own(dir string, uid, gid int) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, uid, gid)
	})
}
