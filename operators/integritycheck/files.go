package integritycheck

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// filesOf compares the files of the input, as storage has them, with what the catalogue says of each: how many bytes
// and rows it has and, of objects in a bucket, the hash of its content. It returns how many files it has compared: none
// of an input in Postgres, which has tables.
func filesOf(ctx context.Context, t *operators.Task) (found []finding, compared int, err error) {
	in := t.Inputs[0]
	if in.Generation.Kind == storage.Postgres {
		return nil, 0, nil
	}
	var known []storage.File
	var places []string
	for _, p := range in.Partitions {
		for _, f := range p.Files {
			known = append(known, f)
			places = append(places, fmt.Sprintf("partition %s, revision %d, %s", p.Key, p.Revision, path.Base(f.Path)))
		}
	}
	if len(known) != len(t.InputFiles[0]) {
		return nil, 0, operators.Permanent(fault.New(fault.Invalid, "what the catalogue says of files is not known "+
			"here: %d of %d", len(known), len(t.InputFiles[0])).
			WithHint("give the job a runtime that is the server's own process"))
	}

	for i, file := range t.InputFiles[0] {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		more, err := compare(file, known[i])
		if err != nil {
			return nil, 0, err
		}
		for _, f := range more {
			f[1] = places[i]
			found = append(found, f)
		}
	}
	return found, len(known), nil
}

// compare compares a local file with what the catalogue says of it. The findings have no place yet.
func compare(file string, known storage.File) (found []finding, err error) {
	differ := func(kind string, expected, have any) {
		if expected != have {
			found = append(found, finding{kind, "", fmt.Sprint(expected), fmt.Sprint(have)})
		}
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	differ("bytes", known.Bytes, info.Size())

	if read, err := footer.Read(file); err != nil {
		differ("rows", fmt.Sprint(known.Rows), "no Parquet file")
	} else {
		differ("rows", known.Rows, read.Rows)
	}
	if known.SHA256 != "" {
		sum, err := hashOf(file)
		if err != nil {
			return nil, err
		}
		differ("sha256", known.SHA256, sum)
	}
	return slices.Clip(found), nil
}

func hashOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	_, err = io.Copy(hash, f)
	return hex.EncodeToString(hash.Sum(nil)), err
}
