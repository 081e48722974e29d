package parquetexport

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/wait"
	"github.com/dagctl/dagctl/operators"
)

// errNoFolders is the error of exports of an org to which the server's config gives no folder.
var errNoFolders = fault.New(fault.Forbidden, "the org may not write to any folder of this server").
	WithHint("an admin names them in the server's config, as `export_roots` of the org")

// within returns the one of the folders in which a path lies, and the path in it. A relative path lies in the first.
func within(roots []string, folder string) (root, name string, err error) {
	if len(roots) == 0 {
		return "", "", errNoFolders
	}
	name = filepath.FromSlash(folder)
	if !filepath.IsAbs(name) && filepath.IsLocal(name) {
		return roots[0], name, nil
	}
	for _, root := range roots {
		relative, err := filepath.Rel(root, name)
		if err == nil && filepath.IsLocal(relative) {
			return root, relative, nil
		}
	}
	return "", "", fault.New(fault.Forbidden, "folder %s lies outside of those that the org may write", folder).
		WithHint("give one inside, relative to the first of them or absolute")
}

// folder is a target on a disk. A lock file keeps others out while something is replaced.
type folder struct {
	root  *os.Root
	shown string
	own   string // what the names of this attempt's unfinished files begin with
}

const (
	lockName = "_dagctl.lock"
	// unfinished begins the names of files that are being written. Readers of folders skip names with a dot.
	unfinished = ".dagctl-"
	// Others read the files: they are for all whom the folder lets in.
	folderMode, fileMode = 0o755, 0o644
)

// openFolder opens a partition's folder in one of the org's, and makes it if there is none. No link leads out.
func openFolder(roots []string, given, name, attempt string) (*folder, error) {
	in, rest, err := within(roots, given)
	if err != nil {
		return nil, operators.Permanent(err)
	}

	outer, err := os.OpenRoot(in)
	if err != nil {
		return nil, fault.New(fault.Unavailable, "open folder %s: %w", given, err).
			WithHint("an admin's `export_roots` names it: is its disk there?")
	}
	defer outer.Close()

	rest = path.Join(filepath.ToSlash(rest), name)
	f := &folder{shown: path.Join(given, name), own: unfinished + attempt + "-"}
	if err := makeFolder(outer, rest); err != nil {
		return nil, f.failed("make", "", err)
	}
	if f.root, err = outer.OpenRoot(rest); err != nil {
		return nil, f.failed("open", "", err)
	}
	return f, nil
}

// makeFolder makes a folder that stays when the power goes.
func makeFolder(root *os.Root, name string) error {
	if info, err := root.Stat(name); err == nil && info.IsDir() {
		return nil
	}
	if err := root.MkdirAll(name, folderMode); err != nil {
		return err
	}
	for {
		name = path.Dir(name)
		if err := syncFolder(root, name); err != nil || name == "." {
			return err
		}
	}
}

func syncFolder(root *os.Root, name string) error {
	d, err := root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (f *folder) close() { _ = f.root.Close() }

// failed says what could not be done.
func (f *folder) failed(what, name string, err error) error {
	said := fault.New(fault.Unavailable, "%s %s: %w", what, path.Join(f.shown, name), operators.Elsewhere(err))
	var refused *fs.PathError
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return said.WithHint("make room on its disk: the next attempt writes the partition whole")
	case errors.Is(err, fs.ErrPermission):
		return said.WithHint("let the server's user write there")
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return said.WithHint("a file is where a folder should be: move it away, or name another `folder` or `path`")
	case errors.As(err, &refused) && !errors.As(refused.Err, new(syscall.Errno)): // by os.Root, not by the system
		return said.WithHint("a link there leads out of the folders that the org may write: remove it, or name " +
			"another `folder` or `path`")
	}
	return said
}

func (f *folder) read(_ context.Context, name string) (text []byte, tag string, err error) {
	text, err = f.root.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, "", nil
	case err != nil:
		return nil, "", f.failed("read", name, err)
	}
	hash := sha256.Sum256(text)
	return text, hex.EncodeToString(hash[:]), nil
}

// set also removes the files that older attempts have not finished: a newer one claims the partition before it begins
// one.
func (f *folder) set(ctx context.Context, name string, text []byte, tag string) error {
	return f.locked(ctx, func() error {
		_, is, err := f.read(ctx, name)
		switch {
		case err != nil:
			return err
		case is != tag:
			return errChanged
		}
		if err := f.copy(name, bytes.NewReader(text)); err != nil {
			return err
		}
		if err := f.rename(name); err != nil {
			return err
		}

		names, err := f.names(unfinished)
		for _, name := range names {
			if err == nil && !strings.HasPrefix(name, f.own) {
				err = f.remove(ctx, name)
			}
		}
		return err
	})
}

func (f *folder) put(
	ctx context.Context, name, local string, holds func(context.Context) error,
) (etag string, err error) {
	return f.swap(ctx, name, local, holds)
}

func (f *folder) swap(
	ctx context.Context, name, local string, holds func(context.Context) error,
) (etag string, err error) {
	if err := f.copyFile(name, local); err != nil {
		return "", err
	}
	return "", f.locked(ctx, func() error {
		if err := holds(ctx); err != nil {
			return errors.Join(err, f.remove(ctx, f.own+name))
		}
		return f.rename(name)
	})
}

// copyFile copies a file under the name of one that is not finished.
func (f *folder) copyFile(name, local string) error {
	from, err := os.Open(local)
	if err != nil {
		return err
	}
	defer from.Close()
	return f.copy(name, from)
}

func (f *folder) copy(name string, from io.Reader) error {
	to, err := f.root.OpenFile(f.own+name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, fileMode)
	if err != nil {
		return f.failed("write", name, err)
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Sync(), to.Close()); err != nil {
		_ = f.root.Remove(f.own + name)
		return f.failed("write", name, err)
	}
	return nil
}

// rename gives a file that is on disk its name.
func (f *folder) rename(name string) error {
	if err := errors.Join(f.root.Rename(f.own+name, name), syncFolder(f.root, ".")); err != nil {
		return f.failed("write", name, err)
	}
	return nil
}

func (f *folder) has(_ context.Context, is file) (bool, error) {
	opened, err := f.root.Open(is.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, f.failed("read", is.Name, err)
	}
	defer opened.Close()
	_, hash, err := hashOf(opened)
	if err != nil {
		return false, f.failed("read", is.Name, err)
	}
	return hash == is.SHA256, nil
}

func (f *folder) parts(context.Context) ([]string, error) { return f.names(partPrefix) }

func (f *folder) names(prefix string) (names []string, err error) {
	entries, err := fs.ReadDir(f.root.FS(), ".")
	if err != nil {
		return nil, f.failed("list", "", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) && !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names, nil
}

func (f *folder) remove(_ context.Context, name string) error {
	if err := f.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.failed("remove", name, err)
	}
	return nil
}

// locked does something while nobody else does, in any process.
func (f *folder) locked(ctx context.Context, do func() error) (err error) {
	const (
		patience = time.Minute // which is much longer than what the lock is held for
		pause    = 20 * time.Millisecond
	)
	file, err := f.root.OpenFile(lockName, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return f.failed("open", lockName, err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()

	for begun := time.Now(); ; {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			defer func() { _ = syscall.Flock(int(file.Fd()), syscall.LOCK_UN) }()
			return do()
		case !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR):
			return f.failed("lock", lockName, err)
		case time.Since(begun) > patience:
			return f.failed("lock", lockName, fmt.Errorf("another process has held it for %s", patience))
		}
		if err := wait.For(ctx, pause); err != nil {
			return err
		}
	}
}
