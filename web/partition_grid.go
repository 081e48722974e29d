package web

import (
	"cmp"
	"slices"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/dispatcher/views"
)

// cellsShown is how many partitions a page has: a year of days, two weeks of hours.
const cellsShown = 372

// cellRow is a line of the grid: the partitions of one day, month, year or decade, the first one first.
type cellRow struct {
	Name  string
	Cells []gridCell
}

// gridCell is a partition with the short name that it has within its line.
type gridCell struct {
	views.Cell
	Short string
}

// stateCount is how many partitions of the page are in a state.
type stateCount struct {
	State views.CellState
	N     int
}

// cellRows lays partitions out by time, the latest line first. Those that are not in time are one line without a name.
func cellRows(p dag.Partitioning, cells []views.Cell) (rows []cellRow) {
	for _, c := range cells {
		name, short := placeOf(p, c.Partition)
		if len(rows) == 0 || rows[len(rows)-1].Name != name {
			rows = append(rows, cellRow{Name: name})
		}
		at := &rows[len(rows)-1]
		at.Cells = append(at.Cells, gridCell{c, short})
	}
	if p.Kind == dag.ByTime {
		for _, row := range rows {
			slices.Reverse(row.Cells)
		}
	}
	return rows
}

// placeOf returns the line of a partition and its name in it.
func placeOf(p dag.Partitioning, key string) (line, short string) {
	start, _, err := p.Bounds(key)
	if p.Kind != dag.ByTime || err != nil {
		return "", key
	}
	if zone, err := time.LoadLocation(cmp.Or(p.Timezone, "UTC")); err == nil {
		start = start.In(zone)
	}

	switch p.Unit.Named() {
	case dag.Minute:
		return start.Format("Mon 2 Jan 2006"), start.Format("15:04")
	case dag.Hour:
		return start.Format("Mon 2 Jan 2006"), start.Format("15")
	case dag.Quarter:
		return start.Format("2006"), key[len(key)-2:]
	case dag.Year:
		return key[:len(key)-1] + "0s", key
	case dag.Day:
		return start.Format("January 2006"), start.Format("2")
	case dag.Month:
		return start.Format("2006"), start.Format("Jan")
	}
	return start.Format("2006"), start.Format("2 Jan")
}

// countStates counts the states of partitions, those first that a person should see first.
func countStates(cells []views.Cell) (counts []stateCount) {
	for _, state := range []views.CellState{views.CellHeld, views.CellRejected, views.CellFailed, views.CellBuilding,
		views.CellStale, views.CellMissing, views.CellPresent} {
		n := 0
		for _, c := range cells {
			if c.State == state {
				n++
			}
		}
		if n > 0 {
			counts = append(counts, stateCount{state, n})
		}
	}
	return counts
}
