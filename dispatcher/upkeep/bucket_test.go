package upkeep_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/storage"
)

// objects returns the keys of a bucket.
func objects(t *testing.T, srv *tests3.Server) (names []string) {
	t.Helper()
	out, err := srv.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &srv.Bucket})
	require.NoError(t, err)
	for _, o := range out.Contents {
		names = append(names, *o.Key)
	}
	return names
}

// TestSameRowsInABucket computes one DAG with files and with a bucket: built, deployed again, rolled back and cleaned
// up.
func TestSameRowsInABucket(t *testing.T) {
	t.Parallel()
	srv := tests3.Start(t)
	worlds := []*dispatchertest.World{dispatchertest.NewWorld(t), dispatchertest.NewWorld(t,
		dispatchertest.InBucket(srv))}
	same := func() map[string][]string {
		t.Helper()
		rows := worlds[0].Read("letters_made")
		require.NotEmpty(t, rows)
		require.Equal(t, rows, worlds[1].Read("letters_made"))
		return rows
	}
	for _, w := range worlds {
		w.Probe.Put("raw", "2024-01-01", "a")
		w.Probe.Put("raw", "2024-01-02", "b")
		w.Deploy(dispatchertest.Upkept)
		w.Settle()
	}
	before := same()
	for _, w := range worlds {
		w.Probe.Put("raw", "2024-01-02", "c")
		w.Poll()
		w.Settle()
		w.Deploy(dispatchertest.Tagged("two"))
		w.Settle()
	}
	require.NotEqual(t, before, same())
	require.NotEmpty(t, objects(t, srv))
	for _, file := range worlds[1].Named() {
		require.Contains(t, objects(t, srv), file)
	}
	require.Equal(t, worlds[1].Count(`SELECT FROM partition_versions WHERE jsonb_array_length(files) > 0`),
		worlds[1].Count(`SELECT FROM partition_versions p, jsonb_array_elements(p.files) AS f WHERE f ->> 'etag' <> ''`), "each file with its ETag")

	for _, w := range worlds {
		_, err := w.D.Upkeep.CollectGarbage(t.Context(), w.Caller, false, time.Now().Add(dispatchertest.PastWindow))
		require.NoError(t, err)
	}
	named := worlds[1].Named()
	require.Equal(t, named, slices.Sorted(slices.Values(objects(t, srv))), "what rows name is what is there")
	same()
}

// TestGCOfUploads removes the uploads of recorded attempts, and uploads that belong to no record.
func TestGCOfUploads(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	upload := func(task uuid.UUID, attempt int) {
		t.Helper()
		_, err := w.Storage.PutUpload(t.Context(), storage.UploadKey{Org: w.Caller.OrgID, Task: task, Attempt: attempt,
			Name: "x.parquet"}, strings.NewReader("x"))
		require.NoError(t, err)
	}
	left := func() (attempts []storage.UploadedAttempt) {
		t.Helper()
		attempts, err := w.Storage.UploadedAttempts(t.Context(), w.Caller.OrgID)
		require.NoError(t, err)
		for i := range attempts {
			attempts[i].Newest = time.Time{}
		}
		return attempts
	}
	w.Probe.Put("raw", "2024-01-01", "a")
	w.Deploy(dispatchertest.Upkept)
	w.Advance()
	running := w.One(w.D)
	unknown, task := uuid.New(), running.Assignment.TaskID
	upload(task, 1)
	upload(unknown, 1)
	other := w.Org("other")
	_, err := w.Storage.PutUpload(t.Context(), storage.UploadKey{Org: other.Caller.OrgID, Task: task, Attempt: 1,
		Name: "x.parquet"}, strings.NewReader("x"))
	require.NoError(t, err)

	require.Zero(t, w.GC(time.Now()).Uploads,
		"an upload may be older than its task's row, as far as one can tell from here")
	require.Equal(t, 1, w.GC(time.Now().Add(dispatchertest.PastWindow)).Uploads, "nobody knows its task")
	require.Equal(t, []storage.UploadedAttempt{{Task: task, Attempt: 1}}, left(), "it runs")

	w.Reap(time.Now().Add(time.Minute))
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Uploads, "a late completion still counts")
	w.Promote(time.Now().Add(2 * time.Hour))
	w.Settle()
	upload(task, 2) // with credentials that outlived the lease
	require.Equal(t, 2, w.GC(time.Now().Add(dispatchertest.PastWindow)).Uploads)
	require.Empty(t, left())
	require.Zero(t, w.GC(time.Now().Add(dispatchertest.PastWindow)).Uploads)
	theirs, err := w.Storage.UploadedAttempts(t.Context(), other.Caller.OrgID)
	require.NoError(t, err)
	require.Len(t, theirs, 1, "another org's stay for its own gc")
}
