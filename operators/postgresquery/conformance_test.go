package postgresquery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/operatortest"
	"github.com/dagctl/dagctl/operators/postgresquery"
)

func operator(t *testing.T, allowed ...string) operators.Operator {
	t.Helper()
	op, err := postgresquery.New(operators.Options{Engines: enginetest.Engines(), AllowedAddresses: allowed})
	require.NoError(t, err)
	return op
}

const loopback = "127.0.0.0/8"

// secrets has the password of a database, for those hosts.
func secrets(f testdb.Front, hosts ...string) map[string]secret.Value {
	return map[string]secret.Value{"PG": secret.New("PG", f.Password, hosts)}
}

// with returns the config of a query, with more fields.
func with(f testdb.Front, query string, more map[string]any) map[string]any {
	config := f.Config("query=" + query)
	for key, value := range more {
		config[key] = value
	}
	return config
}

func TestPostgresQueryConforms(t *testing.T) {
	t.Parallel()
	f := testdb.Behind(t, testdb.Empty(t), nil)
	execute(t, f, `
		CREATE SEQUENCE s;
		CREATE TYPE mood AS ENUM ('sad', 'glad');
		CREATE TABLE readings (id int PRIMARY KEY, at timestamptz NOT NULL, celsius numeric(6,2), note text, feels mood);
		INSERT INTO readings VALUES (1, '2024-03-30 22:59:59.999999Z', 1.50, 'a', 'sad'),
			(2, '2024-03-30 23:00:00Z', -0.01, NULL, 'glad'), (3, '2024-03-31 21:59:59Z', NULL, 'ü', NULL),
			(4, '2024-03-31 22:00:00Z', 9999.99, '', 'glad')`)

	start, end := time.Date(2024, 3, 30, 23, 0, 0, 0, time.UTC), time.Date(2024, 3, 31, 22, 0, 0, 0, time.UTC)
	hostile := "'); DROP TABLE readings; --"
	day := func(c operatortest.Case) operatortest.Case {
		c.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "Europe/Berlin"}
		c.Partition = &operators.PartitionRange{Key: "2024-03-31", Start: &start, End: &end}
		return c
	}
	query := func(name, query string, more map[string]any, rows ...string) operatortest.Case {
		c := operatortest.Case{Name: name, Config: with(f, query, more), Secrets: secrets(f, "*", "http://*")}
		if rows != nil {
			c.Want = map[string][]string{"out": rows}
		}
		return c
	}
	fails := func(c operatortest.Case, message string) operatortest.Case {
		c.Fails, c.Permanent = message, true
		return c
	}
	refused := func(query, message string, more map[string]any) operatortest.Case {
		return operatortest.Case{Name: "refused: " + message, Config: with(f, query, more), Refused: message}
	}
	types := func(column, of string) map[string]any {
		return map[string]any{"types": map[string]any{column: of}}
	}
	endless := query("endless", "SELECT count(*) FROM generate_series(1, 1000000000000) g", nil)
	endless.Endless = true
	keyed := query("a hostile key", "SELECT {partition} AS p, count(*) FROM readings -- all", nil,
		`'p': '\'); DROP TABLE readings; --', 'count': 4`)
	keyed.PartitionBy, keyed.Partition = dag.Partitioning{Kind: dag.ByKey}, &operators.PartitionRange{Key: hostile}

	operatortest.Run(t, operator(t, loopback),
		query("rows in the query's order", "SELECT id, note FROM readings ORDER BY id DESC;", nil,
			"'id': 4, 'note': ''", "'id': 3, 'note': ü", "'id': 2, 'note': NULL", "'id': 1, 'note': a"),
		day(query("a half-open day in its zone", "SELECT id, at::date AS d FROM readings "+
			"WHERE at >= {start} AND at < {end} AND {partition}::date = at::date ORDER BY id", nil,
			"'id': 2, 'd': 2024-03-31", "'id': 3, 'd': 2024-03-31")),
		keyed,
		query("no rows", "SELECT id, celsius FROM readings WHERE false", nil, []string{}...),
		query("columns and types", "SELECT *, sum(celsius) OVER () AS total FROM readings ORDER BY id",
			map[string]any{"columns": []any{"total", "id", "feels"},
				"types": map[string]any{"total": "DECIMAL(18,2)", "id": "BIGINT", "feels": "VARCHAR"}},
			"'total': 10001.48, 'id': 1, 'feels': sad", "'total': 10001.48, 'id': 2, 'feels': glad",
			"'total': 10001.48, 'id': 3, 'feels': NULL", "'total': 10001.48, 'id': 4, 'feels': glad"),
		query("with", "WITH a AS (SELECT 1 AS x) SELECT x FROM a", nil, "'x': 1"),
		query("values", "VALUES (1, 'a'), (2, 'b')", nil, "'column1': 1, 'column2': a",
			"'column1': 2, 'column2': b"),
		endless,

		fails(query("syntax", "SELECT 1 AS a,\n FROM readings", nil), `config.query, line 2: `),
		fails(query("no such table", "SELECT * FROM nothing", nil), `relation "nothing" does not exist`),
		fails(query("a writing WITH", "WITH d AS (DELETE FROM readings RETURNING id) SELECT * FROM d", nil),
			"must be at the top level"),
		fails(query("a writing function", "SELECT nextval('s')", nil), "in a read-only transaction"),
		fails(query("a way to write", "SELECT set_config('transaction_read_only', 'off', true)", nil),
			"transaction read-write mode must be set before any query"),
		fails(query("two columns of a name", "SELECT 1 AS a, 2 AS A", nil), `two columns "a"`),
		fails(query("no columns", "SELECT FROM readings", nil), "no columns"),
		fails(query("a column that is not there", "SELECT 1 AS a", map[string]any{"columns": []any{"b"}}),
			"the query has a"),
		fails(query("a type of no column", "SELECT 1 AS a", types("b", "BIGINT")), "which the query does not have"),
		fails(query("a sum without a type", "SELECT sum(celsius) AS s FROM readings", nil), `column "s" is a numeric of any precision`),
		fails(query("an enum without a type", "SELECT feels FROM readings", nil), `column "feels" has a type of PostgreSQL`),
		fails(query("a day without a range", "SELECT id FROM readings WHERE at < {start}", nil), "has no {start}"),
		fails(query("too much", "SELECT repeat('x', 1000) AS x FROM generate_series(1, 100) g",
			map[string]any{"max_bytes": 50000}), "more than 50000 bytes"),

		refused("SELECT 1; SELECT 2", "there is more than one statement", nil),
		refused("SELECT '{start}'", "in quotes", nil),
		refused("DELETE FROM readings RETURNING id", "has to be one SELECT", nil),
		refused("SELECT 1 AS a", "is not the name of a DuckDB type", types("a", "NOTHING")),
		refused("SELECT 1 AS a", "the password is written out", map[string]any{"password": "hunter2"}),
		refused("SELECT 1 AS a", "write the port as `port`", map[string]any{"host": "127.0.0.2:9999"}),
		refused("SELECT 1 AS a", "certificates in PEM", map[string]any{"ca": "x", "sslmode": "verify-full"}),
		refused("SELECT 1 AS a", "ca is for sslmode verify-full", map[string]any{"ca": "x"}),
		refused("SELECT 1 AS a", "host", map[string]any{"host": "/var/run/postgresql"}),
		refused("SELECT 1 AS a", "sslmode", map[string]any{"sslmode": "prefer"}),
	)
}
