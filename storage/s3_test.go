package storage_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

// keys returns all objects of the bucket; unfinished returns the uploads that were begun.
func keys(t *testing.T, srv *tests3.Server) (all []string, unfinished int) {
	t.Helper()
	out, err := srv.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &srv.Bucket})
	require.NoError(t, err)
	for _, o := range out.Contents {
		all = append(all, *o.Key)
	}
	begun, err := srv.Client().ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &srv.Bucket})
	require.NoError(t, err)
	return all, len(begun.Uploads)
}

const largeRows = "SELECT range AS x, hash(range) AS h, md5(range::VARCHAR) AS m FROM range(400000)"

// large returns a Parquet file of several parts and row groups.
func large(t *testing.T) string {
	t.Helper()
	return parquet(t, largeRows)
}

// between is a proxy between a storage and its server in which a test handles requests.
func between(
	t *testing.T, srv *tests3.Server, c *storage.S3Config, on func(w http.ResponseWriter, r *http.Request,
		next http.Handler),
) {
	t.Helper()
	target, err := url.Parse(srv.Endpoint)
	require.NoError(t, err)
	// It keeps the Host header, which is signed.
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { on(w, r, proxy) }))
	t.Cleanup(front.Close)
	c.Endpoint = front.URL
}

func TestS3Objects(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	c := s3Config(srv)
	s := openS3(t, c)
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, largeRows+" LIMIT 1"), large(t)})
	require.NoError(t, err)

	all, unfinished := keys(t, srv)
	require.Equal(t, []string{"team/dagctl/" + m.Files[0].Path, "team/dagctl/" + m.Files[1].Path}, all,
		"the prefix of the config, and the org's")
	require.True(t, strings.HasPrefix(m.Files[0].Path, "acme/"+a.Generation.Dataset.String()+"/"))
	require.Zero(t, unfinished)
	require.Greater(t, m.Files[1].Bytes, 2*c.PartBytes)
	require.Regexp(t, `^[0-9a-f]{32}$`, m.Files[0].ETag)
	require.Regexp(t, `^[0-9a-f]{32}-[34]$`, m.Files[1].ETag, "in parts")

	t.Run("a large one reads back", func(t *testing.T) {
		fresh := openS3(t, c)
		files, err := fresh.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: m.Files[1:]}},
			t.TempDir())
		require.NoError(t, err)
		require.Contains(t, content(t, "SELECT count(*) AS n, sum(x) AS x FROM FILES", files[0]...),
			"{'n': 400000, 'x': 79999800000}")
	})

	t.Run("one that was brought back in other parts is the same", func(t *testing.T) {
		fresh, o := openS3(t, c), attempt(storage.Parquet, "all")
		m, err := fresh.Seal(t.Context(), o, []string{large(t)})
		require.NoError(t, err)
		key := aws.String("team/dagctl/" + m.Files[0].Path)
		got, err := srv.Client().GetObject(t.Context(), &s3.GetObjectInput{Bucket: &srv.Bucket, Key: key})
		require.NoError(t, err)
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		put, err := srv.Client().PutObject(t.Context(),
			&s3.PutObjectInput{Bucket: &srv.Bucket, Key: key, Body: bytes.NewReader(text)})
		require.NoError(t, err)
		require.NotEqual(t, m.Files[0].ETag, strings.Trim(*put.ETag, `"`))

		again := openS3(t, c) // whose cache is empty
		require.NoError(t, again.Verify(t.Context(), m))
		files, err := again.Open(t.Context(), o.Generation, []storage.Partition{{Key: "all", Files: m.Files}},
			t.TempDir())
		require.NoError(t, err)
		require.Contains(t, content(t, "SELECT count(*) AS n FROM FILES", files[0]...), "{'n': 400000}")
		taken := attempt(storage.Parquet, "all")
		taken.Generation.Dataset, taken.Generation.OrgSlug = o.Generation.Dataset, o.Generation.OrgSlug
		copied, err := again.TakeOver(t.Context(), nil, o.Generation, taken, 1, m)
		require.NoError(t, err)
		require.Equal(t, m.Files[0].SHA256, copied.Files[0].SHA256)
		require.NoError(t, again.Verify(t.Context(), copied))

		text[len(text)/2]++ // of the same size
		_, err = srv.Client().PutObject(t.Context(),
			&s3.PutObjectInput{Bucket: &srv.Bucket, Key: key, Body: bytes.NewReader(text)})
		require.NoError(t, err)
		require.ErrorContains(t, again.Verify(t.Context(), m), "in its manifest")
		_, err = openS3(t, c).Open(t.Context(), o.Generation, []storage.Partition{{Key: "all", Files: m.Files}},
			t.TempDir())
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	})

	t.Run("another object in its place is refused", func(t *testing.T) {
		fresh := openS3(t, c)
		o := attempt(storage.Parquet, "all")
		m, err := fresh.Seal(t.Context(), o, []string{parquet(t, "SELECT 1 AS x")})
		require.NoError(t, err)

		text, err := os.ReadFile(parquet(t, "SELECT 2 AS x"))
		require.NoError(t, err)
		require.Equal(t, int(m.Files[0].Bytes), len(text), "of the same size")

		_, err = srv.Client().PutObject(t.Context(),
			&s3.PutObjectInput{Bucket: &srv.Bucket, Key: aws.String("team/dagctl/" + m.Files[0].Path),
				Body: strings.NewReader(string(text))})
		require.NoError(t, err)
		require.ErrorContains(t, fresh.Verify(t.Context(), m), "in its manifest")

		_, err = openS3(t, c).Open(t.Context(), o.Generation, []storage.Partition{{Key: "all", Files: m.Files}},
			t.TempDir())
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	})
}

func TestS3Refuses(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	for name, test := range map[string]struct {
		change func(c *storage.S3Config)
		want   string
	}{
		"wrong secret":   {func(c *storage.S3Config) { c.SecretAccessKey += "x" }, "refuses to let this server"},
		"wrong key":      {func(c *storage.S3Config) { c.AccessKeyID = "AKIANOBODY" }, "No user exists"},
		"no such bucket": {func(c *storage.S3Config) { c.Bucket = "dagctl-nowhere" }, "does not exist"},
		"nobody there":   {func(c *storage.S3Config) { c.Endpoint = "http://127.0.0.1:1" }, "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := s3Config(srv)
			test.change(c)
			_, err := openS3(t, c).Seal(t.Context(), attempt(storage.Parquet, "all"),
				[]string{parquet(t, "SELECT 1 AS x")})
			require.ErrorContains(t, err, test.want)
			require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
			require.NotContains(t, err.Error(), c.SecretAccessKey)
		})
	}
}

func TestS3Config(t *testing.T) {
	t.Parallel()
	good := storage.S3Config{Bucket: "a-bucket", Prefix: "a/b"}
	require.NoError(t, good.Validate())

	for want, change := range map[string]func(c *storage.S3Config){
		"bucket":                  func(c *storage.S3Config) { c.Bucket = "" },
		"not a valid bucket name": func(c *storage.S3Config) { c.Bucket = "Not_A_Bucket" },
		"prefix":                  func(c *storage.S3Config) { c.Prefix = "/a" },
		`"a/*" is not valid`:      func(c *storage.S3Config) { c.Prefix = "a/*" },
		"is not valid":            func(c *storage.S3Config) { c.Prefix = "../a" },
		"go together":             func(c *storage.S3Config) { c.AccessKeyID = "x" },
		"too small":               func(c *storage.S3Config) { c.PartBytes = 1 },
		"cannot have -1":          func(c *storage.S3Config) { c.CacheBytes = -1 },
		"${aws:username}/a":       func(c *storage.S3Config) { c.Prefix = "${aws:username}/a" },
	} {
		c := good
		change(&c)
		err := c.Validate()
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
		require.ErrorContains(t, err, want)
		_, err = storage.New(storage.Config{Root: t.TempDir(), S3: &c})
		require.ErrorContains(t, err, want)
	}
}

// TestS3BrokenParts interrupts uploads in parts, by an error and by the end of the context.
func TestS3BrokenParts(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]bool{"a part is refused": true, "nobody waits any more": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := tests3.Start(t)
			c := s3Config(srv)
			ctx, cancel := context.WithCancelCause(t.Context())
			stopped := errors.New("the server stops")
			var broken atomic.Bool
			broken.Store(true)
			between(t, srv, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if broken.Load() && r.Method == http.MethodPut && r.URL.Query().Get("partNumber") == "2" {
					_, _ = io.Copy(io.Discard, r.Body)
					if !waits {
						cancel(stopped)
					}
					http.Error(w, "", http.StatusBadRequest)
					return
				}
				next.ServeHTTP(w, r)
			})

			s := openS3(t, c)
			a := attempt(storage.Parquet, "all")
			file := large(t)
			_, err := s.Seal(ctx, a, []string{file})
			if waits {
				require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
			} else {
				require.ErrorIs(t, err, stopped)
			}

			all, unfinished := keys(t, srv)
			require.Empty(t, all, "nothing can be seen of it")
			require.Zero(t, unfinished, "and nothing is left")

			broken.Store(false)
			m, err := s.Seal(t.Context(), a, []string{file})
			require.NoError(t, err)
			require.NoError(t, s.Verify(t.Context(), m))
		})
	}
}

// TestS3KilledBetween creates the leftovers of a server that is killed between seal and commit, or during a seal.
func TestS3KilledBetween(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	s := openS3(t, s3Config(srv))
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	_, err = srv.Client().CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: &srv.Bucket,
		Key: aws.String("team/dagctl/" + m.Location + "00001.parquet")})
	require.NoError(t, err)

	neighbor, err := s.Seal(t.Context(), attempt(storage.Parquet, "all"), []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	for range 2 {
		require.NoError(t, s.Discard(t.Context(), m.Location))
		all, unfinished := keys(t, srv)
		require.Equal(t, []string{"team/dagctl/" + neighbor.Files[0].Path}, all)
		require.Zero(t, unfinished)
	}
}

// TestS3ServerGoesAndComes kills the S3 server: acknowledged objects exist when it is back.
func TestS3ServerGoesAndComes(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	s := openS3(t, s3Config(srv))
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT 1 AS x")})
	require.NoError(t, err)

	key := uploadKey("x.parquet")
	up, err := s.PutUpload(t.Context(), key, strings.NewReader("kept"))
	require.NoError(t, err)

	srv.Kill()
	require.True(t, fault.Is(s.Verify(t.Context(), m), fault.Unavailable))
	srv.Restart()
	require.NoError(t, s.Verify(t.Context(), m))
	_, err = s.FetchUploads(t.Context(), key, []storage.Upload{up}, t.TempDir())
	require.NoError(t, err)
}

// TestS3AnswersThatBreakOff cuts the connection in the middle of objects.
func TestS3AnswersThatBreakOff(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	c := s3Config(srv)
	var left atomic.Int32
	between(t, srv, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && !r.URL.Query().Has("list-type") && left.Add(-1) >= 0 {
			half := httptest.NewRecorder()
			next.ServeHTTP(half, r)
			w.Header().Set("Content-Length", half.Header().Get("Content-Length"))
			w.Header().Set("ETag", half.Header().Get("ETag"))
			_, _ = w.Write(half.Body.Bytes()[:half.Body.Len()/2])
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})

	s := openS3(t, c)
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{parquet(t, "SELECT range AS x FROM range(10000)")})
	require.NoError(t, err)

	c.CacheBytes = 0
	fresh := openS3(t, c)
	left.Store(2)
	dir := t.TempDir()
	files, err := fresh.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: m.Files}}, dir)
	require.NoError(t, err)
	require.Contains(t, content(t, "SELECT count(*) AS n FROM FILES", files[0]...), "{'n': 10000}")

	left.Store(1000)
	dir = t.TempDir()
	_, err = fresh.Open(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: m.Files}}, dir)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)

	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries, "half a file is no file")
}

// counted counts the bytes read from the bucket's objects.
func counted(t *testing.T, srv *tests3.Server, c *storage.S3Config) (requests, bytes *atomic.Int64) {
	t.Helper()
	requests, bytes = new(atomic.Int64), new(atomic.Int64)
	between(t, srv, c, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && !r.URL.Query().Has("list-type") {
			requests.Add(1)
			w = &counting{ResponseWriter: w, bytes: bytes}
		}
		next.ServeHTTP(w, r)
	})
	return requests, bytes
}

type counting struct {
	http.ResponseWriter
	bytes *atomic.Int64
}

func (c *counting) Write(p []byte) (int, error) {
	c.bytes.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func TestS3PreviewReadsLittle(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	c := s3Config(srv)
	c.CacheBytes = 0
	_, bytes := counted(t, srv, c)
	s := openS3(t, c)
	a := attempt(storage.Parquet, "all")
	m, err := s.Seal(t.Context(), a, []string{large(t)})
	require.NoError(t, err)

	for _, test := range []struct {
		limit, offset int
		part          float64 // of the object's bytes that may be read
	}{
		{10, 0, 0.5}, {0, 0, 0.1}, {5, 130_000, 0.9}, {3, 399_990, 2},
	} {
		bytes.Store(0)
		columns, rows, err := s.Preview(t.Context(), a.Generation, []storage.Partition{{Key: "all", Files: m.Files}},
			test.limit, test.offset)
		require.NoError(t, err)
		require.Equal(t, m.Schema, columns)
		require.Len(t, rows, test.limit)
		for i, row := range rows {
			require.Equal(t, int64(test.offset+i), row[0])
		}
		require.Less(t, float64(bytes.Load()), test.part*float64(m.Bytes), "%+v", test)
	}
}

func TestS3Cache(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	c := s3Config(srv)
	requests, _ := counted(t, srv, c)
	first, second := attempt(storage.Parquet, "a"), attempt(storage.Parquet, "b")
	sealer := openS3(t, c)
	var manifests []storage.Manifest
	for _, a := range []storage.Attempt{first, second} {
		m, err := sealer.Seal(t.Context(), a, []string{parquet(t, "SELECT range AS x FROM range(20000)")})
		require.NoError(t, err)
		manifests = append(manifests, m)
	}

	read := func(s *storage.Storage, i int) []string {
		files, err := s.Open(t.Context(), []storage.Attempt{first, second}[i].Generation,
			[]storage.Partition{{Files: manifests[i].Files}}, t.TempDir())
		require.NoError(t, err)
		require.Contains(t, content(t, "SELECT count(*) AS n FROM FILES", files[0]...), "{'n': 20000}")
		return files[0]
	}

	read(sealer, 0)
	require.Zero(t, requests.Load(), "what was sealed here is here")

	root := t.TempDir()
	reopen := func(limit int64) *storage.Storage {
		c.CacheBytes = limit
		s, err := storage.New(storage.Config{Root: root, S3: c, Rows: enginetest.Engines()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}

	s := reopen(64 << 20)
	read(s, 0)
	read(s, 0)
	require.Equal(t, int64(1), requests.Load(), "read once")

	read(reopen(64<<20), 0)
	require.Equal(t, int64(1), requests.Load(), "and after a restart too")

	other := manifests[0].Files[0]
	other.ETag, other.SHA256 = strings.Repeat("0", 32), strings.Repeat("0", 64)
	_, err := s.Open(t.Context(), first.Generation, []storage.Partition{{Files: []storage.File{other}}}, t.TempDir())
	require.True(t, fault.Is(err, fault.Conflict), "another ETag is another object: %v", err)

	// The cache has room for one and a half objects.
	s = reopen(manifests[0].Bytes * 3 / 2)
	requests.Store(0)
	read(s, 0)
	require.Zero(t, requests.Load())

	s = reopen(manifests[0].Bytes * 2)
	held := read(s, 0)
	read(s, 1)
	s = reopen(manifests[0].Bytes * 3 / 2)
	require.FileExists(t, held[0], "who reads a file keeps it")

	entries, err := os.ReadDir(filepath.Join(root, ".cache"))
	require.NoError(t, err)
	require.Len(t, entries, 1)

	requests.Store(0)
	read(s, 1)
	require.Zero(t, requests.Load(), "what was read last stays")
}
