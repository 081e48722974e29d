package parquetexport

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	parquetfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

type fields = map[string]any

// world is a place to export to, as those see it who read it.
type world struct {
	op     *operator
	config fields
	server *tests3.Server // nil: it is a folder
	root   string
}

var version = uuid.New()

// worlds runs a test with a folder and with a bucket.
func worlds(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	s := tests3.Start(t)
	for _, name := range []string{"folder", "bucket"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{root: t.TempDir(), config: fields{"folder": "out"}}
			if name == "bucket" {
				w = &world{server: s, config: fields{"bucket": s.Bucket, "endpoint": s.Endpoint,
					"access_key_id": s.AccessKeyID, "secret_access_key": fields{"secret": "S3"}}}
			}
			w.config["path"] = strings.ToLower(uuid.NewString()[:8]) + "/day={partition}"
			op, err := New(operators.Options{AllowedAddresses: []string{"127.0.0.0/8"},
				ExportRoots: map[string][]string{"acme": {w.root}}})
			require.NoError(t, err)
			w.op = op.(*operator)
			test(t, w)
		})
	}
}

// task returns a task whose input is the rows of a query, as one revision of a partition.
func (w *world) task(t *testing.T, key string, revision int64, query string, more fields) *operators.Task {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1, TimeZone: "UTC"})
	require.NoError(t, err)
	defer session.Close()
	local := filepath.Join(t.TempDir(), "part.parquet")
	_, err = session.CopyToParquet(t.Context(), query, local)
	require.NoError(t, err)

	config := fields{}
	for _, from := range []fields{w.config, more} {
		for name, value := range from {
			config[name] = value
		}
	}
	input := operators.AssignedInput{As: "rows", Generation: storage.Generation{Version: version},
		Partitions: []storage.Partition{{Key: key, Revision: revision}}}
	task := &operators.Task{
		Assignment: operators.Assignment{TaskID: uuid.Must(uuid.NewV7()), Attempt: 1, OrgSlug: "acme", DAG: "d",
			Job: "j", Config: config, PartitionBy: dag.Partitioning{Kind: dag.ByKey},
			Partition: &operators.PartitionRange{Key: key}, Inputs: []operators.AssignedInput{input}},
		InputFiles: [][]string{{local}}, Scratch: t.TempDir(), Progress: func(int, string) {},
		Log: slog.New(slog.DiscardHandler)}
	if w.server != nil {
		task.Secrets = map[string]secret.Value{"S3": secret.New("S3", w.server.SecretAccessKey, []string{"http://*"})}
	}
	return task
}

// again returns the next attempt of a task.
func again(t *testing.T, task *operators.Task) *operators.Task {
	t.Helper()
	next := *task
	next.Attempt++
	next.Scratch = t.TempDir()
	return &next
}

// perform runs a task, with an engine that others get after it.
func (w *world) perform(t *testing.T, task *operators.Task) (operators.Result, error) {
	t.Helper()
	defer task.Use(enginetest.Engines())()
	return w.op.Run(t.Context(), task)
}

func (w *world) run(t *testing.T, task *operators.Task) exported {
	t.Helper()
	result, err := w.perform(t, task)
	require.NoError(t, err)
	var done exported
	require.NoError(t, json.Unmarshal(result.Result, &done))
	return done
}

func (w *world) fails(t *testing.T, task *operators.Task, message string) {
	t.Helper()
	_, err := w.perform(t, task)
	require.ErrorContains(t, err, message)
	require.True(t, operators.IsPermanent(err), "%v", err)
}

// names returns the names of the files of a partition, without those that nobody reads.
func (w *world) names(t *testing.T, key string) (names []string) {
	t.Helper()
	dir := strings.ReplaceAll(w.config["path"].(string), "{partition}", escape(key))
	if w.server == nil {
		entries, err := os.ReadDir(filepath.Join(w.root, "out", dir))
		require.NoError(t, err)
		for _, entry := range entries {
			names = append(names, entry.Name())
		}
	} else {
		prefix := dir + "/"
		page, err := w.server.Client().ListObjectsV2(t.Context(), &s3.ListObjectsV2Input{Bucket: &w.server.Bucket,
			Prefix: &prefix})
		require.NoError(t, err)
		for _, o := range page.Contents {
			names = append(names, strings.TrimPrefix(*o.Key, prefix))
		}
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == lockName || name == claimName })
}

// content returns a file of a partition; nil: there is none.
func (w *world) content(t *testing.T, key, name string) []byte {
	t.Helper()
	full := path.Join(strings.ReplaceAll(w.config["path"].(string), "{partition}", escape(key)), name)
	if w.server == nil {
		content, err := os.ReadFile(filepath.Join(w.root, "out", full))
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return content
	}
	got, err := w.server.Client().GetObject(context.WithoutCancel(t.Context()),
		&s3.GetObjectInput{Bucket: &w.server.Bucket, Key: &full})
	if err != nil {
		require.ErrorContains(t, err, "NoSuchKey")
		return nil
	}
	defer got.Body.Close()
	content, err := io.ReadAll(got.Body)
	require.NoError(t, err)
	return content
}

// manifest returns that of a partition, and checks that the files are as it says.
func (w *world) manifest(t *testing.T, key string) (m manifest) {
	t.Helper()
	require.NoError(t, json.Unmarshal(w.content(t, key, manifestName), &m))
	for _, f := range m.Files {
		content := w.content(t, key, f.Name)
		bytes, hash, err := hashOf(bytes.NewReader(content))
		require.NoError(t, err)
		require.Equal(t, f.Bytes, bytes)
		require.Equal(t, f.SHA256, hash)
	}
	return m
}

// rows reads a Parquet file as others do, without DuckDB: each row as JSON.
func rows(t *testing.T, content []byte) (lines []string, schema string) {
	t.Helper()
	reader, err := parquetfile.NewParquetReader(bytes.NewReader(content))
	require.NoError(t, err)
	defer reader.Close()
	arrow, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{BatchSize: 1000}, memory.DefaultAllocator)
	require.NoError(t, err)
	table, err := arrow.ReadTable(t.Context())
	require.NoError(t, err)
	defer table.Release()

	columns := make([][]string, table.NumCols())
	for i := range int(table.NumCols()) {
		for _, chunk := range table.Column(i).Data().Chunks() {
			for at := range chunk.Len() {
				columns[i] = append(columns[i], chunk.ValueStr(at))
			}
		}
	}
	for at := range int(table.NumRows()) {
		var values []string
		for i := range columns {
			values = append(values, columns[i][at])
		}
		lines = append(lines, strings.Join(values, " | "))
	}
	return lines, table.Schema().String()
}

// number returns what is in the only row of a partition that is one file.
func (w *world) number(t *testing.T, key string) string {
	t.Helper()
	content := w.content(t, key, wholeName)
	if content == nil {
		return ""
	}
	lines, _ := rows(t, content)
	return strings.Join(lines, ",")
}

// listed returns the rows of the files that the manifest of a partition lists.
func (w *world) listed(t *testing.T, key string) string {
	t.Helper()
	if w.content(t, key, manifestName) == nil {
		return ""
	}
	var all []string
	for _, f := range w.manifest(t, key).Files {
		lines, _ := rows(t, w.content(t, key, f.Name))
		all = append(all, lines...)
	}
	return strings.Join(all, ",")
}

func one(n int) string { return fmt.Sprintf("SELECT %d AS n", n) }

func several(n int) string { return fmt.Sprintf("SELECT %d * 10 + range AS n FROM range(3)", n) }
