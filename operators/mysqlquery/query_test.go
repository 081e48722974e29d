package mysqlquery_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testmysql"
	"github.com/dagctl/dagctl/operators"
)

// source is a task of the operator and the database that it reads.
type source struct {
	op   operators.Operator
	task *operators.Task
}

func newSource(t *testing.T, d testmysql.Database, query string, more map[string]any) source {
	t.Helper()
	return source{operator(t, loopback), &operators.Task{
		Assignment: operators.Assignment{TaskID: uuid.New(), Attempt: 1, DAG: "d", Job: "j",
			Config: with(d, query, more), Secrets: secrets(d, "*", "http://*")},
		Progress: func(int, string) {}, Log: slog.New(slog.DiscardHandler)}}
}

// run runs the task in new folders, and keeps what the platform would give to the next one.
func (s source) run(ctx context.Context, t *testing.T) (operators.Result, error) {
	t.Helper()
	s.task.Scratch, s.task.OutputDirs = t.TempDir(), []string{t.TempDir()}
	result, err := s.op.Run(ctx, s.task)
	if err == nil && result.State != nil {
		s.task.State = result.State
	}
	if err == nil && result.Reading != nil {
		s.task.Reading = result.Reading
	}
	return result, err
}

func (s source) mustRun(t *testing.T) operators.Result {
	t.Helper()
	result, err := s.run(t.Context(), t)
	require.NoError(t, err)
	return result
}

// ask returns the only row of a statement over what the last run wrote.
func (s source) ask(t *testing.T, selected string) (row string) {
	t.Helper()
	session, err := duck.Open(t.Context(), duck.Config{AnyPath: true, Threads: 1, TimeZone: "UTC"})
	require.NoError(t, err)
	defer session.Close()
	file := filepath.Join(s.task.OutputDirs[0], "part.parquet")
	found, err := session.Query(t.Context(), "SELECT CAST(ROW("+selected+") AS VARCHAR) FROM "+
		duck.ReadParquet([]string{file}))
	require.NoError(t, err)
	defer found.Close()
	require.True(t, found.Next())
	require.NoError(t, found.Scan(&row))
	require.False(t, found.Next())
	return row
}

// stored is a value of a column of a type, as a query reads it from a table.
type stored struct {
	of, literal string // of MySQL
	as          string // type of DuckDB; empty: the column's own
	want, fails string
}

// each checks values one by one.
func each(t *testing.T, d testmysql.Database, values []stored) {
	t.Helper()
	for _, v := range values {
		t.Run(v.of+" "+cutAt(v.literal, 40)+" as "+v.as, func(t *testing.T) {
			t.Parallel()
			table := "t" + strings.ReplaceAll(uuid.NewString(), "-", "")
			d.Exec(t, "SET sql_mode = '', time_zone = '+00:00'; CREATE TABLE "+table+" (v "+v.of+" NULL); INSERT INTO "+
				table+" VALUES ("+v.literal+")")
			more := map[string]any{}
			if v.as != "" {
				more = types("v", v.as)
			}
			s := newSource(t, d, "SELECT v FROM "+table, more)
			_, err := s.run(t.Context(), t)
			if v.fails != "" {
				require.ErrorContains(t, err, v.fails)
				require.True(t, operators.IsPermanent(err), "%v", err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, v.want, s.ask(t, "typeof(v), v"))
		})
	}
}

func cutAt(text string, n int) string { return text[:min(n, len(text))] }

// Every value is what it was in the database, or it is refused.
func TestValuesAreExact(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	each(t, d, []stored{
		{of: "tinyint(1)", literal: "1", want: "(TINYINT, 1)"},
		{of: "tinyint(1)", literal: "-128", want: "(TINYINT, -128)"},
		{of: "bool", literal: "2", want: "(TINYINT, 2)"},
		{of: "tinyint unsigned", literal: "255", want: "(UTINYINT, 255)"},
		{of: "smallint", literal: "-32768", want: "(SMALLINT, -32768)"},
		{of: "smallint unsigned", literal: "65535", want: "(USMALLINT, 65535)"},
		{of: "mediumint", literal: "-8388608", want: "(INTEGER, -8388608)"},
		{of: "mediumint unsigned", literal: "16777215", want: "(UINTEGER, 16777215)"},
		{of: "int(5) zerofill", literal: "42", want: "(UINTEGER, 42)"},
		{of: "int", literal: "NULL", want: "(INTEGER, NULL)"},
		{of: "int unsigned", literal: "4294967295", want: "(UINTEGER, 4294967295)"},
		{of: "bigint", literal: "-9223372036854775808", want: "(BIGINT, -9223372036854775808)"},
		{of: "bigint unsigned", literal: "18446744073709551615", want: "(UBIGINT, 18446744073709551615)"},
		{of: "bigint unsigned", literal: "9007199254740993", want: "(UBIGINT, 9007199254740993)"},
		{of: "bit(1)", literal: "b'1'", want: "(UBIGINT, 1)"},
		{of: "bit(64)", literal: "x'ffffffffffffffff'", want: "(UBIGINT, 18446744073709551615)"},
		{of: "bit(10)", literal: "b'1000000001'", want: "(UBIGINT, 513)"},
		{of: "year", literal: "2155", want: "(SMALLINT, 2155)"},
		{of: "year", literal: "0", want: "(SMALLINT, 0)"},
		{of: "decimal(38,9)", literal: "12345678901234567890123456789.123456789", want: "('DECIMAL(38,9)', " +
			"12345678901234567890123456789.123456789)"},
		{of: "decimal(4,3)", literal: "-0.001", want: "('DECIMAL(4,3)', -0.001)"},
		{of: "decimal(3,3)", literal: "0.999", want: "('DECIMAL(3,3)', .999)"},
		{of: "decimal(38,0)", literal: "-99999999999999999999999999999999999999",
			want: "('DECIMAL(38,0)', -99999999999999999999999999999999999999)"},
		{of: "float", literal: "16777217", want: "(FLOAT, 16777216.0)"}, // as which MariaDB has stored it
		{of: "float", literal: "0.1", want: "(FLOAT, 0.1)"},
		{of: "float", literal: "1.1754944e-38", want: "(FLOAT, 1.1754944e-38)"},
		{of: "float", literal: "3.1415927", want: "(FLOAT, 3.1415927)"},
		{of: "double", literal: "1e-300", want: "(DOUBLE, 1e-300)"},
		{of: "double", literal: "0.1e0 + 0.2e0", want: "(DOUBLE, 0.30000000000000004)"},
		{of: "varchar(10)", literal: `'a\'b'`, want: `(VARCHAR, 'a\'b')`},
		{of: "varchar(10)", literal: `''`, want: `(VARCHAR, '')`},
		{of: "char(4)", literal: "'ab'", want: "(VARCHAR, ab)"},
		{of: "text", literal: "'𝄞 ü 漢'", want: "(VARCHAR, 𝄞 ü 漢)"},
		{of: "varchar(10) character set latin1", literal: "'ü€'", want: "(VARCHAR, ü€)"},
		{of: "varchar(10) character set utf16", literal: "'𝄞'", want: "(VARCHAR, 𝄞)"},
		{of: "varchar(10) character set sjis", literal: "'漢'", want: "(VARCHAR, 漢)"},
		{of: "blob", literal: `x'de00ff'`, want: `(BLOB, \xDE\x00\xFF)`},
		{of: "blob", literal: `''`, want: `(BLOB, '')`},
		{of: "binary(4)", literal: "'a'", want: `(BLOB, a\x00\x00\x00)`},
		{of: "date", literal: "'2024-02-29'", want: "(DATE, 2024-02-29)"},
		{of: "date", literal: "'1000-01-01'", want: "(DATE, 1000-01-01)"},
		{of: "date", literal: "'9999-12-31'", want: "(DATE, 9999-12-31)"},
		{of: "datetime(6)", literal: "'2024-03-31 02:30:00.999999'", want: "(TIMESTAMP, '2024-03-31 02:30:00.999999')"},
		{of: "datetime(3)", literal: "'2024-03-31 00:00:00.5'", want: "(TIMESTAMP, '2024-03-31 00:00:00.5')"},
		{of: "datetime", literal: "'9999-12-31 23:59:59'", want: "(TIMESTAMP, '9999-12-31 23:59:59')"},
		{of: "timestamp(6)", literal: "'2024-03-31 01:00:00.000001'", want: "(TIMESTAMP WITH TIME ZONE, " +
			"'2024-03-31 01:00:00.000001+00')"},
		{of: "time(6)", literal: "'23:59:59.999999'", want: "(TIME, '23:59:59.999999')"},
		{of: "time", literal: "'00:00:00'", want: "(TIME, '00:00:00')"},
		{of: "uuid", literal: "'0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a'",
			want: "(VARCHAR, 0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a)"},
		{of: "inet6", literal: "'::1'", want: "(VARCHAR, '::1')"},
		{of: "json", literal: `'{"a": 1.10,  "b":9007199254740993}'`,
			want: `(VARCHAR, '{"a": 1.10,  "b":9007199254740993}')`}, // MariaDB has JSON as text
		{of: "date", literal: "'0000-00-00'", fails: `row 1, column "v" has 0000-00-00, which is no date`},
		{of: "date", literal: "'2024-00-15'", fails: `has 2024-00-15, which is no date`},
		{of: "datetime(3)", literal: "'0000-00-00'", fails: `has 0000-00-00 00:00:00.000, which is no date`},
		{of: "timestamp", literal: "0", fails: `has 0000-00-00 00:00:00, which is no date`},
		{of: "time", literal: "'24:00:00'", fails: `has 24:00:00, which is no time of day`},
		{of: "time(2)", literal: "'-838:59:59'", fails: `has -838:59:59.00, which is no time of day`},
		{of: "enum('a','b')", literal: "'a'", fails: "is an ENUM"},
		{of: "set('a','b')", literal: "'a,b'", fails: "is a SET"},
		{of: "geometry", literal: "ST_GeomFromText('POINT(1 2)')", fails: "is a GEOMETRY, which is not read as it is"},
		{of: "decimal(65,30)", literal: "1", fails: "is a DECIMAL(65,30), which no type holds"},
		{of: "decimal(10,2) unsigned", literal: "9999999.99", want: "('DECIMAL(9,2)', 9999999.99)"},
		{of: "decimal(10,2) unsigned", literal: "10000000.00", fails: "has a value that does not fit DECIMAL(9,2)"},
	})
}

// A declared type holds a value unchanged, or the value is refused.
func TestDeclaredTypesLoseNothing(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	each(t, d, []stored{
		{of: "tinyint(1)", literal: "1", as: "BOOLEAN", want: "(BOOLEAN, true)"},
		{of: "tinyint(1)", literal: "0", as: "BOOLEAN", want: "(BOOLEAN, false)"},
		{of: "tinyint(1)", literal: "2", as: "BOOLEAN", fails: `has a value that does not fit BOOLEAN`},
		{of: "bit(1)", literal: "b'1'", as: "BOOLEAN", want: "(BOOLEAN, true)"},
		{of: "bit(9)", literal: "b'100000000'", as: "UTINYINT", fails: "does not fit UTINYINT"},
		{of: "bigint unsigned", literal: "18446744073709551615", as: "BIGINT", fails: "does not fit BIGINT"},
		{of: "bigint unsigned", literal: "18446744073709551615", as: "HUGEINT",
			want: "('DECIMAL(38,0)', 18446744073709551615)"},
		{of: "bigint", literal: "9007199254740993", as: "DOUBLE", fails: "does not fit DOUBLE"},
		{of: "bigint", literal: "9007199254740992", as: "DOUBLE", want: "(DOUBLE, 9007199254740992.0)"},
		{of: "int", literal: "300", as: "UTINYINT", fails: "does not fit UTINYINT"},
		{of: "int", literal: "-1", as: "VARCHAR", want: "(VARCHAR, -1)"},
		{of: "int", literal: "20240131", as: "DATE", fails: "cannot be read as DATE: it is an INT"},
		{of: "year", literal: "0", as: "VARCHAR", want: "(VARCHAR, 0000)"},
		{of: "decimal(65,30)", literal: "1.5", as: "DECIMAL(10,2)", want: "('DECIMAL(10,2)', 1.50)"},
		{of: "decimal(65,30)", literal: "1.555", as: "DECIMAL(10,2)", fails: "does not fit DECIMAL(10,2)"},
		{of: "decimal(65,30)", literal: "1", as: "VARCHAR", want: "(VARCHAR, 1." + strings.Repeat("0", 30) + ")"},
		{of: "decimal(10,2)", literal: "7", as: "BIGINT", want: "(BIGINT, 7)"},
		{of: "decimal(10,2)", literal: "7.5", as: "BIGINT", fails: "does not fit BIGINT"},
		{of: "decimal(40,0)", literal: "1e39", as: "DECIMAL(38,0)", fails: "does not fit DECIMAL(38,0)"},
		{of: "decimal(10,2) unsigned", literal: "99999999.99", as: "DECIMAL(10,2)",
			want: "('DECIMAL(10,2)', 99999999.99)"},
		{of: "double", literal: "0.1", as: "FLOAT", fails: "does not fit FLOAT"},
		{of: "double", literal: "0.5", as: "FLOAT", want: "(FLOAT, 0.5)"},
		{of: "float", literal: "0.1", as: "DOUBLE", want: "(DOUBLE, 0.10000000149011612)"},
		{of: "double", literal: "2.5", as: "BIGINT", fails: "does not fit BIGINT"},
		{of: "double", literal: "2", as: "BIGINT", want: "(BIGINT, 2)"},
		{of: "varchar(9)", literal: "'42'", as: "INTEGER", want: "(INTEGER, 42)"},
		{of: "varchar(9)", literal: "'007'", as: "INTEGER", fails: "does not fit INTEGER"},
		{of: "varchar(9)", literal: "' 7'", as: "INTEGER", fails: "does not fit INTEGER"},
		{of: "varchar(9)", literal: "''", as: "INTEGER", fails: "does not fit INTEGER"},
		{of: "varchar(9)", literal: "'1.50'", as: "DECIMAL(9,1)", want: "('DECIMAL(9,1)', 1.5)"},
		{of: "varchar(99)", literal: `'{"a": 1, }'`, as: "JSON", fails: "does not fit JSON"},
		{of: "json", literal: `'{"a": 1.10,  "b":9007199254740993}'`, as: "JSON",
			want: `(JSON, '{"a": 1.10,  "b":9007199254740993}')`},
		{of: "uuid", literal: "'0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a'", as: "UUID",
			want: "(UUID, 0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a)"},
		{of: "date", literal: "'2024-01-31'", as: "TIMESTAMP", want: "(TIMESTAMP, '2024-01-31 00:00:00')"},
		{of: "date", literal: "'0000-00-00'", as: "VARCHAR", want: "(VARCHAR, 0000-00-00)"},
		{of: "date", literal: "NULL", as: "VARCHAR", want: "(VARCHAR, NULL)"},
		{of: "datetime", literal: "'2024-01-31 10:00:00'", as: "DATE", fails: "does not fit DATE"},
		{of: "datetime", literal: "'2024-01-31 10:00:00'", as: "TIMESTAMPTZ",
			want: "(TIMESTAMP WITH TIME ZONE, '2024-01-31 10:00:00+00')"},
		{of: "timestamp", literal: "'2024-01-31 10:00:00'", as: "TIMESTAMP",
			fails: "cannot be read as TIMESTAMP: it is a TIMESTAMP"},
		{of: "time", literal: "'-838:59:59'", as: "VARCHAR", want: "(VARCHAR, '-838:59:59')"},
		{of: "enum('a','b')", literal: "'b'", as: "VARCHAR", want: "(VARCHAR, b)"},
		{of: "set('a','b')", literal: "'b,a'", as: "VARCHAR", want: "(VARCHAR, 'a,b')"},
		{of: "blob", literal: "'a'", as: "VARCHAR", fails: "cannot be read as VARCHAR: it is a BLOB"},
		{of: "geometry", literal: "ST_GeomFromText('POINT(1 2)')", as: "VARCHAR", fails: "which is not read as it is"},
	})
}

// Expressions have types that no column of a table has.
func TestExpressions(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	for _, c := range []struct{ expression, want, fails string }{
		{"NULL", "(VARCHAR, NULL)", ""},
		{"1 = 1", "(INTEGER, 1)", ""},
		{"'a\\0b'", "(VARCHAR, a\x00b)", ""},
		{"'ü' COLLATE utf8mb4_bin", "(VARCHAR, ü)", ""},
		{"'a' || 'b'", "(INTEGER, 0)", ""}, // the sql_mode is ours, not the server's
		{`"a"`, "(VARCHAR, a)", ""},
		{"sum(2) OVER ()", "('DECIMAL(23,0)', 2)", ""},
		{"9223372036854775807 + 0", "(BIGINT, 9223372036854775807)", ""},
		{"avg(1.25)", "('DECIMAL(7,6)', 1.250000)", ""},
		{"CAST('2024-01-31 10:00:00.5' AS datetime)", "(TIMESTAMP, '2024-01-31 10:00:00')", ""},
		{"TIMESTAMP('2024-01-31 10:00:00.25')", "(TIMESTAMP, '2024-01-31 10:00:00.25')", ""},
		{"SEC_TO_TIME(3600.5)", "(TIME, '01:00:00.5')", ""},
		{"@@time_zone", "(VARCHAR, '+00:00')", ""},
		{"@@sql_select_limit", "(UBIGINT, 9223372036854775807)", ""},
		{"(SELECT group_concat(repeat('x', 1000)) FROM seq_1_to_3000)", "", ""},
		{"ST_AsText(POINT(1, 2))", "(VARCHAR, 'POINT(1 2)')", ""},
		{"_binary 'a'", "(BLOB, a)", ""},
	} {
		t.Run(c.expression, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, d, "SELECT "+c.expression+" AS v", nil)
			_, err := s.run(t.Context(), t)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				return
			}
			require.NoError(t, err)
			if c.want == "" {
				require.Equal(t, "(3002999)", s.ask(t, "length(v)"))
				return
			}
			require.Equal(t, c.want, s.ask(t, "typeof(v), v"))
		})
	}
}

func TestUnchangedRowsPublishNothing(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	d.Exec(t, "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 1), (2, NULL)")
	s := newSource(t, d, "SELECT * FROM t ORDER BY id", nil)
	first := s.mustRun(t)
	require.False(t, first.Unchanged)
	require.JSONEq(t, `{"rows": 2}`, string(first.Result))

	again := s.mustRun(t)
	require.True(t, again.Unchanged)
	require.Equal(t, first.SourceVersion, again.SourceVersion)

	d.Exec(t, "UPDATE t SET v = 0 WHERE v IS NULL")
	changed := s.mustRun(t)
	require.False(t, changed.Unchanged)
	require.NotEqual(t, first.SourceVersion, changed.SourceVersion)
	require.Nil(t, changed.Reading, "the columns stand already")

	s.task.Reading = nil // as after `dagctl rematerialize`
	require.False(t, s.mustRun(t).Unchanged)
	s.task.Config["query"] = "SELECT * FROM t ORDER BY id "
	require.False(t, s.mustRun(t).Unchanged, "another request is another answer")
}

// The columns of the first run stand, whatever becomes of the table.
func TestColumnsStand(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	d.Exec(t, "CREATE TABLE t (id int, b blob); INSERT INTO t VALUES (1, 'a')")
	s := newSource(t, d, "SELECT * FROM t", nil)
	s.mustRun(t)
	require.NoError(t, operators.CheckReading(s.task.Reading))
	require.False(t, operators.OpenReading(s.task.Reading))

	d.Exec(t, "ALTER TABLE t MODIFY id varchar(9), MODIFY b varbinary(3); UPDATE t SET id = '2'")
	s.mustRun(t)
	require.Equal(t, `(INTEGER, 2, BLOB, a)`, s.ask(t, "typeof(id), id, typeof(b), b"))

	d.Exec(t, "UPDATE t SET id = '2b'")
	_, err := s.run(t.Context(), t)
	require.ErrorContains(t, err, `row 1, column "id" has a value that does not fit INTEGER`)
	d.Exec(t, "ALTER TABLE t ADD more int")
	_, err = s.run(t.Context(), t)
	require.ErrorContains(t, err, "the query has the columns id, b, more; the dataset has id, b")
}

// The rows of a run are those of one moment, also where others commit meanwhile.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	d.Exec(t, `CREATE TABLE t (id int PRIMARY KEY, v int) ENGINE=InnoDB;
		INSERT INTO t VALUES (1, 1), (2, 1);
		CREATE FUNCTION pause() RETURNS int NOT DETERMINISTIC READS SQL DATA RETURN
			CASE WHEN RELEASE_LOCK('none') IS NULL THEN SLEEP(1) ELSE 0 END`)
	s := newSource(t, d, "SELECT (SELECT sum(v) FROM t) AS a, pause() AS p, (SELECT sum(v) FROM t) AS b", nil)
	stop, changed := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(changed)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = d.Admin.ExecContext(t.Context(), "UPDATE t SET v = v + 1")
			}
		}
	}()
	_, err := s.run(t.Context(), t)
	close(stop)
	<-changed
	require.NoError(t, err)
	require.Equal(t, "(true)", s.ask(t, "a = b"))
}

// A canceled run ends within a second, and so does its statement on the server.
func TestCancelReachesTheServer(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	running := func() (n int) {
		require.NoError(t, d.Admin.QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.processlist
			WHERE user = ?`, d.User).Scan(&n))
		return n
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := newSource(t, d, "SELECT count(a.seq + b.seq) AS v FROM seq_1_to_10000000 a, seq_1_to_10000000 b", nil)
	go func() {
		_, err := s.run(ctx, t)
		done <- err
	}()
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, d.Admin.QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.processlist
			WHERE user = ? AND info LIKE '%seq_1_to_10000000 b'`, d.User).Scan(&n))
		return n == 1
	}, 20*time.Second, 5*time.Millisecond)

	begun := time.Now()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Less(t, time.Since(begun), time.Second)
	require.Eventually(t, func() bool { return running() == 0 }, time.Second, 5*time.Millisecond)
}

// A run that refuses a value does not wait for the rows behind it, and nor does the server.
func TestRefusedValuesEndTheStatement(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	s := newSource(t, d, "SELECT IF(seq = 2, '2b', seq) AS v, repeat('x', 1000) AS filler FROM seq_1_to_100000000",
		types("v", "INTEGER"))
	begun := time.Now()
	_, err := s.run(t.Context(), t)
	require.ErrorContains(t, err, `row 2, column "v" has a value that does not fit INTEGER`)
	require.Less(t, time.Since(begun), 3*time.Second)
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, d.Admin.QueryRowContext(t.Context(), `SELECT count(*) FROM information_schema.processlist
			WHERE user = ?`, d.User).Scan(&n))
		return n == 0
	}, time.Second, 5*time.Millisecond)
}

// The server ends a statement by itself when the task's time is over, even if nobody is there to cancel it.
func TestStatementsEndWithTheTask(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	s := newSource(t, d, "SELECT @@max_statement_time AS v", nil)
	s.task.TimeoutAt = time.Now().Add(time.Minute)
	s.mustRun(t)
	seconds, err := strconv.ParseFloat(strings.Trim(s.ask(t, "v"), "()'"), 64)
	require.NoError(t, err)
	require.InDelta(t, 55, seconds, 5)

	s = newSource(t, d, "SELECT count(a.seq + b.seq) AS v FROM seq_1_to_10000000 a, seq_1_to_10000000 b", nil)
	s.task.TimeoutAt = time.Now().Add(300 * time.Millisecond)
	_, err = s.run(t.Context(), t)
	require.ErrorContains(t, err, "max_statement_time")
	require.False(t, operators.IsPermanent(err))
}

func TestWhereConnectionsMayGo(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	hostPort := net.JoinHostPort(d.Host, strconv.Itoa(d.Port))
	fails := func(t *testing.T, s source, message string, permanent bool) {
		t.Helper()
		_, err := s.run(t.Context(), t)
		require.ErrorContains(t, err, message)
		require.Equal(t, permanent, operators.IsPermanent(err), "%v", err)
		full := new(fault.Error)
		require.ErrorAs(t, err, &full)
		require.NotContains(t, err.Error()+full.Hint, d.Password)
	}

	guarded := newSource(t, d, "SELECT 1 AS v", nil)
	guarded.op = operator(t)
	fails(t, guarded, "it is not public", true)
	named := newSource(t, d, "SELECT 1 AS v", map[string]any{"host": "localhost"})
	named.op = operator(t)
	fails(t, named, "localhost may not be reached", true)

	for host, ok := range map[string]bool{"http://*": true, "http://" + hostPort: true, hostPort: false, "*": false,
		"http://127.0.0.1:1": false, "http://db.example.com": false} {
		bound := newSource(t, d, "SELECT 1 AS v", nil)
		bound.task.Secrets = secrets(d, host)
		if ok {
			bound.mustRun(t)
			continue
		}
		fails(t, bound, "secret DB may not be sent to http://"+hostPort, true)
	}

	wrong := newSource(t, d, "SELECT 1 AS v", map[string]any{"user": "nobody_there"})
	fails(t, wrong, "error 1045", true)
	nowhere := newSource(t, d, "SELECT 1 AS v", map[string]any{"database": "none_there"})
	fails(t, nowhere, "none_there", true)
	closed := newSource(t, d, "SELECT 1 AS v", map[string]any{"port": 1})
	fails(t, closed, "127.0.0.1:1", false)
}

// A server that is no MySQL, or ends in the middle, is an error that a retry may mend, and never a panic.
func TestOddServers(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]string{
		"nothing": "", "HTTP": "HTTP/1.1 400 Bad Request\r\n\r\n", "a short packet": "\x05\x00\x00\x00\x0a8.0",
		"an empty packet": "\x00\x00\x00\x00", "a cut greeting": "\x20\x00\x00\x00\x0a5.5.5-10\x00\x01\x00\x00\x00abc",
		"an error": "\x17\x00\x00\x00\xff\x10\x04Too many connections",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Write([]byte(says))
					_ = conn.Close()
				}
			}()
			d := testmysql.Database{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, Database: "d", User: "u",
				Password: "p"}
			s := newSource(t, d, "SELECT 1 AS v", nil)
			_, err = s.run(t.Context(), t)
			require.Error(t, err)
			require.Equal(t, fault.Unavailable, fault.KindOf(err), "%v", err)
			require.False(t, operators.IsPermanent(err))
		})
	}
}

// A database proves to be the one of its name, unless the config waives that.
func TestTLS(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	hostPort := net.JoinHostPort(d.Host, strconv.Itoa(d.Port))
	const cipher = "SELECT variable_value <> '' AS v FROM information_schema.session_status " +
		"WHERE variable_name = 'ssl_cipher'"

	verified := newSource(t, d, cipher, map[string]any{"sslmode": "verify-full", "ca": d.CA})
	verified.task.Secrets = secrets(d, hostPort)
	verified.mustRun(t)
	require.Equal(t, "(1)", verified.ask(t, "v"))

	unknown := newSource(t, d, cipher, map[string]any{"sslmode": "verify-full"})
	_, err := unknown.run(t.Context(), t)
	require.ErrorContains(t, err, "certificate")
	other := newSource(t, d, cipher, map[string]any{"sslmode": "verify-full", "ca": d.CA, "host": "localhost"})
	_, err = other.run(t.Context(), t)
	require.ErrorContains(t, err, "certificate")

	waived := newSource(t, d, cipher, map[string]any{"sslmode": "require"})
	waived.mustRun(t)
	require.Equal(t, "(1)", waived.ask(t, "v"))
	waived.task.Secrets = secrets(d, hostPort)
	_, err = waived.run(t.Context(), t)
	require.ErrorContains(t, err, "may not be sent to http://"+hostPort)

	plain := newSource(t, d, cipher, nil)
	plain.mustRun(t)
	require.Equal(t, "(0)", plain.ask(t, "v"))

	without := newSource(t, testmysql.NewOn(t, "--skip-ssl"), cipher, map[string]any{"sslmode": "require"})
	_, err = without.run(t.Context(), t)
	require.ErrorContains(t, err, "TLS")
}

// What a server has set as its own does not change what a query means or returns.
func TestSettingsOfTheServerDoNotMatter(t *testing.T) {
	t.Parallel()
	d := testmysql.NewOn(t, "--sql-mode=ANSI,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH",
		"--default-time-zone=+05:00", "--group-concat-max-len=4", "--character-set-server=latin1",
		"--init-connect=SET sql_select_limit = 1")
	d.Exec(t, "CREATE TABLE t (at timestamp, name char(5)); SET time_zone = '+00:00'; "+
		"INSERT INTO t VALUES ('2024-01-31 10:00:00', 'a'), ('2024-01-31 11:00:00', 'b')")
	s := newSource(t, d, `SELECT min(at) AS first, group_concat(name ORDER BY name SEPARATOR "\t, ") AS names, `+
		`'ü' AS u FROM t`, nil)
	s.mustRun(t)
	require.Equal(t, "('2024-01-31 10:00:00+00', 'a\t, b', ü)", s.ask(t, "first, names, u"))
	s = newSource(t, d, "SELECT name FROM t ORDER BY name", nil)
	require.JSONEq(t, `{"rows": 2}`, string(s.mustRun(t).Result))
}

// Rows pass through: what a run keeps of them is on disk.
func TestManyRows(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	s := newSource(t, d, "SELECT seq AS id, repeat('x', 500) AS filler FROM seq_1_to_200000", nil)
	result := s.mustRun(t)
	var got struct{ Rows int64 }
	require.NoError(t, json.Unmarshal(result.Result, &got))
	require.Equal(t, int64(200000), got.Rows)
	require.Equal(t, "(200000, 20000100000)", s.ask(t, "count(*), sum(id)"))
	left, err := os.ReadDir(s.task.Scratch)
	require.NoError(t, err)
	require.Empty(t, left)
}
