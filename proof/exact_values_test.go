package proof_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/standard"
	"github.com/dagctl/dagctl/query"
	"github.com/dagctl/dagctl/registry"
	"github.com/dagctl/dagctl/storage"
)

// TestExactValues writes rows of random types to both kinds of storage and compares them, value by value, on every way
// out: a job downstream, previews, queries, and what a worker gets as Parquet, Arrow, NDJSON and CSV, in Python, too.
// The table in docs/yaml.md says what that is.
func TestExactValues(t *testing.T) {
	t.Parallel()
	exactValues(t, 0, 6)
}

func exactValues(t *testing.T, from, seeds uint64) {
	e := newExact(t)
	for seed := from; seed < from+seeds; seed++ {
		r := rand.New(rand.NewPCG(seed, 7))
		shapes := make([]shape, 14)
		for i := range shapes {
			shapes[i] = randomShape(r, 2)
		}
		rows := make([][]sample, 5)
		for i := range rows {
			for _, s := range shapes {
				rows[i] = append(rows[i], s.random(r))
			}
		}
		for _, kind := range []storage.Kind{storage.Parquet, storage.Postgres} {
			t.Run(fmt.Sprintf("seed %d in %s", seed, kind), func(t *testing.T) {
				e.compare(t, kind, shapes, rows)
			})
		}
	}
}

// TestExactValuesOfEveryType has a column of each scalar type, and a list, a struct and a map of it.
func TestExactValuesOfEveryType(t *testing.T) {
	t.Parallel()
	e := newExact(t)
	r := rand.New(rand.NewPCG(1, 1))
	var shapes []shape
	for i := range scalarKinds {
		s := shape{name: scalarKinds[i].name, scalar: &scalarKinds[i]}
		shapes = append(shapes, s, shape{name: s.name + "[]", kind: sqltext.ListType, of: []shape{s}},
			shape{name: "STRUCT(a " + s.name + ")", kind: sqltext.StructType, of: []shape{s}, keys: []string{"a"}},
			shape{name: "MAP(INTEGER, " + s.name + ")", kind: sqltext.MapType, of: []shape{s}, key: &scalarKinds[5]})
	}
	rows := make([][]sample, 12)
	for i := range rows {
		for _, s := range shapes {
			rows[i] = append(rows[i], s.random(r))
		}
	}
	for _, kind := range []storage.Kind{storage.Parquet, storage.Postgres} {
		t.Run(string(kind), func(t *testing.T) { e.compare(t, kind, shapes, rows) })
	}
}

// exact has the parts of the platform that rows pass.
type exact struct {
	pool    *pgxpool.Pool
	storage *storage.Storage
	runner  *operators.Runner
	query   *query.Query
	session *duck.Session
	python  *json.Decoder
	ask     *json.Encoder
}

func newExact(t *testing.T) *exact {
	t.Helper()
	e := &exact{pool: testdb.New(t)}
	var err error
	e.storage, err = storage.New(storage.Config{Root: t.TempDir(), Pool: e.pool, Rows: enginetest.Engines()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.storage.Close()) })
	builtin, err := standard.New(operators.Options{Engines: enginetest.Engines(), Threads: 1})
	require.NoError(t, err)
	e.runner = &operators.Runner{Registry: builtin, Storage: e.storage, ScratchDir: t.TempDir()}
	e.query, err = query.New(query.Config{Requests: e.pool, Registry: &registry.Registry{}, Storage: e.storage,
		Engines: engines(t)})
	require.NoError(t, err)
	e.session, err = duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.session.Close()) })

	cmd := exec.Command("python3", "testdata/exact_rows.py", "../sdk/python")
	cmd.Env, cmd.Stderr = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1"), t.Output()
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { require.NoError(t, in.Close()); require.NoError(t, cmd.Wait()) })
	e.ask, e.python = json.NewEncoder(in), json.NewDecoder(out)
	return e
}

// compare takes rows through a job into storage, and out of it on every way.
func (e *exact) compare(t *testing.T, kind storage.Kind, shapes []shape, rows [][]sample) {
	var lines []string
	for _, row := range rows {
		var values []string
		for i, v := range row {
			values = append(values, fmt.Sprintf("%s AS c%d", v.sql, i))
		}
		lines = append(lines, "SELECT "+strings.Join(values, ", "))
	}
	made := strings.Join(lines, " UNION ALL ")
	want := e.texts(t, withoutArrays(shapes, made))

	seed := e.publish(t, kind, made)
	down := e.run(t, kind, seed, "SELECT * FROM before")
	files, err := e.storage.Open(t.Context(), down.Generation, down.Partitions, t.TempDir())
	require.NoError(t, err)
	columns, err := e.session.Describe(t.Context(), "SELECT * FROM "+duck.ReadParquet(files[0]))
	require.NoError(t, err)
	planned, err := e.session.Describe(t.Context(), made)
	require.NoError(t, err)
	written, err := sqltext.WrittenAll(planned)
	require.NoError(t, err)
	require.Equal(t, written, columns, "a plan says the types that are stored")
	require.Equal(t, want, e.texts(t, "SELECT * FROM "+duck.ReadParquet(files[0])), "a job downstream")

	got, preview, err := e.storage.Preview(t.Context(), down.Generation, down.Partitions, 100, 0)
	require.NoError(t, err)
	require.Equal(t, columns, got)
	text, err := json.Marshal(preview)
	require.NoError(t, err)
	same(t, "preview", shapes, rows, list(t, tokens(t, text)))

	selected, err := e.query.Over(t.Context(), query.Given{Org: uuid.New(), Of: "test", Scope: relations.UTC,
		Open: func(context.Context, string, string, bool) ([]string, []string, error) { return files[0], nil, nil }},
		"SELECT * FROM before", 100)
	require.NoError(t, err)
	text, err = json.Marshal(selected.Rows)
	require.NoError(t, err)
	same(t, "query", shapes, rows, list(t, tokens(t, text)))

	for _, format := range operators.ExportFormats {
		in := down
		in.Where = []dag.Condition{{Column: "c0", Values: everything(rows)}}
		if k := shapes[0].scalar; k == nil || !k.number && !slices.Contains(named, k.name) {
			in.Where = nil
		}
		all := operators.Assignment{Inputs: []operators.AssignedInput{in}}
		file, err := e.runner.Export(t.Context(), all, in, format, t.TempDir())
		require.NoError(t, err)
		if format == "parquet" {
			require.Equal(t, want, e.texts(t, "SELECT * FROM "+duck.ReadParquet([]string{file})), format)
			continue
		}
		if format == "arrow" {
			stream, err := os.Open(file)
			require.NoError(t, err)
			same(t, format, shapes, rows, arrowRows(t, stream))
			require.NoError(t, stream.Close())
			continue
		}

		require.NoError(t, e.ask.Encode(map[string]any{"file": file, "columns": columns, "csv": format == "csv"}))
		var read []any
		require.NoError(t, e.python.Decode(&read))
		for i, row := range read {
			read[i] = untagged(row)
		}
		if format == "ndjson" {
			same(t, format, shapes, rows, read)
			continue
		}
		for i, row := range read {
			for n, p := range row.(pairs) {
				require.Equal(t, strings.TrimPrefix(want[i][n], "v"), p.value, "csv: %s", shapes[n].name)
			}
		}
	}
}

var arrayType = regexp.MustCompile(`\[\d+\]`)

// withoutArrays makes lists of the arrays in a query's columns, as storage does: DuckDB quotes the texts in arrays.
func withoutArrays(shapes []shape, made string) string {
	var lists []string
	for i, s := range shapes {
		lists = append(lists, fmt.Sprintf("CAST(c%d AS %s) AS c%[1]d", i, arrayType.ReplaceAllString(s.name, "[]")))
	}
	return "SELECT " + strings.Join(lists, ", ") + " FROM (" + made + ")"
}

// named are the types, beside numbers, all of whose values a document can name.
var named = []string{"BOOLEAN", "VARCHAR", "UUID"}

// everything returns conditions that all rows fulfil.
func everything(rows [][]sample) (values []any) {
	for _, row := range rows {
		if row[0].null {
			values = append(values, nil)
		} else {
			values = append(values, row[0].text)
		}
	}
	return values
}

// texts returns the values of a query as DuckDB writes them, with a v in front; NULL is empty.
func (e *exact) texts(t *testing.T, made string) (all [][]string) {
	t.Helper()
	rows, err := e.session.Query(t.Context(), "SELECT coalesce('v' || CAST(COLUMNS(*) AS VARCHAR), '') FROM ("+made+")")
	require.NoError(t, err)
	defer rows.Close()
	names, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		row := make([]string, len(names))
		into := make([]any, len(names))
		for i := range row {
			into[i] = &row[i]
		}
		require.NoError(t, rows.Scan(into...))
		all = append(all, row)
	}
	require.NoError(t, rows.Err())
	return all
}

// publish writes the rows of a query as an operator does, and publishes them.
func (e *exact) publish(t *testing.T, kind storage.Kind, made string) operators.AssignedInput {
	t.Helper()
	file := filepath.Join(t.TempDir(), "part.parquet")
	_, err := e.session.CopyToParquet(t.Context(), made, file)
	require.NoError(t, err)
	a := storage.Attempt{Generation: generation(kind), Partition: dag.WholeKey, Task: uuid.New(), Number: 1}
	m, err := e.storage.Seal(t.Context(), a, []string{file})
	require.NoError(t, err)
	return e.published(t, a, m)
}

func generation(kind storage.Kind) storage.Generation {
	return storage.Generation{OrgID: uuid.New(), OrgSlug: "acme", Dataset: uuid.New(), Version: uuid.New(), Kind: kind}
}

func (e *exact) published(t *testing.T, a storage.Attempt, m storage.Manifest) operators.AssignedInput {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), e.pool, func(tx pgx.Tx) error {
		return e.storage.Publish(t.Context(), tx, a, 1, m)
	}))
	return operators.AssignedInput{As: "before", Generation: a.Generation, Schema: m.Schema,
		Partitions: []storage.Partition{{Key: dag.WholeKey, Revision: 1, Files: m.Files}}}
}

// run runs a query over an input as a job does.
func (e *exact) run(t *testing.T, kind storage.Kind, in operators.AssignedInput, sql string) operators.AssignedInput {
	t.Helper()
	a := operators.Assignment{TaskID: uuid.New(), Attempt: 1, OrgSlug: "acme", Operator: "sql",
		Config: map[string]any{"query": sql}, Inputs: []operators.AssignedInput{in},
		Outputs: []operators.AssignedOutput{{Name: "after", Generation: generation(kind), UpdateStrategy: dag.Replace}}}
	out := e.runner.Run(t.Context(), a, nil)
	require.NoError(t, out.Err)
	return e.published(t, storage.Attempt{Generation: a.Outputs[0].Generation, Partition: dag.WholeKey, Task: a.TaskID,
		Number: 1}, out.Written[0].Manifest)
}

// What comes out is compared as JSON that keeps the order of objects and the text of numbers: nil, bool, number,
// string, []any and pairs.
type (
	number string
	pairs  []pair
	pair   struct {
		key   string
		value any
	}
)

func tokens(t *testing.T, text []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return value(t, decoder)
}

func value(t *testing.T, from *json.Decoder) any {
	t.Helper()
	token, err := from.Token()
	require.NoError(t, err)
	switch token := token.(type) {
	case json.Number:
		return number(token)
	case json.Delim:
		var list []any
		object := pairs{}
		for from.More() {
			if token == '[' {
				list = append(list, value(t, from))
				continue
			}
			key, err := from.Token()
			require.NoError(t, err)
			object = append(object, pair{key.(string), value(t, from)})
		}
		_, err := from.Token()
		require.NoError(t, err)
		if token == '[' {
			return list
		}
		return object
	}
	return token
}

func list(t *testing.T, v any) []any {
	t.Helper()
	rows, ok := v.([]any)
	require.True(t, ok)
	return rows
}

// untagged reads what testdata/exact_rows.py writes.
func untagged(v any) any {
	tagged, ok := v.([]any)
	if !ok {
		return v
	}
	switch tagged[0] {
	case "n":
		return number(tagged[1].(string))
	case "s":
		return tagged[1]
	case "l":
		var list []any
		for _, v := range tagged[1].([]any) {
			list = append(list, untagged(v))
		}
		return list
	}
	object := pairs{}
	for _, p := range tagged[1].([]any) {
		of := p.([]any)
		object = append(object, pair{of[0].(string), untagged(of[1])})
	}
	return object
}

// same compares rows, each a list or an object, with what they must be.
func same(t *testing.T, way string, shapes []shape, rows [][]sample, got []any) {
	t.Helper()
	require.Len(t, got, len(rows), way)
	for i, row := range rows {
		values, isList := got[i].([]any)
		if !isList {
			for _, p := range got[i].(pairs) {
				values = append(values, p.value)
			}
		}
		require.Len(t, values, len(row))
		for n, want := range row {
			require.True(t, alike(t, shapes[n], want, values[n]), "%s: %s %s comes back as %#v", way, shapes[n].name,
				want.sql, values[n])
		}
	}
}

func alike(t *testing.T, s shape, want sample, got any) bool {
	t.Helper()
	if want.null || got == nil {
		return want.null && got == nil || s.scalar != nil && s.scalar.json && want.text == "null" && got == nil
	}
	if s.scalar != nil {
		return s.scalar.alike(t, want.text, got)
	}

	values, ok := s.parts(want, got)
	if !ok || len(values) != len(want.parts) {
		return false
	}
	for i, part := range want.parts {
		of := s.of[0]
		if s.kind == sqltext.StructType {
			of = s.of[i]
		}
		if !alike(t, of, part, values[i]) {
			return false
		}
	}
	return true
}

// parts returns the parts of a list or of an object that has the wanted keys in their order.
func (s shape) parts(want sample, got any) (values []any, ok bool) {
	if s.kind == sqltext.ListType {
		values, ok = got.([]any)
		return values, ok || got == nil
	}
	object, ok := got.(pairs)
	for i, p := range object {
		if i >= len(want.keys) || p.key != want.keys[i] {
			return nil, false
		}
		values = append(values, p.value)
	}
	return values, ok
}

func (k scalarKind) alike(t *testing.T, want string, got any) bool {
	t.Helper()
	text := ""
	switch got := got.(type) {
	case bool:
		text = strconv.FormatBool(got)
	case number:
		text = string(got)
	case string:
		text = got
	}
	switch {
	case k.json:
		return alikeJSON(tokens(t, []byte(want)), got)
	case k.number:
		a, ok := new(big.Rat).SetString(want)
		b, fine := new(big.Rat).SetString(text)
		return ok && fine && a.Cmp(b) == 0
	case k.float > 0:
		a, err := strconv.ParseFloat(want, k.float)
		b, wrong := strconv.ParseFloat(text, k.float)
		return err == nil && wrong == nil && fmt.Sprint(a) == fmt.Sprint(b)
	}
	_, isNumber := got.(number)
	return text == want && !isNumber
}

func alikeJSON(want, got any) bool {
	switch want := want.(type) {
	case number:
		a, ok := new(big.Rat).SetString(string(want))
		n, _ := got.(number)
		b, fine := new(big.Rat).SetString(string(n))
		return ok && fine && a.Cmp(b) == 0
	case []any:
		list, _ := got.([]any)
		return slices.EqualFunc(want, list, alikeJSON)
	case pairs:
		object, ok := got.(pairs)
		return ok && slices.EqualFunc(want, object, func(a, b pair) bool {
			return a.key == b.key && alikeJSON(a.value, b.value)
		})
	}
	return want == got
}
