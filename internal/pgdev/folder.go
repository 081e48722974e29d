package pgdev

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/filelock"
)

// elsewhere holds clusters whose data folder the server's account cannot reach, such as one below root's home.
const elsewhere = "/var/lib/dagctl"

// folder is a data folder that this process has locked.
type folder struct {
	dir       string // Config.DataDir
	cluster   string // where initdb put the cluster: dir/cluster, or below elsewhere
	throwaway bool
	orphan    bool // the cluster belongs to a deleted data folder of the same path
	lock      *filelock.Lock
}

func (f folder) path(name string) string { return filepath.Join(f.dir, name) }

// openFolder creates the data folder if needed, locks it and finds its cluster.
func openFolder(dataDir string, acct account) (folder, error) {
	f := folder{throwaway: dataDir == ""}
	var err error
	if f.throwaway {
		if f.dir, err = acct.memoryDir(); err != nil {
			return folder{}, err
		}
	} else if f.dir, err = filepath.Abs(dataDir); err != nil {
		return folder{}, fmt.Errorf("data folder %s: %w", dataDir, err)
	} else if err = os.MkdirAll(f.dir, 0o700); err != nil {
		return folder{}, fmt.Errorf("make data folder: %w", err)
	}

	if err := f.acquire(); err != nil {
		return folder{}, err
	}
	if err := f.locate(acct); err != nil {
		return folder{}, errors.Join(err, f.close())
	}
	return f, nil
}

// acquire locks the folder until this process ends, however it ends.
func (f *folder) acquire() error {
	lock, err := filelock.Take(f.path("lock"))
	var held *filelock.HeldError
	if errors.As(err, &held) {
		return fault.New(fault.Conflict, "data folder %s is in use by process %s", f.dir, held.Process).
			WithHint("stop that process, or use another data folder")
	}
	if err != nil {
		return fmt.Errorf("lock data folder %s: %w", f.dir, err)
	}
	f.lock = lock
	return nil
}

// locate determines where the cluster lies. If the account cannot reach the data folder, dir/cluster is a link to a
// folder below elsewhere, which is named after the data folder's path.
func (f *folder) locate(acct account) error {
	link := f.path("cluster")
	if acct.credential != nil {
		// The account may pass through the folder, but not read the password and the log.
		if err := os.Chmod(f.dir, 0o711); err != nil {
			return fmt.Errorf("open data folder to PostgreSQL's user: %w", err)
		}
	}
	if acct.reaches(link) {
		f.cluster = link
		return nil
	}

	f.cluster = filepath.Join(elsewhere, fmt.Sprintf("pg-%x", sha256.Sum256([]byte(f.dir)))[:19])
	if err := os.MkdirAll(elsewhere, 0o711); err != nil {
		return fmt.Errorf("make a folder for PostgreSQL's data: %w", err)
	}
	err := os.Symlink(f.cluster, link)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	f.orphan = true
	return err
}

// clusterVersion returns the PostgreSQL major version that made the cluster, or 0 before the first start.
func (f *folder) clusterVersion() int {
	if f.orphan {
		return 0
	}
	text, err := os.ReadFile(filepath.Join(f.cluster, "PG_VERSION"))
	if err != nil {
		return 0
	}
	major, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return major
}

// authentication returns the method of authentication. With scram, a client hashes the password four thousand times for
// each connection, which is too slow for tests, which make thousands of connections.
func (f *folder) authentication() string {
	if f.throwaway {
		return "md5"
	}
	return "scram-sha-256"
}

// init creates the cluster if there is none and returns the superuser's password. scratch is a folder of the account.
// The cluster and the password appear together: initdb works beside the final place, so that an interrupted start
// leaves nothing that looks complete.
func (f *folder) init(ctx context.Context, bin binaries, acct account, scratch string,
	log *slog.Logger) (string, error) {
	if f.clusterVersion() != 0 {
		password, err := os.ReadFile(f.path("password"))
		if err != nil {
			return "", fault.New(fault.Invalid, "read the database's password: %w", err).
				WithHint("restore that file, or start empty with --reset")
		}
		return string(password), acct.ownAll(f.cluster)
	}

	log.Info("creating a PostgreSQL cluster", "version", bin.major, "dir", f.cluster)
	password := newPassword()
	given := filepath.Join(scratch, "password")
	if err := os.WriteFile(given, []byte(password), 0o600); err != nil {
		return "", fmt.Errorf("hand over the database's password: %w", err)
	}
	defer os.Remove(given)
	fresh := f.cluster + ".new"
	if err := errors.Join(acct.own(given), os.RemoveAll(fresh), os.Mkdir(fresh, 0o700), acct.own(fresh)); err != nil {
		return "", fmt.Errorf("make a folder for PostgreSQL's data: %w", err)
	}
	ctype := "C.UTF-8"
	if runtime.GOOS == "darwin" {
		ctype = "UTF-8"
	}

	// Text sorts by code point, alike on every machine; upper and lower support Unicode.
	args := []string{"-D", fresh, "-U", superuser, "--pwfile", given, "--auth", f.authentication(), "--encoding",
		"UTF8", "--locale", "C", "--lc-ctype", ctype}
	if f.throwaway {
		args = append(args, "--no-sync")
	}
	initdb := acct.command(exec.CommandContext(ctx, bin.path("initdb"), args...), fresh)
	if out, err := initdb.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, strings.TrimSpace(string(out)))
	}
	return password, f.place(fresh, password)
}

// place puts a cluster and its password where a server starts from.
func (f *folder) place(fresh, password string) error {
	if err := os.WriteFile(f.path("password"), []byte(password), 0o600); err != nil {
		return fmt.Errorf("keep the database's password: %w", err)
	}
	if err := errors.Join(os.RemoveAll(f.cluster), os.Rename(fresh, f.cluster)); err != nil {
		return fmt.Errorf("put the cluster in place: %w", err)
	}
	return nil
}

// endLeftover ends a server that still runs on the cluster although no process holds the folder's lock: its guard is
// about to stop it, or was killed too. It removes the pid file of a server that is gone.
func (f *folder) endLeftover(ctx context.Context) error {
	pidFile := filepath.Join(f.cluster, "postmaster.pid")
	pid, ok := readPid(pidFile)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	if serves(pid, f.cluster) {
		_ = syscall.Kill(pid, syscall.SIGINT)
	}

	for serves(pid, f.cluster) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Conflict, "a PostgreSQL server (process %d) still runs on %s", pid, f.cluster).
				WithHint("end it: kill -QUIT %d", pid)
		}
	}
	// The process id may belong to an unrelated process by now, which PostgreSQL would mistake for its own.
	if err := os.Remove(pidFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove a stale pid file: %w", err)
	}
	return nil
}

func readPid(pidFile string) (int, bool) {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	return pid, err == nil && pid > 1
}

// newPassword returns a password of 128 random bits.
func newPassword() string { return rand.Text() }

// remove deletes the data folder and the cluster.
func (f *folder) remove() error {
	return errors.Join(os.RemoveAll(f.cluster), os.RemoveAll(f.cluster+".new"), os.RemoveAll(f.dir))
}

// close releases the lock, and deletes a throwaway folder.
func (f *folder) close() error {
	var err error
	if f.throwaway {
		err = f.remove()
	}
	return errors.Join(err, f.lock.Release())
}
