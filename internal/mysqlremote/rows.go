package mysqlremote

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
)

// Column is a column of a result.
type Column struct {
	Name             string
	Type             string // as in UNSIGNED BIGINT or DECIMAL; empty: none that the driver knows
	Precision, Scale int64  // of DECIMAL. The precision of an unsigned one with a fraction is one too small
	// Inexact: it has times whose digits after the second are not known, so that the driver drops them
	Inexact bool
}

// Rows are the rows of a statement, one after the other.
type Rows struct {
	Columns []Column

	conn *Conn
	ctx  context.Context
	rows driver.Rows
	all  bool
}

// notFixed is the number of digits after the second, or the point, of a column that has any number of them.
const notFixed = 31

// Query prepares and runs one statement with its parameters. Values travel in the binary protocol, which has them as
// they are; in the text protocol, a FLOAT has six digits. Several statements are refused by the server.
func (c *Conn) Query(ctx context.Context, statement string, parameters []string) (found *Rows, err error) {
	defer c.odd(&err)
	c.wire.left = maxAnswer
	prepared, err := c.conn.(driver.ConnPrepareContext).PrepareContext(ctx, statement)
	if err != nil {
		return nil, c.ErrorOf(ctx, err)
	}
	values := make([]driver.NamedValue, len(parameters))
	for i, p := range parameters {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: p}
	}
	rows, err := prepared.(driver.StmtQueryContext).QueryContext(ctx, values)
	if err != nil {
		return nil, c.ErrorOf(ctx, err)
	}

	found = &Rows{conn: c, ctx: ctx, rows: rows}
	types := rows.(interface {
		driver.RowsColumnTypeDatabaseTypeName
		driver.RowsColumnTypePrecisionScale
	})
	for i, name := range rows.Columns() {
		column := Column{Name: name, Type: types.ColumnTypeDatabaseTypeName(i)}
		column.Precision, column.Scale, _ = types.ColumnTypePrecisionScale(i)
		switch column.Type {
		case "TIME", "DATETIME", "TIMESTAMP":
			column.Inexact = column.Scale == notFixed
		}
		found.Columns = append(found.Columns, column)
	}
	return found, nil
}

// Next reads a row. It returns io.EOF after the last one. Values are int64, float32, float64, or bytes that stay until
// the next call: text in UTF-8, numbers and times as MySQL writes them.
func (r *Rows) Next(into []driver.Value) (err error) {
	defer r.conn.odd(&err)
	r.conn.wire.left = maxAnswer
	err = r.rows.Next(into)
	if errors.Is(err, io.EOF) && r.ctx.Err() == nil {
		r.all = true
		if err := r.rows.Close(); err != nil { // which frees the connection for another statement
			return r.conn.ErrorOf(r.ctx, err)
		}
		return io.EOF
	}
	return r.conn.ErrorOf(r.ctx, err)
}

// All reports whether the last row was read.
func (r *Rows) All() bool { return r.all }
