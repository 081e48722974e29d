//go:build linux && (amd64 || arm64)

package sandbox

import (
	"slices"

	"golang.org/x/sys/unix"
)

// forbidden are system calls that no data program needs and that break-outs were made of.
var forbidden = []string{
	"mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "open_tree", "open_tree_attr", "move_mount",
	"fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "statmount", "listmount",
	"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise", "process_mrelease",
	"bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "seccomp",
	"keyctl", "add_key", "request_key",
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff",
	"acct", "quotactl", "quotactl_fd", "syslog", "iopl", "ioperm", "modify_ldt", "uselib", "ustat", "sysfs",
	"settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "sethostname", "setdomainname", "vhangup",
	"open_by_handle_at", "name_to_handle_at", "personality", "lookup_dcookie", "nfsservctl", "fanotify_init", "mbind",
	"set_mempolicy", "set_mempolicy_home_node", "migrate_pages", "move_pages", "lsm_set_self_attr",
	// Memory that a process holds without mapping it: nobody counts it, so nothing would end a program for it.
	"memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "semget", "msgget", "mq_open",
}

// ofOthers are calls by which a process reaches others of its user.
var ofOthers = []string{"setpriority", "ioprio_set", "sched_setscheduler", "sched_setparam", "sched_setattr",
	"pidfd_open", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo"}

// ownOnly are calls whose first argument names a process, 0 being the caller.
var ownOnly = []string{"prlimit64", "sched_setaffinity"}

// namespaces are the flags of clone that make some.
const namespaces = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// always are the rules that hold for every confined process. A new user namespace gives back what was dropped. clone3
// passes its flags in memory, where no filter sees them: it does not exist, and the C library uses clone instead.
func always() filter {
	return slices.Concat(
		each(failing(unix.ENOSYS), []string{"clone3"}),
		each(failing(unix.EPERM), forbidden),
		filter{
			{"clone", failing(unix.EPERM), []check{{argument: 0, mask: namespaces, differs: true}}},
			{"ioctl", failing(unix.EPERM), []check{is(1, unix.TIOCSTI)}}, // types into a terminal
			{"ioctl", failing(unix.EPERM), []check{is(1, unix.TIOCLINUX)}},
		})
}

// families are those of the sockets that programs may have. The kernel's odder ones have had many holes, and some, such
// as AF_VSOCK, reach other machines whatever network namespace the program is in.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK}

// programCalls is the filter of a program. One that is Alone shares its user with its supervisor: it must not reach it,
// outlive its own run, or leave something to the next.
func programCalls(alone bool) (f filter) {
	if alone {
		f = slices.Concat(
			each(failing(unix.EPERM), []string{"socket", "setsid", "setpgid"}),
			each(failing(unix.EPERM), ofOthers),
			each(failing(unix.EPERM), ownOnly, isNot(0, 0)))
	}
	sockets := []string{"socket", "socketpair"}
	for _, family := range families {
		f = append(f, each(permit, sockets, is(0, family))...)
	}
	return slices.Concat(f, each(failing(unix.EAFNOSUPPORT), sockets), always())
}
