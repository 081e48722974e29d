package operators_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine/enginetest"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/testdb"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

func TestRunOnPostgresStorage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pool := testdb.New(t)
	st, err := storage.New(storage.Config{Root: t.TempDir(), Pool: pool, Rows: enginetest.Engines()})
	require.NoError(t, err)

	t.Cleanup(func() { require.NoError(t, st.Close()) })
	w.Storage = st

	quakes := assignment("sql", nil)
	quakes.Outputs[0].Generation.Kind = storage.Postgres
	var revision int64
	store := func(query string) storage.Manifest {
		quakes.Attempt++
		quakes.Config = map[string]any{"query": query}
		written := w.mustRun(t, quakes).Written[0]
		attempt := storage.Attempt{Generation: quakes.Outputs[0].Generation, Partition: written.Partition,
			Task: quakes.TaskID, Number: quakes.Attempt}

		// Only checks see a held revision.
		outcomes, err := w.Check(t.Context(), operators.CheckTask{
			Generation: attempt.Generation, Held: &written.Manifest,
			Checks: []dag.Check{{Kind: "not_null", Columns: []string{"id"}}},
		})
		require.NoError(t, err)
		require.True(t, outcomes[0].Passed)

		revision++
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			return st.Publish(t.Context(), tx, attempt, revision, written.Manifest)
		}))
		return written.Manifest
	}

	m := store("SELECT 'a' AS id, 2.5::DOUBLE AS mag, [1, 2] AS place")
	require.Empty(t, m.Files)
	require.Equal(t, int64(1), m.Rows)

	strongest := assignment("sql", map[string]any{"query": "SELECT id, max(mag) AS mag, any_value(place[2]) AS p " +
		"FROM quakes GROUP BY id"})
	strongest.Inputs = []operators.AssignedInput{{
		As: "quakes", Generation: quakes.Outputs[0].Generation, Schema: m.Schema,
		Partitions: []storage.Partition{{Key: dag.WholeKey, Revision: 1}},
	}}

	out := w.mustRun(t, strongest)
	require.Equal(t, [][]any{{"a", 2.5, int64(2)}}, w.rows(t, strongest, out.Written[0]))

	store("SELECT 'b' AS id, 3.5::DOUBLE AS mag, [3, 4] AS place")
	strongest.Attempt++
	late := w.run(t, strongest)
	require.True(t, fault.Is(late.Err, fault.Conflict), "%v", late.Err)
	require.True(t, late.Retryable, "the next claim pins what is current")
}
