package duck_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/relations"
)

// shownRows returns the columns and the rows of a query as text, the rows in order.
func shownRows(t *testing.T, s *duck.Session, query string) (columns, rows string) {
	t.Helper()
	names, list, err := duck.JSONRows(t.Context(), s, query+" ORDER BY ALL", 100, 0)
	require.NoError(t, err)
	for i, c := range names {
		columns += map[bool]string{false: " "}[i == 0] + c.Name
	}
	for i, row := range list {
		if i > 0 {
			rows += "|"
		}
		for n, v := range row {
			rows += map[bool]string{false: " "}[n == 0] + fmt.Sprint(v)
		}
	}
	return columns, rows
}

// keyedSession has the keyed relation sales of three files in two partitions, and another one.
func keyedSession(t *testing.T, columns string) *duck.Session {
	t.Helper()
	s := open(t, duck.Config{AnyPath: true, Threads: 1})
	dir := t.TempDir()
	var files []string
	for i := range 3 {
		files = append(files, filepath.Join(dir, fmt.Sprintf("%d.parquet", i)))
		_, err := s.CopyToParquet(t.Context(), fmt.Sprintf("SELECT %d AS id, %s", i, columns), files[i])
		require.NoError(t, err)
	}
	require.NoError(t, s.Create(t.Context(), duck.Relation{Name: "sales", Files: files, Keyed: true,
		Keys: []string{"mon'day", "mon'day", "tuesday"}}))
	require.NoError(t, s.Create(t.Context(), duck.Relation{Name: "none", Keyed: true,
		Schema: []duck.Column{{Name: "id", Type: "INTEGER"}}}))
	return s
}

func TestTheKeyOfARowsPartition(t *testing.T) {
	t.Parallel()
	s := keyedSession(t, "'x' AS v")
	for _, c := range []struct{ query, columns, rows string }{
		{"SELECT * FROM sales", "id v", "0 x|1 x|2 x"},
		{"FROM sales", "id v", "0 x|1 x|2 x"},
		{"SELECT *, _partition AS day FROM sales", "id v day", "0 x mon'day|1 x mon'day|2 x tuesday"},
		{"SELECT * FROM sales WHERE _partition = 'tuesday'", "id v", "2 x"},
		{"SELECT s.*, s._Partition AS p FROM sales AS s WHERE id > 0", "id v p", "1 x mon'day|2 x tuesday"},
		{"SELECT _partition, count(*) AS n FROM sales GROUP BY _partition", "_partition n", "mon'day 2|tuesday 1"},
		{"SELECT * FROM (SELECT id, _partition FROM sales)", "id _partition", "0 mon'day|1 mon'day|2 tuesday"},
		{"WITH sales AS (SELECT 7 AS id, 'own' AS _partition) SELECT * FROM sales", "id _partition", "7 own"},
		{"SELECT * FROM sales AS a JOIN sales AS b USING (id) WHERE a._partition = 'tuesday'", "id v v_1", "2 x x"},
		{"SELECT a.id FROM sales AS a JOIN sales AS b USING (_partition, id)", "id", "0|1|2"},
		{"SELECT * FROM sales AS a JOIN sales AS b USING (_partition, id)", "id v v_1", "0 x x|1 x x|2 x x"},
		{"SELECT * FROM sales AS a NATURAL JOIN sales AS b WHERE id = 1", "id v", "1 x"},
		{"SELECT * FROM (PIVOT sales ON v IN ('x') USING count(*))", "id x", "0 1|1 1|2 1"},
		{"SELECT * FROM (UNPIVOT sales ON v)", "id name value", "0 v x|1 v x|2 v x"},
		{"SELECT COLUMNS(*) FROM sales WHERE id = 0", "id v", "0 x"},
		{"SELECT COLUMNS(c -> c <> 'v') FROM sales", "id", "0|1|2"},
		{"SELECT COLUMNS('^i') FROM sales WHERE id = 0", "id", "0"},
		{"SELECT * LIKE '%' FROM sales WHERE id = 0", "id v", "0 x"},
		{"SELECT max(COLUMNS(*)) FROM sales", "id v", "2 x"},
		{"SELECT * EXCLUDE (_partition, v) FROM sales", "id", "0|1|2"},
		{"SELECT * REPLACE (id + 1 AS id) FROM sales WHERE id = 2", "id v", "3 x"},
		{"SELECT * FROM sales UNION ALL SELECT * FROM sales WHERE id > 5", "id v", "0 x|1 x|2 x"},
		{"SELECT id FROM sales AS a WHERE EXISTS (SELECT * FROM none AS b WHERE b._partition = a._partition)", "id",
			""},
		{"SELECT * FROM none", "id", ""},
		{"SELECT t.* FROM sales AS t(a, b) WHERE _partition = 'tuesday'", "a b", "2 x"},
		{"SELECT CAST(sales AS VARCHAR) AS j FROM sales WHERE id = 2", "j",
			"{'id': 2, 'v': x, '_partition': tuesday}"},
		{"SELECT CAST(r AS VARCHAR) AS j FROM (SELECT * FROM sales WHERE _partition = 'tuesday') AS r", "j",
			"{'id': 2, 'v': x}"},
		{"SELECT * FROM (SELECT 9 - id AS n, _partition AS p FROM sales ORDER BY ALL LIMIT 1)", "n p", "7 tuesday"},
		{"SELECT * FROM (SELECT v, _partition AS p FROM sales ORDER BY * DESC LIMIT 1)", "v p", "x tuesday"},
		{"SELECT * FROM (SELECT _partition, sum(id) AS n FROM sales GROUP BY ALL ORDER BY ALL DESC LIMIT 1)",
			"_partition n", "tuesday 2"},
		{"SELECT * FROM(SELECT DISTINCT ON (*) 9 - id AS n FROM sales WHERE _partition > '' ORDER BY ALL LIMIT 1)", "n",
			"7"},
		{"SELECT len(list(id ORDER BY ALL)) AS n FROM sales WHERE _partition > ''", "n n_1", "3 3"},
		{"SELECT * FROM sales AS a SEMI JOIN sales AS b ON a._partition = b._partition AND b.id = 2", "id v", "2 x"},
		{"SELECT * FROM sales AS a ANTI JOIN sales AS b ON a._partition = b._partition AND b.id = 2", "id v",
			"0 x|1 x"},
		{"SELECT * FROM sales AS a SEMI JOIN sales AS b USING (_partition)", "id v", "0 x|1 x|2 x"},
		{"SELECT * FROM sales AS a ANTI JOIN none AS b USING (_partition)", "id v", "0 x|1 x|2 x"},
		{"SELECT a.* FROM sales AS a ANTI JOIN none AS b USING (_partition)", "id v", "0 x|1 x|2 x"},
		{"SELECT * FROM sales AS a NATURAL SEMI JOIN sales AS b WHERE id = 2", "id v", "2 x"},
		{"SELECT * FROM sales AS a SEMI JOIN none AS b USING (_partition) JOIN sales AS c USING (id)", "id v v_1", ""},
		{"SELECT * FROM sales AS a POSITIONAL JOIN sales AS b WHERE a._partition = 'tuesday'", "id v id_1 v_1",
			"2 x 2 x"},
		{"SELECT * FROM sales AS a ASOF JOIN sales AS b ON a._partition = b._partition AND a.id >= b.id WHERE a.id = 2",
			"id v id_1 v_1", "2 x 2 x"},
	} {
		q, err := s.Parse(t.Context(), c.query)
		require.NoError(t, err, c.query)
		view, err := s.View(t.Context(), q)
		require.NoError(t, err, c.query)
		columns, rows := shownRows(t, s, view)
		require.Equal(t, c.columns, columns, c.query)
		require.Equal(t, c.rows, rows, c.query)
	}
}

func TestAPatternThatWouldShowTheKey(t *testing.T) {
	t.Parallel()
	s := keyedSession(t, "'x' AS v")
	q, err := s.Parse(t.Context(), "SELECT COLUMNS('.*') FROM sales")
	require.NoError(t, err)
	_, err = s.View(t.Context(), q)
	require.ErrorContains(t, err, "a * or COLUMNS(…) of the statement would show it too")
}

// A relation's own column of that name is an ordinary one, and so is one of the name of DuckDB's own number of files.
func TestColumnsOfTheNamesOfKeys(t *testing.T) {
	t.Parallel()
	s := keyedSession(t, "'own' AS _Partition")
	q, err := s.Parse(t.Context(), "SELECT *, _partition AS p FROM sales WHERE id = 0")
	require.NoError(t, err)
	view, err := s.View(t.Context(), q)
	require.NoError(t, err)
	columns, rows := shownRows(t, s, view)
	require.Equal(t, "id _Partition p", columns)
	require.Equal(t, "0 own own", rows)

	s = keyedSession(t, "'own' AS file_index")
	q, err = s.Parse(t.Context(), "SELECT *, _partition AS p FROM sales WHERE id = 2")
	require.NoError(t, err)
	view, err = s.View(t.Context(), q)
	require.NoError(t, err)
	columns, rows = shownRows(t, s, view)
	require.Equal(t, "id file_index p", columns)
	require.Equal(t, "2 own tuesday", rows)
}

func TestStatementsThatNameThePartition(t *testing.T) {
	t.Parallel()
	for text, names := range map[string]bool{"SELECT _partition": true, "_PARTITION": true, `a."_partition"`: true,
		"my_partition": false, "_partitions": false, "partition": false, "x\n_partition": true} {
		require.Equal(t, names, relations.NamesPartition(text), text)
	}
}
