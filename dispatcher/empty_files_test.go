package dispatcher_test

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dispatcher/dispatchertest"
)

func gzipped(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return out.String()
}

func parquetOf(t *testing.T, query string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.parquet")
	require.NoError(t, dispatchertest.CopyToParquet(t.Context(), query, file))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}

// sourceOf is a source of files of one kind, by their end.
func sourceOf(end, config string) string {
	return dispatchertest.Edit(fed, "{date}.csv", "{date}."+end, "format: csv", config)
}

// Files without rows publish an empty partition with the columns that stand, or an error says what is wrong with them.
func TestFilesWithoutRows(t *testing.T) {
	t.Parallel()
	const empty = "" // no error
	text := map[string]struct {
		config, rows string
		without      map[string]string // content → error
	}{
		"csv": {"format: csv", "id,v\n1,9\n", map[string]string{
			"": empty, "id,v\n": empty, "id,v": empty, "\n\n": empty, "\xEF\xBB\xBF": empty, "  \n \t\n": empty}},
		"tsv": {`format: csv, delimiter: "\t"`, "id\tv\n1\t9\n", map[string]string{
			"": empty, "id\tv\n": empty, "\r\n": empty, " \n": empty}},
		"ndjson": {"format: ndjson", `{"id":1,"v":9}`, map[string]string{
			"": empty, "\n": empty, "  \n\t\n": empty, "[]": `line 1: "[]" is no JSON object`}},
		"json": {"format: json", `[{"id":1,"v":9}]`, map[string]string{
			"": empty, " \n": empty, "[]": empty, " [ ] ": empty, "null": "no list of objects", "[": "is no JSON"}},
		"geojson": {"format: json, records: features", `{"features":[{"id":1,"v":9}]}`, map[string]string{
			"": empty, " \n": empty, `{"features": []}`: empty, "[]": `has no list at "features"`,
			"{}": `has no list at "features"`, `{"features": null}`: `"features"`}},
	}
	for end, c := range text {
		for _, gz := range []string{"", ".gz"} {
			t.Run(end+gz, func(t *testing.T) {
				t.Parallel()
				w := dispatchertest.NewWorld(t)
				pack := func(text string) string {
					if gz == "" {
						return text
					}
					return gzipped(t, text)
				}
				w.Drop("2026-01-01."+end+gz, pack(c.rows))
				w.Serve(sourceOf(end+gz, c.config))
				day, days := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), map[string]string{}
				for content := range c.without {
					key := day.Format(time.DateOnly)
					days[key], day = content, day.AddDate(0, 0, 1)
					w.Drop(key+"."+end+gz, pack(content))
				}
				w.Poll()
				w.Settle()

				read := w.Read("fed_raw")
				for key, content := range days {
					rows, published := read[key]
					if want := c.without[content]; want != empty {
						var text string
						w.Row(`SELECT coalesce(error_message, '') FROM tasks WHERE id = $1`, w.TaskOf("raw", key))(&text)
						require.Contains(t, text, want, "%q", content)
						require.Contains(t, text, key+"."+end+gz)
						continue
					}
					require.True(t, published, "%q", content)
					require.Empty(t, rows, "%q", content)
				}
				require.Equal(t, []string{"9"}, w.Read("fed_sums")["all"])
			})
		}
	}
}

// Files that cannot be read are named, with what is wrong with them and how to mend it.
func TestFilesThatAreBroken(t *testing.T) {
	t.Parallel()
	whole := parquetOf(t, "SELECT range AS id, range AS v FROM range(1000)")
	packed := gzipped(t, "id,v\n"+strings.Repeat("1,9\n", 1000))
	type broken struct{ content, want, mend string }
	for end, c := range map[string]struct {
		config, rows string
		broken       []broken
	}{
		"parquet": {"format: parquet", whole, []broken{
			{"", "it has 0 bytes only", "write 2026"}, {"id,v\n1,9\n", "cannot be read as Parquet", "write 2026"},
			{whole[:len(whole)/2], "cannot be read as Parquet", "rename it once it is complete"},
			{whole[:4] + strings.Repeat("\xff", 400) + whole[404:], "", "write 2026"},
		}},
		"csv.gz": {"format: csv", packed, []broken{
			{"id,v\n1,9\n", "is not compressed by gzip", "rename it"}, {"i", "is not compressed by gzip", "rename it"},
			{packed[:len(packed)-12], "is cut off or broken", "write it again"},
		}},
	} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Drop("2026-01-01."+end, c.rows)
			w.Serve(sourceOf(end, c.config))
			day := func(i int) string { return time.Date(2026, 1, 2+i, 0, 0, 0, 0, time.UTC).Format(time.DateOnly) }
			for i, b := range c.broken {
				w.Drop(day(i)+"."+end, b.content)
			}
			w.Poll()
			w.Settle()
			for i, b := range c.broken {
				var text string
				w.Row(`SELECT coalesce(error_message, '') FROM tasks WHERE id = $1`, w.TaskOf("raw", day(i)))(&text)
				for _, want := range []string{day(i) + "." + end, b.want, b.mend} {
					require.Contains(t, text, want)
				}
				require.NotContains(t, text, w.Scratch)
			}
		})
	}
}

// A first file without columns waits for one that shows them, and is never dead for what another lacks.
func TestAnEmptyFileWaitsForColumns(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Serve(fed)
	w.Drop("2026-01-01.csv", "")
	w.Poll()
	for i := range 3 {
		w.Settle()
		w.Promote(dispatchertest.Later(time.Duration(i+1) * time.Hour))
	}
	require.Zero(t, w.Count(`SELECT FROM waiting WHERE reason = 'dead'`))
	require.Equal(t, []string{"2026-01-01 Queued handed_back"}, w.Tasks("raw"))

	w.Drop("2026-01-02.csv", "id,v\n1,9\n")
	w.Poll()
	w.Settle()
	w.Promote(dispatchertest.Later(9 * time.Hour))
	w.Settle()
	require.Empty(t, w.Read("fed_raw")["2026-01-01"])
	require.Len(t, w.Read("fed_raw"), 2)
}

// Where an empty file comes first, the types of some columns say nothing of the others, and all columns, declared, say
// nothing of how the lines of later files are read.
func TestAnEmptyFileBeforeDeclaredColumns(t *testing.T) {
	t.Parallel()
	for _, declared := range []string{"types: { v: DOUBLE }", "types: { v: DOUBLE, id: BIGINT }",
		"columns: [id, v], types: { v: DOUBLE, id: BIGINT }"} {
		t.Run(declared, func(t *testing.T) {
			t.Parallel()
			w := dispatchertest.NewWorld(t)
			w.Serve(sourceOf("csv", "format: csv, "+declared))
			w.Drop("2026-01-01.csv", "")
			w.Poll()
			w.Settle()
			w.Drop("2026-01-02.csv", "id;v\n1;9\n")
			w.Poll()
			w.Settle()
			w.Promote(dispatchertest.Later(time.Hour))
			w.Settle()
			require.Equal(t, map[string][]string{"2026-01-01": {}, "2026-01-02": {"1,9"}}, w.Read("fed_raw"))
		})
	}
}

// A build whose files all say nothing fails, and says so.
func TestABuildOfEmptyFiles(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.csv", "")
	w.Drop("2026-01-02.csv", "")
	build := w.Deploy(fed)
	for i := range 3 {
		w.Settle()
		w.Promote(dispatchertest.Later(time.Duration(i+1) * time.Hour))
	}
	w.Settle()
	status, why := w.Status(build.Version.ID)
	require.EqualValues(t, "Failed", status)
	require.Contains(t, why, "say nothing of their columns")
	require.Contains(t, why, "`types`")
}

// Text with NUL, which PostgreSQL cannot hold, is refused by file, row and column.
func TestTextWithNULInATable(t *testing.T) {
	t.Parallel()
	w := dispatchertest.NewWorld(t)
	w.Drop("2026-01-01.ndjson", `{"id":1,"v":"a"}`)
	w.Serve(ofFormat("ndjson", "postgres"))
	w.Drop("2026-01-02.ndjson", `{"id":1,"v":"a"}`+"\n"+`{"id":2,"v":"a\u0000b"}`)
	w.Poll()
	w.Settle()
	var text string
	w.Row(`SELECT error_message FROM tasks WHERE id = $1`, w.TaskOf("raw", "2026-01-02"))(&text)
	for _, want := range []string{"2026-01-02.ndjson", `row 2, column "v"`, "NUL", "keep the output in parquet"} {
		require.Contains(t, text, want)
	}
}
