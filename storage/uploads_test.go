package storage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/storage"
)

func uploadKey(name string) storage.UploadKey {
	return storage.UploadKey{Org: uuid.New(), Task: uuid.New(), Attempt: 1, Name: name}
}

func TestUploads(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		key := uploadKey("part-1.parquet")
		none, err := s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Empty(t, none)

		first, err := s.PutUpload(t.Context(), key, strings.NewReader("one"))
		require.NoError(t, err)
		require.Equal(t, "part-1.parquet", first.Name)
		require.Equal(t, int64(3), first.Bytes)
		require.NotEmpty(t, first.ETag)
		require.NotContains(t, first.ETag, `"`)

		again, err := s.PutUpload(t.Context(), key, strings.NewReader("one"))
		require.NoError(t, err, "a request may be repeated")
		require.Equal(t, first, again)

		_, err = s.PutUpload(t.Context(), key, strings.NewReader("two"))
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)

		key.Name = "a.parquet"
		empty, err := s.PutUpload(t.Context(), key, strings.NewReader(""))
		require.NoError(t, err)

		other := key
		other.Output = 1
		_, err = s.PutUpload(t.Context(), other, strings.NewReader("of another output"))
		require.NoError(t, err)

		list, err := s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Equal(t, []storage.Upload{empty, first}, list)

		local, err := s.FetchUploads(t.Context(), key, []storage.Upload{first, empty}, t.TempDir())
		require.NoError(t, err)
		require.Len(t, local, 2)
		require.Equal(t, "part-1.parquet", filepath.Base(local[0]))

		text, err := os.ReadFile(local[0])
		require.NoError(t, err)
		require.Equal(t, "one", string(text))

		later := key
		later.Attempt = 2
		_, err = s.PutUpload(t.Context(), later, strings.NewReader("of another attempt"))
		require.NoError(t, err)

		attempts, err := s.UploadedAttempts(t.Context(), key.Org)
		require.NoError(t, err)
		require.Len(t, attempts, 2)
		require.Equal(t, []int{1, 2}, []int{attempts[0].Attempt, attempts[1].Attempt})
		require.Equal(t, key.Task, attempts[0].Task)
		require.False(t, attempts[0].Newest.IsZero())

		for range 2 {
			require.NoError(t, s.DropUpload(t.Context(), key))
		}
		list, err = s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Len(t, list, 1, "another file stays")

		for range 2 {
			require.NoError(t, s.DropUploads(t.Context(), key.Org, key.Task, 1))
		}
		list, err = s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Empty(t, list)

		list, err = s.ListUploads(t.Context(), later)
		require.NoError(t, err)
		require.Len(t, list, 1, "another attempt's stay")
		require.NoError(t, s.DropUploads(t.Context(), key.Org, key.Task, 2))

		attempts, err = s.UploadedAttempts(t.Context(), key.Org)
		require.NoError(t, err)
		require.Empty(t, attempts)
		_, err = s.PutUpload(t.Context(), key, strings.NewReader("after that"))
		require.NoError(t, err)
	})
}

func TestUploadsAreSealed(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		content, err := os.ReadFile(parquet(t, "SELECT range AS x FROM range(100)"))
		require.NoError(t, err)
		a := attempt(storage.Parquet, "all")
		key := storage.UploadKey{Org: a.Generation.OrgID, Task: a.Task, Attempt: a.Number, Name: "x.parquet"}
		up, err := s.PutUpload(t.Context(), key, bytes.NewReader(content))
		require.NoError(t, err)

		var manifests []storage.Manifest
		for range 2 { // a repeated completion seals the same manifest
			local, err := s.FetchUploads(t.Context(), key, []storage.Upload{up}, t.TempDir())
			require.NoError(t, err)
			m, err := s.Seal(t.Context(), a, local)
			require.NoError(t, err)
			manifests = append(manifests, m)
		}
		require.Equal(t, manifests[0], manifests[1])
		require.NoError(t, s.DropUploads(t.Context(), key.Org, key.Task, key.Attempt))
		require.NoError(t, s.Verify(t.Context(), manifests[0]), "what is sealed does not go with what was uploaded")

		files, err := s.Open(t.Context(), a.Generation,
			[]storage.Partition{{Key: "all", Revision: 1, Files: manifests[0].Files}}, t.TempDir())
		require.NoError(t, err)

		have, err := os.ReadFile(files[0][0])
		require.NoError(t, err)
		require.Equal(t, content, have)
	})
}

func TestUploadsRefuse(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		for _, name := range []string{
			"", ".", "..", "../x", "a/b", "/etc/passwd", `a\b`, ".hidden", "%2e", "a b", "a\x00", "a\n", "é", "x*",
			"$(id)", strings.Repeat("k", 256),
		} {
			key := uploadKey(name)
			_, err := s.PutUpload(t.Context(), key, strings.NewReader("x"))
			require.True(t, fault.Is(err, fault.Invalid), "%q: %v", name, err)
			_, err = s.FetchUploads(t.Context(), key, []storage.Upload{{Name: name}}, t.TempDir())
			require.True(t, fault.Is(err, fault.Invalid), "%q: %v", name, err)
		}

		for _, key := range []storage.UploadKey{{Attempt: 0, Name: "x"}, {Attempt: -1, Name: "x"},
			{Attempt: 1, Output: -1, Name: "x"}} {
			_, err := s.PutUpload(t.Context(), key, strings.NewReader("x"))
			require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", key, err)
		}

		_, err := s.PutUpload(t.Context(), uploadKey(strings.Repeat("k", 255)), strings.NewReader("x"))
		require.NoError(t, err)

		key := uploadKey("x.parquet")
		_, err = s.FetchUploads(t.Context(), key, []storage.Upload{{Name: "x.parquet", Bytes: 1}}, t.TempDir())
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)

		up, err := s.PutUpload(t.Context(), key, strings.NewReader("content"))
		require.NoError(t, err)
		for _, wrong := range []storage.Upload{
			{Name: up.Name, Bytes: up.Bytes + 1, ETag: up.ETag}, {Name: up.Name, Bytes: up.Bytes - 1},
			{Name: up.Name, Bytes: up.Bytes, ETag: "0123456789abcdef0123456789abcdef"},
		} {
			_, err := s.FetchUploads(t.Context(), key, []storage.Upload{wrong}, t.TempDir())
			require.True(t, fault.Is(err, fault.Conflict), "%+v: %v", wrong, err)
		}
	})
}

func TestUploadsThatBreakOff(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		key := uploadKey("x.parquet")
		broken := errors.New("the connection is gone")
		_, err := s.PutUpload(t.Context(), key, io.MultiReader(strings.NewReader("half"), iotest.ErrReader(broken)))
		require.ErrorIs(t, err, broken)

		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.PutUpload(canceled, key, strings.NewReader("x"))
		require.ErrorIs(t, err, context.Canceled)

		_, err = s.PutUpload(t.Context(), key, io.LimitReader(endless{}, maxTestUpload+1))
		require.True(t, fault.Is(err, fault.TooLarge), "%v", err)
		list, err := s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Empty(t, list, "what broke off is not there")

		up, err := s.PutUpload(t.Context(), key, io.LimitReader(endless{}, maxTestUpload))
		require.NoError(t, err)
		require.Equal(t, int64(maxTestUpload), up.Bytes)
	})
}

// TestUploadsAtOnce has many writers of one name: one content wins, and only its writers succeed.
func TestUploadsAtOnce(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		key := uploadKey("x.parquet")
		var (
			wait sync.WaitGroup
			got  [8]storage.Upload
			errs [8]error
		)

		for i := range got {
			wait.Go(func() {
				got[i], errs[i] = s.PutUpload(t.Context(), key, strings.NewReader(strings.Repeat("x", 1+i%2)))
			})
		}

		wait.Wait()
		list, err := s.ListUploads(t.Context(), key)
		require.NoError(t, err)
		require.Len(t, list, 1)

		for i := range got {
			if int64(1+i%2) == list[0].Bytes {
				require.NoError(t, errs[i])
				require.Equal(t, list[0], got[i])
			} else {
				require.True(t, fault.Is(errs[i], fault.Conflict), "%v", errs[i])
			}
		}
	})
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }
