package dispatcher_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/tests3"
)

const shared = `
name: work
jobs:
  - name: numbers
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: { time: day }
    config: { path: ., pattern: "{date}.csv", format: csv, header: true, types: { n: INTEGER } }
  - name: shared
    operator: parquet_export
    outputs: 0
    inputs: [{ from: { job: numbers } }]
    partition_by: { time: day }
    config:
      { bucket: BUCKET, endpoint: "ENDPOINT", access_key_id: KEY, secret_access_key: { secret: S3 },
        path: "numbers/day={partition}" }
publish:
  shared_numbers: { from: { job: numbers } }
`

// A deploy exports nothing; what comes after it is there for others, whichever server has the task.
func TestPartitionsAreExported(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	s := tests3.Start(t)
	get := func(day, name string) []byte {
		t.Helper()
		key := "numbers/day=" + day + "/" + name
		got, err := s.Client().GetObject(t.Context(), &s3.GetObjectInput{Bucket: &s.Bucket, Key: &key})
		if err != nil {
			require.ErrorContains(t, err, "NoSuchKey")
			return nil
		}
		defer got.Body.Close()
		content, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		return content
	}
	// sum reads as others do, without DuckDB.
	sum := func(day string) string {
		t.Helper()
		reader, err := file.NewParquetReader(bytes.NewReader(get(day, "data.parquet")))
		require.NoError(t, err)
		defer reader.Close()
		rows, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
		require.NoError(t, err)
		table, err := rows.ReadTable(t.Context())
		require.NoError(t, err)
		defer table.Release()
		return fmt.Sprint(table.Column(0).Data().Chunks())
	}

	document := strings.NewReplacer("BUCKET", s.Bucket, "ENDPOINT", s.Endpoint, "KEY", s.AccessKeyID).Replace(shared)
	w.Secret("S3", s.SecretAccessKey, authz.Binding{AddJobs: []string{"work/shared"}, AddHosts: []string{s.Endpoint}})
	_, err := w.TryDeploy(dispatchertest.Edit(document, s.Endpoint, "https://s3.example.com"))
	require.ErrorContains(t, err, "S3")
	_, err = w.TryDeploy(dispatchertest.Edit(document, "day={partition}", "all"))
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)

	put := func(day, content string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(w.Landing, day+".csv"), []byte("n\n"+content), 0o600))
	}
	put("2024-01-01", "1\n")
	w.Serve(document)
	w.Settle()
	require.Nil(t, get("2024-01-01", "data.parquet"), "a build exports nothing")

	put("2024-01-01", "7\n")
	put("2024-01-02", "2\n")
	w.Poll()
	w.Settle()
	require.Contains(t, sum("2024-01-01"), "7")
	require.Contains(t, sum("2024-01-02"), "2")
	var m struct {
		Job       string
		Partition string
		Rows      int64
	}
	require.NoError(t, json.Unmarshal(get("2024-01-02", "_manifest.json"), &m))
	require.Equal(t, "acme/work/shared", m.Job)
	require.Equal(t, "2024-01-02", m.Partition)
	require.EqualValues(t, 1, m.Rows)
}
