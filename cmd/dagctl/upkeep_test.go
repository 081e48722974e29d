package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher"
	"github.com/dagctl/dagctl/dispatcher/control"
	"github.com/dagctl/dagctl/dispatcher/upkeep"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/registry/deploy"
)

func TestPinAndGC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)

	require.Contains(t, must(t, env, "pin", "readings", "v1", "--until", "2099-03-31", "--reason", "annual report"),
		"until 2099-04-01 00:00 UTC")
	pins := decode[[]registry.VersionPin](t, env, "pin", "readings")
	require.Len(t, pins, 1)
	require.Equal(t, "annual report", pins[0].Reason)
	require.Contains(t, must(t, env, "pin", "readings"), "annual report")
	must(t, env, "unpin", "readings", "v1")
	require.Equal(t, cli.ExitConflict, dagctl(t, env, "unpin", "readings", "v1").code)
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "pin", "readings", "v1", "--until", "soon").code)
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "pin", "readings", "v9").code)

	require.Contains(t, dagctl(t, env, "gc").err, "admin", "gc is for admins")
	found := decode[upkeep.Garbage](t, w.env(t, admin), "gc", "--dry-run")
	require.True(t, found.DryRun)
	require.Empty(t, found.Generations)
	require.Contains(t, must(t, w.env(t, admin), "gc"), "Removed 0 dataset versions")
}

func TestRematerializeCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)
	dry := decode[[]deploy.Rematerialized](t, env, "rematerialize", "daily_highest", "--dry-run")
	require.Nil(t, dry[0].Version)
	done := dagctl(t, env, "rematerialize", "daily_highest")
	require.Zero(t, done.code, done.err)
	require.Contains(t, done.err, "forced")
	require.Contains(t, done.out, "readings v2")
	require.Contains(t, done.out, "Active")
	require.Equal(t, []string{"2026-01-01", "2026-01-02"}, w.partitions(t, "daily_highest"))
	file := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(file, []byte(readingsDAG), 0o600))
	require.Zero(t, dagctl(t, env, "plan", file, "--detailed-exitcode").code, "the same file is the same version")

	purge := dagctl(t, w.env(t, admin), "datasets", "purge", "readings/landing/0", "--partitions", "2026-01-01",
		"--reason", "request 17", "--break-window", "--yes")
	require.Zero(t, purge.code, purge.err)
	refused := dagctl(t, env, "rematerialize", "daily_highest")
	require.Equal(t, cli.ExitConflict, refused.code)
	require.Contains(t, refused.err, "daily_highest would lose 1 partition")
	planned := dagctl(t, env, "rematerialize", "daily_highest", "--dry-run")
	require.Contains(t, planned.err, "This deploy needs --allow-removals: restore what they are made from.")
	allowed := dagctl(t, env, "rematerialize", "daily_highest", "--allow-removals")
	require.Zero(t, allowed.code, allowed.err)
	require.Equal(t, []string{"2026-01-02"}, w.partitions(t, "daily_highest"))
}

// A saved plan has its document and its bound: a flag that would change them is refused, not ignored.
func TestASavedPlanRefusesWhatItFixes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)
	file := filepath.Join(t.TempDir(), "dag.yaml")
	edited := strings.Replace(readingsDAG, "max(celsius)", "max(celsius) + 0", 1)
	require.NoError(t, os.WriteFile(file, []byte(edited), 0o600))
	saved := filepath.Join(t.TempDir(), "readings.plan")
	must(t, env, "plan", file, "--out", saved)

	for flag, args := range map[string][]string{
		"--forward-only": {"--forward-only"},
		"--var":          {"--var", "region=eu"},
	} {
		refused := dagctl(t, env, append([]string{"deploy", saved}, args...)...)
		require.Equal(t, cli.ExitFailed, refused.code)
		require.Contains(t, refused.err, "is a saved plan, which "+flag+" cannot change")
		require.Contains(t, refused.err, "--out "+saved)
	}
	require.Contains(t, must(t, env, "deploy", saved), "readings v2")
}

// A key that looks like a range is that partition, and not what lies between its halves.
func TestPurgeOfAKeyLikeARange(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "x", handDAG))
	for _, key := range []string{"a", "a..c", "b"} {
		must(t, env, "run", "hand/note", "--partition", key, "--watch")
	}
	must(t, env, "datasets", "purge", "notes", "--partition", "a..c", "--reason", "request 17", "--yes")
	require.Equal(t, []string{"a", "b"}, w.partitions(t, "notes"))
	must(t, env, "datasets", "purge", "notes", "--partition", "a..b", "--reason", "request 17", "--yes")
	require.Empty(t, w.partitions(t, "notes"))
}

func TestPurgeCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	args := []string{"datasets", "purge", "daily_highest", "--partitions", "2026-01-01"}
	require.Contains(t, dagctl(t, w.env(t, admin), args...).err, "reason")
	args = append(args, "--reason", "request 17")
	require.Equal(t, cli.ExitFailed, dagctl(t, w.env(t, writer), append(args, "--yes")...).code, "purge is for admins")
	dry := decode[upkeep.Purged](t, w.env(t, admin), append(args, "--dry-run")...)
	require.Len(t, dry.Partitions, 1)
	require.Contains(t, dagctl(t, w.env(t, admin), args...).err, "--yes", "nobody is there to confirm")
	require.Equal(t, []string{"2026-01-01", "2026-01-02"}, w.partitions(t, "daily_highest"))
	require.Contains(t, must(t, w.env(t, admin), append(args, "--yes")...), "Deleted 1 partition")
	require.Equal(t, []string{"2026-01-02"}, w.partitions(t, "daily_highest"))
	var audit struct{ Items []authz.AuditEntry }
	require.NoError(t, w.as(admin).Get(t.Context(), "/v1/audit?action=dataset.purge", nil, &audit))
	require.Len(t, audit.Items, 1)
	var detail map[string]any
	require.NoError(t, json.Unmarshal(audit.Items[0].Detail, &detail))
	require.Equal(t, "request 17", detail["reason"])
}

func TestDeleteCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, writer)
	plan := decode[deploy.Deletion](t, env, "delete", "readings", "--dry-run")
	require.Equal(t, "daily_highest", plan.Datasets[0].Name)
	require.Contains(t, dagctl(t, env, "delete", "readings").err, "--yes")
	require.Contains(t, must(t, env, "delete", "readings", "--yes"), "readings is deleted")
	require.Contains(t, dagctl(t, env, "datasets", "get", "daily_highest").err, "no dataset")
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "delete", "readings", "--yes").code)
	require.Contains(t, must(t, env, "history", "readings"), "v1 ")
	must(t, env, "rollback", "readings", "--to", "v1", "--yes")
	require.Equal(t, []string{"2026-01-01"}, w.partitions(t, "daily_highest"))
}

func TestDoctorVerifiesFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, admin)
	whole := dagctl(t, env, "doctor", "--verify-files")
	require.Zero(t, whole.code, whole.out+whole.err)
	require.Contains(t, whole.out, "2 committed revisions: no file is missing")
	removed := ""
	require.NoError(t, filepath.WalkDir(w.files, func(path string, e fs.DirEntry, err error) error {
		if err == nil && removed == "" && strings.HasSuffix(path, ".parquet") {
			removed = path
			return os.Remove(path)
		}
		return err
	}))
	require.NotEmpty(t, removed)
	short := dagctl(t, env, "doctor", "--verify-files")
	require.Equal(t, cli.ExitFailed, short.code)
	require.Contains(t, short.out, "is missing from the storage")
	require.Contains(t, short.out, "dagctl rematerialize")
}

// TestLostFilesAreNamed: who reads rows whose file is damaged, cut short or gone hears of the dataset and what helps.
func TestLostFilesAreNamed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01")
	env := w.env(t, reader)
	var files []string
	require.NoError(t, filepath.WalkDir(w.files, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".parquet") {
			files = append(files, path)
		}
		return err
	}))
	require.NotEmpty(t, files)
	each := func(change func(file string, size int64) error) {
		for _, file := range files {
			info, err := os.Stat(file)
			require.NoError(t, err)
			require.NoError(t, change(file, info.Size()))
		}
	}
	read := func(want string, commands ...[]string) {
		t.Helper()
		for _, command := range commands {
			r := dagctl(t, env, command...)
			require.NotZero(t, r.code, command)
			require.Contains(t, r.err, "a file of dataset daily_highest@2026-01-01 cannot be read", command)
			require.NotContains(t, r.err, w.files, command)
			require.Contains(t, r.err, want, command)
			require.Contains(t, r.err, "dagctl rematerialize daily_highest", command)
		}
	}
	preview, asked := []string{"datasets", "preview", "daily_highest"}, []string{"query", "FROM daily_highest"}
	export := []string{"datasets", "export", "daily_highest", "-o", "-", "--format", "csv"}

	each(func(file string, size int64) error { // a page of it, below a footer that is sound
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.Chmod(file, 0o600))
		copy(content[4:], bytes.Repeat([]byte{0xff}, 64))
		return os.WriteFile(file, content, 0o600)
	})
	read("its bytes are not those that were written", preview, asked, export)
	each(func(file string, size int64) error { return os.WriteFile(file, make([]byte, size), 0o600) })
	read("its bytes are not those that were written", preview, asked, export)
	each(func(file string, size int64) error { return os.Truncate(file, size/2) })
	read("", preview)
	read("is damaged: it has", asked, export)
	each(func(file string, _ int64) error { return os.Remove(file) })
	read("is missing from the storage", preview, asked, export)
}

// TestAStatementOpensOnlyThePartitionsThatItReads: a condition on _partition keeps the files of the others closed,
// which may be gone.
func TestAStatementOpensOnlyThePartitionsThatItReads(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, reader)
	require.NoError(t, filepath.WalkDir(w.files, func(path string, _ fs.DirEntry, err error) error {
		if strings.Contains(path, "2026-01-01") && strings.HasSuffix(path, ".parquet") {
			return os.Remove(path)
		}
		return err
	}))

	require.NotZero(t, dagctl(t, env, "query", "FROM daily_highest").code)
	for where, rows := range map[string]string{
		"_partition = '2026-01-02'":                                "2",
		"d._partition > '2026-01-01' AND station = 'summit'":       "1",
		"_partition IN ('2026-01-02', '2026-01-03')":               "2",
		"_partition BETWEEN '2026-01-02' AND '2026-02'":            "2",
		"_partition = '2026-01-03'":                                "0",
		"station = 'summit' AND (_partition LIKE '2026-01-02%')":   "1",
		"_partition <> '2026-01-01' AND '2026-01-01' < _partition": "2",
	} {
		counted := must(t, env, "query", "SELECT count(*) AS n FROM daily_highest AS d WHERE "+where)
		require.Equal(t, "n\n"+rows, strings.TrimSpace(counted), where)
	}
	export := must(t, env, "datasets", "export", "daily_highest", "-o", "-", "--format", "csv", "--where",
		"_partition = '2026-01-02'")
	require.Equal(t, 3, strings.Count(export, "\n"), export)
}

// handWholeDAG has, besides, a manual job without partitions, and one that appends.
func handWholeDAG() string {
	const job = `  - name: %s
    operator: command
    source: { kind: manual }
%s    config:
      argv:
        - /bin/sh
        - -c
        - |
          printf 'n\n1\n' >"$(sed 's/.*"dir": *"\([^"]*\)".*/\1/')/rows.csv"
`
	more := "jobs:\n" + fmt.Sprintf(job, "all", "") +
		fmt.Sprintf(job, "more", "    update_strategy: append\n    unique_key: [n]\n")
	text := strings.Replace(handDAG, "jobs:\n", more, 1)
	return text + "  whole: { from: { job: all } }\n  appended: { from: { job: more } }\n"
}

// TestLostFilesOfManualJobs: a rebuild does not begin again what a person began, so people are told to do that.
func TestLostFilesOfManualJobs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	env := w.env(t, admin)
	must(t, env, "deploy", writeDAG(t, t.TempDir(), "hand", handWholeDAG()))
	for _, job := range []string{"all", "more"} {
		must(t, env, "run", "hand/"+job, "--watch")
	}
	must(t, env, "run", "hand/note", "--partition", "a", "--watch")
	require.NoError(t, filepath.WalkDir(w.files, func(path string, e fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".parquet") {
			return os.Remove(path)
		}
		return err
	}))

	again := "run `dagctl run hand/note --partition a`, with the payload that it had, if any"
	doctor := dagctl(t, env, "doctor", "--verify-files").out
	require.Contains(t, doctor, "restore the file, or "+again)
	require.Contains(t, doctor, "restore the file, or run `dagctl rematerialize counted`")
	require.Contains(t, dagctl(t, env, "datasets", "preview", "notes", "--partition", "a").err, again)
	require.Contains(t, dagctl(t, env, "query", "FROM notes").err, again)
	require.Contains(t, dagctl(t, env, "query", "FROM counted").err, "run `dagctl rematerialize counted`")

	whole := dagctl(t, env, "query", "FROM whole").err
	require.Contains(t, whole, "or run `dagctl run hand/all`, with the payload")
	appended := dagctl(t, env, "query", "FROM appended").err
	require.Contains(t, appended, "an admin can restore it; ", "a run appends to what is gone")
	require.NotContains(t, doctor, "rematerialize appended")

	must(t, env, "run", "hand/note", "--partition", "a", "--watch")
	must(t, env, "run", "hand/all", "--watch")
	require.Contains(t, dagctl(t, env, "doctor", "--verify-files").out, "1 of 4 committed revisions lack files")
	require.Contains(t, must(t, env, "query", "FROM counted"), "1")
}

// TestDoctorVerifiesObjects: doctor finds objects that are missing, and objects of the right size with other content.
func TestDoctorVerifiesObjects(t *testing.T) {
	t.Parallel()
	bucket := tests3.Start(t)
	w := newWorld(t, func(c *server.Config) {
		c.Storage.S3 = &server.S3Config{Bucket: bucket.Bucket, Region: bucket.Region,
			Endpoint: bucket.Endpoint, PathStyle: true,
			AccessKeyID: bucket.AccessKeyID, SecretAccessKey: bucket.SecretAccessKey}
	})
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, admin)
	require.Contains(t, must(t, env, "doctor", "--verify-files"), "4 committed revisions: no file is missing")

	client := bucket.Client()
	list, err := client.ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &bucket.Bucket})
	require.NoError(t, err)
	var objects []types.Object
	for _, o := range list.Contents {
		if strings.HasSuffix(*o.Key, ".parquet") {
			objects = append(objects, o)
		}
	}
	require.Len(t, objects, 4)
	changed, gone := objects[0], objects[3]
	_, err = client.PutObject(t.Context(), &s3.PutObjectInput{Bucket: &bucket.Bucket, Key: changed.Key,
		Body: bytes.NewReader(make([]byte, *changed.Size))})
	require.NoError(t, err)
	_, err = client.DeleteObject(t.Context(), &s3.DeleteObjectInput{Bucket: &bucket.Bucket, Key: gone.Key})
	require.NoError(t, err)
	r := dagctl(t, env, "doctor", "--verify-files")
	require.Equal(t, cli.ExitFailed, r.code)
	require.Contains(t, r.out, "2 of 4 committed revisions lack files")
	require.Contains(t, r.out, *gone.Key+" is missing from bucket")
	require.Contains(t, r.out, fmt.Sprintf("object %s has %d bytes and ETag", *changed.Key, *changed.Size))
	require.Contains(t, r.out, "dagctl rematerialize")
}

func TestInvalidateCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)
	require.Contains(t, dagctl(t, env, "invalidate", "daily_highest").err, "either --partition or --range")
	made := decode[[]dispatcher.Invalidated](t, env, "invalidate", "daily_highest", "--range", "2026-01-01..2026-01-31",
		"--reason", "correction")
	require.Len(t, made, 2)
	require.Equal(t, int64(2), made[0].Revision)
	require.Contains(t, must(t, w.env(t, admin), "audit", "list"), "dataset.invalidate")
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "invalidate", "daily_highest", "--partition", "1999-01-01").code)
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "invalidate", "daily_highest", "--partition", "2026-01-01",
		"--reason", "whim").code)
}

func TestBackfillCommand(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.deployReadings(t, "2026-01-01", "2026-01-02")
	env := w.env(t, writer)
	args := []string{"backfill", "readings/daily", "--from", "2026-01-01", "--to", "2026-01-31"}
	require.Contains(t, dagctl(t, env, "backfill", "readings", "--from", "a", "--to", "b").err, "write DAG/JOB")
	done := decode[control.Backfill](t, env, append(args, "--existing", "all")...)
	require.Equal(t, "Completed", done.Status)
	require.Equal(t, 2, done.Done)
	require.Zero(t, decode[control.Backfill](t, env, args...).Done, "everything is there")
	require.Len(t, decode[[]control.Backfill](t, env, "backfill", "list", "readings"), 2)
	require.Equal(t, cli.ExitConflict, dagctl(t, env, "backfill", "cancel", "readings", done.ID.String()).code)
	require.Equal(t, cli.ExitFailed, dagctl(t, env, "backfill", "readings/note", "--from", "all", "--to", "all").code)
}
