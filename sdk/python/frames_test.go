package python_test

import (
	"encoding/json"
	"flag"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/query"
)

// Which libraries' frames the tests write, and the Python that has them: Debian 12 has neither polars nor pyarrow, and
// later releases have pyarrow. Say -frames pandas,pyarrow -frames-python PYTHON to write those, too. Without polars for
// Python, polars_test.go reads the files that its writer makes.
var (
	frameLibraries = flag.String("frames", "pandas", "libraries whose frames are written: pandas, polars, pyarrow")
	framePython    = flag.String("frames-python", "", "the Python that has them; default: one that is found")
)

// pythonWith returns a Python that has a library.
func pythonWith(t *testing.T, library string) string {
	t.Helper()
	own, err := filepath.Abs("../../.cache/frames/bin/python")
	require.NoError(t, err)
	for _, python := range []string{*framePython, own, "python3", "/usr/bin/python3"} {
		if python != "" && exec.Command(python, "-c", "import "+library).Run() == nil {
			return python
		}
	}
	require.Fail(t, "no Python has "+library, "scripts/test_servers.sh installs pandas")
	return ""
}

const framesDAG = `name: frames
defaults: { runtime: python }
jobs:
  - { name: all, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: all } }
  - { name: none, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: none } }
  - { name: chosen, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: chosen } }
  - { name: two, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: two }, outputs: [frame, rows] }
  - { name: generated, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: generated } }
  - { name: declared, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: declared } }
  - { name: wrong, operator: handler, source: { kind: manual }, max_attempts: 1, config: { handler: wrong } }
publish:
  all: { from: { job: all } }
  none: { from: { job: none } }
  chosen: { from: { job: chosen } }
  frame: { from: { job: two, output: frame } }
  rows: { from: { job: two, output: rows } }
  generated: { from: { job: generated } }
  declared: { from: { job: declared } }
  wrong: { from: { job: wrong } }
`

var frameTypes = "z BIGINT, text VARCHAR, flag BOOLEAN, share DOUBLE, price DECIMAL, day DATE, at TIMESTAMP, " +
	"seen TIMESTAMP WITH TIME ZONE, tags VARCHAR[], who STRUCT, kind VARCHAR"

// Frames arrive with their types, whichever library made them, and also without rows.
func TestFrames(t *testing.T) {
	t.Parallel()
	for _, library := range strings.Split(*frameLibraries, ",") {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.serve(t, framesDAG)
			w.workerOf(t, pythonWith(t, library), "frames.py", "FRAMES="+library)

			done := w.ended(t, w.run(t, "frames/all", "null"), "Completed")
			require.JSONEq(t, `{"rows": 3}`, string(done.Result))
			rows := w.preview(t, "all")
			require.Equal(t, frameTypes, typesOf(rows))
			first, err := json.Marshal(rows.Rows[0])
			require.NoError(t, err)
			require.JSONEq(t, `[1, "a", true, 0.5, "1.50", "2026-01-05", "2026-01-05 09:00:00.000025",
				"2026-01-05 09:00:00+00", ["x", "y"], {"name": "ada", "ids": [1]}, "new"]`, string(first))
			require.Equal(t, []any{2.0, "007", false, "Infinity", "12345678901234567.25"}, rows.Rows[1][:5])
			require.Equal(t, append(make([]any, 10), "new"), rows.Rows[2], "what is missing is NULL")

			w.ended(t, w.run(t, "frames/chosen", `["kind", "z"]`), "Completed")
			require.Equal(t, "kind VARCHAR, z BIGINT", typesOf(w.preview(t, "chosen")), "in this order")
			failed := w.ended(t, w.run(t, "frames/chosen", `["kind", "cost"]`), "Failed")
			require.Contains(t, failed.Error, `output 0: the frame has no column 'cost'; it has: z, text, flag,`)

			done = w.ended(t, w.run(t, "frames/two", "null"), "Completed")
			require.JSONEq(t, `{"rows": {"frame": 3, "rows": 2}}`, string(done.Result))
			require.Equal(t, frameTypes, typesOf(w.preview(t, "frame")))
			require.Len(t, w.preview(t, "rows").Rows, 2)

			w.ended(t, w.run(t, "frames/none", "null"), "Completed")
			empty := w.preview(t, "none")
			require.Empty(t, empty.Rows)
			require.Contains(t, typesOf(empty), "seen TIMESTAMP WITH TIME ZONE")
			require.Len(t, empty.Columns, 11)

			switch library {
			case "pyarrow":
				w.readAsArrow(t, rows)
			case "polars":
				w.refuseOfPolars(t)
			}
		})
	}
}

// refuseOfPolars writes frames of types that only polars has. polars_test.go shows what would become of them.
func (w *world) refuseOfPolars(t *testing.T) {
	t.Helper()
	for payload, says := range map[string]string{
		"waits":  "column 'a' (Duration(time_unit='us')) has durations",
		"clock":  "column 'a' (Time) has times of day in nanoseconds: cast them to pl.String",
		"huge":   "column 'a' (Int128) has numbers of 128 bits",
		"inside": "has times with a zone in nanoseconds inside of others: cast them to microseconds",
		"fine":   "column 'a' is finer than microseconds: round it",
	} {
		failed := w.ended(t, w.run(t, "frames/wrong", `"`+payload+`"`), "Failed")
		require.Contains(t, failed.Error, says)
	}
}

const arrowDAG = `name: arrow
defaults: { runtime: python }
jobs:
  - { name: table, operator: handler, inputs: [{ from: { dataset: all } }], max_attempts: 1, config: { handler: table } }
  - { name: stream, operator: handler, inputs: [{ from: { dataset: all } }], max_attempts: 1, config: { handler: stream } }
publish:
  table: { from: { job: table } }
  stream: { from: { job: stream } }
`

// readAsArrow has handlers read the dataset all as Arrow and write what they read, as a table and as a file of its
// stream. Both must be equal to what was read, types included.
func (w *world) readAsArrow(t *testing.T, all query.Rows) {
	t.Helper()
	w.serve(t, arrowDAG)
	for _, job := range []string{"table", "stream"} {
		w.must(t, "run", "arrow/"+job, "--partition", "all", "--watch")
		again := w.preview(t, job)
		require.Equal(t, all.Columns, again.Columns, job)
		require.ElementsMatch(t, all.Rows, again.Rows, job)
	}
}

// Rows need no library: a generator is written, and columns may have types.
func TestRowsWithTypes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, framesDAG)
	w.worker(t, "frames.py", "FRAMES=json")

	w.ended(t, w.run(t, "frames/generated", "null"), "Completed")
	require.Equal(t, "id BIGINT, code VARCHAR", typesOf(w.preview(t, "generated")))
	for _, payload := range []string{`{"rows": 0}`, `{"rows": 2}`, `{"rows": 0}`} {
		w.ended(t, w.run(t, "frames/declared", payload), "Completed")
		rows := w.preview(t, "declared")
		require.Equal(t, "id SMALLINT, code VARCHAR, at TIMESTAMP WITH TIME ZONE", typesOf(rows), payload)
	}
}

// What a frame cannot be is said with the place, and no other attempt is made.
func TestFramesThatDoNotFit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, framesDAG)
	w.workerOf(t, pythonWith(t, "pandas"), "frames.py", "FRAMES=pandas")
	for payload, says := range map[string]string{
		"mixed":    "output 0: column 'a' mixes types: row 2 holds a text, row 1 an integer. A column has one type",
		"things":   "column 'a', row 1 holds a Thing, which a dataset cannot",
		"bytes":    "column 'a', row 1 holds bytes: write them as text",
		"waits":    "column 'a' has durations: write them as a number",
		"digits":   "column 'a' needs 39 digits, and a DECIMAL has 38",
		"nested":   "an element of 'b' of column 'a' mixes types: row 2 holds a text, row 1 an integer",
		"case":     "the frame has the columns 'id' and 'ID', and upper and lower case are alike: rename one",
		"twice":    "the frame has the columns 'a' and 'a'",
		"numbered": "the name of column 1 is 0, not a text: rename it",
		"unnamed":  "the frame has no columns",
		"index":    "the frame's index 'b' is not written: reset_index() makes columns of it",
		"fine":     "column 'at', row 2: 2026-01-05 00:00:00.000000001 is finer than microseconds: round it",
		"apart": "output 0: column 'a' is BIGINT in one part of the rows and VARCHAR in another: convert it, or " +
			"say its type, as in columns={'a': 'VARCHAR'}",
		"half": "the handler returned a int as the rows of output 'other'",
	} {
		failed := w.ended(t, w.run(t, "frames/wrong", `"`+payload+`"`), "Failed")
		require.Contains(t, failed.Error, says)
	}

	w.ended(t, w.run(t, "frames/wrong", `"widened"`), "Completed")
	widened := w.preview(t, "wrong")
	require.Equal(t, "a DOUBLE, d DECIMAL", typesOf(widened))
	require.Equal(t, [][]any{{1.0, "1.50"}, {1.5, "1.25"}}, widened.Rows)

	w.ended(t, w.run(t, "frames/wrong", `"none of these"`), "Completed")
	rows := w.preview(t, "wrong")
	require.Equal(t, "id UUID, n DECIMAL, f DOUBLE, gone VARCHAR, wide UBIGINT", typesOf(rows))
	require.Equal(t, []any{"00000000-0000-0000-0000-000000000001", "18446744073709551616", 1.5, nil,
		"9223372036854775808"}, rows.Rows[0])
}

func (w *world) preview(t *testing.T, dataset string) (found query.Rows) {
	t.Helper()
	w.decode(t, &found, "datasets", "preview", dataset)
	return found
}

// typesOf lists columns, without the digits of decimals and the parts of structs.
func typesOf(rows query.Rows) string {
	all := make([]string, len(rows.Columns))
	for i, c := range rows.Columns {
		kind, _, _ := strings.Cut(c.Type, "(")
		all[i] = c.Name + " " + kind
	}
	return strings.Join(all, ", ")
}
