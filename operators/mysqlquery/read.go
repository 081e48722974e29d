package mysqlquery

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/mysqlremote"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/remotequery"
	"github.com/dagctl/dagctl/operators/textfile"
)

// read runs the query in a transaction that can only read, and writes its rows to a file in PostgreSQL's binary COPY
// format. They pass through row by row.
func (c config) read(
	ctx context.Context, d *dial.Dialer, t *operators.Task, s remotequery.Statement, standing []textfile.Column,
	file string,
) (answer remotequery.Answer, err error) {
	values, err := s.Values(t, "2006-01-02 15:04:05.000000")
	if err != nil {
		return answer, err
	}
	word, err := t.SecretTo(c.URL(), c.Password, "config.password")
	if err != nil {
		return answer, err
	}
	conn, err := c.Connect(ctx, d, word, "dagctl "+t.DAG+"/"+t.Job)
	if err != nil {
		return answer, err
	}
	defer conn.Close()
	if err := begin(ctx, conn, t); err != nil {
		return answer, err
	}

	// The driver ends the connection with this context, and with it what was not read of the rows.
	reading, stop := context.WithCancel(ctx)
	defer stop()
	rows, err := conn.Query(reading, s.Text, values)
	if mysqlremote.Number(err) == wrongSyntax {
		err = atLine(err)
	}
	if err == nil {
		answer, err = c.save(rows, standing, file)
	}
	if err == nil {
		err = whole(reading, conn)
	}
	if err != nil && (ctx.Err() != nil || rows != nil && !rows.All()) {
		stop()
		if late := conn.Kill(context.WithoutCancel(ctx)); late != nil {
			t.Log.Warn("the statement goes on at the database until it notices that nobody reads", "error", late)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return answer, lasting(err)
}

// lasting makes an error permanent that no retry mends.
func lasting(err error) error {
	if fault.Is(err, fault.TooLarge) {
		return operators.Permanent(err)
	}
	return err
}

// wrongSyntax is the number of the error of a statement that cannot be read.
const wrongSyntax = 1064

var line = late.Pattern(`at line ([0-9]+) \(`)

// atLine adds the line of the query to an error of its syntax, which says it at its end.
func atLine(err error) error {
	found := line.FindStringSubmatch(err.Error())
	if found == nil {
		return err
	}
	return fault.New(fault.Invalid, "config.query, line %s: %w", found[1], err)
}

// unknownVariable is the number of the error of a setting that a server does not have.
const unknownVariable = 1193

// begin begins a run: all settings that change what a query means or returns are ours, nothing can be written, and the
// server ends the statement with the task's time.
func begin(ctx context.Context, conn *mysqlremote.Conn, t *operators.Task) error {
	for _, statement := range []string{
		"SET NAMES utf8mb4",
		// Quotes, backslashes and || are read in one way; zero dates can be compared with. Of what a server has set,
		// only whether GROUP BY may pick any row of a group counts.
		"SET SESSION time_zone = '+00:00', sql_select_limit = 9223372036854775807, " +
			"group_concat_max_len = 4294967295, lc_time_names = 'en_US', " +
			"sql_mode = IF(FIND_IN_SET('ONLY_FULL_GROUP_BY', @@sql_mode), 'ONLY_FULL_GROUP_BY', '')",
	} {
		if err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}

	left := int64(0) // no limit
	if !t.TimeoutAt.IsZero() {
		left = max(t.TimeoutAt.Sub(clock.Now()).Milliseconds(), 1)
	}
	limit := fmt.Sprintf("SET SESSION max_execution_time = %d", min(left, 1<<32-1))
	if conn.MariaDB {
		limit = fmt.Sprintf("SET SESSION max_statement_time = %d.%03d", min(left/1000, 31_536_000), left%1000)
	}
	// Some that speak MySQL's protocol have neither; there, the end of the connection ends the statement.
	if err := conn.Exec(ctx, limit); err != nil && mysqlremote.Number(err) != unknownVariable {
		return err
	}

	if err := conn.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"); err != nil {
		return err
	}
	return conn.Exec(ctx, "START TRANSACTION READ ONLY") // its snapshot is that of its only statement
}

// save writes rows to a new file.
func (c config) save(
	rows *mysqlremote.Rows, standing []textfile.Column, path string,
) (answer remotequery.Answer, err error) {
	columns, err := c.choose(rows.Columns, standing)
	if err != nil {
		return answer, err
	}
	answer.Columns = named(columns)
	f, err := remotequery.Create(path, answer.Columns)
	if err != nil {
		return answer, err
	}
	defer f.Close()

	w, err := pgcopy.NewRawWriter(f)
	if err != nil {
		return answer, err
	}
	m, err := newMover(columns)
	if err != nil {
		return answer, err
	}
	row := make([]driver.Value, len(rows.Columns))
	for number := 1; ; number++ {
		if err := rows.Next(row); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return answer, err
		}
		moved, err := m.move(row)
		if err != nil {
			return answer, atRow(number, err)
		}
		if err := w.Row(moved); err != nil {
			return answer, err
		}
		if err := c.TooLarge(w.Written()); err != nil {
			return answer, err
		}
	}
	if err := w.End(); err != nil {
		return answer, err
	}
	answer.Hash, err = f.End()
	return answer, err
}

// atRow adds the number of the row to the error of a value.
func atRow(number int, err error) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		return err
	}
	return fault.New(e.Kind, "row %d, %s", number, e).WithHint("%s", e.Hint)
}

// whole refuses an answer that has less than it should: a GROUP_CONCAT that was cut, and a value that became NULL
// because it was too long.
func whole(ctx context.Context, conn *mysqlremote.Conn) error {
	numbers, err := conn.Warnings(ctx)
	if err != nil {
		return err
	}

	for _, number := range numbers {
		switch number {
		case 1260:
			return fault.New(fault.Invalid, "the server has cut a GROUP_CONCAT").
				WithHint("aggregate less text, or raise max_allowed_packet of the database")
		case 1301:
			return fault.New(fault.Invalid, "the server has put NULL in the place of a text longer than its "+
				"max_allowed_packet").
				WithHint("make shorter texts, or raise max_allowed_packet of the database")
		}
	}
	return nil
}

func named(columns []column) (list []relations.Column) {
	for _, c := range columns {
		list = append(list, c.Column)
	}
	return list
}
