package builtin

import (
	"archive/zip"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/worker"
)

// FetchCode unpacks the code of the task's job into dir. It compares the code with the hash that the claim names, so
// that only deployed code runs.
func (c carrier) FetchCode(ctx context.Context, a operators.Assignment, dir string) error {
	archive, err := c.task.Code(ctx)
	if err != nil {
		return err
	}
	files, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		return fmt.Errorf("code of the task: %w", err)
	}
	bundle, err := dag.ReadBundle(files, ".")
	if err != nil {
		return worker.NotRetryable(err)
	}
	if bundle.Hash != a.UDF.Hash {
		return fmt.Errorf("code of the task: its hash is %s, but the claim names %s", bundle.Hash, a.UDF.Hash)
	}

	executable := map[string]bool{}
	for _, f := range files.File {
		executable[f.Name] = f.Mode()&0o111 != 0
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()

	for name, data := range bundle.Files {
		mode := fs.FileMode(0o644)
		if executable[name] {
			mode = 0o755
		}
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, data, mode); err != nil {
			return err
		}
	}
	return nil
}
