package inside

import (
	"bufio"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"os"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/relations"
)

// copyOut streams the rows of files in Postgres's format.
func (h *host) copyOut(ctx context.Context, q engine.CopyOut) (none, error) {
	session, err := h.at(ctx, relations.UTC)
	if err != nil {
		return none{}, err
	}
	table, err := pgcopy.NewTable(q.Columns)
	if err != nil {
		return none{}, err
	}
	out := bufio.NewWriterSize(pieces{h.out}, engine.MaxPiece)
	rows, err := table.NewWriter(out)
	if err != nil {
		return none{}, err
	}

	query := fmt.Sprintf("SELECT %s FROM %s", table.Give(), duck.ReadParquet(q.Files))
	err = session.Each(ctx, query, func(row []driver.Value) error {
		for i, v := range row {
			if interval, ok := v.(duckdb.Interval); ok {
				row[i] = pgcopy.Interval{Days: interval.Days, Months: interval.Months, Micros: interval.Micros}
			}
		}
		return rows.Row(row)
	})
	if err != nil {
		return none{}, err
	}
	return none{}, errors.Join(rows.End(), out.Flush())
}

// copyIn writes the rows of a file in Postgres's format as Parquet.
func (h *host) copyIn(ctx context.Context, q engine.CopyIn) (int64, error) {
	session, err := h.at(ctx, relations.UTC)
	if err != nil {
		return 0, err
	}
	table, err := pgcopy.NewTable(q.Columns)
	if err != nil {
		return 0, err
	}
	file, err := os.Open(q.File)
	if err != nil {
		return 0, err
	}
	defer file.Close()

	if err := session.Exec(ctx, "CREATE OR REPLACE TABLE staged ("+table.Staged()+")"); err != nil {
		return 0, err
	}
	err = session.Append(ctx, "staged", func(add func(row ...driver.Value) error) error {
		rows := table.NewReader(func(row ...driver.Value) error {
			for i, v := range row {
				if interval, ok := v.(pgcopy.Interval); ok {
					row[i] = duckdb.Interval{Days: interval.Days, Months: interval.Months, Micros: interval.Micros}
				}
			}
			return add(row...)
		})
		_, err := io.Copy(rows, file)
		return errors.Join(err, rows.End())
	})
	if err != nil {
		return 0, err
	}

	rows, err := session.CopyToParquet(ctx, "SELECT "+table.Take()+" FROM staged", q.Target)
	return rows, errors.Join(err, session.Exec(ctx, "DROP TABLE staged"))
}

// head writes the first rows of a file.
func (h *host) head(ctx context.Context, q engine.Head) (none, error) {
	session, err := h.at(ctx, relations.UTC)
	if err != nil {
		return none{}, err
	}
	_, err = session.CopyToParquet(ctx, fmt.Sprintf("SELECT * FROM %s LIMIT %d", duck.ReadParquet([]string{q.File}),
		q.Rows), q.Target)
	return none{}, err
}
