package dag

import (
	"fmt"
	"io/fs"
	"strings"
)

// Bundle is a user's own code: its files by path, and the hash that names it. A folder that a document names and a
// bundle of the same content have the same hash, so that one may replace the other and nothing is rebuilt.
type Bundle struct {
	Hash  string
	Files map[string][]byte
}

// ReadBundle reads the files below a folder, within the limits of a UDF. It leaves out hidden files and what compilers
// leave behind.
func ReadBundle(fsys fs.FS, root string) (Bundle, error) {
	reader := fileReader{fsys: fsys, read: map[string][]byte{}}
	hash, err := reader.folder(root)
	if err != nil {
		return Bundle{}, fmt.Errorf("code: %w", err)
	}
	return Bundle{Hash: hash, Files: below(reader.read, root)}, nil
}

// Code returns the UDF's bundle, made of the files that a deploy sent.
func (u *UDF) Code(files map[string][]byte) Bundle {
	return Bundle{Hash: u.Hash, Files: below(files, u.Folder)}
}

// below returns the files of a folder, by their paths below it.
func below(files map[string][]byte, root string) map[string][]byte {
	if root == "." {
		return files
	}
	inside := map[string][]byte{}
	for name, data := range files {
		if rest, ok := strings.CutPrefix(name, root+"/"); ok {
			inside[rest] = data
		}
	}
	return inside
}
