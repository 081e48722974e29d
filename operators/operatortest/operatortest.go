// Package operatortest checks that an operator does what the platform relies on: its spec is sound, its config schema
// is strict, and its runs depend only on their inputs, stop when asked to, and write only where they may.
//
// Vocabulary: a Case is a config with the inputs that it runs on, or with the reason why it is refused. It owns no
// tables.
package operatortest

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// Case is one config and its expected effect.
type Case struct {
	Name    string
	Config  map[string]any
	Refused string // part of the message that refuses the config; such a case does not run

	Inputs      []Input
	Outputs     []string // names; default: "out"
	PartitionBy dag.Partitioning
	Partition   *operators.PartitionRange
	Payload     json.RawMessage
	State       json.RawMessage
	Roots       []string
	Secrets     map[string]secret.Value // those that the config names
	Deliveries  operators.Deliveries    // of a task that runs; nil: the run is not in a process of the server

	Fails     string // part of the error of the run
	Permanent bool   // whether that error is permanent
	Endless   bool   // the run would take minutes; it is canceled at its first progress

	// Want is the rows of each output as DuckDB writes them, in order. An output that is missing here must not be
	// written. Nil: the rows are not checked.
	Want map[string][]string
	// Check checks the result of a successful run.
	Check func(t *testing.T, r operators.Result)
}

// Input is a relation that the run reads.
type Input struct {
	As    string
	Query string // SELECT of its rows
	Where []dag.Condition
	Empty bool // it has columns but no files
	Kind  storage.Kind
}

// Run checks op against the rules and its cases.
func Run(t *testing.T, op operators.Operator, cases ...Case) {
	t.Helper()
	spec := op.Spec()
	schema := checkSpec(t, op, spec)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Config = plain(t, c.Config)
			err := validate(spec, schema, c.Config)
			if c.Refused != "" {
				require.ErrorContains(t, err, c.Refused)
				return
			}
			require.NoError(t, err)
			checkCase(t, op, c)
		})
	}
}

// checkSpec checks what the catalog relies on.
func checkSpec(t *testing.T, op operators.Operator, spec dag.OperatorSpec) *jsonschema.Schema {
	t.Helper()
	require.Regexp(t, `^[a-z][a-z0-9_]*$`, spec.Name)
	require.Regexp(t, `^\d+\.\d+\.\d+$`, spec.Version)
	require.True(t, spec.Source || spec.Reactive, "it is a source, reactive, or both")
	require.Contains(t, []dag.Effect{dag.EffectInternal, dag.EffectExternal}, spec.Effect)

	_, enumerates := op.(operators.Enumerator)
	require.Equal(t, spec.Replayable, enumerates, "an operator is replayable if and only if it enumerates")
	require.False(t, spec.Replayable && !spec.Source, "only a source is replayable")

	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(spec.ConfigSchema)))
	require.NoError(t, err)
	root, ok := document.(map[string]any)
	require.True(t, ok)
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", root["$schema"])
	require.Equal(t, "object", root["type"])
	require.Equal(t, false, root["additionalProperties"], "an unknown field is refused")

	properties, ok := root["properties"].(map[string]any)
	require.True(t, ok)
	for name, property := range properties {
		require.NotEmpty(t, property.(map[string]any)["description"], "%s has a description", name)
	}

	for _, name := range spec.Operational {
		require.Contains(t, properties, name, "an operational field is in the schema")
	}
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("config.json", document))

	schema, err := compiler.Compile("config.json")
	require.NoError(t, err)
	require.Error(t, schema.Validate(map[string]any{"no_such_field": 1}))
	return schema
}

// validate validates a config as the platform does: by the schema and by the operator.
func validate(spec dag.OperatorSpec, schema *jsonschema.Schema, config map[string]any) error {
	if err := schema.Validate(withoutSecrets(config)); err != nil {
		return err
	}
	if spec.Canonical == nil {
		return nil
	}

	form, fault := spec.Canonical(config)
	if fault != nil {
		return fmt.Errorf("%s: %s", fault.Key, fault.Message)
	}
	again, _ := spec.Canonical(config)
	one, err := json.Marshal(form)
	if err != nil {
		return fmt.Errorf("the canonical form is not JSON: %w", err)
	}
	if two, _ := json.Marshal(again); string(one) != string(two) {
		return fmt.Errorf("the canonical form differs from call to call")
	}
	return nil
}

// withoutSecrets returns a value with text in place of each {secret: NAME}, which is what schemas describe.
func withoutSecrets(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["secret"].(string); ok && len(v) == 1 {
			return "secret"
		}
		out := make(map[string]any, len(v))
		for key, inner := range v {
			out[key] = withoutSecrets(inner)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = withoutSecrets(v[i])
		}
		return out
	}
	return v
}

func checkCase(t *testing.T, op operators.Operator, c Case) {
	t.Helper()
	if c.Endless {
		cancels(t, op, c)
		return
	}

	first := perform(t.Context(), t, op, c)
	if c.Fails != "" {
		require.ErrorContains(t, first.err, c.Fails)
		require.Equal(t, c.Permanent, operators.IsPermanent(first.err), "%v", first.err)
		return
	}
	require.NoError(t, first.err)

	second := perform(t.Context(), t, op, c)
	require.NoError(t, second.err)
	require.Equal(t, first.rows, second.rows, "the same inputs make the same outputs")

	if op.Spec().Name == "sql" {
		require.Equal(t, computed(t, c), first.rows, "what is stored is what the query returns")
	}
	if c.Want != nil {
		require.Equal(t, c.Want, first.rows)
	}
	if c.Check != nil {
		c.Check(t, first.result)
	}

	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, perform(canceled, t, op, c).err, context.Canceled, "a canceled run does not begin")

	if e, ok := op.(operators.Enumerator); ok {
		enumerates(t, e, c)
	}
}

// cancels cancels a run at its first report of progress.
func cancels(t *testing.T, op operators.Operator, c Case) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun := time.Now()
	task, _ := newTask(t, c)
	task.Progress = func(int, string) { cancel() }
	_, err := op.Run(ctx, task)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, time.Since(begun), 20*time.Second)
}

// run is the effect of one run.
type run struct {
	result operators.Result
	rows   map[string][]string
	err    error
}

func perform(ctx context.Context, t *testing.T, op operators.Operator, c Case) run {
	t.Helper()
	task, base := newTask(t, c)
	before := elsewhere(t, base, task)
	var r run
	r.result, r.err = op.Run(ctx, task)
	require.Equal(t, before, elsewhere(t, base, task), "it writes to its output folders and its scratch folder only")
	if r.err != nil {
		return r
	}

	r.rows = map[string][]string{}
	for i, dir := range task.OutputDirs {
		files, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
		require.NoError(t, err)
		if len(files) > 0 {
			slices.Sort(files)
			r.rows[task.Outputs[i].Name] = rows(t, "SELECT * FROM "+duck.ReadParquet(files))
			readsBack(t, files)
		}
	}
	return r
}

// readsBack checks that storage returns the rows of files as they are, with the types that their columns have.
func readsBack(t *testing.T, files []string) {
	t.Helper()
	s, err := storage.New(storage.Config{Root: t.TempDir()})
	require.NoError(t, err)
	defer s.Close()

	from := "SELECT * FROM " + duck.ReadParquet(files)
	columns, err := open(t).Describe(context.WithoutCancel(t.Context()), from)
	require.NoError(t, err)
	want := rows(t, from)
	local := make([]string, len(files))
	for i, file := range files { // sealing moves them
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		local[i] = filepath.Join(t.TempDir(), filepath.Base(file))
		require.NoError(t, os.WriteFile(local[i], content, 0o600))
	}

	a := storage.Attempt{Generation: storage.Generation{OrgSlug: "acme", Dataset: uuid.New(), Version: uuid.New(),
		Kind: storage.Parquet}, Partition: dag.WholeKey, Task: uuid.New(), Number: 1}
	m, err := s.Seal(context.WithoutCancel(t.Context()), a, local)
	require.NoError(t, err)
	require.Equal(t, columns, m.Schema)
	opened, err := s.Open(context.WithoutCancel(t.Context()), a.Generation,
		[]storage.Partition{{Key: a.Partition, Revision: 1, Files: m.Files}}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, want, rows(t, "SELECT * FROM "+duck.ReadParquet(opened[0])))
}

// computed returns the rows of a case's queries, without a file in between.
func computed(t *testing.T, c Case) map[string][]string {
	t.Helper()
	variables := map[string]any{"partition": nil, "start": nil, "end": nil}
	if p := c.Partition; p != nil {
		variables["partition"] = p.Key
		if p.Start != nil && p.End != nil {
			variables["start"], variables["end"] = *p.Start, *p.End
		}
	}
	session, err := duck.Open(t.Context(), duck.Config{Threads: 1, TimeZone: c.PartitionBy.Timezone,
		Variables: variables})
	require.NoError(t, err)
	defer session.Close()

	for _, in := range c.Inputs {
		columns, err := session.Describe(t.Context(), in.Query)
		require.NoError(t, err)
		where := fmt.Sprint(!in.Empty)
		for _, condition := range in.Where {
			at := slices.IndexFunc(columns, func(c duck.Column) bool { return c.Name == condition.Column })
			text, err := duck.ConditionSQL(duck.Condition{Column: condition.Column,
				Values: condition.Values}, columns[at].Type)
			require.NoError(t, err)
			where += " AND " + text
		}
		require.NoError(t, session.Exec(t.Context(), fmt.Sprintf("CREATE TABLE %s AS SELECT * FROM (%s) WHERE %s",
			sqltext.Quote(in.As), in.Query, where)))
	}

	queries, several := c.Config["queries"].(map[string]any)
	if !several {
		queries = map[string]any{"out": c.Config["query"]}
	}
	all := map[string][]string{}
	for name, query := range queries {
		require.NoError(t, session.Exec(t.Context(), "CREATE OR REPLACE VIEW made AS\n"+query.(string)))
		all[name] = rowsOf(t, session, "FROM made")
	}
	return all
}

// newTask creates a task with its folders below one folder.
func newTask(t *testing.T, c Case) (*operators.Task, string) {
	t.Helper()
	base := t.TempDir()
	if c.Outputs == nil {
		c.Outputs = []string{"out"}
	}

	dir := func(name string) string {
		path := filepath.Join(base, name)
		require.NoError(t, os.Mkdir(path, 0o700))
		return path
	}

	task := &operators.Task{
		Assignment: operators.Assignment{
			TaskID: uuid.New(), Attempt: 1, OrgSlug: "acme", DAG: "d", Job: "j", Config: c.Config,
			Payload: c.Payload, PartitionBy: c.PartitionBy, Partition: c.Partition, State: c.State, Roots: c.Roots,
			Secrets: c.Secrets, Deliveries: c.Deliveries,
		},
		Scratch:  dir("scratch"),
		Progress: func(int, string) {},
		Log:      slog.New(slog.DiscardHandler),
	}

	for i, in := range c.Inputs {
		input := operators.AssignedInput{Index: i, As: in.As, Where: in.Where,
			Generation: storage.Generation{Kind: in.Kind},
			Partitions: []storage.Partition{{Key: dag.WholeKey, Revision: 1}}}
		file := filepath.Join(dir(fmt.Sprintf("input%d", i)), "part.parquet")
		input.Schema = write(t, in.Query, file)
		files := []string{file}
		if in.Empty {
			require.NoError(t, os.Remove(file))
			files, input.Partitions = nil, nil
		}
		task.Inputs, task.InputFiles = append(task.Inputs, input), append(task.InputFiles, files)
	}

	for i, name := range c.Outputs {
		task.Outputs = append(task.Outputs, operators.AssignedOutput{Index: i, Name: name, UpdateStrategy: dag.Replace})
		task.OutputDirs = append(task.OutputDirs, dir(fmt.Sprintf("output%d", i)))
	}
	t.Cleanup(task.Use(enginetest.Engines()))
	return task, base
}

// elsewhere returns the hash of every file that the task may not write.
func elsewhere(t *testing.T, base string, task *operators.Task) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, root := range append([]string{base}, task.Roots...) {
		require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == task.Scratch || slices.Contains(task.OutputDirs, path) {
				return cmp.Or(err, fs.SkipDir)
			}

			found[path] = d.Type().String()
			if d.Type().IsRegular() {
				content, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				found[path] = fmt.Sprintf("%x", sha256.Sum256(content))
			}
			return nil
		}))
	}
	return found
}

// enumerates checks the units: listing changes nothing, and reading a unit gives the version that was listed.
func enumerates(t *testing.T, e operators.Enumerator, c Case) {
	t.Helper()
	list := func() []operators.Unit {
		units, err := e.Enumerate(t.Context(), operators.Enumeration{Config: c.Config, PartitionBy: c.PartitionBy,
			Roots: c.Roots, Secrets: c.Secrets, Now: time.Now()})
		require.NoError(t, err)
		return units
	}

	units := list()
	require.Equal(t, units, list(), "the same files make the same units")

	seen := map[string]bool{}
	for _, unit := range units {
		require.NoError(t, c.PartitionBy.Valid(unit.Partition))
		require.False(t, seen[unit.Partition], "partition %q is listed twice", unit.Partition)
		seen[unit.Partition] = true
		one := c
		one.Payload, one.Partition = unit.Payload, &operators.PartitionRange{Key: unit.Partition}
		r := perform(t.Context(), t, e, one)
		require.NoError(t, r.err)
		require.Equal(t, unit.Version, r.result.SourceVersion, "reading a unit gives the version that was listed")
	}
}

// plain returns a config as it comes from the database.
func plain(t *testing.T, config map[string]any) map[string]any {
	t.Helper()
	text, err := json.Marshal(config)
	require.NoError(t, err)
	var out map[string]any
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

func open(t *testing.T) *duck.Session {
	t.Helper()
	session, err := duck.Open(context.WithoutCancel(t.Context()), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Close()) })
	return session
}

func write(t *testing.T, query, file string) []storage.Column {
	t.Helper()
	session := open(t)
	columns, err := session.Describe(t.Context(), query)
	require.NoError(t, err)
	_, err = session.CopyToParquet(t.Context(), query, file)
	require.NoError(t, err)
	return columns
}

// structName is removed from a row's text: the names are in the query.
var structName = regexp.MustCompile(`^\{|\}$`)

func rows(t *testing.T, query string) []string {
	t.Helper()
	return rowsOf(t, open(t), query)
}

func rowsOf(t *testing.T, session *duck.Session, query string) []string {
	t.Helper()
	found, err := session.Query(t.Context(), "SELECT CAST(whole AS VARCHAR) FROM ("+query+") AS whole")
	require.NoError(t, err)
	defer found.Close()
	out := []string{}
	for found.Next() {
		var row string
		require.NoError(t, found.Scan(&row))
		out = append(out, structName.ReplaceAllString(row, ""))
	}
	require.NoError(t, found.Err())
	return out
}
