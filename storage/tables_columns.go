package storage

import (
	"slices"
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Tables have three columns of the platform's own, which stable views do not show: _partition, _revision, and _row, the
// row's position in its partition. Reading is by _row: Postgres itself keeps no order.

// maxIdentifier is NAMEDATALEN-1: Postgres silently cuts longer names, and two could become one.
const maxIdentifier = 63

// mostColumns is how many columns a table can have, beside our own.
const mostColumns = 1600 - 3

var systemColumns = []string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}

func checkColumns(columns []Column) error {
	for _, c := range columns {
		if len(c.Name) > maxIdentifier {
			return fault.New(fault.Invalid, "column %q: postgres storage allows names of %d bytes", c.Name,
				maxIdentifier)
		}
		if c.Name == partitionColumn || c.Name == revisionColumn || c.Name == rowColumn {
			return fault.New(fault.Invalid, "column %q: postgres storage uses a column with this name itself", c.Name).
				WithHint("rename it in the query")
		}
		if slices.Contains(systemColumns, c.Name) {
			return fault.New(fault.Invalid, "column %q: every table of PostgreSQL has a column with this name", c.Name).
				WithHint("rename it in the query")
		}
		if _, err := pgcopy.TypeOf(c); err != nil {
			return err
		}
	}

	if len(columns) > mostColumns {
		return fault.New(fault.Invalid, "there are %d columns: postgres storage allows %d", len(columns), mostColumns).
			WithHint("leave some out, or the job's `storage: postgres`")
	}
	return nil
}

func columnList(columns []Column) string {
	list := make([]string, len(columns))
	for i, c := range columns {
		// It cannot fail: checkColumns has checked every type.
		of, _ := pgcopy.TypeOf(c)
		list[i] = sqltext.Quote(c.Name) + " " + of
	}
	return strings.Join(list, ", ")
}
