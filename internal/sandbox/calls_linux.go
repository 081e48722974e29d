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
}

// forbiddenAlone are those by which a program that shares its user with its supervisor could reach it, outlive its own
// run, or leave something to the next.
var forbiddenAlone = []string{
	"socket", "setsid", "setpgid", "setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr",
	"shmget", "shmat", "semget", "msgget", "mq_open", "pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo",
	"rt_tgsigqueueinfo",
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

	// The kernel's sockets of odd families have had many holes.
	var families []seccomp.NameWithConditions
	for _, family := range []uint64{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK} {
		families = append(families, seccomp.NameWithConditions{Name: "socket",
			Conditions: seccomp.ArgumentConditions{{Argument: 0, Operation: seccomp.Equal, Value: family}}})
	}
	policy := seccomp.Policy{DefaultAction: seccomp.ActionAllow, Syscalls: []seccomp.SyscallGroup{refused, missing}}
	if !alone {
		policy.Syscalls = append(policy.Syscalls,
			seccomp.SyscallGroup{Action: seccomp.ActionAllow, NamesWithCondtions: families},
			seccomp.SyscallGroup{Action: seccomp.ActionErrno, Names: []string{"socket"}})
	}
	program, err := policy.Assemble()
	if err != nil {
		return err
	}

	// The assembled filter allows all calls of another architecture; they are none of ours, and end the process.
	foreign := []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4}, // arch of struct seccomp_data
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(machine.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(seccomp.ActionKillProcess)},
	}
	raw, err := bpf.Assemble(append(foreign, program...))
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
