package mysqlquery_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/testmysql"
	"github.com/dagctl/dagctl/operators"
)

// What MySQL 8 says in another way than MariaDB arrives as it is, over TLS and with caching_sha2_password.
func TestValuesOfMySQL8(t *testing.T) {
	t.Parallel()
	d := testmysql.NewEight(t)
	each(t, d, []stored{
		{of: "json", literal: `'{"a": 1.5, "b": [true, null, "ü"]}'`,
			want: `(JSON, '{"a": 1.5, "b": [true, null, "ü"]}')`},
		{of: "json", literal: `'"text"'`, want: `(JSON, '"text"')`},
		{of: "json", literal: "NULL", want: "(JSON, NULL)"},
		{of: "json", literal: `'[1, 2]'`, as: "VARCHAR", want: `(VARCHAR, '[1, 2]')`},
		{of: "tinyint(1)", literal: "1", as: "BOOLEAN", want: "(BOOLEAN, true)"},
		{of: "bigint unsigned", literal: "18446744073709551615", want: "(UBIGINT, 18446744073709551615)"},
		{of: "decimal(38,9)", literal: "12345678901234567890123456789.123456789", want: "('DECIMAL(38,9)', " +
			"12345678901234567890123456789.123456789)"},
		{of: "varchar(10) collate utf8mb4_0900_ai_ci", literal: "'𝄞 ü 漢'", want: "(VARCHAR, 𝄞 ü 漢)"},
		{of: "blob", literal: "x'de00ff'", want: `(BLOB, \xDE\x00\xFF)`},
		{of: "date", literal: "'2024-02-29'", want: "(DATE, 2024-02-29)"},
		{of: "datetime(6)", literal: "'2024-03-31 02:30:00.999999'", want: "(TIMESTAMP, '2024-03-31 02:30:00.999999')"},
		// This server's binary protocol leaves the fractions of these two out, even to its own users.
		{of: "timestamp", literal: "'2024-03-31 01:00:00'",
			want: "(TIMESTAMP WITH TIME ZONE, '2024-03-31 01:00:00+00')"},
		{of: "time", literal: "'23:59:59'", want: "(TIME, '23:59:59')"},
		{of: "enum('a','b')", literal: "'b'", as: "VARCHAR", want: "(VARCHAR, b)"},
	})
}

// Rows of a partition are found by its range, and only what changed is published.
func TestRangesOfMySQL8(t *testing.T) {
	t.Parallel()
	d := testmysql.NewEight(t)
	d.Exec(t, `CREATE TABLE visits (id int PRIMARY KEY, seen_at datetime(6));
		INSERT INTO visits VALUES (1, '2024-03-30 23:59:59.999999'), (2, '2024-03-31 00:00:00'),
			(3, '2024-03-31 23:59:59.999999'), (4, '2024-04-01')`)
	s := newSource(t, d, "SELECT id FROM visits WHERE seen_at >= {start} AND seen_at < {end} ORDER BY id", nil)
	start := time.Date(2024, 3, 31, 0, 0, 0, 0, time.UTC)
	end := start.AddDate(0, 0, 1)
	s.task.PartitionBy = dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "UTC"}
	s.task.Partition = &operators.PartitionRange{Key: "2024-03-31", Start: &start, End: &end}
	s.mustRun(t)
	require.Equal(t, "(2)", s.ask(t, "count(*)"))
	require.True(t, s.mustRun(t).Unchanged)
	d.Exec(t, "DELETE FROM visits WHERE id = 3")
	require.False(t, s.mustRun(t).Unchanged)
}
