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
			// Nothing done: it would hide from its supervisor which files it holds.
			{"prctl", failing(0), []check{is(0, unix.PR_SET_DUMPABLE)}},
		})
}

// bareCalls is the filter of a program that has its user in common with its supervisor, and the machine's own paths and
// processes in sight. scoped: Landlock keeps its signals from others.
//
// Some calls do nothing and report no error, because programs make them that get by without. It stays in its process
// group. The mode, owner and times of a file are not for it to change, because Landlock does not say of which files.
func bareCalls(network, scoped bool) filter {
	const stream, datagram, kind = unix.SOCK_STREAM, unix.SOCK_DGRAM, 0xf
	f := slices.Concat(
		each(failing(0), []string{"setsid", "setpgid"}),
		each(failing(0), []string{"chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat",
			"utime", "utimes", "futimesat", "utimensat"}),
		each(failing(unix.ENOTSUP), []string{"setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr",
			"lremovexattr", "fremovexattr", "removexattrat"}),
		each(failing(unix.EMFILE), []string{"inotify_init", "inotify_init1"}),
		each(failing(unix.EPERM), []string{"ioctl"}, is(1, unix.FS_IOC_SETFLAGS)),
		each(permit, []string{"setpriority"}, is(0, unix.PRIO_PROCESS), is(1, 0)),
		each(failing(unix.EPERM), ofOthers),
		each(failing(unix.EPERM), ownOnly, isNot(0, 0)),
		each(permit, []string{"socketpair"}, is(0, unix.AF_UNIX), check{argument: 1, mask: kind, value: stream}))

	if !scoped {
		f = append(f, unscopedSignals()...)
	}
	if network {
		for _, family := range []uint32{unix.AF_INET, unix.AF_INET6} {
			for _, t := range []struct{ kind, protocol uint32 }{{stream, 0}, {stream, unix.IPPROTO_TCP}, {datagram, 0},
				{datagram, unix.IPPROTO_UDP}} {
				f = append(f, each(permit, []string{"socket"}, is(0, family),
					check{argument: 1, mask: kind, value: t.kind}, is(2, t.protocol))...)
			}
		}
		f = append(f, each(permit, []string{"socket"}, is(0, unix.AF_NETLINK), is(2, unix.NETLINK_ROUTE))...)
	}
	return slices.Concat(f, each(failing(unix.EAFNOSUPPORT), []string{"socket", "socketpair"}), always())
}

// unscopedSignals are the rules for signals where Landlock does not keep them: to one's own group, and those by which
// the threads of C and Go talk, which do nothing to others.
func unscopedSignals() (f filter) {
	for _, harmless := range []uint32{0, uint32(unix.SIGURG), 32, 33} {
		f = append(f, each(permit, []string{"tgkill"}, is(2, harmless))...)
	}
	return slices.Concat(f, each(permit, []string{"kill"}, is(0, 0)),
		each(failing(unix.EPERM), []string{"kill", "tkill", "tgkill"}))
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
