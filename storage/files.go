package storage

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// files is Parquet in local files: <org slug>/<dataset>/<version>/<partition>/<task>-<attempt>/00000.parquet.
// Every access goes through an os.Root, so that no key and no link leads out of the folder.
type files struct {
	root *os.Root
	top  *os.File // the same folder, for system calls
}

// errOtherFiles means that the folder already exists, with other files.
var errOtherFiles = errors.New("its folder has other files")

// sealing marks the name of an attempt's folder until it is complete. Each seal has a folder of its own, because a
// repeated completion may seal the same attempt in another process.
const sealing = ".sealing-"

func newFiles(root string) (*files, error) {
	if root == "" {
		return nil, fault.New(fault.Invalid, "storage: the config has no root folder")
	}
	if strings.ContainsAny(root, "*?[") {
		return nil, fault.New(fault.Invalid, "storage: the root folder %s must not contain any of * ? [", root)
	}

	abs, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	if err := os.MkdirAll(abs, 0o750); err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}
	r, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", err)
	}

	top, err := openTop(r)
	if err != nil {
		return nil, fmt.Errorf("storage root: %w", errors.Join(err, r.Close()))
	}
	return &files{root: r, top: top}, nil
}

func generationDir(g Generation) string {
	return path.Join(escape(g.OrgSlug), g.Dataset.String(), g.Version.String())
}

func (*files) location(a Attempt) string { return attemptDir(a) }

// attemptDir returns the path of an attempt's files, in a folder or in a bucket.
func attemptDir(a Attempt) string {
	return path.Join(generationDir(a.Generation), escape(a.Partition), a.name()) + "/"
}

func (*files) owns(location string) bool { return isAttemptDir(location) }

// isAttemptDir reports whether a path has exactly the form that attemptDir returns: five parts, none of them special,
// and a slash at the end.
func isAttemptDir(location string) bool {
	key, ok := strings.CutSuffix(location, "/")
	return ok && key == path.Clean(key) && filepath.IsLocal(key) && strings.Count(key, "/") == 4 &&
		!strings.Contains(key, "\\")
}

// escape turns any string into one part of a path: letters, digits, '-', '_' and inner dots stay, the rest becomes %XX.
// A result too long for a file name is cut and made unique by its hash.
func escape(key string) string {
	var b strings.Builder
	for i := range len(key) {
		c := key[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.' && i > 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}

	escaped := b.String()
	if escaped == "" {
		return "%"
	}
	const longest = 200 // file systems allow 255
	if len(escaped) > longest {
		sum := sha256.Sum256([]byte(key))
		escaped = escaped[:longest-33] + "%" + hex.EncodeToString(sum[:16])
	}
	return escaped
}

func (f *files) seal(ctx context.Context, a Attempt, local []string, m Manifest) (Manifest, error) {
	m.Location = f.location(a)
	final := strings.TrimSuffix(m.Location, "/")
	temporary := final + sealing + rand.Text()

	err := f.sealFolder(final, temporary, func(dir int) error {
		for i, source := range local {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			name := fmt.Sprintf("%05d.parquet", i)
			if err := f.place(dir, source, path.Join(temporary, name)); err != nil {
				return err
			}
			m.Files[i].Path = path.Join(final, name)
		}
		return nil
	})
	if errors.Is(err, errOtherFiles) {
		err = fault.New(fault.Conflict, "attempt %d of task %s is already sealed: %w", a.Number, a.Task, err)
	}
	return m, err
}

// sameFiles reports whether two folders hold the same files with the same content.
func (f *files) sameFiles(a, b string) (bool, error) {
	inA, errA := f.listUploads(context.Background(), a+"/")
	inB, errB := f.listUploads(context.Background(), b+"/")
	return slices.Equal(inA, inB), errors.Join(errA, errB)
}

// place moves a local file into the open folder, or copies it if that is on another file system. The file is on disk
// when place returns.
func (f *files) place(dir int, source, target string) error {
	local, err := os.Open(source)
	if err != nil {
		return err
	}
	defer local.Close()

	// Read-only, because committed files never change.
	if err := errors.Join(local.Chmod(0o440), local.Sync()); err != nil {
		return err
	}
	err = uninterrupted(func() error { return unix.Renameat(unix.AT_FDCWD, source, dir, path.Base(target)) })
	if !errors.Is(err, unix.EXDEV) {
		return err
	}

	copied, err := f.root.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o440)
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, local)
	return errors.Join(err, copied.Sync(), copied.Close())
}

// syncParents makes the names of a new folder durable, up to the root.
func (f *files) syncParents(name string) error {
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		d, err := f.root.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
		if dir == "." {
			return nil
		}
	}
}

// ownPartition accepts files of the attempt itself and, for append, of earlier revisions of the same partition.
func (m Manifest) ownPartition() error {
	partition := path.Dir(strings.TrimSuffix(m.Location, "/")) + "/"
	for _, file := range m.Files {
		if !strings.HasPrefix(file.Path, partition) {
			return fault.New(fault.Invalid, "file %q does not belong to partition %s", file.Path, partition)
		}
	}
	return nil
}

func (f *files) verify(_ context.Context, m Manifest) error {
	if err := m.ownPartition(); err != nil {
		return err
	}
	for _, file := range m.Files {
		size, err := f.stat(file.Path)
		if err != nil {
			return err
		}
		if size != file.Bytes {
			return fault.New(fault.Invalid, "file %s has %d bytes, but %d in its manifest", file.Path, size, file.Bytes)
		}
	}
	return nil
}

// stat returns the size of a file.
func (f *files) stat(name string) (int64, error) {
	if name != path.Clean(name) || !filepath.IsLocal(name) {
		return 0, fault.New(fault.Invalid, "file %q is not a plain relative path", name)
	}
	size, regular, err := f.size(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, fault.New(fault.NotFound, "file %s is missing from the storage", name)
	}
	if err != nil {
		return 0, err
	}
	if !regular {
		return 0, fault.New(fault.Invalid, "%s is not a file", name)
	}
	return size, nil
}

// publish has nothing to do: the committed list is the publication.
func (f *files) publish(context.Context, pgx.Tx, Attempt, int64, Manifest) error { return nil }

// discard also removes what interrupted seals of the attempt have left.
func (f *files) discard(_ context.Context, location string) error {
	key := strings.TrimSuffix(location, "/")
	partition := path.Dir(key)
	entries, err := fs.ReadDir(f.root.FS(), partition)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}

	for _, entry := range entries {
		if name := entry.Name(); name == path.Base(key) || strings.HasPrefix(name, path.Base(key)+sealing) {
			if err := f.root.RemoveAll(path.Join(partition, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *files) open(_ context.Context, g Generation, partitions []Partition, _ string) ([][]string, error) {
	out := make([][]string, len(partitions))
	for i, p := range partitions {
		local, err := f.local(g, p.Files)
		if err != nil {
			return nil, fmt.Errorf("open partition %q revision %d: %w", p.Key, p.Revision, err)
		}
		out[i] = local
	}
	return out, nil
}

func (f *files) openSealed(_ context.Context, g Generation, m Manifest, _ string) ([]string, error) {
	return f.local(g, m.Files)
}

func (f *files) head(_ context.Context, g Generation, partitions []Partition, n int, _ string) ([]string, error) {
	return f.local(g, firstFiles(partitions, n))
}

// firstFiles returns the files that hold at least the first n rows, and at least one file.
func firstFiles(partitions []Partition, n int) []File {
	var list []File
	for _, p := range partitions {
		for _, file := range p.Files {
			if n <= 0 && len(list) > 0 {
				return list
			}
			list = append(list, file)
			n -= int(file.Rows)
		}
	}
	return list
}

// ofGeneration returns an error if a list names another generation's file.
func ofGeneration(g Generation, list []File) error {
	prefix := generationDir(g) + "/"
	for _, file := range list {
		if !strings.HasPrefix(file.Path, prefix) {
			return fault.New(fault.Invalid, "file %q does not belong to generation %s", file.Path, g.Version)
		}
	}
	return nil
}

// local returns the absolute paths of committed files.
func (f *files) local(g Generation, list []File) ([]string, error) {
	if err := ofGeneration(g, list); err != nil {
		return nil, err
	}
	out := make([]string, len(list))
	for i, file := range list {
		if _, err := f.stat(file.Path); err != nil {
			return nil, err
		}
		out[i] = filepath.Join(f.root.Name(), filepath.FromSlash(file.Path))
	}
	return out, nil
}
