//go:build linux && (amd64 || arm64)

package sandbox

import (
	"fmt"
	"unsafe"

	seccomp "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// forbidden are system calls that no data program needs and that break-outs were made of.
var forbidden = []string{
	"mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "open_tree", "move_mount", "fsopen", "fsconfig",
	"fsmount", "fspick", "mount_setattr",
	"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise",
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "seccomp",
	"keyctl", "add_key", "request_key",
	"init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon", "swapoff", "acct", "quotactl",
	"syslog",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "vhangup",
	"open_by_handle_at", "name_to_handle_at", "personality", "lookup_dcookie", "nfsservctl", "fanotify_init", "mbind",
	"set_mempolicy", "migrate_pages", "move_pages",
	// Memory that a process holds without mapping it: nobody counts it, so nothing would end a program for it.
	"memfd_create", "memfd_secret", "shmget", "shmat", "semget", "msgget", "mq_open",
}

// forbiddenAlone are those by which a program that shares its user with its supervisor could reach it, outlive its own
// run, or leave something to the next.
var forbiddenAlone = []string{
	"socket", "setsid", "setpgid", "setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr",
	"pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo",
	"rt_tgsigqueueinfo",
}

// families are those of the sockets that programs may have. The kernel's odder ones have had many holes, and some, such
// as AF_VSOCK, reach other machines whatever network namespace the program is in.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// before returns what comes before the assembled policy. That allows all calls of another architecture, which are none
// of ours and end the process, and all calls that it does not know, which do not exist for the program. It cannot
// express a list of arguments either: after comparing an argument, it compares the next call's number with that
// argument.
func before(machine *arch.Info) []bpf.Instruction {
	last := 0
	for _, number := range machine.SyscallNames {
		last = max(last, number)
	}
	out := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // arch of struct seccomp_data
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(machine.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionKillProcess)},
		bpf.LoadAbsolute{Off: 0, Size: 4}, // number of the call
		bpf.JumpIf{Cond: bpf.JumpGreaterThan, Val: uint32(last), SkipFalse: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.ENOSYS)},
	}

	allowed := len(families)
	socket, pair := uint32(machine.SyscallNames["socket"]), uint32(machine.SyscallNames["socketpair"])
	out = append(out,
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: socket, SkipTrue: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: pair, SkipTrue: uint8(allowed + 2)},
		bpf.LoadAbsolute{Off: 16, Size: 4}) // the first argument, of which the kernel uses 32 bits
	for i, family := range families {
		out = append(out, bpf.JumpIf{Cond: bpf.JumpEqual, Val: family, SkipTrue: uint8(allowed - i)})
	}
	return append(out, bpf.RetConstant{Val: uint32(seccomp.ActionErrno) | uint32(unix.EAFNOSUPPORT)})
}

// forbidCalls loads the filter, for the process and all that it starts.
func forbidCalls(alone bool) error {
	machine, err := arch.GetInfo("")
	if err != nil {
		return err
	}
	refused := seccomp.SyscallGroup{Action: seccomp.ActionErrno}
	names := forbidden
	if alone {
		names = append(names[:len(names):len(names)], forbiddenAlone...)
	}
	for _, name := range names {
		if _, here := machine.SyscallNames[name]; here {
			refused.Names = append(refused.Names, name)
		}
	}

	// A new user namespace gives back what was dropped. clone3 passes its flags in memory, where no filter sees them:
	// it does not exist, and the C library uses clone instead.
	refused.NamesWithCondtions = []seccomp.NameWithConditions{{Name: "clone",
		Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.BitsSet, Value: unix.CLONE_NEWUSER}}}}
	missing := seccomp.SyscallGroup{Action: seccomp.ActionErrno | seccomp.Action(unix.ENOSYS),
		Names: []string{"clone3"}}
	if alone { // limits are one's own to set, and nobody else's
		for _, name := range []string{"prlimit64", "sched_setaffinity"} {
			refused.NamesWithCondtions = append(refused.NamesWithCondtions, seccomp.NameWithConditions{Name: name,
				Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.NotEqual, Value: 0}}})
		}
	}

	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{missing, refused}}
	program, err := policy.Assemble()
	if err != nil {
		return err
	}

	raw, err := bpf.Assemble(append(before(machine), program...))
	if err != nil {
		return err
	}

	filter := make([]unix.SockFilter, len(raw))
	for i, in := range raw {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}

	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return fmt.Errorf("load filter: %w", errno)
	}
	return nil
}
