//go:build linux && cgo && (amd64 || arm64)

package sandbox

/*
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

extern char *program_invocation_name;

// What became of the walls: 0 this is another process, 1 they stand, -1 they could not be put up.
static int dagctl_walls = 0;

struct dagctl_rule {
	unsigned long long access;
	int folder;
} __attribute__((packed));

// dagctl_enter takes all capabilities and ways to new ones from the process, and enforces the ruleset that its parent
// left in descriptor 3. Only the process itself can add its own /proc/self, whose name is known no earlier.
static int dagctl_enter(int landlock) {
	const int ruleset = 3;
	struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2];

	memset(none, 0, sizeof none);
	for (int c = 0; prctl(PR_CAPBSET_DROP, c, 0, 0, 0) == 0; c++) {}
	if (syscall(SYS_capset, &header, none) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
		return -1;
	}
	if (!landlock) {
		return 1; // this kernel has none: see Standing
	}

	struct dagctl_rule self = {4 | 8, open("/proc/self", O_PATH | O_CLOEXEC)}; // read files, and list folders
	if (self.folder < 0 || syscall(445, ruleset, 1, &self, 0) != 0 || syscall(446, ruleset, 0) != 0) {
		return -1;
	}
	close(self.folder);
	close(ruleset);
	return 1;
}

__attribute__((constructor)) static void dagctl_early(void) {
	const char *name = program_invocation_name;
	int confined = name != NULL && strcmp(name, "dagctl-confined") == 0;
	int limited = name != NULL && strcmp(name, "dagctl-limited") == 0;
	int stage = name != NULL && strcmp(name, "dagctl-stage") == 0;

	// What users run comes after the server where both want the processor. All threads and children inherit it.
	if ((confined || limited || stage) && nice(5) == -1) {
		errno = 0; // it stays as it is
	}
	if (confined || limited) {
		dagctl_walls = dagctl_enter(confined);
	}
}

static int dagctl_stand(void) { return dagctl_walls; }
*/
import "C"

import "errors"

// early reports whether this process put its walls up before Go started.
func early() error {
	if C.dagctl_stand() != 1 {
		return errors.New("the process is not behind its walls")
	}
	return nil
}
