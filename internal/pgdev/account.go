package pgdev

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is who the server runs as. PostgreSQL refuses to run as root, so root lends it to an unprivileged user;
// the zero account is ourselves.
type account struct {
	credential *syscall.Credential
}

// unprivileged chooses the account.
func unprivileged() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}

		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return account{}, fmt.Errorf("user %s: %w", name, err)
		}
		return account{&syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor a user " +
		"nobody to run it as")
}

// command makes cmd run as the account, in dir, without our terminal's signals and our environment, so that the
// caller's PGDATA and locale do not affect it.
func (a account) command(cmd *exec.Cmd, dir string) *exec.Cmd {
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.credential}
	return cmd
}

// own gives the account a file or folder.
func (a account) own(path string) error {
	if a.credential == nil {
		return nil
	}
	return os.Lchown(path, int(a.credential.Uid), int(a.credential.Gid))
}

// ownAll gives the account a folder with all that is in it, unless it has it already.
func (a account) ownAll(dir string) error {
	info, err := os.Stat(dir)
	if err != nil || a.credential == nil || info.Sys().(*syscall.Stat_t).Uid == a.credential.Uid {
		return err
	}
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return a.own(path)
	})
}

// reaches reports whether the account may enter every folder above path. Only root asks: its home is often closed.
func (a account) reaches(path string) bool {
	if a.credential == nil {
		return true
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

// socketDir makes a folder of the account's, with a path short enough for a Unix socket's address (104 bytes on macOS).
func (a account) socketDir() (string, error) {
	const prefix, rest = "dagctl-pg-", "0123456789/.s.PGSQL.65535\x00"
	root := os.TempDir()
	if len(filepath.Join(root, prefix))+len(rest) > 104 {
		root = "/tmp"
	}
	return a.makeDir(root, prefix)
}

// memoryDir makes a folder of the account's for data that need not last: in memory where there is plenty, because
// making a database means making a thousand files, which takes a disk six times as long.
func (a account) memoryDir() (string, error) {
	const prefix, plenty = "dagctl-pgdata-", 4 << 30
	root := os.TempDir()
	var free syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &free); err == nil && int64(free.Bavail)*int64(free.Bsize) > plenty {
		root = "/dev/shm"
	}
	return a.makeDir(root, prefix)
}

func (a account) makeDir(root, prefix string) (string, error) {
	if !a.reaches(filepath.Join(root, prefix)) {
		root = "/tmp"
	}
	dir, err := os.MkdirTemp(root, prefix) // 0700
	if err != nil {
		return "", fmt.Errorf("make a folder for PostgreSQL: %w", err)
	}
	return dir, a.own(dir)
}
