package textfile_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// Random files are read by independent strict readers, too, Go's own: both find the same rows, or neither takes the
// file. `make soak-files` tries 10,000 of each format.
var randomFiles = flag.Int("files", 150, "random files of each format")

func TestRandomCSVFilesAreReadAsGoReadsThem(t *testing.T) {
	t.Parallel()
	taken := 0
	for seed := range uint64(*randomFiles) {
		text := randomCSV(rand.New(rand.NewPCG(seed, 1)))
		want, refused := csv.NewReader(strings.NewReader(text)).ReadAll()
		if len(want) == 0 && refused == nil || !utf8.ValidString(text) {
			continue
		}
		lines := "\n" + strings.ReplaceAll(text, "\r", "")
		if refused == nil && len(want[0]) == 1 && strings.Contains(lines, "\n\n") {
			continue // an empty line may be a value of a single column: it is refused
		}

		job := declared("csv")
		header := false
		job.Header, job.Delimiter, job.Types = &header, ",", map[string]string{}
		for i := range 10 {
			job.Types[fmt.Sprintf("column%d", i)] = "VARCHAR"
		}
		if refused == nil {
			job.Columns = make([]string, len(want[0]))
			for i := range job.Columns {
				job.Columns[i] = fmt.Sprintf("column%d", i)
			}
		} else {
			job.Types = nil
		}

		out, err := convert(t, job, text)
		if refused != nil {
			require.True(t, err != nil || out.BadRows > 0, "seed %d: Go: %v\n%q", seed, refused, text)
			continue
		}
		require.NoError(t, err, "seed %d\n%q", seed, text)
		require.Empty(t, out.bad, "seed %d\n%q", seed, text)
		var rows []string
		for _, record := range want {
			rows = append(rows, strings.Join(record, "|"))
		}
		for i, row := range out.rows { // Go's reader makes LF of CRLF in values, and does not tell NULL
			out.rows[i] = strings.ReplaceAll(strings.ReplaceAll(row, "\r\n", "\n"), "NULL", "")
		}
		require.Equal(t, rows, out.rows, "seed %d\n%q", seed, text)
		taken++
	}
	require.Greater(t, taken, *randomFiles/10)
}

// randomCSV writes rows with all that is odd in CSV, and sometimes breaks them.
func randomCSV(r *rand.Rand) string {
	var b strings.Builder
	width := 1 + r.IntN(4)
	end := []string{"\n", "\r\n"}[r.IntN(2)]
	for range 1 + r.IntN(8) {
		n := width
		if r.IntN(25) == 0 {
			n = 1 + r.IntN(5)
		}
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(randomField(r))
		}
		if r.IntN(12) == 0 {
			b.WriteString(end)
		}
		b.WriteString(end)
	}
	return b.String()
}

func randomField(r *rand.Rand) string {
	words := []string{"", "a", "Zoë", "#1", "0", "007", "-1.5", "x y", "☃", "\\N", "'", "true", "a\tb", ";", "|"}
	text := words[r.IntN(len(words))] + words[r.IntN(len(words))]
	switch r.IntN(12) {
	case 0:
		text = `"` + text + "," + text + `"`
	case 1:
		text = `"` + text + "\n" + `""` + text + `"`
	case 2:
		text = `"` + text + "\r\n\r" + `"`
	case 3:
		if r.IntN(4) == 0 { // broken
			text = text + `"` + text
		}
	case 4:
		if r.IntN(4) == 0 {
			text = `"` + text + `"` + "x"
		}
	case 5:
		text = `"` + text + `"`
	}
	return text
}

func TestRandomNDJSONFilesAreReadAsGoReadsThem(t *testing.T) {
	t.Parallel()
	for seed := range uint64(*randomFiles) {
		r := rand.New(rand.NewPCG(seed, 2))
		var lines []string
		for range 1 + r.IntN(6) {
			lines = append(lines, fmt.Sprintf(`{"a": %s, "b":%s}`, randomJSON(r, 0), randomJSON(r, 0)))
		}
		broken := r.IntN(5) == 0
		if broken {
			at := r.IntN(len(lines))
			cut := r.IntN(len(lines[at]))
			lines[at] = lines[at][:cut] + lines[at][min(len(lines[at]), cut+1+r.IntN(3)):]
		}

		job := declared("ndjson")
		job.Types = map[string]string{"a": "JSON", "b": "JSON"}
		job.Columns = []string{"a", "b"}
		out, err := convert(t, job, strings.Join(lines, "\n"))
		require.NoError(t, err, "seed %d", seed)
		if !broken {
			require.Empty(t, out.bad, "seed %d\n%s", seed, strings.Join(lines, "\n"))
		}
		at := 0
		for i, line := range lines {
			var want struct{ A, B json.RawMessage }
			if json.Unmarshal([]byte(line), &want) != nil {
				require.NotEmpty(t, out.bad, "seed %d line %d is no JSON for Go: %s", seed, i+1, line)
				continue
			}
			if len(strings.TrimSpace(line)) == 0 || refusedLine(out.Result, i+1, out.bad) {
				continue // it is stricter than Go: names that come twice, say
			}
			require.Equal(t, exactly(t, want.A)+"|"+exactly(t, want.B), exactlyRow(t, out.rows[at]), "seed %d: %s",
				seed, line)
			at++
		}
	}
}

func refusedLine(_ textfile.Result, line int, bad []string) bool {
	for _, b := range bad {
		if strings.HasPrefix(b, fmt.Sprintf("a line %d", line)) {
			return true
		}
	}
	return false
}

// exactly returns a JSON value in a form in which equal values are equal texts and numbers are as they were written.
func exactly(t *testing.T, text []byte) string {
	t.Helper()
	if len(text) == 0 {
		return "null"
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v), "%s", text)
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

func exactlyRow(t *testing.T, row string) string {
	t.Helper()
	for i := range row {
		if row[i] != '|' {
			continue
		}
		a, b := strings.ReplaceAll(row[:i], "NULL", "null"), strings.ReplaceAll(row[i+1:], "NULL", "null")
		if json.Valid([]byte(a)) && json.Valid([]byte(b)) {
			return exactly(t, []byte(a)) + "|" + exactly(t, []byte(b))
		}
	}
	t.Fatalf("%q is no row of two JSON values", row)
	return ""
}

func randomJSON(r *rand.Rand, depth int) string {
	scalars := []string{"null", "true", "1", "-0", "9007199254740993", "1.10", "1e400",
		"123456789012345678901234567890.5",
		`"x"`, `"ticket #5"`, `"\u00e9\n\"\\"`, `"2026-01-31"`, `""`, "false", `"☃"`}
	switch n := r.IntN(8); {
	case n == 0 && depth < 3:
		return "[" + randomJSON(r, depth+1) + ", " + randomJSON(r, depth+1) + "]"
	case n == 1 && depth < 3:
		return `{"k": ` + randomJSON(r, depth+1) + `,"l" :` + randomJSON(r, depth+1) + "}"
	case n == 2:
		return []string{"[]", "{}"}[r.IntN(2)]
	}
	return scalars[r.IntN(len(scalars))]
}

// What is written in a column of one type comes back as it was written.
func TestRandomColumnsComeBack(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		typ  string
		make func(*rand.Rand) string
	}{
		{"BIGINT", func(r *rand.Rand) string { return fmt.Sprint(int64(r.Uint64())) }},
		{"DECIMAL(38,0)", func(r *rand.Rand) string { return fmt.Sprintf("%d%018d", 10+r.IntN(1e6), r.IntN(1e18)) }},
		{"DOUBLE", func(r *rand.Rand) string { return fmt.Sprintf("%d.%d5", r.IntN(1000)-500, r.IntN(1e6)) }},
		{"BOOLEAN", func(r *rand.Rand) string { return fmt.Sprint(r.IntN(2) == 0) }},
		{"DATE", func(r *rand.Rand) string {
			return fmt.Sprintf("%04d-%02d-%02d", 1+r.IntN(9999), 1+r.IntN(12), 1+r.IntN(28))
		}},
		{"TIMESTAMP", func(r *rand.Rand) string {
			return fmt.Sprintf("%04d-%02d-%02d %02d:%02d:%02d.%05d1", 1+r.IntN(9999), 1+r.IntN(12), 1+r.IntN(28),
				r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e5))
		}},
		{"TIME", func(r *rand.Rand) string {
			return fmt.Sprintf("%02d:%02d:%02d.%05d7", r.IntN(24), r.IntN(60), r.IntN(60), r.IntN(1e5))
		}},
		{"VARCHAR", func(r *rand.Rand) string { return fmt.Sprintf("0%d", r.IntN(1000)) }},
	}

	for seed := range uint64(max(10, *randomFiles/10)) {
		r := rand.New(rand.NewPCG(seed, 3))
		chosen := r.Perm(len(kinds))[:1+r.IntN(len(kinds))]
		names, columns := make([]string, len(chosen)), make([]string, len(chosen))
		for i, k := range chosen {
			names[i] = fmt.Sprintf("c%d", i)
			columns[i] = names[i] + " " + kinds[k].typ
		}
		lines, rows := []string{strings.Join(names, ",") + ","}, []string{}
		lines[0] = strings.Join(append(names, "n"), ",")
		for n := range 2 + r.IntN(30) {
			values := make([]string, len(chosen))
			for i, k := range chosen {
				values[i] = kinds[k].make(r)
			}
			values = append(values, fmt.Sprint(n))
			lines, rows = append(lines, strings.Join(values, ",")), append(rows, strings.Join(values, "|"))
		}

		out, err := convert(t, declared("csv"), strings.Join(lines, "\n"))
		require.NoError(t, err, "seed %d", seed)
		require.Empty(t, out.bad, "seed %d", seed)
		require.Equal(t, append(columns, "n BIGINT"), out.columns, "seed %d", seed)
		require.Equal(t, rows, out.rows, "seed %d", seed)
	}
}

// jsonShape is a random type of JSON values, with DuckDB's name.
type jsonShape struct {
	name    string
	scalar  func(*rand.Rand) (text, sql string)
	element *jsonShape
	names   []string
	members []jsonShape
}

func randomJSONShape(r *rand.Rand, depth int) jsonShape {
	number := func(name string, text func(*rand.Rand) string) jsonShape {
		return jsonShape{name: name, scalar: func(r *rand.Rand) (string, string) {
			n := text(r)
			return n, "CAST('" + n + "' AS " + name + ")"
		}}
	}
	word := func(name string, texts ...string) jsonShape {
		return jsonShape{name: name, scalar: func(r *rand.Rand) (string, string) {
			word := texts[r.IntN(len(texts))]
			quoted, _ := json.Marshal(word)
			return string(quoted), "CAST('" + strings.ReplaceAll(word, "'", "''") + "' AS " + name + ")"
		}}
	}

	switch n := r.IntN(10); {
	case n < 2 && depth < 3:
		inner := randomJSONShape(r, depth+1)
		return jsonShape{name: inner.name + "[]", element: &inner}
	case n < 4 && depth < 3:
		s := jsonShape{names: []string{"k", "Ä b", "it's", "n\"q"}[:1+r.IntN(4)]}
		var parts []string
		for _, name := range s.names {
			inner := randomJSONShape(r, depth+1)
			s.members = append(s.members, inner)
			quoted := sqltext.Quote(name)
			if name == "k" { // as DuckDB writes it
				quoted = name
			}
			parts = append(parts, quoted+" "+inner.name)
		}
		s.name = "STRUCT(" + strings.Join(parts, ", ") + ")"
		return s
	}
	return []jsonShape{
		number("BIGINT", func(r *rand.Rand) string { return fmt.Sprint(int64(r.Uint64())) }),
		number("DECIMAL(38,0)", func(r *rand.Rand) string {
			return fmt.Sprintf("%d%018d", 10+r.IntN(1e6), r.IntN(1e18))
		}),
		number("DOUBLE", func(r *rand.Rand) string { return fmt.Sprintf("%d.%d5", r.IntN(1000)-500, r.IntN(1e6)) }),
		number("BOOLEAN", func(r *rand.Rand) string { return fmt.Sprint(r.IntN(2) == 0) }),
		word("VARCHAR", "", "x", "Zoë ☃", "it's", "\u0001\n\t\"\\", "ticket #5", "007", "null", "{'a': 1}"),
		word("DATE", "2026-01-31", "0001-01-01", "2024-02-29"),
		word("TIMESTAMP", "2026-01-31 12:34:56.789012", "1969-12-31T23:59:59"),
	}[r.IntN(7)]
}

// random returns a value as JSON and as SQL. A full one shows every type that is in it.
func (s jsonShape) random(r *rand.Rand, full bool) (text, sql string) {
	switch {
	case !full && r.IntN(6) == 0:
		return "null", "CAST(NULL AS " + s.name + ")"
	case s.scalar != nil:
		return s.scalar(r)
	}

	var texts, sqls []string
	if s.element != nil {
		n := r.IntN(3)
		if full {
			n = 2
		}
		for range n {
			text, sql := s.element.random(r, full)
			texts, sqls = append(texts, text), append(sqls, sql)
		}
		return "[" + strings.Join(texts, ", ") + "]", "CAST([" + strings.Join(sqls, ", ") + "] AS " + s.name + ")"
	}
	for i, member := range s.members {
		text, sql := member.random(r, full)
		quoted, _ := json.Marshal(s.names[i])
		if full || text != "null" || r.IntN(2) == 0 { // a member that is not there is NULL
			texts = append(texts, string(quoted)+":"+text)
		}
		sqls = append(sqls, "'"+strings.ReplaceAll(s.names[i], "'", "''")+"': "+sql)
	}
	return "{" + strings.Join(texts, ", ") + "}", "CAST({" + strings.Join(sqls, ", ") + "} AS " + s.name + ")"
}

// JSON records of random types, nested ones too, have these types and come back as they were written, from NDJSON as
// from one list of all.
func TestRandomRecordsComeBack(t *testing.T) {
	t.Parallel()
	s, err := duck.Open(t.Context(), duck.Config{Threads: 1})
	require.NoError(t, err)
	defer s.Close()
	for seed := range uint64(max(20, *randomFiles/5)) {
		r := rand.New(rand.NewPCG(seed, 4))
		shapes := make([]jsonShape, 1+r.IntN(5))
		columns := make([]string, len(shapes))
		for i := range shapes {
			shapes[i] = randomJSONShape(r, 0)
			columns[i] = fmt.Sprintf("c%d %s", i, shapes[i].name)
		}

		var records, want []string
		for n := range 2 + r.IntN(6) {
			members, casts := make([]string, len(shapes)), make([]string, len(shapes))
			for i, shape := range shapes {
				text, sql := shape.random(r, n == 0)
				members[i] = fmt.Sprintf("%q: %s", fmt.Sprintf("c%d", i), text)
				casts[i] = "coalesce(CAST(" + sql + " AS VARCHAR), 'NULL')"
			}
			records = append(records, "{"+strings.Join(members, ", ")+"}")
			rows, err := s.Query(t.Context(), "SELECT concat_ws('|', "+strings.Join(casts, ", ")+")")
			require.NoError(t, err)
			require.True(t, rows.Next())
			var row string
			require.NoError(t, rows.Scan(&row))
			require.NoError(t, rows.Close())
			want = append(want, row)
		}

		for format, text := range map[string]string{"ndjson": strings.Join(records, "\n"),
			"json": "[" + strings.Join(records, ",\n") + "]"} {
			out, err := convert(t, declared(format), text)
			require.NoError(t, err, "seed %d\n%s", seed, text)
			require.Empty(t, out.bad, "seed %d\n%s", seed, text)
			require.Equal(t, columns, out.columns, "seed %d\n%s", seed, text)
			require.Equal(t, want, out.rows, "seed %d\n%s", seed, text)
		}
	}
}
