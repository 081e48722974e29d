package main

import (
	"bytes"
	"context"
	"fmt"
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

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/authz"
	"github.com/dagctl/dagctl/cmd/dagctl/cli"
	"github.com/dagctl/dagctl/cmd/dagctl/server"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/examples/processtest"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/internal/tests3"
)

// firstColumn reads a Parquet file as others do, without DuckDB: the values of its first column.
func firstColumn(t *testing.T, content []byte) string {
	t.Helper()
	reader, err := file.NewParquetReader(bytes.NewReader(content))
	require.NoError(t, err)
	defer reader.Close()
	rows, err := pqarrow.NewFileReader(reader, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	require.NoError(t, err)
	table, err := rows.ReadTable(context.WithoutCancel(t.Context()))
	require.NoError(t, err)
	defer table.Release()
	var values []string
	for _, chunk := range table.Column(0).Data().Chunks() {
		for i := range chunk.Len() {
			values = append(values, chunk.ValueStr(i))
		}
	}
	return strings.Join(values, " ")
}

// The example of the operator shares a folder, which the server's config gives to the org.
func TestExportsToAFolder(t *testing.T) {
	t.Parallel()
	exports := t.TempDir()
	w := newWorld(t, func(c *server.Config) { c.ExportRoots = map[string][]string{"acme": {exports}} })
	example := filepath.Join("..", "..", "operators", "parquetexport", "example")
	require.NoError(t, os.CopyFS(w.roots, os.DirFS(example)))
	dag := filepath.Join(w.roots, "dag.yaml")
	require.Contains(t, dagctl(t, w.env(t, foreign), "deploy", dag).err, "`export_roots` of the org")

	env := w.env(t, admin)
	must(t, env, "deploy", dag)
	eventually(t, "the build", func() (bool, error) {
		status := decode[views.DAGDetail](t, env, "status", "sharing")
		return status.Active != nil && status.Tasks.Open() == 0, nil
	})
	require.NoDirExists(t, filepath.Join(exports, "shared"), "a build exports nothing")
	require.Contains(t, must(t, env, "why", "sharing/shared_days"), "`dagctl invalidate DATASET --partition KEY`")
	for _, partition := range [][]string{nil, {"--partition", "2026-01-01"}} {
		by := dagctl(t, env, append([]string{"run", "sharing/shared_days"}, partition...)...).err
		require.Contains(t, by, "Error: sharing/shared_days acts outside dagctl, for what its inputs get")
		require.Contains(t, by, "Next: `dagctl invalidate DATASET --partition KEY` makes a partition of its input")
	}
	path := filepath.Join(w.roots, "readings", "2026-01-02.csv")
	require.NoError(t, os.WriteFile(path, []byte("hour,celsius\n3,1.5\n4,2.5\n"), 0o600))
	shared := filepath.Join(exports, "shared", "readings", "day=2026-01-02")
	eventually(t, "the export", func() (bool, error) {
		_, err := os.Stat(filepath.Join(shared, "_manifest.json"))
		return err == nil, nil
	})
	content, err := os.ReadFile(filepath.Join(shared, "data.parquet"))
	require.NoError(t, err)
	require.Equal(t, "3 4", firstColumn(t, content))
}

const exportingDAG = `name: sharing
jobs:
  - name: numbers
    operator: file_source
    source: { kind: poll, every: 1s }
    partition_by: key
    config: { path: landing, pattern: "{key}.csv", format: csv, header: true, types: { n: INTEGER } }
  - name: shared
    operator: parquet_export
    inputs: [{ from: { job: numbers } }]
    partition_by: key
    outputs: 0
    heartbeat_timeout_seconds: 5
    config:
      { bucket: %q, endpoint: %q, access_key_id: %q, secret_access_key: { secret: S3 }, path: "k={partition}" }
publish:
  shared_numbers: { from: { job: numbers } }
`

// A server is killed while it sends a partition, and another one goes on. Readers have the rows before or the new ones,
// and what the killed one has sent, which arrives after that, does not count.
func TestKilledServerExportsNothingLate(t *testing.T) {
	t.Parallel()
	s := tests3.Start(t)
	target, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host // which is signed
	}}
	held := make(chan *http.Request, 1)
	var puts atomic.Int64
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/data.parquet") {
			if puts.Add(1) == 2 {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					return
				}
				late := r.Clone(context.WithoutCancel(r.Context()))
				late.Body = io.NopCloser(bytes.NewReader(body))
				held <- late
				<-r.Context().Done()
				return
			}
		}
		proxy.ServeHTTP(rw, r)
	}))
	t.Cleanup(front.Close)
	content := func() string {
		t.Helper()
		key := "k=a/data.parquet"
		got, err := s.Client().GetObject(t.Context(), &s3.GetObjectInput{Bucket: &s.Bucket, Key: &key})
		if err != nil {
			return ""
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		require.NoError(t, err)
		return firstColumn(t, text)
	}

	roots := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(roots, "landing"), 0o700))
	config := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("operators: { allowed_addresses: [127.0.0.0/8] }\n"), 0o600))
	database, data, keys := testdb.Empty(t), t.TempDir(), []string{"DAGCTL_SECRETS_KEY=" + authz.NewVaultKey()}
	start := func() (*process, map[string]string) {
		t.Helper()
		address := processtest.FreeAddress(t)
		p := startProcess(t, keys, "serve", "--config", config, "--database-url", database, "--listen", address,
			"--storage-root", data, "--file-root", "acme="+roots, "--migrate")
		env := map[string]string{"DAGCTL_URL": "http://" + address, "DAGCTL_DATABASE_URL": database,
			"HOME": t.TempDir()}
		eventually(t, "the schema", func() (bool, error) {
			return strings.Contains(dagctl(t, env, "doctor").out, "needs a token"), nil
		})
		return p, env
	}
	first, env := start()
	env["DAGCTL_TOKEN"] = strings.TrimSpace(must(t, env, "admin", "bootstrap", "--org", "acme"))
	eventually(t, "ready", func() (bool, error) { return dagctl(t, env, "doctor").code == cli.ExitOK, nil })
	require.Zero(t, dagctlWithInput(t, env, s.SecretAccessKey, "secrets", "set", "S3").code)
	must(t, env, "secrets", "bind", "S3", "--job", "sharing/shared", "--host", front.URL)
	dag := filepath.Join(t.TempDir(), "dag.yaml")
	require.NoError(t, os.WriteFile(dag, fmt.Appendf(nil, exportingDAG, s.Bucket, front.URL, s.AccessKeyID), 0o600))
	must(t, env, "deploy", dag)
	put := func(n int) {
		t.Helper()
		// A file of another size is another file, however coarse the times of files are.
		text := fmt.Sprintf("n\n%d%s\n", n, strings.Repeat("0", n))
		require.NoError(t, os.WriteFile(filepath.Join(roots, "landing", "a.csv"), []byte(text), 0o600))
	}

	put(1)
	eventually(t, "the first export", func() (bool, error) { return content() == "10", nil })
	put(2)
	late := <-held
	second, _ := start()
	first.kill(t)
	require.Equal(t, "10", content(), "readers have the rows before")
	put(3)
	eventually(t, "the next export", func() (bool, error) { return content() == "3000", nil })

	answer := httptest.NewRecorder()
	proxy.ServeHTTP(answer, late)
	require.Equal(t, http.StatusPreconditionFailed, answer.Code, answer.Body.String())
	require.Equal(t, "3000", content())
	second.kill(t)
}
