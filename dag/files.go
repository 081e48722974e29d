package dag

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"testing/fstest"
	"unicode"
)

// InMemory returns a file system of the given files, by path. A server parses what a client sent with it.
func InMemory(files map[string][]byte) fs.FS {
	memory := fstest.MapFS{} // the standard library's own file system in memory
	for name, data := range files {
		memory[name] = &fstest.MapFile{Data: data, Mode: 0o444}
	}
	return memory
}

// fileReader reads the files that a document names, within the limits, and keeps them.
type fileReader struct {
	fsys  fs.FS
	read  map[string][]byte
	total int
}

// cleanPath returns the path of a reference inside the file system: "sql/a.sql" for "./sql/a.sql".
func cleanPath(name string) (string, error) {
	clean := path.Clean(name)
	switch {
	case strings.ContainsRune(name, '\\'):
		return "", errors.New("paths are written with /")
	case path.IsAbs(name):
		return "", errors.New("paths are relative to the DAG file")
	case !fs.ValidPath(clean):
		return "", errors.New("paths stay inside the folder of the DAG file")
	}
	return clean, nil
}

func (f *fileReader) file(name string, limit int) ([]byte, error) {
	if f.fsys == nil {
		return nil, errors.New("files cannot be read here")
	}
	if data, ok := f.read[name]; ok {
		return data, nil
	}

	file, err := f.fsys.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no such file")
	} else if err != nil {
		return nil, errors.New("it cannot be opened")
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}

	data, err := io.ReadAll(io.LimitReader(file, int64(limit)+1))
	switch {
	case err != nil:
		return nil, errors.New("it cannot be read")
	case len(data) > limit:
		return nil, fmt.Errorf("it has more than %d bytes", limit)
	case f.total+len(data) > MaxFilesBytes:
		return nil, fmt.Errorf("the files of the DAG have more than %d bytes together", MaxFilesBytes)
	}

	f.total += len(data)
	f.read[name] = data
	return data, nil
}

// readText reads the text file that a field names.
func (d *decoder) readText(reference value) ([]byte, bool) {
	name, err := cleanPath(reference.text())
	var data []byte
	if err == nil {
		data, err = d.files.file(name, MaxReferenceBytes)
	}
	if err == nil && !storable(data) {
		err = errors.New("it is not UTF-8 text without U+0000")
	}
	if err != nil {
		d.node(reference.node, CodeFile, "cannot use file %q: %s", reference.text(), err)
		return nil, false
	}
	return data, true
}

// udf decodes `udf`, and reads and hashes its folder.
func (d *decoder) udf(v value) *UDF {
	if !v.present() {
		return nil
	}
	u := &UDF{Bundle: v.get("bundle").text(), Entrypoint: v.get("entrypoint").text()}
	folder := v.get("folder")
	if !folder.scalar() {
		return u
	}

	name, err := cleanPath(folder.text())
	if err == nil && d.files.fsys == nil {
		err = errors.New("files cannot be read here")
	}
	if err == nil {
		u.Folder = name
		u.Hash, err = d.files.folder(name)
	}
	if err != nil {
		d.node(folder.node, CodeFile, "cannot use folder %q: %s", folder.text(), err)
	}
	return u
}

// folder reads every file below a folder, except hidden files and what compilers leave behind, and returns the hash of
// their paths and contents, in the order of the paths.
func (f *fileReader) folder(root string) (string, error) {
	hash, count, size := sha256.New(), 0, 0
	names := sameNames{}
	err := fs.WalkDir(f.fsys, root, func(name string, entry fs.DirEntry, err error) error {
		if read, err := wanted(root, name, entry, err); !read {
			return err
		}
		if count++; count > MaxUDFFiles {
			return fmt.Errorf("it has more than %d files", MaxUDFFiles)
		}
		data, err := f.file(name, MaxUDFBytes)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if size += len(data); size > MaxUDFBytes {
			return fmt.Errorf("it has more than %d bytes", MaxUDFBytes)
		}

		below := strings.TrimPrefix(name, root)
		if root == "." {
			below = "/" + name
		}
		if err := names.add(below); err != nil {
			return err
		}
		fmt.Fprintf(hash, "%d:%s%d:", len(below), below, len(data))
		hash.Write(data)
		return nil
	})
	if err == nil && count == 0 {
		err = errors.New("it is empty")
	}
	return hex.EncodeToString(hash.Sum(nil)), err
}

// sameNames has the names of files and folders by what they are on a system that ignores case.
type sameNames map[string]string

// add returns an error if the path of a file, or that of a folder above it, differs from one before in case only. Which
// of the two there would be on some machines depends on their file system.
func (s sameNames) add(name string) error {
	for ; name != "/" && name != "."; name = path.Dir(name) {
		folded := strings.ToLower(name)
		if other, ok := s[folded]; ok && other != name {
			return fmt.Errorf("%s and %s differ in case only: rename one", other[1:], name[1:])
		}
		s[folded] = name
	}
	return nil
}

// wanted reports whether a walk of a folder reads an entry. If not, the walk returns the error, which may be nil.
func wanted(root, name string, entry fs.DirEntry, err error) (bool, error) {
	base := path.Base(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, errors.New("there is no such folder")
	case err != nil:
		return false, errors.New("it cannot be read")
	case name == root && !entry.IsDir():
		return false, errors.New("it is not a folder")
	case name != root && (strings.HasPrefix(base, ".") || base == "__pycache__" || base == "node_modules"):
		if entry.IsDir() {
			return false, fs.SkipDir
		}
		return false, nil
	case entry.IsDir():
		return false, nil
	case strings.ContainsFunc(name, unicode.IsControl):
		return false, fmt.Errorf("the name of file %q has a control character", name)
	}
	return true, nil
}
