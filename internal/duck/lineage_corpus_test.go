package duck_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/columnlineage"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
)

// corpus is where the statements are whose lineage was worked out by hand: files of one group, each with the schema of
// its tables beside it. A case is "=== name", the statement, "---", and a line for each output:
//
//	column = transform table.column, table.column ? why it is unsure
const corpus = "testdata/lineage"

// lineageCase is one statement of the corpus.
type lineageCase struct{ name, query, want string }

func readCases(t testing.TB, file string) (cases []lineageCase) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for _, part := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		name, rest, _ := strings.Cut(part, "\n")
		query, want, ok := strings.Cut(rest, "\n---\n")
		require.True(t, ok, "%s: %s has no expectation", file, name)
		cases = append(cases, lineageCase{name, query, strings.TrimSpace(want)})
	}
	return cases
}

func readLineageSchema(t testing.TB, file string) map[string][]relations.Column {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	tables, err := columnlineage.ReadSchema(text)
	require.NoError(t, err, file)
	return tables
}

// shownLineage writes a lineage as the corpus does.
func shownLineage(lineage []relations.ColumnLineage) string {
	var lines []string
	for _, c := range lineage {
		line := c.Column + " = " + c.Transform
		for i, s := range c.Sources {
			separator := ", "
			if i == 0 {
				separator = " "
			}
			line += separator + s.Table + "." + s.Column
		}
		if c.Unsure != "" {
			line += " ? " + c.Unsure
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// explained returns the lineage of a statement over tables of which only the columns are known.
func explained(t testing.TB, s *duck.Session, query string, tables map[string][]relations.Column) string {
	t.Helper()
	q, err := s.Parse(t.Context(), query)
	if err != nil {
		return fmt.Sprintf("cannot be parsed: %v", err)
	}
	output, err := s.DescribeOver(t.Context(), q, tables)
	if err != nil {
		return fmt.Sprintf("cannot be bound: %v", err)
	}
	return shownLineage(q.Explain(tables, output))
}

func TestLineageOfTheCorpus(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(corpus + "/*.txt")
	require.NoError(t, err)
	total, unsure := 0, map[string]bool{}
	for _, file := range files {
		group := strings.TrimSuffix(file, ".txt")
		tables := readLineageSchema(t, group+".json")
		s := open(t, duck.Config{})
		for _, c := range readCases(t, file) {
			total++
			name := filepath.Base(group) + "/" + c.name
			assert.Equal(t, c.want, explained(t, s, c.query, tables), "%s: %s", name, c.query)
			if strings.Contains(c.want, " ? ") {
				unsure[name] = true
			}
		}
	}
	require.GreaterOrEqual(t, total, 150)
	require.Equal(t, unsureStatements, unsure)
}

// unsureStatements are the statements of the corpus of which something is unsure, and why that is right.
var unsureStatements = map[string]bool{
	// Both columns of the subquery have names that DuckDB makes up, of expressions whose text is not known here.
	"constructs/several columns without a name": true,
	// The type of an expression is not known here, so neither are its fields.
	"constructs/unnest of something unknown": true,
	// Conditions on names are followed where they compare them; length() is not computed.
	"constructs/columns by a lambda that is not followed": true,
}
