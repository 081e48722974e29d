package dispatcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

// inBucket has a world's Parquet in a bucket.
func inBucket(srv *tests3.Server) func(*storage.Config) {
	return func(c *storage.Config) {
		c.S3 = &storage.S3Config{Bucket: srv.Bucket, Endpoint: srv.Endpoint, PathStyle: true, AccessKeyID: srv.AccessKeyID, SecretAccessKey: srv.SecretAccessKey}
	}
}

// objects are the keys of a bucket.
func objects(t *testing.T, srv *tests3.Server) (names []string) {
	t.Helper()
	out, err := srv.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &srv.Bucket})
	require.NoError(t, err)
	for _, o := range out.Contents {
		names = append(names, *o.Key)
	}
	return names
}

// TestSameRowsInABucket has one DAG computed with files and with a bucket: built, deployed again, rolled back and cleaned up.
func TestSameRowsInABucket(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	worlds := []*world{newWorld(t), newWorld(t, inBucket(srv))}
	same := func() map[string][]string {
		t.Helper()
		rows := worlds[0].read("letters_made")
		require.NotEmpty(t, rows)
		require.Equal(t, rows, worlds[1].read("letters_made"))
		return rows
	}
	for _, w := range worlds {
		w.probe.put("raw", "2024-01-01", "a")
		w.probe.put("raw", "2024-01-02", "b")
		w.deploy(upkept)
		w.settle()
	}
	before := same()
	for _, w := range worlds {
		w.probe.put("raw", "2024-01-02", "c")
		w.poll()
		w.settle()
		w.deploy(tagged("two"))
		w.settle()
	}
	require.NotEqual(t, before, same())
	require.NotEmpty(t, objects(t, srv))
	for _, file := range worlds[1].named() {
		require.Contains(t, objects(t, srv), file)
	}
	require.Equal(t, worlds[1].count(`SELECT FROM partition_versions WHERE jsonb_array_length(files) > 0`),
		worlds[1].count(`SELECT FROM partition_versions p, jsonb_array_elements(p.files) AS f WHERE f ->> 'etag' <> ''`), "each file with its ETag")

	for _, w := range worlds {
		_, err := w.d.CollectGarbage(t.Context(), w.caller, false, time.Now().Add(pastWindow))
		require.NoError(t, err)
	}
	named := worlds[1].named()
	require.Equal(t, named, slices.Sorted(slices.Values(objects(t, srv))), "what rows name is what is there")
	same()
}

// TestGCOfUploads removes uploads by their attempt's record, and those that no record knows.
func TestGCOfUploads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	upload := func(task uuid.UUID, attempt int) {
		t.Helper()
		_, err := w.storage.PutUpload(t.Context(), storage.UploadKey{Org: w.caller.OrgID, Task: task, Attempt: attempt, Name: "x.parquet"}, strings.NewReader("x"))
		require.NoError(t, err)
	}
	left := func() (attempts []storage.UploadedAttempt) {
		t.Helper()
		attempts, err := w.storage.UploadedAttempts(t.Context(), w.caller.OrgID)
		require.NoError(t, err)
		for i := range attempts {
			attempts[i].Newest = time.Time{}
		}
		return attempts
	}
	w.probe.put("raw", "2024-01-01", "a")
	w.deploy(upkept)
	w.advance()
	running := w.one(w.d)
	unknown, task := uuid.New(), running.assignment.TaskID
	upload(task, 1)
	upload(unknown, 1)
	other := w.org("other")
	_, err := w.storage.PutUpload(t.Context(), storage.UploadKey{Org: other.caller.OrgID, Task: task, Attempt: 1, Name: "x.parquet"}, strings.NewReader("x"))
	require.NoError(t, err)

	require.Zero(t, w.gc(time.Now()).Uploads, "an upload may be older than its task's row, as far as one can tell from here")
	require.Equal(t, 1, w.gc(time.Now().Add(pastWindow)).Uploads, "nobody knows its task")
	require.Equal(t, []storage.UploadedAttempt{{Task: task, Attempt: 1}}, left(), "it runs")

	w.reap(time.Now().Add(time.Minute))
	require.Zero(t, w.gc(time.Now().Add(pastWindow)).Uploads, "a late completion still counts")
	w.promote(time.Now().Add(2 * time.Hour))
	w.settle()
	upload(task, 2) // with credentials that outlived the lease
	require.Equal(t, 2, w.gc(time.Now().Add(pastWindow)).Uploads)
	require.Empty(t, left())
	require.Zero(t, w.gc(time.Now().Add(pastWindow)).Uploads)
	theirs, err := w.storage.UploadedAttempts(t.Context(), other.caller.OrgID)
	require.NoError(t, err)
	require.Len(t, theirs, 1, "another org's stay for its own gc")
}
