package footer_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

func open(t *testing.T) *duck.Session {
	t.Helper()
	s, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// TestTypesAreThoseOfDuckDB compares the columns of files that DuckDB writes, for every type and around it.
func TestTypesAreThoseOfDuckDB(t *testing.T) {
	t.Parallel()
	s := open(t)
	values := []string{"true", "1::TINYINT", "1::UTINYINT", "1::SMALLINT", "1::USMALLINT", "1::INTEGER", "1::UINTEGER",
		"1::BIGINT", "1::UBIGINT", "1::HUGEINT", "1::UHUGEINT", "1::FLOAT", "1::DOUBLE", "1.5::DECIMAL(4,1)",
		"1::DECIMAL(9,9)", "1::DECIMAL(18,3)", "1::DECIMAL(38,0)", "'x'", "'x'::BLOB", "DATE '2026-01-01'",
		"TIME '10:00'", "'10:00+01'::TIMETZ", "now()", "now()::TIMESTAMP", "now()::TIMESTAMP_S",
		"now()::TIMESTAMP_MS", "'2026-01-01'::TIMESTAMP_NS", "uuid()", "INTERVAL 1 day", "'{}'::JSON", "'101'::BIT",
		"'a'::ENUM('a', 'b')", "union_value(n := 1)", "NULL", "'POINT(1 2)'::GEOMETRY",
		"'POINT(1 2)'::GEOMETRY('OGC:CRS84')", "row(1, 'x')", "[1, 2]::INTEGER[2]", "1::VARIANT"}
	for _, value := range values {
		for _, shape := range []string{"%", "[%]", "[[%]]", "{'a': %, 'B b': [%]}", "[{'x': %}]", "MAP {1: %}",
			"MAP {'k': [{'v': MAP {2: %}}]}", "[MAP {1: {'a': {'b': %}}}]"} {
			file := filepath.Join(t.TempDir(), "part.parquet")
			query := "SELECT " + strings.ReplaceAll(shape, "%", value) + " AS v FROM range(3)"
			if err := s.Exec(t.Context(), "COPY ("+query+") TO "+sqltext.Literal(file)); err != nil {
				t.Logf("%s: DuckDB writes none: %v", query, err)
				continue
			}
			columns, err := s.Describe(t.Context(), "FROM "+duck.ReadParquet([]string{file}))
			require.NoError(t, err, query)
			read, err := footer.Read(file)
			require.NoError(t, err, query)
			require.Equal(t, columns, read.Columns, query)
			require.EqualValues(t, 3, read.Rows, query)
		}
	}
}

// TestNamesAreThoseOfDuckDB compares names of columns and members, all words of DuckDB's grammar among them.
func TestNamesAreThoseOfDuckDB(t *testing.T) {
	t.Parallel()
	s := open(t)
	var words string
	require.NoError(t, s.Value(t.Context(), &words,
		"SELECT string_agg(DISTINCT keyword_name, ' ') FROM duckdb_keywords()"))
	names := append(strings.Fields(words), "a", "A1", "1a", "_", "ä", "a b", `"`, "x'y", "é", "a\n")
	list := make([]string, len(names))
	for i, name := range names {
		list[i] = sqltext.Quote(name) + " := 1"
	}
	query := "SELECT struct_pack(" + strings.Join(list, ", ") + ") AS \"Ä \"\"q\", 1 AS a, 2 AS \"a_1\""
	file := filepath.Join(t.TempDir(), "part.parquet")
	require.NoError(t, s.Exec(t.Context(), "COPY ("+query+") TO "+sqltext.Literal(file)))
	columns, err := s.Describe(t.Context(), "FROM "+duck.ReadParquet([]string{file}))
	require.NoError(t, err)
	read, err := footer.Read(file)
	require.NoError(t, err)
	require.Equal(t, columns, read.Columns)
}

// TestSchemasOfOtherWriters compares random schemas with what DuckDB makes of them: what is accepted has DuckDB's
// columns. Much of what DuckDB takes is refused here, because its values would be wrong.
func TestSchemasOfOtherWriters(t *testing.T) {
	t.Parallel()
	s := open(t)
	random, accepted := rand.New(rand.NewPCG(7, 11)), 0
	for range 3000 {
		data := footer.RandomFile(random)
		file := filepath.Join(t.TempDir(), "part.parquet")
		require.NoError(t, os.WriteFile(file, data, 0o600))
		read, err := footer.Read(file)
		if err != nil {
			require.Equal(t, fault.Invalid, fault.KindOf(err))
			continue
		}
		accepted++
		columns, err := s.Describe(t.Context(), "FROM "+duck.ReadParquet([]string{file}))
		require.NoError(t, err, "%q\n%v", data, read.Columns)
		require.Equal(t, columns, read.Columns, "%q", data)
	}
	require.Greater(t, accepted, 500)
}

// TestSchemasOfKnownWriters reads what pyarrow, Spark and older writers make of lists, maps and times.
func TestSchemasOfKnownWriters(t *testing.T) {
	t.Parallel()
	s := open(t)
	for name, test := range footer.KnownSchemas() {
		file := filepath.Join(t.TempDir(), "part.parquet")
		require.NoError(t, os.WriteFile(file, test.File, 0o600))
		read, err := footer.Read(file)
		if test.Says != "" {
			require.Equal(t, fault.Invalid, fault.KindOf(err), name)
			require.Contains(t, fault.Text(err), test.Says, name)
			continue
		}
		require.NoError(t, err, name)
		require.Equal(t, []relations.Column{{Name: "v", Type: test.Type}}, read.Columns, name)
		columns, err := s.Describe(t.Context(), "FROM "+duck.ReadParquet([]string{file}))
		require.NoError(t, err, name)
		require.Equal(t, columns, read.Columns, name)
	}
}
