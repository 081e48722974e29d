package parquetexport

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/tests3"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func TestParquetExportConforms(t *testing.T) {
	t.Parallel()
	s, root := tests3.Start(t), t.TempDir()
	op, err := New(operators.Options{AllowedAddresses: []string{"127.0.0.0/8"},
		ExportRoots: map[string][]string{"acme": {root}}})
	require.NoError(t, err)
	numbers := operatortest.Input{As: "numbers", Query: "SELECT range AS n FROM range(3)"}
	none, filtered := numbers, numbers
	none.Empty = true
	filtered.Where = []dag.Condition{{Column: "n", Values: []any{int64(1)}}}
	bucket := func(path string, more fields) fields {
		c := fields{"bucket": s.Bucket, "endpoint": s.Endpoint, "path": path, "access_key_id": s.AccessKeyID,
			"secret_access_key": fields{"secret": "S3"}}
		for name, value := range more {
			if c[name] = value; value == nil {
				delete(c, name)
			}
		}
		return c
	}
	exports := func(name string, config fields, in operatortest.Input) operatortest.Case {
		return operatortest.Case{Name: name, Config: config, Inputs: []operatortest.Input{in}, Outputs: []string{},
			Secrets: map[string]secret.Value{"S3": secret.New("S3", s.SecretAccessKey, []string{"http://*"})}}
	}
	fails := func(c operatortest.Case, permanent bool) operatortest.Case {
		c.Fails, c.Permanent = c.Name, permanent
		return c
	}
	refused := func(message string, config fields) operatortest.Case {
		return operatortest.Case{Name: message, Config: config, Refused: message}
	}
	elsewhere := exports("secret S3 may not be sent to", bucket("x", nil), numbers)
	elsewhere.Secrets = map[string]secret.Value{"S3": secret.New("S3", s.SecretAccessKey, []string{"s3.example.com"})}

	operatortest.Run(t, op,
		exports("a bucket", bucket("a/{dag}/{job}", nil), numbers),
		exports("several files", bucket("b", fields{"max_rows": 2}), numbers),
		exports("rows that where selects", bucket("c", nil), filtered),
		exports("no rows", bucket("d", nil), none),
		exports("a folder", fields{"folder": "x", "path": "a"}, numbers),
		exports("a folder by its path", fields{"folder": root, "path": "b", "max_rows": 2}, none),
		fails(exports("there is no such bucket", bucket("x", fields{"bucket": "none-such"}), numbers), true),
		fails(exports("the server answered", bucket("x", fields{"access_key_id": "nobody"}), numbers), true),
		fails(exports("lies outside", fields{"folder": "/etc", "path": "x"}, numbers), true),
		fails(elsewhere, true),
		refused("name the target", fields{"path": "x"}),
		refused("exclude each other", bucket("x", fields{"folder": "x"})),
		refused("leads out", fields{"folder": "../x", "path": "x"}),
		refused("begin with a dot", fields{"folder": "x", "path": "../x"}),
		refused("no placeholder {revision}", bucket("{revision}", nil)),
		refused("path", bucket("x", fields{"path": nil})),
		refused("secret_access_key", bucket("x", fields{"secret_access_key": "written out"})),
		refused("go together", bucket("x", fields{"access_key_id": nil})),
		refused("the URL of a server alone", bucket("x", fields{"endpoint": "https://a:b@s3.example.com"})),
		refused("the name of a bucket alone", bucket("x", fields{"bucket": "a/b"})),
		refused("max_rows", bucket("x", fields{"max_rows": 0})),
	)
}

func TestJobsThatWouldOverwriteTheirExports(t *testing.T) {
	t.Parallel()
	op, err := New(operators.Options{ExportRoots: map[string][]string{"acme": {t.TempDir()}}})
	require.NoError(t, err)
	inputs := []dag.Input{{Map: dag.Mapping{Kind: dag.MapSame}}}
	day := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day}
	config := func(path string) dag.Config { return dag.Config{"folder": "out", "path": path} }
	for _, c := range []struct {
		org  string
		job  dag.Job
		want string
	}{
		{"acme", dag.Job{Config: config("d={partition}"), Inputs: inputs, PartitionBy: day}, ""},
		{"", dag.Job{Config: config("whole"), Inputs: inputs}, ""},
		{"acme", dag.Job{Config: config("whole"), Inputs: inputs, PartitionBy: day}, "would overwrite each other"},
		{"acme", dag.Job{Config: config("x"), Inputs: inputs, Outputs: []string{"o"}}, "outputs: 0"},
		{"acme", dag.Job{Config: config("x")}, "exports one input"},
		{"acme", dag.Job{Config: config("{partition}"), Inputs: inputs,
			PartitionBy: dag.Partitioning{Kind: dag.ByCursor, Column: "n"}}, "segments of a cursor"},
		{"umbrella", dag.Job{Config: config("x"), Inputs: inputs}, "`export_roots` of the org"},
		{"acme", dag.Job{Config: dag.Config{"folder": "/etc", "path": "x"}, Inputs: inputs}, "lies outside"},
	} {
		catalog := dag.Catalog{Operators: map[string]dag.OperatorSpec{operatorName: op.Spec()}}
		catalog = op.(operators.PerOrg).ForOrg(catalog, dag.Org{Slug: c.org})
		fault := catalog.Operators[operatorName].CheckJob(&c.job)
		if fault == nil {
			fault = catalog.Operators[operatorName].CheckPartitions(&c.job)
		}
		if c.want == "" {
			require.Nil(t, fault, "%v", c.job.Config)
			continue
		}
		require.NotNil(t, fault, c.want)
		require.Contains(t, fault.Message, c.want)
	}
}

// A job that states no partitioning has that of its input.
func TestPathsOfInheritedPartitions(t *testing.T) {
	t.Parallel()
	op, err := New(operators.Options{})
	require.NoError(t, err)
	catalog := dag.Catalog{Operators: map[string]dag.OperatorSpec{operatorName: op.Spec(),
		"command": {Name: "command", Source: true, Reactive: true}}}
	for _, c := range []struct{ from, path, more, want string }{
		{"{ job: days }", "all", "", "day partitions would overwrite each other: it needs {partition}"},
		{"{ job: days }", "d={partition}", "", ""},
		{"{ job: days }", "{year}/{month}/{day}", "", ""},
		{"{ job: days }", "all", ", partition_by: none", ""},
		{"{ job: days }", "d={partition}", ", partition_by: none", "the job has no partitions"},
		{"{ job: days }", "all", ", execution_strategy: PerUpdate", ""},
		{"{ job: whole }", "d={partition}", "", "the job has no partitions"},
		{"{ dataset: keys }", "all", "", "would overwrite each other: it needs {partition}"},
		{"{ dataset: keys }", "k={partition}", "", ""},
		{"{ dataset: keys }", "{day}", "", "have no {day}"},
		{"{ dataset: unknown }", "all", "", ""},
		{"{ dataset: unknown }", "d={partition}", "", ""},
	} {
		_, problems := dag.Parse(dag.File{Name: "dag.yaml", Text: fmt.Appendf(nil, `
name: sharing
jobs:
  - { name: days, operator: command, source: { kind: manual }, partition_by: { time: day } }
  - { name: whole, operator: command, source: { kind: manual } }
  - { name: out, operator: parquet_export, outputs: 0, inputs: [{ from: %s }]%s,
      config: { folder: a, path: "%s" } }
`, c.from, c.more, c.path), Datasets: map[string]dag.Partitioning{"keys": {Kind: dag.ByKey}}}, catalog)
		if c.want == "" {
			require.Empty(t, problems, "%v", c)
			continue
		}
		require.Len(t, problems, 1, "%v", c)
		require.Contains(t, problems[0].Message, c.want)
		require.Equal(t, 7, problems[0].Line)
	}
}

// A path that nobody could check leads two partitions to one place: the second is refused by what is the case.
func TestAnotherPartitionAtTheSamePath(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.config["path"] = strings.TrimSuffix(w.config["path"].(string), "{partition}")
		w.run(t, w.task(t, "2026-01-02", 1, one(2), nil))
		w.fails(t, w.task(t, "2026-01-03", 1, one(3), nil),
			`partition "2026-01-02" is exported to this path, and partition "2026-01-03" would overwrite it`)
		w.run(t, w.task(t, "2026-01-02", 2, one(4), nil))
		require.Equal(t, "4", w.number(t, ""))
	})
}

// A column that the path has, too, is refused where the columns are known, and a task makes no folder for it.
func TestAColumnThatThePathHas(t *testing.T) {
	t.Parallel()
	worlds(t, func(t *testing.T, w *world) {
		w.config["path"] = "Day={partition}/n={partition}"
		for columns, want := range map[string]string{"N": `column "N" is in the rows`, "day": `column "day"`, "m": ""} {
			job := dag.Job{Config: w.config, Inputs: []dag.Input{{}}}
			shape, err := w.op.Spec().Shape(&job, [][]dag.Column{{{Name: "o"}, {Name: columns}}})
			require.NoError(t, err)
			if want == "" {
				require.Empty(t, shape.Refused)
				continue
			}
			require.Len(t, shape.Refused, 1)
			require.Equal(t, "path", shape.Refused[0].Key)
			require.Contains(t, shape.Refused[0].Message, want)
		}
		unknown, err := w.op.Spec().Shape(&dag.Job{Config: w.config, Inputs: []dag.Input{{}}}, [][]dag.Column{nil})
		require.NoError(t, err)
		require.Empty(t, unknown.Refused)

		_, err = w.perform(t, w.task(t, "a", 1, one(1), nil))
		require.ErrorContains(t, err, `config.path: column "n" is in the rows, and `+"`path` has n=")
		if w.server == nil {
			require.NoDirExists(t, filepath.Join(w.root, "out"))
		}
	})
}

// No link leads out of the folders of the org, at whatever part of the path it is.
func TestLinksThatLeadOut(t *testing.T) {
	t.Parallel()
	outside, root := t.TempDir(), t.TempDir()
	op, err := New(operators.Options{ExportRoots: map[string][]string{"acme": {root}}})
	require.NoError(t, err)
	w := &world{op: op.(*operator), root: root, config: fields{"folder": "out", "path": "day={partition}"}}
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "out")))
	_, err = w.perform(t, w.task(t, "a", 1, one(1), nil))
	require.ErrorContains(t, fault.Hinted(err), "a link there leads out of the folders")

	require.NoError(t, os.Remove(filepath.Join(root, "out")))
	require.NoError(t, os.WriteFile(filepath.Join(root, "out"), nil, 0o600))
	_, err = w.perform(t, w.task(t, "a", 1, one(1), nil))
	require.ErrorContains(t, fault.Hinted(err), "a file is where a folder should be")

	require.NoError(t, os.Remove(filepath.Join(root, "out")))
	require.NoError(t, os.Mkdir(filepath.Join(root, "out"), 0o755))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "out", "day=a")))
	_, err = w.perform(t, w.task(t, "a", 1, one(1), nil))
	require.Error(t, err)

	// A file that is a link is replaced, and what it leads to stays.
	kept := filepath.Join(outside, "kept")
	require.NoError(t, os.WriteFile(kept, []byte("kept"), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(root, "out", "day=b"), 0o755))
	require.NoError(t, os.Symlink(kept, filepath.Join(root, "out", "day=b", wholeName)))
	w.run(t, w.task(t, "b", 1, one(1), nil))
	require.Equal(t, "1", w.number(t, "b"))
	content, err := os.ReadFile(kept)
	require.NoError(t, err)
	require.Equal(t, "kept", string(content))
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// front returns a bucket's world behind a proxy that may change requests, or answer in its place.
func front(t *testing.T, change func(http.ResponseWriter, *http.Request) (answered bool)) *world {
	t.Helper()
	s := tests3.Start(t)
	target, err := url.Parse(s.Endpoint)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host // which is signed
	}}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !change(rw, r) {
			proxy.ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(server.Close)
	op, err := New(operators.Options{AllowedAddresses: []string{"127.0.0.0/8"}})
	require.NoError(t, err)
	return &world{op: op.(*operator), server: s, config: fields{"bucket": s.Bucket, "endpoint": server.URL,
		"access_key_id": s.AccessKeyID, "secret_access_key": fields{"secret": "S3"}, "path": "day={partition}"}}
}

// A server that is busy for a while is asked again; answers that are lost are no news.
func TestABusyBucket(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	w := front(t, func(rw http.ResponseWriter, _ *http.Request) bool {
		if requests.Add(1)%3 == 0 {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	w.run(t, w.task(t, "a", 1, one(1), nil))
	w.run(t, w.task(t, "a", 2, one(2), nil))
	require.Equal(t, "2", w.number(t, "a"))
}

// A server that is away is a failure that another attempt may mend, and names it.
func TestABucketThatIsAway(t *testing.T) {
	t.Parallel()
	w := front(t, func(http.ResponseWriter, *http.Request) bool { return false })
	w.server.Kill()
	_, err := w.perform(t, w.task(t, "a", 1, one(1), nil))
	require.ErrorContains(t, err, "export to day=a: read object day=a/_dagctl.json of bucket "+w.server.Bucket)
	require.False(t, operators.IsPermanent(err))
}

// A server that does not heed conditions gets nothing but a claim.
func TestAServerWithoutConditions(t *testing.T) {
	t.Parallel()
	w := front(t, func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut && r.Header.Get("If-None-Match")+r.Header.Get("If-Match") != "" {
			rw.Header().Set("ETag", `"a"`)
			rw.WriteHeader(http.StatusOK)
			return true
		}
		return false
	})
	w.fails(t, w.task(t, "a", 1, one(1), nil), "does not heed the conditions of requests")
	require.Nil(t, w.content(t, "a", wholeName))
}
