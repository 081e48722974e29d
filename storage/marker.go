package storage

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/dagctl/dagctl/internal/fault"
)

// markerName names the object that says whose storage this is. It lies where the Parquet files are.
const markerName = ".dagctl-installation"

// Marker returns the id of the installation whose storage this is, or an empty text if nobody has marked it.
func (s *Storage) Marker(ctx context.Context) (id string, err error) {
	var text []byte
	if s.s3 != nil {
		text, err = s.s3.readSmall(ctx, s.s3.key(markerName))
	} else {
		text, err = s.files.root.ReadFile(markerName)
	}
	if errors.Is(err, fs.ErrNotExist) || fault.Is(err, fault.NotFound) {
		return "", nil
	}
	if err != nil {
		return "", unusable(err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Mark makes this the storage of an installation. Where another marker came first, that one stays, without an error.
func (s *Storage) Mark(ctx context.Context, id string) (err error) {
	if s.s3 != nil {
		err = s.s3.writeSmall(ctx, s.s3.key(markerName), []byte(id+"\n"), true)
		if fault.Is(err, fault.Conflict) {
			return nil
		}
	} else {
		err = s.files.mark(id)
	}
	if err != nil {
		return unusable(err)
	}
	return nil
}

// nameTag is the name of the object by which a server is known to those that use the same storage. A copy of the marker
// has the id of the installation, too; it lacks the objects of servers that came after it.
func nameTag(server string) string { return ".dagctl-server-" + url.PathEscape(server) }

// LeaveName leaves an object of a server's name in the storage.
func (s *Storage) LeaveName(ctx context.Context, server string) (err error) {
	if s.s3 != nil {
		err = s.s3.writeSmall(ctx, s.s3.key(nameTag(server)), probeText, false)
	} else {
		err = s.files.root.WriteFile(nameTag(server), probeText, 0o640)
	}
	if err != nil {
		return unusable(err)
	}
	return nil
}

// HasName reports whether a server has left its name in the storage.
func (s *Storage) HasName(ctx context.Context, server string) (bool, error) {
	var err error
	if s.s3 != nil {
		_, err = s.s3.readSmall(ctx, s.s3.key(nameTag(server)))
	} else {
		_, err = s.files.root.Stat(nameTag(server))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), fault.Is(err, fault.NotFound):
		return false, nil
	case err != nil:
		return false, unusable(err)
	}
	return true, nil
}

// RemoveName removes the name of a server that is no more.
func (s *Storage) RemoveName(ctx context.Context, server string) error {
	if s.s3 != nil {
		return s.s3.remove(ctx, s.s3.key(nameTag(server)))
	}
	err := s.files.root.Remove(nameTag(server))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// MarkerPlace names the marker, for people.
func (s *Storage) MarkerPlace() string { return s.place(markerName) }

// NamePlace names the object that a server leaves, for people.
func (s *Storage) NamePlace(server string) string { return s.place(nameTag(server)) }

func (s *Storage) place(name string) string {
	if s.s3 != nil {
		return "s3://" + s.s3.Bucket + "/" + s.s3.key(name)
	}
	return filepath.Join(s.files.root.Name(), name)
}

// mark writes the marker whole or not at all.
func (f *files) mark(id string) error {
	temporary := markerName + "-" + rand.Text()
	file, err := f.root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o640)
	if err != nil {
		return err
	}
	_, err = file.WriteString(id + "\n")
	if err = errors.Join(err, file.Sync(), file.Close()); err == nil {
		err = f.root.Link(temporary, markerName)
	}
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) { // a file system without hard links
		err = f.root.Rename(temporary, markerName)
	}
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}

	if gone := f.root.Remove(temporary); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return errors.Join(err, f.top.Sync())
}
