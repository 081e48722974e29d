package dispatcher_test

import (
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
)

const bucketDAG = `
name: lake
jobs:
  - name: raw
    operator: s3_source
    source: { kind: poll, every: 1h }
    partition_by: { time: day }
    config:
      { bucket: BUCKET, prefix: in/, pattern: "{date}/*.csv", format: csv, endpoint: "ENDPOINT",
        access_key_id: { secret: ID }, secret_access_key: { secret: KEY }, ascending_keys: true, list_all_every: 100h }
  - name: sums
    operator: sql
    inputs: [{ from: { job: raw } }]
    partition_by: { time: day }
    config: { query: SELECT sum(n)::BIGINT AS total FROM raw }
publish:
  lake_sums: { from: { job: sums } }
`

// Objects become partitions as files do. The position of the listing is kept with the tasks that it made, and whoever
// asks for a source to be read has everything listed.
func TestObjectsOfABucketFlow(t *testing.T) {
	t.Parallel()
	w, s := dispatchertest.NewWorld(t), tests3.Start(t)
	put := func(key, content string) {
		t.Helper()
		_, err := s.Client().PutObject(t.Context(), &s3.PutObjectInput{Bucket: &s.Bucket, Key: &key,
			Body: strings.NewReader(content)})
		require.NoError(t, err)
	}
	expect := func(what string, want map[string][]string) {
		t.Helper()
		w.Poll()
		w.Settle()
		require.Equal(t, want, w.Read("lake_sums"), what)
	}
	after := func() (key string) {
		t.Helper()
		w.Row(`SELECT coalesce(position->>'after', '') FROM enumerations`)(&key)
		return key
	}
	document := strings.NewReplacer("BUCKET", s.Bucket, "ENDPOINT", s.Endpoint).Replace(bucketDAG)
	to := authz.Binding{AddJobs: []string{"lake/raw"}, AddHosts: []string{s.Endpoint}}
	w.Secret("ID", s.AccessKeyID, to)
	w.Secret("KEY", s.SecretAccessKey, to)
	_, err := w.TryDeploy(dispatchertest.Edit(document, s.Endpoint, "https://s3.example.com"))
	require.True(t, fault.Is(err, fault.Invalid) || fault.Is(err, fault.Forbidden), "%v", err)
	require.ErrorContains(t, err, "s3.example.com")

	put("in/2026-01-01/a.csv", "n\n1\n")
	put("in/2026-01-01/b.csv", "n\n2\n")
	put("in/2026-01-02/a.csv", "n\n10\n")
	w.Serve(document)
	want := map[string][]string{"2026-01-01": {"3"}, "2026-01-02": {"10"}}
	require.Equal(t, want, w.Read("lake_sums"))
	expect("nothing new", want)
	require.Equal(t, "in/2026-01-01/b.csv", after())

	put("in/2026-01-02/b.csv", "n\n5\n")
	put("in/2026-01-03/a.csv", "n\n7\n")
	want["2026-01-02"], want["2026-01-03"] = []string{"15"}, []string{"7"}
	expect("new objects", want)
	expect("nothing new", want)
	require.Equal(t, "in/2026-01-02/b.csv", after())
	require.Equal(t, 1, w.Count(`SELECT FROM enumerations WHERE units = 3`))

	// Before the position, objects are found by a listing of everything.
	put("in/2026-01-01/a.csv", "n\n100\n")
	expect("an object that was overwritten before the position", want)
	_, err = w.D.Sources.ReadNow(t.Context(), w.Caller, "lake", "raw", time.Now())
	require.NoError(t, err)
	want["2026-01-01"] = []string{"102"}
	expect("the same, once somebody asks", want)

	// An object that cannot be read holds the position until it can.
	put("in/2026-01-04/a.csv", "n\nnot a number\n")
	put("in/2026-01-05/a.csv", "n\n9\n")
	want["2026-01-05"] = []string{"9"}
	for range 5 {
		expect("a bad object", want)
		w.Promote(dispatchertest.Later(time.Hour))
	}
	w.Poll()
	require.Equal(t, "in/2026-01-03/a.csv", after())
	put("in/2026-01-04/a.csv", "n\n8\n")
	want["2026-01-04"] = []string{"8"}
	expect("it is mended", want)
	w.Poll()
	require.Equal(t, "in/2026-01-04/a.csv", after())

	// A position is that of a version: another one begins with a listing of everything.
	w.Serve(dispatchertest.Edit(document, "list_all_every: 100h", "list_all_every: 200h"))
	expect("a new version", want)
	require.Zero(t, w.Count(`SELECT FROM waiting`))
}
