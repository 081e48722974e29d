package web

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/views"
	"github.com/dagctl/dagctl/registry/catalog"
)

func TestCellsAreLaidOutByTime(t *testing.T) {
	t.Parallel()
	cells := func(keys ...string) (cells []views.Cell) {
		for _, key := range keys {
			cells = append(cells, views.Cell{Partition: key, State: views.CellPresent})
		}
		return cells
	}
	lines := func(p dag.Partitioning, keys ...string) (lines []string) {
		for _, row := range cellRows(p, cells(keys...)) {
			line := row.Name + ":"
			for _, c := range row.Cells {
				line += " " + c.Short
			}
			lines = append(lines, line)
		}
		return lines
	}

	in := func(unit dag.TimeUnit) dag.Partitioning { return dag.Partitioning{Kind: dag.ByTime, Unit: unit} }
	require.Equal(t, []string{"February 2026: 1 2", "January 2026: 31"},
		lines(in(dag.Day), "2026-02-02", "2026-02-01", "2026-01-31"))
	require.Equal(t, []string{"2026: Jan", "2025: Nov Dec"}, lines(in(dag.Month), "2026-01", "2025-12", "2025-11"))
	require.Equal(t, []string{"Fri 2 Jan 2026: 00", "Thu 1 Jan 2026: 22 23"},
		lines(in(dag.Hour), "2026-01-02T00", "2026-01-01T23", "2026-01-01T22"))
	require.Equal(t, []string{"Fri 2 Jan 2026: 00 06", "Thu 1 Jan 2026: 18"},
		lines(in("6h"), "2026-01-02T06", "2026-01-02T00", "2026-01-01T18"))
	require.Equal(t, []string{"Fri 2 Jan 2026: 00:00", "Thu 1 Jan 2026: 23:30 23:45"},
		lines(in("15m"), "2026-01-02T00:00", "2026-01-01T23:45", "2026-01-01T23:30"))
	require.Equal(t, []string{"2026: Q1", "2025: Q3 Q4"}, lines(in(dag.Quarter), "2026-Q1", "2025-Q4", "2025-Q3"))
	require.Equal(t, []string{"2030s: 2030", "2020s: 2028 2029"}, lines(in(dag.Year), "2030", "2029", "2028"))
	require.Equal(t, []string{": eu us"}, lines(dag.Partitioning{Kind: dag.ByKey}, "eu", "us"))
	require.Empty(t, lines(in(dag.Day)))
}

func TestStatesAreCounted(t *testing.T) {
	t.Parallel()
	counts := countStates([]views.Cell{
		{State: views.CellPresent}, {State: views.CellFailed}, {State: views.CellPresent},
	})
	require.Equal(t, []stateCount{{views.CellFailed, 1}, {views.CellPresent, 2}}, counts)
}

func TestSparks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	late := int64(90)
	points := []catalog.Point{{At: at, Delay: &late}, {At: at, Rows: 1000, Bytes: 2048, Delay: &late},
		{At: at, Rows: 500, Bytes: 2048, Delay: &late}}
	curves := sparks(points)
	require.Len(t, curves, 3)
	require.Equal(t, "M4.0 44.0L120.0 4.0L236.0 24.0", curves[0].Line)
	require.Equal(t, []string{"0", "500", "1\u202f000"}, []string{curves[0].Least, curves[0].Last, curves[0].Most})
	require.Equal(t, "1 min", curves[2].Last)
	points[1].Delay = nil
	require.Len(t, sparks(points), 2)
	require.Empty(t, sparks(points[:1]))
	require.NotContains(t, sparks([]catalog.Point{{}, {}})[0].Line, "NaN")
}
