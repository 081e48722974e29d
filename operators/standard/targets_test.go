package standard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
)

func catalog(t *testing.T) dag.Catalog {
	t.Helper()
	ops, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1,
		ExportRoots: map[string][]string{"acme": {"/srv/first", "/srv/second"}}})
	require.NoError(t, err)
	return ops.Catalog([]string{"dispatcher"}).For(dag.Org{Slug: "acme"})
}

// jobsOver returns a DAG with sources of each partitioning and jobs that a test adds.
func jobsOver(jobs ...string) dag.File {
	return dag.File{Name: "dag.yaml", Text: []byte(`
name: shop
jobs:
  - { name: whole, operator: handler, source: { kind: manual }, config: { handler: x } }
  - name: days
    operator: handler
    source: { kind: manual }
    partition_by: { time: day }
    config: { handler: x }
  - { name: keys, operator: handler, source: { kind: manual }, partition_by: key, config: { handler: x } }
  - name: ranges
    operator: handler
    source: { kind: manual }
    partition_by: { range: 10, column: n }
    config: { handler: x }
` + strings.Join(jobs, "\n"))}
}

// TestTwoJobsOfOneTarget checks places outside that two jobs of a DAG would both write to: the same ones, and one in
// the other.
func TestTwoJobsOfOneTarget(t *testing.T) {
	t.Parallel()
	export := func(from, config string) string { return "parquet_export " + from + " " + config }
	load := func(from, config string) string {
		return "postgres_load " + from + " host: db.example.com, database: shop, user: u, " + config
	}
	hook := func(from, config string) string { return "webhook_deliver " + from + " " + config }
	route := func(from, config string) string { return "alert_route " + from + " " + config }

	const apart = ""
	long := strings.Repeat("n", 63)
	for _, c := range []struct{ first, second, want string }{
		{export("days", "bucket: acme, path: 'out/{partition}'"),
			export("days", "bucket: acme, path: 'out/{partition}'"),
			"the target s3://acme/out/{partition} is that of job"},
		{export("days", "bucket: acme, path: 'out/{partition}'"),
			export("days", "bucket: acme, path: 'sub/{partition}'"), apart},
		{export("whole", "bucket: acme, path: out"), export("whole", "bucket: acme, path: out/sub"),
			"lies in s3://acme/out, that of job \"first\""},
		{export("whole", "bucket: acme, path: out/sub"), export("whole", "bucket: acme, path: out"),
			"holds s3://acme/out/sub, that of job \"first\""},
		{export("whole", "bucket: acme, path: out"), export("whole", "bucket: acme, path: outer"), apart},
		{export("whole", "bucket: acme, path: out"), export("whole", "bucket: other, path: out"), apart},
		{export("whole", "bucket: acme, path: out, endpoint: 'https://S3.example.com'"),
			export("whole", "bucket: acme, path: out, endpoint: 'https://s3.example.com/'"), "is that of job"},
		{export("keys", "bucket: acme, path: 'out/{partition}'"), export("whole", "bucket: acme, path: out/sub"),
			"may be s3://acme/out/{partition}"},
		{export("days", "bucket: acme, path: 'out/{partition}'"), export("whole", "bucket: acme, path: out/sub"),
			apart},
		{export("ranges", "bucket: acme, path: 'out/{partition}'"), export("whole", "bucket: acme, path: out/0-10"),
			"may be"},
		{export("days", "bucket: acme, path: 'out/{year}-{month}-{day}'"),
			export("days", "bucket: acme, path: 'out/{partition}'"), "may be"},
		{export("days", "bucket: acme, path: 'out/{job}/{partition}'"),
			export("days", "bucket: acme, path: 'out/{job}/{partition}'"), apart},
		{export("whole", "bucket: acme, path: '{dag}/{job}'"), export("whole", "bucket: acme, path: shop/first"),
			"may be"},
		{export("whole", "folder: out, path: a"), export("whole", "folder: /srv/first/out, path: a/b"), "lies in"},
		{export("whole", "folder: ., path: a"), export("whole", "folder: /srv/first, path: a"), "may be"},
		{export("whole", "folder: out, path: a"), export("whole", "folder: /srv/second/out, path: a"), apart},

		{load("whole", "table: orders, mode: replace"), load("whole", "table: public.orders, mode: replace"),
			"table public.orders of shop at db.example.com is that of job \"first\""},
		{load("whole", "table: orders, mode: replace"), load("whole", "table: orders, mode: append"), "is that of"},
		{load("whole", "table: orders, mode: append"), load("keys", "table: orders, mode: append"), apart},
		{load("whole", "table: orders, mode: replace"), load("whole", "table: other.orders, mode: replace"), apart},
		{load("whole", "table: orders, mode: replace"), load("whole", "table: Orders, mode: replace"), apart},
		{load("whole", "table: orders, mode: replace, port: 5432"), load("whole", "table: orders, mode: replace"),
			"is that of"},
		{load("whole", "table: orders, mode: replace, port: 5433"), load("whole", "table: orders, mode: replace"),
			apart},
		{load("whole", "table: "+long[2:]+"éa, mode: replace"), load("whole", "table: "+long[2:]+"éb, mode: replace"),
			"may be"},

		{hook("whole", "url: 'https://e.org/x', key: [id]"), hook("whole", "url: 'https://e.org/x', key: [id]"),
			"e.org for each row of the output of job whole is that of job \"first\""},
		{hook("whole", "url: 'https://e.org/x', key: [id]"), hook("keys", "url: 'https://e.org/x', key: [id]"), apart},
		{hook("whole", "url: 'https://e.org/x', key: [id]"), hook("whole", "url: 'https://e.org/y', key: [id]"), apart},
		{hook("whole", "url: 'https://e.org/x', key: [id]"), hook("whole", "url: 'https://e.org/x', key: [at]"), apart},

		{route("whole", "receivers: { a: { url: 'https://e.org' } }, routes: [{ to: [a] }]"),
			route("whole", "receivers: { b: { url: 'https://e.org' } }, routes: [{ to: [b] }]"),
			"receiver b for each alert of the output of job whole may be receiver a"},
		{route("whole", "receivers: { a: { url: 'https://e.org' } }, routes: [{ to: [a], severity: critical }]"),
			route("whole", "receivers: { b: { url: 'https://e.org' } }, routes: [{ to: [b], alerts: [late] }]"), apart},
	} {
		_, problems := dag.Parse(jobsOver(job("first", c.first), job("second", c.second)), catalog(t))
		if c.want == apart {
			require.Empty(t, problems, "%s\n%s", c.first, c.second)
			continue
		}
		require.Len(t, problems, 1, "%s\n%s", c.first, c.second)
		require.Contains(t, problems[0].Message, c.want)
		require.Contains(t, problems[0].Source, "name: second")
	}
}

// job returns a job of the form OPERATOR INPUT CONFIG.
func job(name, of string) string {
	words := strings.SplitN(of, " ", 3)
	more := map[string]string{
		"webhook_deliver": "update_strategy: append, unique_key: key", "integrity_check": "outputs: 1",
		"alert_route":      "outputs: 0, scaling: { max_concurrency: 1 }",
		"range_aggregator": "update_strategy: append, unique_key: range_start",
		"range_splitter":   "update_strategy: append, unique_key: range_start",
	}[words[0]]
	if more == "" {
		more = "outputs: 0"
	}
	return fmt.Sprintf("  - { name: %s, operator: %s, inputs: [{ from: { job: %s } }], %s, config: { %s } }", name,
		words[0], words[1], more, words[2])
}

// TestInheritedPartitionsAreChecked checks operators that cannot work on all partitions, for jobs that state none.
func TestInheritedPartitionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"webhook_deliver days url: 'https://e.org/x', key: [id]", ""},
		{"alert_route days receivers: { a: { url: 'https://e.org' } }, routes: [{ to: [a] }]", ""},
		{"range_aggregator ranges size: 100", "set `partition_by: none`"},
		{"range_splitter ranges size: 5", "set `partition_by: none`"},
		{"range_aggregator keys size: 100", "set `state_key: \"{partition}\"`"},
		{"range_aggregator whole size: 100", ""},
		{"postgres_load days host: db, database: d, user: u, table: t, mode: replace", "without partitions"},
		{"parquet_export days bucket: acme, path: out", "would overwrite each other"},
	} {
		_, problems := dag.Parse(jobsOver(job("late", c[0])), catalog(t))
		if c[1] == "" {
			require.Empty(t, problems, c[0])
			continue
		}
		require.Len(t, problems, 1, c[0])
		require.Contains(t, problems[0].Message, c[1])
		require.Contains(t, problems[0].Source, "name: late")
	}
}

// TestNothingOutsideIsInternal checks that a build cannot run a job of an operator that changes what is outside.
func TestNothingOutsideIsInternal(t *testing.T) {
	t.Parallel()
	external := map[string]string{
		"webhook_deliver": "url: 'https://e.org/x', key: [id]",
		"alert_route":     "receivers: { a: { url: 'https://e.org' } }, routes: [{ to: [a] }]",
		"parquet_export":  "bucket: acme, path: out",
		"postgres_load":   "host: db, database: d, user: u, table: t, mode: replace",
	}
	for name, spec := range catalog(t).Operators {
		_, listed := external[name]
		require.Equal(t, spec.Effect == dag.EffectExternal, listed, name)
	}
	for name, config := range external {
		text := strings.Replace(job("out", name+" whole "+config), "operator:", "effect: internal, operator:", 1)
		_, problems := dag.Parse(jobsOver(text), catalog(t))
		require.Len(t, problems, 1, name)
		require.Contains(t, problems[0].Message, name+" changes what is outside")
		require.Contains(t, problems[0].Suggestion, "leave `effect: internal` out")
	}

	payloads := "  - { name: out, operator: webhook_deliver, source: { kind: manual }, outputs: 0, effect: internal, " +
		"config: { url: 'https://e.org', key: [id] } }"
	_, problems := dag.Parse(jobsOver(payloads), catalog(t))
	require.Len(t, problems, 1)
	require.Contains(t, problems[0].Message, "changes what is outside")
}
