package postgresquery_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
)

func connect(t *testing.T, f testdb.Front) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig("sslmode=disable")
	require.NoError(t, err)
	cfg.Host, cfg.Port, cfg.Database, cfg.User, cfg.Password = f.Host, uint16(f.Port), f.Database, f.User, f.Password
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func execute(t *testing.T, f testdb.Front, statements string) {
	t.Helper()
	_, err := connect(t, f).PgConn().Exec(t.Context(), statements).ReadAll()
	require.NoError(t, err)
}

// source is a task of the operator and the database that it reads.
type source struct {
	op   operators.Operator
	task *operators.Task
}

func newSource(t *testing.T, f testdb.Front, query string, more map[string]any) source {
	t.Helper()
	return source{operator(t, loopback), &operators.Task{
		Assignment: operators.Assignment{TaskID: uuid.New(), Attempt: 1, DAG: "d", Job: "j",
			Config: with(f, query, more), Secrets: secrets(f, "*", "http://*")},
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

// Every value is what it was in the database, or it is refused.
func TestValuesAreExact(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	for expression, want := range map[string]string{
		"9223372036854775807::int8": "(BIGINT, 9223372036854775807)",
		"(-32768)::int2":            "(SMALLINT, -32768)",
		"true":                      "(BOOLEAN, true)",
		"NULL::int4":                "(INTEGER, NULL)",
		"0.1::float4":               "(FLOAT, 0.1)",
		"1e-300::float8":            "(DOUBLE, 1e-300)",
		"'-0'::float8":              "(DOUBLE, -0.0)",
		"'NaN'::float8":             "(DOUBLE, nan)",
		"'-Infinity'::float8":       "(DOUBLE, -inf)",
		"12345678901234567890123456789.123456789::numeric(38,9)": "('DECIMAL(38,9)', " +
			"12345678901234567890123456789.123456789)",
		"(-0.001)::numeric(4,3)":   "('DECIMAL(4,3)', -0.001)",
		"'a''b'::varchar(10)":      `(VARCHAR, 'a\'b')`,
		"'ab'::char(4)":            "(VARCHAR, 'ab  ')",
		"''::text":                 "(VARCHAR, '')",
		`'\xde00ff'::bytea`:        `(BLOB, \xDE\x00\xFF)`,
		"'2024-02-29'::date":       "(DATE, 2024-02-29)",
		"'0044-03-15 BC'::date":    "(DATE, '0044-03-15 (BC)')",
		"'infinity'::date":         "(DATE, infinity)",
		"'-infinity'::timestamptz": "(TIMESTAMP WITH TIME ZONE, -infinity)",
		"'2024-03-31 03:00:00.000001+02'::timestamptz": "(TIMESTAMP WITH TIME ZONE, " +
			"'2024-03-31 01:00:00.000001+00')",
		"'2024-03-31 02:30:00.999999'::timestamp":         "(TIMESTAMP, '2024-03-31 02:30:00.999999')",
		"'24:00:00'::time":                                "(TIME, '24:00:00')",
		"'1 mon 2 days 00:00:03.004'::interval":           "(INTERVAL, '1 month 2 days 00:00:03.004')",
		"'0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a'::uuid":    "(UUID, 0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a)",
		`'{"a": 1.10,  "b":9007199254740993}'::json`:      `(JSON, '{"a": 1.10,  "b":9007199254740993}')`,
		`'{"b": 9007199254740993.10}'::jsonb`:             `(JSON, '{"b": 9007199254740993.10}')`,
		"ARRAY[1, NULL, 9007199254740993]::int8[]":        "('BIGINT[]', [1, NULL, 9007199254740993])",
		"ARRAY['a', NULL, '', 'NULL', '{\"x\"}']::text[]": `('VARCHAR[]', [a, NULL, '', 'NULL', '{"x"}'])`,
		"ARRAY['-0', 'NaN', 'Infinity', 1e308]::float8[]": "('DOUBLE[]', [-0.0, nan, inf, 1e+308])",
		"ARRAY[1.10, NULL]::numeric(20,2)[]":              "('DECIMAL(20,2)[]', [1.10, NULL])",
		"ARRAY[true, NULL, false]":                        "('BOOLEAN[]', [true, NULL, false])",
		"ARRAY['2024-01-31', 'infinity']::date[]":         "('DATE[]', [2024-01-31, infinity])",
		"ARRAY['2024-01-31 10:00:00.5']::timestamp[]":     "('TIMESTAMP[]', ['2024-01-31 10:00:00.5'])",
		"'{}'::int4[]": "('INTEGER[]', [])",
		"NULL::uuid[]": "('UUID[]', NULL)",
		"ARRAY['0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a']::uuid[]": "('UUID[]', [0192f0c1-5a7e-7c3c-9a43-0f1d5f1c2b3a])",
		"4294967295::oid": "(BIGINT, 4294967295)",
	} {
		t.Run(expression, func(t *testing.T) {
			t.Parallel()
			s := newSource(t, f, "SELECT "+expression+" AS v", nil)
			s.mustRun(t)
			require.Equal(t, want, s.ask(t, "typeof(v), v"))
		})
	}
}

// A declared type holds a value unchanged, or the value is refused.
func TestDeclaredTypesLoseNothing(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	for _, c := range []struct{ expression, of, want, fails string }{
		{"1.50::numeric", "DECIMAL(10,2)", "('DECIMAL(10,2)', 1.50)", ""},
		{"1.500::numeric", "DECIMAL(10,1)", "('DECIMAL(10,1)', 1.5)", ""},
		{"1.55::numeric", "DECIMAL(10,1)", "", `row 1, column "v" has a value that does not fit DECIMAL(10,1)`},
		{"12345::numeric", "DECIMAL(4,2)", "", "numeric field overflow"},
		{"'NaN'::numeric", "DECIMAL(10,2)", "", "no number"},
		{"'Infinity'::numeric", "DECIMAL(10,2)", "", "numeric field overflow"},
		{"7::numeric", "BIGINT", "(BIGINT, 7)", ""},
		{"7.5::numeric", "BIGINT", "", "does not fit BIGINT"},
		{"'NaN'::numeric", "VARCHAR", "(VARCHAR, NaN)", ""},
		{"'42'::text", "INTEGER", "(INTEGER, 42)", ""},
		{"'007'::text", "INTEGER", "", "does not fit INTEGER"},
		{"'x'::text", "INTEGER", "", "invalid input syntax"},
		{"2.0::float8", "BIGINT", "(BIGINT, 2)", ""},
		{"2.5::float8", "BIGINT", "", "does not fit BIGINT"},
		{"300::int4", "UTINYINT", "", "UINT8"},
		{"1::int4", "HUGEINT", "('DECIMAL(38,0)', 1)", ""},
		{"'2024-01-31'::date", "TIMESTAMP", "(TIMESTAMP, '2024-01-31 00:00:00')", ""},
		{"'2024-01-31 10:00'::timestamp", "DATE", "", "does not fit DATE"},
		{"'294247-01-10 04:00:54.775806'::timestamp", "", "(TIMESTAMP, '294247-01-10 04:00:54.775806')", ""},
		{"'294247-01-10 04:00:54.775807'::timestamp", "", "", "no TIMESTAMP holds"},
		{"'294276-12-31 00:00+00'::timestamptz", "", "", "no TIMESTAMP WITH TIME ZONE holds"},
		{"'294276-12-31'::timestamp", "TIMESTAMP_S", "", "no TIMESTAMP holds"},
		{"ARRAY['294276-12-31'::timestamp]", "", "", "out of range"},
		{"'4713-01-01 BC'::timestamp", "", "(TIMESTAMP, '4713-01-01 (BC) 00:00:00')", ""},
		{"'5874897-12-31'::date", "", "(DATE, 5874897-12-31)", ""},
		{"ARRAY[1.5]::numeric[]", "DECIMAL(9,1)[]", "('DECIMAL(9,1)[]', [1.5])", ""},
		{"ARRAY[1.55]::numeric[]", "DECIMAL(9,1)[]", "", "does not fit"},
		{"ARRAY[[1,2],[3,4]]", "", "", "has an array of 2 dimensions, which is no INTEGER[]"},
		{"ARRAY[1]", "BIGINT", "", "cannot be read as BIGINT: it is integer[]"},
		{"'[1,2)'::int4range", "", "", "a type of PostgreSQL that is not read"},
		{"'[1,2)'::int4range", "VARCHAR", "(VARCHAR, '[1,2)')", ""},
		{"'10.0.0.1/8'::inet", "VARCHAR", "(VARCHAR, 10.0.0.1/8)", ""},
		{"'12:00+02'::timetz", "TIME", "", "a type of PostgreSQL that is not read"},
		{"'1 us'::interval", "", "", "INTERVAL"},
		{`'{"a": 1}'::jsonb`, "VARCHAR", `(VARCHAR, '{"a": 1}')`, ""},
		{"NULL::numeric", "DECIMAL(10,2)", "('DECIMAL(10,2)', NULL)", ""},
	} {
		t.Run(c.expression+" as "+c.of, func(t *testing.T) {
			t.Parallel()
			more := map[string]any{}
			if c.of != "" {
				more["types"] = map[string]any{"v": c.of}
			}
			s := newSource(t, f, "SELECT "+c.expression+" AS v", more)
			_, err := s.run(t.Context(), t)
			if c.fails != "" {
				require.ErrorContains(t, err, c.fails)
				require.True(t, operators.IsPermanent(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.want, s.ask(t, "typeof(v), v"))
		})
	}
}

func TestUnchangedRowsPublishNothing(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	execute(t, f, "CREATE TABLE t (id int, v int); INSERT INTO t VALUES (1, 1), (2, NULL)")
	s := newSource(t, f, "SELECT * FROM t ORDER BY id", nil)
	first := s.mustRun(t)
	require.False(t, first.Unchanged)
	require.JSONEq(t, `{"rows": 2}`, string(first.Result))

	again := s.mustRun(t)
	require.True(t, again.Unchanged)
	require.Equal(t, first.SourceVersion, again.SourceVersion)

	execute(t, f, "UPDATE t SET v = 0 WHERE v IS NULL")
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
	f := testdb.Behind(t, testdb.Empty(t), nil)
	execute(t, f, "CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
	s := newSource(t, f, "SELECT * FROM t", nil)
	s.mustRun(t)
	require.NoError(t, operators.CheckReading(s.task.Reading))
	require.False(t, operators.OpenReading(s.task.Reading))

	execute(t, f, "ALTER TABLE t ALTER id TYPE text; UPDATE t SET id = '2'")
	s.mustRun(t)
	require.Equal(t, "(INTEGER, 2)", s.ask(t, "typeof(id), id"))

	execute(t, f, "UPDATE t SET id = '2b'")
	_, err := s.run(t.Context(), t)
	require.ErrorContains(t, err, "invalid input syntax for type integer")
	execute(t, f, "ALTER TABLE t ADD more int")
	_, err = s.run(t.Context(), t)
	require.ErrorContains(t, err, "the query has the columns id, more; the dataset has id")
}

// A canceled run ends within a second, and so does its statement on the server.
func TestCancelReachesTheServer(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	watch := connect(t, f)
	running := func() (n int) {
		require.NoError(t, watch.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE application_name = 'dagctl d/j' AND state = 'active' AND query LIKE '%pg_sleep%'
			  AND datname = current_database()`).Scan(&n))
		return n
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	s := newSource(t, f, "SELECT pg_sleep(600)::text AS v", nil)
	go func() {
		_, err := s.run(ctx, t)
		done <- err
	}()
	require.Eventually(t, func() bool { return running() == 1 }, 20*time.Second, 5*time.Millisecond)

	begun := time.Now()
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.Less(t, time.Since(begun), time.Second)
	require.Eventually(t, func() bool { return running() == 0 }, time.Second, 5*time.Millisecond)
}

// The server ends a statement by itself when the task's time is over, even if nobody is there to cancel it.
func TestStatementsEndWithTheTask(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	s := newSource(t, f, "SELECT current_setting('statement_timeout') AS v", nil)
	s.task.TimeoutAt = time.Now().Add(time.Minute)
	s.mustRun(t)
	ms, err := strconv.Atoi(strings.TrimSuffix(strings.Trim(s.ask(t, "v"), "()'"), "ms"))
	require.NoError(t, err)
	require.InDelta(t, 55_000, ms, 5_000)

	s = newSource(t, f, "SELECT pg_sleep(600)::text AS v", nil)
	s.task.TimeoutAt = time.Now().Add(300 * time.Millisecond)
	_, err = s.run(t.Context(), t)
	require.ErrorContains(t, err, "statement timeout")
	require.False(t, operators.IsPermanent(err))
}

func TestWhereConnectionsMayGo(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	hostPort := net.JoinHostPort(f.Host, strconv.Itoa(f.Port))
	fails := func(t *testing.T, s source, message string, permanent bool) {
		t.Helper()
		_, err := s.run(t.Context(), t)
		require.ErrorContains(t, err, message)
		require.Equal(t, permanent, operators.IsPermanent(err), "%v", err)
		full := new(fault.Error)
		require.ErrorAs(t, err, &full)
		text := err.Error() + full.Hint
		require.NotContains(t, text, f.Password)
		require.NotContains(t, text, "wrong")
	}

	guarded := newSource(t, f, "SELECT 1 AS v", nil)
	guarded.op = operator(t)
	fails(t, guarded, "it is not public", true)
	named := newSource(t, f, "SELECT 1 AS v", map[string]any{"host": "localhost"})
	named.op = operator(t)
	fails(t, named, "localhost may not be reached", true)

	for host, ok := range map[string]bool{"http://*": true, "http://" + hostPort: true, hostPort: false, "*": false,
		"http://127.0.0.1:1": false, "http://db.example.com": false} {
		bound := newSource(t, f, "SELECT 1 AS v", nil)
		bound.task.Secrets = secrets(f, host)
		if ok {
			bound.mustRun(t)
			continue
		}
		fails(t, bound, "secret PG may not be sent to http://"+hostPort, true)
	}

	wrong := newSource(t, f, "SELECT 1 AS v", map[string]any{"user": "nobody_there"})
	fails(t, wrong, "SQLSTATE 28", true)
	nowhere := newSource(t, f, "SELECT 1 AS v", map[string]any{"database": "none_there"})
	fails(t, nowhere, "none_there", true)
	closed := newSource(t, f, "SELECT 1 AS v", map[string]any{"port": 1})
	closed.task.Secrets = secrets(f, "*", "http://*")
	fails(t, closed, "127.0.0.1:1", false)
}

// The environment of the server says nothing of the databases of users.
func TestEnvironmentIsNotUsed(t *testing.T) {
	f := testdb.Behind(t, testdb.Empty(t), nil)
	t.Setenv("PGPASSWORD", "wrong")
	t.Setenv("PGOPTIONS", "-c search_path=pg_catalog")
	t.Setenv("PGAPPNAME", "else")
	t.Setenv("PGTARGETSESSIONATTRS", "standby")
	s := newSource(t, f, "SELECT current_setting('search_path') AS p, current_setting('application_name') AS a", nil)
	s.mustRun(t)
	require.Equal(t, `('"$user", public', dagctl d/j)`, s.ask(t, "p, a"))
}

// A database proves to be the one of its name, unless the config waives that.
func TestTLS(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))

	url := testdb.Empty(t)
	plain := testdb.Behind(t, url, nil)
	f := testdb.Behind(t, url, &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der},
		PrivateKey: key}}})
	hostPort := net.JoinHostPort(f.Host, strconv.Itoa(f.Port))

	verified := newSource(t, f, "SELECT 1 AS v", map[string]any{"sslmode": "verify-full", "ca": ca})
	verified.task.Secrets = secrets(f, hostPort)
	verified.mustRun(t)

	unknown := newSource(t, f, "SELECT 1 AS v", map[string]any{"sslmode": "verify-full"})
	_, err = unknown.run(t.Context(), t)
	require.ErrorContains(t, err, "certificate")
	other := newSource(t, f, "SELECT 1 AS v", map[string]any{"sslmode": "verify-full", "ca": ca, "host": "localhost"})
	_, err = other.run(t.Context(), t)
	require.ErrorContains(t, err, "certificate")

	waived := newSource(t, f, "SELECT 1 AS v", map[string]any{"sslmode": "require"})
	waived.mustRun(t)
	waived.task.Secrets = secrets(f, hostPort)
	_, err = waived.run(t.Context(), t)
	require.ErrorContains(t, err, "may not be sent to http://"+hostPort)

	without := newSource(t, plain, "SELECT 1 AS v", map[string]any{"sslmode": "require"})
	_, err = without.run(t.Context(), t)
	require.ErrorContains(t, err, "TLS")
}

// Rows pass through: what a run keeps of them is on disk.
func TestManyRows(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	s := newSource(t, f, "SELECT g AS id, repeat('x', 500) AS filler FROM generate_series(1, 200000) g", nil)
	result := s.mustRun(t)
	var got struct{ Rows int64 }
	require.NoError(t, json.Unmarshal(result.Result, &got))
	require.Equal(t, int64(200000), got.Rows)
	require.Equal(t, "(200000, 20000100000)", s.ask(t, "count(*), sum(id)"))
	left, err := os.ReadDir(s.task.Scratch)
	require.NoError(t, err)
	require.Empty(t, left)
}
