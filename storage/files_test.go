package storage_test

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

func open(t *testing.T, root string) *storage.Storage {
	t.Helper()
	s, err := storage.New(storage.Config{Root: root, Rows: enginetest.Engines()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// parquet writes a query's rows to a file.
func parquet(t *testing.T, query string) string {
	t.Helper()
	return parquetOf(t, query)
}

func parquetOf(t testing.TB, query string) string {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	defer session.Close()
	file := filepath.Join(t.TempDir(), "part.parquet")
	_, err = session.CopyToParquet(t.Context(), query, file)
	require.NoError(t, err)
	return file
}

func attempt(kind storage.Kind, partition string) storage.Attempt {
	return storage.Attempt{
		Generation: storage.Generation{OrgID: uuid.New(), OrgSlug: "acme", Dataset: uuid.New(), Version: uuid.New(),
			Kind: kind},
		Partition: partition, Task: uuid.New(), Number: 1,
	}
}

// outside returns all files of a folder that are not below its folder "root".
func outside(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if d.IsDir() && path == filepath.Join(dir, "root") {
			return fs.SkipDir
		}
		names = append(names, path)
		return err
	}))
	return names
}

func TestFilesHostileKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, filepath.Join(dir, "root"))
	before := outside(t, dir)
	sealHostileKeys(t, s)
	require.Equal(t, before, outside(t, dir), "nothing outside of the root is touched")
}

func TestFilesRefuse(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret.parquet")
	require.NoError(t, os.Rename(parquet(t, "SELECT 'secret' AS x"), secret))

	s := open(t, filepath.Join(dir, "root"))
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	own := m.Files[0]
	other := attempt(storage.Parquet, "all")
	theirs, err := s.Seal(t.Context(), other, []string{parquet(t, "SELECT 2 AS x")})
	require.NoError(t, err)
	require.NoError(t, os.Symlink(secret, filepath.Join(dir, "root", filepath.Dir(own.Path), "link.parquet")))

	for name, path := range map[string]string{
		"another generation's file": theirs.Files[0].Path,
		"up and out":                filepath.ToSlash(filepath.Dir(own.Path)) + "/../../../../../../secret.parquet",
		"absolute":                  secret,
		"a link that leads out":     filepath.ToSlash(filepath.Dir(own.Path)) + "/link.parquet",
		"missing":                   filepath.ToSlash(filepath.Dir(own.Path)) + "/none.parquet",
		"a folder":                  filepath.ToSlash(filepath.Dir(own.Path)),
	} {
		t.Run(name, func(t *testing.T) {
			file := storage.File{Path: path, Bytes: own.Bytes, Rows: 1}
			require.Error(t, s.Verify(t.Context(), storage.Manifest{Location: m.Location, Files: []storage.File{file}}))
			_, err := s.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: []storage.File{file}}},
				"")
			require.Error(t, err)
		})
	}

	short := own
	short.Bytes++
	require.ErrorContains(t, s.Verify(t.Context(),
		storage.Manifest{Location: m.Location, Files: []storage.File{short}}), "in its manifest")

	for _, location := range []string{"", "/", "../", "a/", "a/b/c/d/../", "a/b/c/d/e", "/a/b/c/d/e/", "acme/x/",
		"postgres:public.users"} {
		require.Error(t, s.Discard(t.Context(), location), location)
	}
	require.NoError(t, s.Verify(t.Context(), m), "nothing of it was discarded")
}

// A link in place of a folder on the way to a partition is refused, too.
func TestFilesRefuseLinkedFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	elsewhere := filepath.Join(dir, "elsewhere")
	require.NoError(t, os.Mkdir(elsewhere, 0o750))

	s := open(t, filepath.Join(dir, "root"))
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	partition := filepath.Join(dir, "root", filepath.Dir(strings.TrimSuffix(m.Location, "/")))
	require.NoError(t, os.Rename(partition, filepath.Join(elsewhere, "all")))
	require.NoError(t, os.Symlink(filepath.Join(elsewhere, "all"), partition))

	before := outside(t, dir)

	require.Error(t, s.Verify(t.Context(), m))
	_, err = s.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: m.Files}}, "")
	require.Error(t, err)

	a.Number++
	_, err = s.Seal(t.Context(), a, []string{parquet(t, "SELECT 2 AS x")})
	require.Error(t, err)
	require.Equal(t, before, outside(t, dir))
}

// The first writers of a generation create its folders at the same time.
func TestSealAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	first := attempt(storage.Parquet, "all")
	var (
		sealed [8]storage.Manifest
		failed [8]error
		done   sync.WaitGroup
	)

	for i := range sealed {
		source := parquet(t, "SELECT 1 AS x")
		done.Go(func() {
			a := first
			a.Number, a.Partition = i+1, []string{"all", "other"}[i%2]
			sealed[i], failed[i] = s.Seal(t.Context(), a, []string{source})
		})
	}

	done.Wait()
	for i, m := range sealed {
		require.NoError(t, failed[i])
		require.NoError(t, s.Verify(t.Context(), m))
	}
}

func TestSealIsAllOrNothingAndOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := open(t, root)
	a := attempt(storage.Parquet, "all")
	broken := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, os.WriteFile(broken, []byte("PAR1 not"), 0o600))

	for name, files := range map[string][]string{
		"broken":        {parquet(t, "SELECT 1 AS x"), broken},
		"other columns": {parquet(t, "SELECT 1 AS x"), parquet(t, "SELECT 'a' AS x")},
		"none":          {},
	} {
		_, err := s.Seal(t.Context(), a, files)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}

	entries, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, entries)

	// The leftovers of an interrupted seal do no harm.
	left := filepath.Join(root, strings.TrimSuffix(s.Location(a), "/")+".sealing-X")
	require.NoError(t, os.MkdirAll(left, 0o750))
	require.NoError(t, os.WriteFile(filepath.Join(left, "00007.parquet"), nil, 0o600))

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Seal(canceled, a, []string{parquet(t, "SELECT 1 AS x")})
	require.ErrorIs(t, err, context.Canceled)

	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1::BIGINT AS x"),
		parquet(t, "SELECT range AS x FROM range(5)")})
	require.NoError(t, err)
	require.Equal(t, int64(6), m.Rows)
	require.Len(t, m.Files, 2)
	require.Equal(t, []storage.Column{{Name: "x", Type: "BIGINT"}}, m.Schema)
	require.Equal(t, storage.SchemaHash(m.Schema), m.SchemaHash)

	names, err := os.ReadDir(filepath.Join(root, m.Location))
	require.NoError(t, err)
	require.Len(t, names, 2)

	_, err = s.Seal(t.Context(), a, []string{parquet(t, "SELECT 2 AS x")})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.NoError(t, s.Verify(t.Context(), m))
}
