package storage_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

const maxTestUpload = 12 << 20 // more than two parts of the tests' S3 uploads

func s3Config(srv *tests3.Server) *storage.S3Config {
	return &storage.S3Config{
		Bucket: srv.Bucket, Prefix: "team/dagctl", Region: srv.Region, Endpoint: srv.Endpoint, PathStyle: true,
		AccessKeyID: srv.AccessKeyID, SecretAccessKey: srv.SecretAccessKey, PartBytes: 5 << 20, CacheBytes: 64 << 20,
	}
}

func openS3(t *testing.T, c *storage.S3Config) *storage.Storage {
	t.Helper()
	s, err := storage.New(storage.Config{Root: t.TempDir(), S3: c, MaxUploadBytes: maxTestUpload,
		Rows: enginetest.Engines()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// everywhere runs a test against every kind of storage for Parquet files.
func everywhere(t *testing.T, test func(t *testing.T, s *storage.Storage)) {
	t.Run("files", func(t *testing.T) {
		t.Parallel()
		s, err := storage.New(storage.Config{Root: t.TempDir(), MaxUploadBytes: maxTestUpload,
			Rows: enginetest.Engines()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		test(t, s)
	})
	t.Run("s3", func(t *testing.T) {
		t.Parallel()
		test(t, openS3(t, s3Config(tests3.Start(t))))
	})
}

// sealHostileKeys seals, reads and discards partitions with hostile names.
func sealHostileKeys(t *testing.T, s *storage.Storage) {
	t.Helper()
	locations := map[string]string{}
	for _, key := range []string{
		"2024-01-31", "../../../etc", "..", ".", "", "/etc/passwd", `..\..\x`, "a/b", "a//b", "a\x00b", "%2e%2e", "é",
		"a b", "*", "[x]", "a=1",
		".hidden", "CON", "~", "$(id)", "'; DROP TABLE x; --", "\n", strings.Repeat("k", 1000),
		strings.Repeat("../", 300), "a.sealing",
	} {
		a := attempt(storage.Parquet, key)
		a.Generation.OrgSlug = "../acme" // however it got there
		location := s.Location(a)
		require.True(t, filepath.IsLocal(location), location)
		require.NotContains(t, locations, location)

		locations[location] = key

		m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
		require.NoError(t, err, "key %q", key)
		require.Equal(t, location, m.Location)
		require.NoError(t, s.Verify(t.Context(), m))

		published := []storage.Partition{{Key: key, Revision: 1, Files: m.Files}}
		opened, err := s.Open(t.Context(), a.Generation, published, t.TempDir())
		require.NoError(t, err)
		require.FileExists(t, opened[0][0])

		_, rows, err := s.Preview(t.Context(), a.Generation, published, 10, 0)
		require.NoError(t, err)
		require.Equal(t, [][]any{{int64(1)}}, rows)
		require.NoError(t, s.Discard(t.Context(), m.Location))
		require.True(t, fault.Is(s.Verify(t.Context(), m), fault.NotFound))
	}
}

func TestHostileKeys(t *testing.T) {
	t.Parallel()
	everywhere(t, sealHostileKeys)
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		a := attempt(storage.Parquet, "all")
		m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
		require.NoError(t, err)

		own := m.Files[0]
		theirs, err := s.Seal(t.Context(), attempt(storage.Parquet, "all"), []string{parquet(t, "SELECT 2 AS x")})
		require.NoError(t, err)

		for name, path := range map[string]string{
			"another generation's file": theirs.Files[0].Path,
			"up and out":                filepath.Dir(own.Path) + "/../../../../../../secret.parquet",
			"up and in again": filepath.Dir(own.Path) + "/../" + filepath.Base(filepath.Dir(own.Path)) +
				"/00000.parquet",
			"absolute": "/etc/passwd",
			"missing":  filepath.Dir(own.Path) + "/none.parquet",
			"a folder": filepath.Dir(own.Path),
			"nothing":  "",
		} {
			file := own
			file.Path = path
			require.Error(t, s.Verify(t.Context(), storage.Manifest{Location: m.Location, Files: []storage.File{file}}),
				name)
			_, err := s.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: []storage.File{file}}},
				t.TempDir())
			require.Error(t, err, name)
			_, _, err = s.Preview(t.Context(), a.Generation,
				[]storage.Partition{{Key: "all", Files: []storage.File{file}}}, 1, 0)
			require.Error(t, err, name)
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
	})
}

func TestSeals(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		a := attempt(storage.Parquet, "all")
		_, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x"), parquet(t, "SELECT 'a' AS x")})
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)

		canceled, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.Seal(canceled, a, []string{parquet(t, "SELECT 1 AS x")})
		require.ErrorIs(t, err, context.Canceled)

		one, two := "SELECT 1::BIGINT AS x", "SELECT range AS x FROM range(5)"
		m, err := s.Seal(t.Context(), a, []string{parquet(t, one), parquet(t, two)})
		require.NoError(t, err)
		require.Equal(t, int64(6), m.Rows)
		require.Len(t, m.Files, 2)
		require.Equal(t, []storage.Column{{Name: "x", Type: "BIGINT"}}, m.Schema)

		again, err := s.Seal(t.Context(), a, []string{parquet(t, one), parquet(t, two)})
		require.NoError(t, err, "the same bytes")
		require.Equal(t, m, again)

		_, err = s.Seal(t.Context(), a, []string{parquet(t, "SELECT 2::BIGINT AS x")})
		require.True(t, fault.Is(err, fault.Conflict), "other bytes: %v", err)
		require.NoError(t, s.Verify(t.Context(), m))
		require.NoError(t, s.VerifyPublished(t.Context(), a.Generation, "all", 1, m))

		local, err := s.OpenSealed(t.Context(), a.Generation, m, t.TempDir())
		require.NoError(t, err)
		require.Equal(t, "x BIGINT\n{'x': 1}\n{'x': 0}\n{'x': 1}\n{'x': 2}\n{'x': 3}\n{'x': 4}\n",
			content(t, "SELECT * FROM FILES", local...))

		for range 2 {
			require.NoError(t, s.DropGeneration(t.Context(), a.Generation, []string{m.Location}))
		}
		require.True(t, fault.Is(s.Verify(t.Context(), m), fault.NotFound))
	})
}

func TestTakeOver(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		from := attempt(storage.Parquet, "a b/ü%")
		m, err := s.Seal(t.Context(), from, []string{parquet(t, "SELECT 1 AS x"), parquet(t, "SELECT 2 AS x")})
		require.NoError(t, err)

		to := from
		to.Generation.Version, to.Task = uuid.New(), uuid.New()
		var taken storage.Manifest
		for range 2 { // as after a crash
			taken, err = s.TakeOver(t.Context(), nil, from.Generation, to, 1, m)
			require.NoError(t, err)
			require.Equal(t, s.Location(to), taken.Location)
			require.NoError(t, s.Verify(t.Context(), taken))
		}
		require.NoError(t, s.DropGeneration(t.Context(), from.Generation, []string{m.Location}))

		files, err := s.Open(t.Context(), to.Generation, []storage.Partition{{Key: to.Partition, Files: taken.Files}},
			t.TempDir())
		require.NoError(t, err, "nothing is shared")
		require.Equal(t, "x INTEGER\n{'x': 1}\n{'x': 2}\n", content(t, "SELECT * FROM FILES", files[0]...))

		late := to
		late.Task = uuid.New()
		_, err = s.TakeOver(t.Context(), nil, from.Generation, late, 1, m)
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		_, err = s.TakeOver(t.Context(), nil, late.Generation, late, 1, m)
		require.True(t, fault.Is(err, fault.Invalid), "another generation's: %v", err)
	})
}

func TestPreviewValues(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		a := attempt(storage.Parquet, "all")
		m, err := s.Seal(t.Context(), a, []string{parquet(t, `SELECT 9007199254740993::BIGINT AS big,
			1::BIGINT AS small, 'nan'::DOUBLE AS nan, 1.5::DOUBLE AS half,
			0.1::DECIMAL(5,1) AS dec, DATE '2024-01-31' AS day, TIMESTAMPTZ '2024-01-31 01:00:00+01' AS at,
			[1, NULL] AS list, {'a': 'x'} AS struct,
			'\xAA'::BLOB AS blob, NULL::VARCHAR AS nothing, true AS yes`)})
		require.NoError(t, err)
		columns, rows, err := s.Preview(t.Context(), a.Generation,
			[]storage.Partition{{Key: "all", Revision: 1, Files: m.Files}}, 10, 0)
		require.NoError(t, err)
		require.Equal(t, m.Schema, columns)
		text, err := json.Marshal(rows)
		require.NoError(t, err)
		require.JSONEq(t,
			`[["9007199254740993", 1, "NaN", 1.5, "0.1", "2024-01-31", "2024-01-31 00:00:00+00",
				[1, null], {"a": "x"}, "\\xAA", null, true]]`, string(text))
	})
}

func TestPreviewPages(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, s *storage.Storage) {
		a := attempt(storage.Parquet, "a")
		var partitions []storage.Partition
		for _, key := range []string{"a", "b", "c"} {
			a.Partition, a.Task = key, uuid.New()
			m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT '"+key+"' AS k, range AS i FROM range(3)")})
			require.NoError(t, err)
			partitions = append(partitions, storage.Partition{Key: key, Revision: 1, Files: m.Files})
		}

		for _, test := range []struct {
			limit, offset int
			want          string
		}{
			{2, 0, "a0 a1"}, {2, 2, "a2 b0"}, {10, 5, "b2 c0 c1 c2"}, {1, 9, ""}, {0, 0, ""},
		} {
			_, rows, err := s.Preview(t.Context(), a.Generation, partitions, test.limit, test.offset)
			require.NoError(t, err)
			var got []string
			for _, row := range rows {
				got = append(got, fmt.Sprint(row...))
			}
			require.Equal(t, test.want, strings.ReplaceAll(strings.Join(got, ","), ",", " "), "%+v", test)
		}
	})
}
