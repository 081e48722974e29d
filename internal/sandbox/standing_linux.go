//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Standing returns the walls that this machine gives.
func Standing() []Wall {
	abi := landlockABI()
	landlock := func(name string, since int, what string) Wall {
		if abi < since {
			return Wall{name, false, fmt.Sprintf("%s: it takes version %d of Landlock, and the kernel has %d", what,
				since, abi)}
		}
		return Wall{name, true, fmt.Sprintf("%s, by version %d of Landlock", what, abi)}
	}
	walls := []Wall{
		{"privileges", true, "no capabilities, and no way to new ones"},
		{"limits", true, "memory, processor time, processes, files and core dumps are bounded"},
		landlock("files", 1, "only the files that it is given"),
		landlock("signals", scopes, "no signals to others"),
	}
	if !walls[3].Stands { // the filter of system calls refuses them then, and some that do no harm too
		walls[3] = Wall{"signals", true, "no signals to others, by seccomp"}
	}

	answer := uint32(unix.SECCOMP_RET_ERRNO)
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&answer)))
	calls := Wall{"calls", errno == 0, "no sockets but those granted, no tracing, no other break-outs, by seccomp"}
	if errno != 0 {
		calls.Detail = "the kernel has no seccomp filters: " + errno.Error()
	}

	spaces := Wall{"namespaces", true, "users' code sees a root, processes and a network of its own"}
	if err := Namespaces(); err != nil {
		spaces = Wall{"namespaces", false, "users' code runs behind the other walls: " + err.Error()}
	}
	return append(walls, calls, spaces)
}
