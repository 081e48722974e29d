package dag

import (
	"maps"
	"reflect"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"
)

// The chain that fingerprint tests change: upstream → target → downstream, and beside it jobs that are forward-only.
const chain = `
name: chain
jobs:
  - name: upstream
    operator: file_source
    source: { kind: poll, every: 1m }
    config: { path: data, batch: 5 }
    partition_by: { time: day }
  - name: target
    operator: sql
    inputs: [{ from: { job: upstream } }, { from: { dataset: airports }, map: latest }]
    config: { query: select 1 }
  - name: downstream
    operator: sql
    inputs: [{ from: { job: target } }]
    config: { query: select 1 }
  - name: page
    operator: notifier
    inputs: [{ from: { job: target } }]
    outputs: 0
    config: { webhook: { secret: HOOK } }
  - name: web
    operator: http_source
    source: { kind: poll, every: 1m }
    config: { url: "https://example.com" }
`

func parsed(t *testing.T, text string) *Document {
	t.Helper()
	doc, problems := Parse(File{Name: "dag.yaml", Text: []byte(text)}, testCatalog())
	require.Empty(t, problems.Error())
	return doc
}

func prints(t *testing.T, doc *Document, epochs map[string]int) map[string]Fingerprint {
	t.Helper()
	return printsBy(t, doc, testCatalog(), epochs)
}

func printsBy(t *testing.T, doc *Document, catalog Catalog, epochs map[string]int) map[string]Fingerprint {
	t.Helper()
	definitions, err := Define(doc, catalog)
	require.NoError(t, err)
	fingerprints, err := definitions.Fingerprints(epochs)
	require.NoError(t, err)
	require.Len(t, fingerprints, len(doc.Jobs))
	return fingerprints
}

// TestFingerprintFields classifies every field of a job: the fingerprint covers exactly those that can change its
// output. A new field must get its class here.
func TestFingerprintFields(t *testing.T) {
	t.Parallel()
	const (
		in  = true
		out = false
	)
	var fields []string
	for _, c := range []struct {
		field  string
		in     bool
		change func(j *Job)
	}{
		{"Operator", in, func(j *Job) { j.Operator = "command" }},
		{"OperatorVersion", in, func(j *Job) { j.OperatorVersion = "9.0.0" }},
		{"CodeVersion", in, func(j *Job) { j.CodeVersion = "2" }},
		{"Outputs", in, func(j *Job) { j.Outputs = []string{"0", "1"} }},
		{"PartitionBy", in, func(j *Job) { j.PartitionBy.Unit = Month }},
		{"SplitBy", in, func(j *Job) { j.SplitBy = "date" }},
		{"Storage", in, func(j *Job) { j.Storage = []Storage{{Kind: StoragePostgres}} }},
		{"Inputs", in, func(j *Job) { j.Inputs = j.Inputs[:1] }},
		{"Trigger", in, func(j *Job) { j.Trigger = TriggerAny }},
		{"ExecutionStrategy", in, func(j *Job) { j.ExecutionStrategy = PerUpdate }},
		{"UpdateStrategy", in, func(j *Job) { j.UpdateStrategy = Append }},
		{"UniqueKey", in, func(j *Job) { j.UniqueKey = []string{"id"} }},
		{"Config", in, func(j *Job) { j.Config = map[string]any{"query": "select 2"} }},
		{"StateKey", in, func(j *Job) { j.StateKey = "{partition}" }},
		{"UDF", in, func(j *Job) { j.UDF = &UDF{Bundle: "b1", Entrypoint: "main"} }},
		// An external job has nothing to rebuild, so its fingerprint covers other fields.
		{"Effect", in, func(j *Job) { j.Effect = EffectExternal }},

		// A job's own name does not affect what it computes; consumers see it (TestFingerprintRename).
		{"Name", out, func(j *Job) {}},
		{"RenamedFrom", out, func(j *Job) {}},
		{"GivenIdentity", out, func(j *Job) {}},
		{"Description", out, func(j *Job) { j.Description = "other" }},
		{"Activation", out, func(j *Job) { j.Activation = ActivationSource }}, // follows from inputs and source
		{"Runtime", out, func(j *Job) { j.Runtime = "lambda" }},
		{"Source", out, func(j *Job) { j.Source = &Source{Kind: "cron", Schedule: "@daily"} }},
		{"Bootstrap", out, func(j *Job) { j.Bootstrap = &Bootstrap{ResetOutputs: true} }},
		{"PayloadSchema", out, func(j *Job) { j.PayloadSchema = []byte(`{}`) }},
		{"Dedupe", out, func(j *Job) { j.Dedupe = []string{"id"} }},
		{"Enqueues", out, func(j *Job) { j.Enqueues = []string{"mail"} }},
		{"TaskRetention", out, func(j *Job) { j.TaskRetention = time.Hour }},
		{"Secrets", out, func(j *Job) { j.Secrets = []string{"A"} }}, // follows from config
		{"Checks", out, func(j *Job) { j.Checks = []Check{{Name: "row_count"}} }},
		{"MaxConcurrency", out, func(j *Job) { j.MaxConcurrency = 3 }},
		{"Priority", out, func(j *Job) { j.Priority = 3 }},
		{"ConcurrencyKey", out, func(j *Job) { j.ConcurrencyKey = "{partition}" }},
		{"Timeout", out, func(j *Job) { j.Timeout++ }},
		{"HeartbeatTimeout", out, func(j *Job) { j.HeartbeatTimeout++ }},
		{"MaxAttempts", out, func(j *Job) { j.MaxAttempts++ }},
		{"Retry", out, func(j *Job) { j.Retry.Max++ }},
		{"IdleTimeout", out, func(j *Job) { j.IdleTimeout = "never" }},
		{"Position", out, func(j *Job) { j.Position.Line++ }},
	} {
		fields = append(fields, c.field)
		t.Run(c.field, func(t *testing.T) {
			t.Parallel()
			// A replayable reactive job, so that a source of its own would not make it forward-only by itself.
			catalog := testCatalog()
			for name, op := range catalog.Operators {
				op.Replayable, op.Canonical = true, nil
				catalog.Operators[name] = op
			}
			doc := parsed(t, chain)
			before := printsBy(t, doc, catalog, nil)
			c.change(&doc.Jobs[1])
			after := printsBy(t, doc, catalog, nil)
			for _, job := range []string{"target", "downstream"} {
				require.Equal(t, c.in, before[job] != after[job], "%s of %s", c.field, job)
			}
			for _, job := range []string{"upstream", "page", "web"} {
				require.Equal(t, before[job], after[job], job)
			}
		})
	}
	requireClassified(t, Job{}, fields...)
}

// requireClassified fails if a struct has a field that a test does not name.
func requireClassified(t *testing.T, of any, fields ...string) {
	t.Helper()
	var have []string
	for i := range reflect.TypeOf(of).NumField() {
		have = append(have, reflect.TypeOf(of).Field(i).Name)
	}
	require.ElementsMatch(t, have, fields, "classify the fields of %T", of)
}

func TestFingerprintInputs(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(in *Input){
		"Job":     func(in *Input) { in.Job = "web" },
		"Output":  func(in *Input) { in.Output = 1 },
		"Dataset": func(in *Input) { in.Job, in.Dataset = "", "airports" },
		"As":      func(in *Input) { in.As = "other" },
		"Where":   func(in *Input) { in.Where = []Condition{{Column: "a", Values: []any{int64(1)}}} },
		"Map":     func(in *Input) { in.Map = Mapping{Kind: MapLatest} },
		"Refresh": func(in *Input) { in.Refresh = true },
		"Read":    func(in *Input) { in.Read = ReadNew },
	} {
		doc := parsed(t, chain)
		before := prints(t, doc, nil)
		change(&doc.Jobs[1].Inputs[0])
		after := prints(t, doc, nil)
		require.NotEqual(t, before["target"], after["target"], field)
		require.NotEqual(t, before["downstream"], after["downstream"], field)
	}
	// PartitionBy is no part of it: jobs that can follow a dataset whose partitioning changes keep their generations.
	requireClassified(t, Input{}, "Job", "Output", "Dataset", "As", "Where", "Map", "Refresh", "Read", "PartitionBy",
		"Upstream", "Position")
	requireClassified(t, UDF{}, "Folder", "Bundle", "Entrypoint", "Hash") // a folder counts by its content

	doc := parsed(t, chain)
	before := prints(t, doc, nil)
	doc.Jobs[1].Inputs[0].Position.Line++
	require.Equal(t, before, prints(t, doc, nil))
}

func TestFingerprintUpstream(t *testing.T) {
	t.Parallel()
	doc := parsed(t, chain)
	before := prints(t, doc, nil)

	doc.Jobs[0].Config["batch"] = int64(6)
	require.Equal(t, before, prints(t, doc, nil), "an operational field rebuilds nothing")

	doc.Jobs[0].Config["path"] = "elsewhere"
	after := prints(t, doc, nil)
	for _, job := range []string{"upstream", "target", "downstream"} {
		require.NotEqual(t, before[job], after[job], job)
	}
	require.Equal(t, before["web"], after["web"])
	require.Equal(t, before["page"], after["page"], "an external job is never rebuilt")

	doc.Jobs[0].Config["path"] = "data"
	require.Equal(t, before, prints(t, doc, nil), "an old definition finds its old fingerprints")
}

// TestFingerprintForwardOnly checks that name, outputs and partitioning alone identify a job that cannot read again.
func TestFingerprintForwardOnly(t *testing.T) {
	t.Parallel()
	catalog := testCatalog()
	doc := parsed(t, chain)
	forward := map[string]bool{}
	for _, job := range doc.Jobs {
		forward[job.Name] = job.ForwardOnly(catalog.Operators[job.Operator])
	}
	require.Equal(t, map[string]bool{"upstream": false, "target": false, "downstream": false, "page": true,
		"web": true}, forward)
	for _, kind := range []string{"webhook", "manual", "timer", "always_on"} {
		doc.Jobs[0].Source.Kind = kind
		require.True(t, doc.Jobs[0].ForwardOnly(catalog.Operators["file_source"]), kind)
	}

	doc = parsed(t, chain)
	before := prints(t, doc, nil)["web"]
	for field, c := range map[string]struct {
		in     bool
		change func(j *Job)
	}{
		"config":        {false, func(j *Job) { j.Config = map[string]any{"url": "https://example.org"} }},
		"code version":  {false, func(j *Job) { j.CodeVersion = "2" }},
		"version":       {false, func(j *Job) { j.OperatorVersion = "2.0.0" }},
		"storage":       {false, func(j *Job) { j.Storage[0].Kind = StoragePostgres }},
		"name":          {true, func(j *Job) { j.Name = "net" }},
		"kept identity": {false, func(j *Job) { j.Name, j.RenamedFrom = "net", "web" }},
		"outputs":       {true, func(j *Job) { j.Outputs = []string{"0", "1"} }},
		"partition_by":  {true, func(j *Job) { j.PartitionBy = Partitioning{Kind: ByKey} }},
	} {
		doc := parsed(t, chain)
		c.change(&doc.Jobs[4])
		require.Equal(t, c.in, before != prints(t, doc, nil)[doc.Jobs[4].Name], field)
	}
}

func TestFingerprintRename(t *testing.T) {
	t.Parallel()
	before := prints(t, parsed(t, chain), nil)
	rename := func(former string) map[string]Fingerprint {
		doc := parsed(t, chain)
		doc.Jobs[1].Name, doc.Jobs[1].RenamedFrom = "renamed", former
		doc.Jobs[2].Inputs[0].Job, doc.Jobs[3].Inputs[0].Job = "renamed", "renamed"
		doc.Jobs[2].Inputs[0].As = "target"
		return prints(t, doc, nil)
	}
	require.NotEqual(t, before["downstream"], rename("")["downstream"], "consumers have the names of what they read")
	require.Equal(t, before["downstream"], rename("target")["downstream"], "`renamed_from` keeps the identity")
}

func TestFingerprintEpochs(t *testing.T) {
	t.Parallel()
	doc := parsed(t, chain)
	before, after := prints(t, doc, nil), prints(t, doc, map[string]int{"target": 1})
	require.Equal(t, before, prints(t, doc, map[string]int{"target": 0, "gone": 3}))
	for _, job := range []string{"upstream", "page", "web"} {
		require.Equal(t, before[job], after[job])
	}
	for _, job := range []string{"target", "downstream"} {
		require.NotEqual(t, before[job].Value, after[job].Value)
		require.Equal(t, before[job].Base, after[job].Base, "epochs are looked up by what has none")
		require.Equal(t, before[job].Value, before[job].Base)
		require.NotEqual(t, before[job].ConfigHash(0), after[job].ConfigHash(0))
	}
	require.NotEqual(t, before["target"].ConfigHash(0), before["target"].ConfigHash(1))
}

func TestFingerprintCanonicalConfig(t *testing.T) {
	t.Parallel()
	of := func(query string) string {
		doc := parsed(t, chain)
		doc.Jobs[1].Config["query"] = query
		return prints(t, doc, nil)["target"].Value
	}
	require.Equal(t, of("select 1"), of("SELECT\n  1 -- one"))
	require.NotEqual(t, of("select 1"), of("select 2"))

	doc := parsed(t, chain)
	doc.Jobs[1].Config["query"] = "drop table x"
	_, err := Define(doc, testCatalog())
	require.EqualError(t, err, `fingerprint of job "target": this is not a SELECT`)
	_, err = Define(parsed(t, chain), Catalog{})
	require.ErrorContains(t, err, "there is no operator")
}

func TestHash(t *testing.T) {
	t.Parallel()
	text := []byte(chain)
	doc := parsed(t, chain)
	require.Len(t, Hash(doc, nil, nil), 64)
	require.Equal(t, Hash(doc, nil, nil),
		Hash(parsed(t, "# comment\n"+chain), map[string]int{"target": 0, "gone": 1}, nil))
	require.NotEqual(t, SourceHash(text), SourceHash([]byte("# comment\n"+chain)))
	require.NotEqual(t, Hash(doc, nil, nil), Hash(doc, map[string]int{"target": 1}, nil))

	formatted, problems := Format(text)
	require.Empty(t, problems)
	require.Equal(t, string(doc.Canonical()), string(parsed(t, string(formatted)).Canonical()))

	upgraded := testCatalog()
	op := upgraded.Operators["sql"]
	op.Version = "2.0.0"
	upgraded.Operators["sql"] = op
	newer, problems := Parse(File{Text: text}, upgraded)
	require.Empty(t, problems)
	require.NotEqual(t, Hash(doc, nil, nil), Hash(newer, nil, nil), "an operator's new meaning is a new version")

	described := parsed(t, chain+"publish: { delays: { from: { job: target } } }\n")
	require.NotEqual(t, Hash(doc, nil, nil), Hash(described, nil, nil))
	require.Equal(t, prints(t, doc, nil), prints(t, described, nil), "publishing rebuilds nothing")
}

func TestUDFHash(t *testing.T) {
	t.Parallel()
	const text = "name: u\njobs:\n  - name: a\n    operator: command\n    source: { kind: manual }\n" +
		"    udf: { folder: ./udf, entrypoint: main }\n"
	files := map[string][]byte{"udf/main.py": []byte("print(1)"), "udf/lib/a.py": []byte("a"),
		"udf/.git/HEAD": []byte("x"), "udf/__pycache__/a.pyc": []byte("x")}
	parse := func(files map[string][]byte) *Document {
		doc, problems := Parse(File{Text: []byte(text), Files: InMemory(files)}, testCatalog())
		require.Empty(t, problems.Error())
		return doc
	}
	doc := parse(files)
	require.Equal(t, "udf", doc.Jobs[0].UDF.Folder)
	require.ElementsMatch(t, []string{"udf/main.py", "udf/lib/a.py"}, sortedKeys(doc.Files))
	require.Equal(t, doc, parse(doc.Files), "what a client sends is all that the server needs")

	changed := maps.Clone(files)
	changed["udf/lib/a.py"] = []byte("b")
	require.NotEqual(t, doc.Jobs[0].UDF.Hash, parse(changed).Jobs[0].UDF.Hash)
	moved := map[string][]byte{"udf/main.py": []byte("print(1)"), "udf/lib/b.py": []byte("a")}
	require.NotEqual(t, doc.Jobs[0].UDF.Hash, parse(moved).Jobs[0].UDF.Hash)

	many := fstest.MapFS{}
	for i := range MaxUDFFiles + 1 {
		many["udf/"+time.Duration(i).String()] = &fstest.MapFile{}
	}
	_, problems := Parse(File{Text: []byte(text), Files: many}, testCatalog())
	require.ErrorContains(t, problems.Fault(), "1 problem")
	require.Contains(t, problems.Error(), "more than 1000 files")
	_, problems = Parse(File{Text: []byte(text),
		Files: InMemory(map[string][]byte{"udf/a": make([]byte, MaxUDFBytes+1)})}, testCatalog())
	require.Contains(t, problems.Error(), "udf/a: it has more than")
}
