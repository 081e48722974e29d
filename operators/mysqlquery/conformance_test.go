package mysqlquery_test

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/secret"
	"github.com/dagctl/dagctl/internal/testmysql"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/mysqlquery"
	"github.com/dagctl/dagctl/operators/operatortest"
)

func operator(t *testing.T, allowed ...string) operators.Operator {
	t.Helper()
	op, err := mysqlquery.New(operators.Options{Engines: enginetest.Engines(), AllowedAddresses: allowed})
	require.NoError(t, err)
	return op
}

const loopback = "127.0.0.0/8"

// secrets has the password of a database, for those hosts.
func secrets(d testmysql.Database, hosts ...string) map[string]secret.Value {
	return map[string]secret.Value{"DB": secret.New("DB", d.Password, hosts)}
}

// with returns the config of a query, with more fields.
func with(d testmysql.Database, query string, more map[string]any) map[string]any {
	config := d.Config(query)
	maps.Copy(config, more)
	return config
}

func types(column, of string) map[string]any {
	return map[string]any{"types": map[string]any{column: of}}
}

func TestMySQLQueryConforms(t *testing.T) {
	t.Parallel()
	d := testmysql.New(t)
	d.Exec(t, `
		CREATE SEQUENCE s;
		CREATE TABLE readings (id int PRIMARY KEY, at timestamp(6) NOT NULL, celsius decimal(6,2), note text,
			feels enum('sad', 'glad')) ENGINE=InnoDB;
		SET time_zone = '+00:00';
		INSERT INTO readings VALUES (1, '2024-03-30 22:59:59.999999', 1.50, 'a', 'sad'),
			(2, '2024-03-30 23:00:00', -0.01, NULL, 'glad'), (3, '2024-03-31 21:59:59', NULL, 'ü', NULL),
			(4, '2024-03-31 22:00:00', 9999.99, '', 'glad');
		CREATE FUNCTION wipes() RETURNS int MODIFIES SQL DATA BEGIN DELETE FROM readings; RETURN 1; END`)

	start, end := time.Date(2024, 3, 30, 23, 0, 0, 0, time.UTC), time.Date(2024, 3, 31, 22, 0, 0, 0, time.UTC)
	hostile := `'); DROP TABLE readings; -- \' ` + "`"
	day := func(c operatortest.Case) operatortest.Case {
		c.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "Europe/Berlin"}
		c.Partition = &operators.PartitionRange{Key: "2024-03-31", Start: &start, End: &end}
		return c
	}
	query := func(name, query string, more map[string]any, rows ...string) operatortest.Case {
		c := operatortest.Case{Name: name, Config: with(d, query, more), Secrets: secrets(d, "*", "http://*")}
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
		return operatortest.Case{Name: "refused: " + message, Config: with(d, query, more), Refused: message}
	}
	endless := query("endless", "SELECT count(*) AS n FROM seq_1_to_1000000 a, seq_1_to_1000000 b", nil)
	endless.Endless = true
	keyed := query("a hostile key", "SELECT {partition} AS p, count(*) AS n FROM readings "+
		"WHERE note <> {partition} -- all", nil,
		`'p': '\'); DROP TABLE readings; -- \\\' `+"`"+`', 'n': 3`)
	keyed.PartitionBy, keyed.Partition = dag.Partitioning{Kind: dag.ByKey}, &operators.PartitionRange{Key: hostile}

	operatortest.Run(t, operator(t, loopback),
		query("rows in the query's order", "SELECT id, note FROM readings ORDER BY id DESC;", nil,
			"'id': 4, 'note': ''", "'id': 3, 'note': ü", "'id': 2, 'note': NULL", "'id': 1, 'note': a"),
		day(query("a half-open day in its zone", "SELECT id, at FROM readings "+
			"WHERE at >= {start} AND at < {end} AND {partition} = '2024-03-31' ORDER BY id", nil,
			"'id': 2, 'at': '2024-03-30 23:00:00+00'", "'id': 3, 'at': '2024-03-31 21:59:59+00'")),
		keyed,
		query("no rows", "SELECT id, celsius FROM readings WHERE false", nil, []string{}...),
		query("columns and types", "SELECT r.*, sum(celsius) OVER () AS total FROM readings r ORDER BY id",
			map[string]any{"columns": []any{"total", "id", "feels"},
				"types": map[string]any{"total": "DECIMAL(18,2)", "id": "BIGINT", "feels": "VARCHAR"}},
			"'total': 10001.48, 'id': 1, 'feels': sad", "'total': 10001.48, 'id': 2, 'feels': glad",
			"'total': 10001.48, 'id': 3, 'feels': NULL", "'total': 10001.48, 'id': 4, 'feels': glad"),
		query("with", "WITH a AS (SELECT 1 AS x) SELECT x FROM a", nil, "'x': 1"),
		query("what looks like more", "SELECT 'a;b' AS `x``;y` /* ; */ # ; '\n;", nil, "'x`;y': a;b"),
		endless,

		fails(query("syntax", "SELECT 1 AS a,\n FROM readings", nil), `config.query, line 2: `),
		fails(query("no such table", "SELECT * FROM nothing", nil), `nothing' doesn't exist`),
		fails(query("a writing WITH", "WITH d AS (SELECT 1) DELETE FROM readings", nil), "error 1064"),
		fails(query("a writing function", "SELECT wipes() AS x", nil), "READ ONLY transaction"),
		fails(query("a sequence", "SELECT nextval(s) AS x", nil), "READ ONLY transaction"),
		fails(query("two columns of a name", "SELECT 1 AS a, 2 AS A", nil), `two columns "A"`),
		fails(query("a column without a name", "SELECT 1 AS a, ''", nil), "column 2 of the query has no name"),
		fails(query("a column that is not there", "SELECT 1 AS a", map[string]any{"columns": []any{"b"}}),
			"the query has a"),
		fails(query("a type of no column", "SELECT 1 AS a", types("b", "BIGINT")), "which the query does not have"),
		fails(query("a decimal that is too wide", "SELECT CAST(1 AS DECIMAL(65,30)) AS s", nil),
			`column "s" is a DECIMAL(65,30)`),
		fails(query("an enum without a type", "SELECT feels FROM readings", nil), `column "feels" is an ENUM`),
		fails(query("a day without a range", "SELECT id FROM readings WHERE at < {start}", nil), "has no {start}"),
		fails(query("too much", "SELECT repeat('x', 1000) AS x FROM seq_1_to_100 g",
			map[string]any{"max_bytes": 50000}), "more than 50000 bytes"),
		fails(query("a cut text", "SELECT repeat('x', 100000000) AS x", nil), "longer than its max_allowed_packet"),

		refused("SELECT 1; SELECT 2", "there is more than one statement", nil),
		refused("SELECT '{start}'", "in quotes", nil),
		refused("DELETE FROM readings RETURNING id", "has to be one SELECT", nil),
		refused("SELECT * INTO OUTFILE '/tmp/x' FROM readings", "INTO writes the rows elsewhere", nil),
		refused("SELECT * FROM readings FOR UPDATE", "may not lock rows", nil),
		refused("SELECT 1 /*! INTO @a */", "the server would run what is in this comment", nil),
		refused("SELECT 1 AS a", "is not the name of a DuckDB type", types("a", "NOTHING")),
		refused("SELECT 1 AS a", "the password is written out", map[string]any{"password": "hunter2"}),
		refused("SELECT 1 AS a", "write the port as `port`", map[string]any{"host": "127.0.0.2:9999"}),
		refused("SELECT 1 AS a", "certificates in PEM", map[string]any{"ca": "x", "sslmode": "verify-full"}),
		refused("SELECT 1 AS a", "ca is for sslmode verify-full", map[string]any{"ca": "x"}),
		refused("SELECT 1 AS a", "host", map[string]any{"host": "/run/mysqld/mysqld.sock"}),
		refused("SELECT 1 AS a", "sslmode", map[string]any{"sslmode": "prefer"}),
	)
}
