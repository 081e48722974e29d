package web

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"sync"

	"github.com/dagctl/dagctl/authz"
)

// assetPath returns where the files of static/ are. The hash of all of them is part of it, so that a browser may keep
// them for good, and a module finds those of its own version beside it.
var assetPath = sync.OnceValue(func() string { return "/static/" + hashOfAssets() })

func hashOfAssets() string {
	hash := sha256.New()
	err := fs.WalkDir(files, "static", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := files.ReadFile(name)
		hash.Write([]byte(name))
		hash.Write(content)
		return err
	})
	if err != nil {
		panic(err) // the files are part of the binary
	}
	return hex.EncodeToString(hash.Sum(nil))[:12]
}

// asset serves a file of static/. One that is asked for under the path of another version of the server is not kept.
func asset(w http.ResponseWriter, r *http.Request, _ authz.Caller) error {
	if "/static/"+r.PathValue("version") == assetPath() {
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeFileFS(w, r, files, path.Join("static", r.PathValue("file")))
	return nil
}
