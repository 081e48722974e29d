package storage

import (
	"strings"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// Tables have three columns of the platform's own, which stable views do not show: _partition, _revision, and _row, the
// row's position in its partition. Reading is by _row: Postgres itself keeps no order.

// maxIdentifier is NAMEDATALEN-1: Postgres silently cuts longer names, and two could become one.
const maxIdentifier = 63

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
		if _, err := pgcopy.TypeOf(c); err != nil {
			return err
		}
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
