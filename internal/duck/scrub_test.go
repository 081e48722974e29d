package duck

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/sqltext"
)

func TestErrorsContainNoValues(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return sqltext.Literal(path)
	}

	typed := file("typed.csv", "a,b\n1,2\nsecret x,3\n")
	broken := file("broken.csv", "a,b\n1,2\nsecret\n")
	lines := file("lines.ndjson", "{\"a\":1}\n{\"a\": secret}\n")
	long := "SELECT *\nFROM (SELECT CAST(x AS INT) FROM (VALUES ('secret')) t(x))"
	for i, c := range []struct{ query, want string }{
		{"SELECT CAST(x AS INT) FROM (VALUES ('secret')) t(x)",
			"Conversion Error: Could not convert string … to INT32 when casting from source column x, LINE 1 of the " +
				"statement"},
		{"SELECT CAST(x AS INT) FROM (VALUES ('se'' to INT8 cret')) t(x)",
			"Conversion Error: Could not convert string … to INT32 when casting from source column x, LINE 1 of the " +
				"statement"},
		{long, "Conversion Error: Could not convert string … to INT32 when casting from source column x, LINE 2 of " +
			"the statement"},
		{"SELECT CAST(x AS DATE) FROM (VALUES ('sec\"ret')) t(x)",
			"Conversion Error: invalid date field format … when casting from source column x, LINE 1 of the statement"},
		{"SELECT CAST(x AS SMALLINT) FROM (VALUES (70000)) t(x)",
			"Conversion Error: Type INT32 with value … is out of range for INT16 when casting from source column x, " +
				"LINE 1 of the statement"},
		{"SELECT 1::HUGEINT AS innocent, CAST(x::HUGEINT AS TINYINT) AS small FROM (VALUES (171)) t(x)",
			"Conversion Error: Type INT128 with value … is out of range for INT8, LINE 1 of the statement"},
		{"SELECT CAST(x AS DECIMAL(3,1)) FROM (VALUES (70000.5)) t(x)",
			"Conversion Error: Casting value … to type DECIMAL(3,1) when casting from source column x, LINE 1 of the " +
				"statement"},
		{"SELECT CAST(x AS INT[]) FROM (VALUES ('[1,secret]')) t(x)",
			"Conversion Error: Could not convert string … to INT32, LINE 1 of the statement"},
		{"SELECT CAST(x AS JSON) FROM (VALUES ('{secret')) t(x)",
			"Conversion Error: Malformed JSON at byte … when casting from source column x, LINE 1 of the statement"},
		{"SELECT x*x*x FROM (VALUES (2147483)) t(x)", "Out of Range Error: Overflow in multiplication of INT32 …"},
		{"SELECT strptime(x, '%Y') FROM (VALUES ('secret')) t(x)", "Invalid Input Error: Could not parse string …"},
		{"SELECT make_date(x, 13, 1) FROM (VALUES (2024)) t(x)", "Conversion Error: Date out of range …"},
		{"SELECT sqrt(-x) FROM (VALUES (5)) t(x)", "Out of Range Error: cannot take square root of a negative number"},
		{"SELECT error('the job says so')", "Invalid Input Error: the job says so"},
		{"SELECT * FROM read_csv(" + typed + ", types = {'a': 'INTEGER'})",
			`Conversion Error: CSV Error on Line: 3: column "a" cannot be converted to INTEGER`},
		{"SELECT * FROM read_csv(" + broken +
			", columns = {'a': 'VARCHAR', 'b': 'VARCHAR'}, header = true, auto_detect = false, delim = ',')",
			"Invalid Input Error: CSV Error on Line: 3: Expected Number of Columns: 2 Found: 1"},
		{"SELECT * FROM read_json(" + lines + ", format = 'newline_delimited')",
			"Invalid Input Error: Malformed JSON in line 3, LINE 1 of the statement"},
		{"SELECT nope FROM (VALUES ('x')) t(x)",
			"Binder Error: Referenced column \"nope\" not found in FROM clause!\nCandidate bindings: \"x\"\n\n" +
				"LINE 1: COPY (SELECT nope FROM (VALUES ('x')) t(x)) TO "},
	} {
		t.Run(c.query, func(t *testing.T) {
			t.Parallel()
			s, err := Open(t.Context(), Config{AnyPath: true, Threads: 1})
			require.NoError(t, err)

			defer s.Close()
			_, err = s.CopyToParquet(t.Context(), c.query, filepath.Join(dir, fmt.Sprintf("%d.parquet", i)))
			require.Error(t, err)
			if c.want[:6] == "Binder" {
				require.Contains(t, err.Error(), "Candidate bindings")
				return
			}

			require.Equal(t, c.want, err.Error())
			require.True(t, Deterministic(err))
		})
	}
}
