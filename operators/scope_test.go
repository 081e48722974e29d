package operators_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/operators"
)

// tokyo is a day of a job whose zone is nine hours ahead of UTC.
func tokyo(t *testing.T) (dag.Partitioning, *operators.PartitionRange) {
	t.Helper()
	by := dag.Partitioning{Kind: dag.ByTime, Unit: dag.Day, Timezone: "Asia/Tokyo"}
	start, end, err := by.Bounds("2024-01-31")
	require.NoError(t, err)
	return by, &operators.PartitionRange{Key: "2024-01-31", Start: &start, End: &end}
}

// A job, its checks, its programs and its exports read a local time as the same instant, and show an instant alike.
func TestEverythingReadsInTheZoneOfThePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	by, partition := tokyo(t)
	made := func(query string, inputs ...operators.AssignedInput) (operators.Assignment, operators.Written) {
		a := assignment("sql", map[string]any{"query": query})
		a.PartitionBy, a.Partition, a.Inputs = by, partition, inputs
		return a, w.mustRun(t, a).Written[0]
	}

	// days joins instants with days, which depends on the zone: 20:00 UTC is the next day in Tokyo.
	a, events := made("SELECT TIMESTAMPTZ '2024-01-30 20:00:00+00' AS seen, DATE '2024-01-31' AS day")
	b, output := made("SELECT seen, seen::DATE AS day, seen::VARCHAR AS shown FROM events", input("events", a, events))
	require.Equal(t, "2024-01-31 05:00:00+09", w.rows(t, b, output)[0][2])

	checks := []dag.Check{
		{Name: "day", Kind: "relationships", Columns: []string{"day"}, To: &dag.CheckRelation{Input: "events",
			Column: "day"}},
		{Name: "shown", Kind: "sql", SQL: "SELECT * FROM output WHERE seen::VARCHAR <> shown"},
		{Name: "in range", Kind: "sql", SQL: "SELECT * FROM output WHERE seen < getvariable('start') OR " +
			"seen::DATE <> getvariable('partition')::DATE"},
	}
	outcomes, err := w.Check(t.Context(), operators.CheckTask{Generation: b.Outputs[0].Generation,
		Held: &output.Manifest, PartitionBy: by, Partition: partition, Checks: checks,
		Inputs: []operators.AssignedInput{input("events", a, events)}})
	require.NoError(t, err)
	for _, outcome := range outcomes {
		require.True(t, outcome.Passed, "%+v", outcome)
	}

	for format, want := range map[string]string{"csv": "2024-01-31 05:00:00+09", "ndjson": "2024-01-31 05:00:00+09"} {
		b.Inputs = []operators.AssignedInput{input("output", b, output)}
		file, err := w.Export(t.Context(), b, b.Inputs[0], format, t.TempDir())
		require.NoError(t, err)
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(text), want), "%s", text)
	}

	// A program gets the same instant, by whatever offset its input selects it, and hands it on as it was.
	for instant, rows := range map[string][][]any{"2024-01-31 05:00:00+09": w.rows(t, b, output),
		"2024-01-30 20:00:00+00": w.rows(t, b, output), "2024-01-31 05:00:00+00": {}} {
		c := assignment("command", self(t, "copy", nil))
		c.PartitionBy, c.Partition = by, partition
		given := input("output", b, output)
		given.Where = []dag.Condition{{Column: "seen", Values: []any{instant}}}
		c.Inputs = []operators.AssignedInput{given}
		require.ElementsMatch(t, rows, w.rows(t, c, w.mustRun(t, c).Written[0]), instant)
	}
}

func TestFreshnessComparesInstants(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	by, partition := tokyo(t)
	a := assignment("sql", map[string]any{"query": `SELECT TIMESTAMP '2024-01-31 05:00:00' AS local,
		TIMESTAMPTZ '2024-01-31 05:00:00+09' AS seen, DATE '2024-01-31' AS day, TIMESTAMP 'infinity' AS never`})
	a.PartitionBy, a.Partition = by, partition
	output := w.mustRun(t, a).Written[0]

	// Five hours after 05:00 in Tokyo, which is 20:00 in UTC.
	now := time.Date(2024, 1, 31, 1, 0, 0, 0, time.UTC)
	for column, age := range map[string]time.Duration{"local": 5 * time.Hour, "seen": 5 * time.Hour,
		"day": 10 * time.Hour, "never": 0} {
		for _, within := range []time.Duration{age - time.Minute, age + time.Minute} {
			outcomes, err := w.Check(t.Context(), operators.CheckTask{Generation: a.Outputs[0].Generation,
				Held: &output.Manifest, PartitionBy: by, Partition: partition, Now: now,
				Checks: []dag.Check{{Kind: "freshness", Columns: []string{column}, Within: within}}})
			require.NoError(t, err)
			require.Empty(t, outcomes[0].Error)
			require.Equal(t, age > 0 && within > age, outcomes[0].Passed, "%s within %s: %s", column, within,
				json.RawMessage(outcomes[0].Sample))
		}
	}
}
