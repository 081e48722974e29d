package postgresquery

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/pgremote"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
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
	values, err := s.Values(t, "2006-01-02 15:04:05.999999Z07:00")
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
	defer conn.Close(context.WithoutCancel(ctx))

	if _, err := conn.PgConn().Exec(ctx, begin(t)).ReadAll(); err != nil {
		return answer, pgremote.ErrorOf(ctx, c.Host, err)
	}
	wrapped := fmt.Sprintf("SELECT * FROM (\n%s\n) AS q", s.Text)
	described, err := conn.PgConn().Prepare(ctx, "", wrapped, nil)
	if err != nil {
		return answer, atLine(pgremote.ErrorOf(ctx, c.Host, err), err, wrapped)
	}
	columns, err := c.choose(slices.Clone(described.Fields), standing)
	if err != nil {
		return answer, err
	}
	for _, column := range columns {
		answer.Columns = append(answer.Columns, column.Column)
	}

	selected, looks := selection(s.Text, len(described.Fields), columns)
	if _, err = conn.PgConn().Prepare(ctx, "", selected, nil); err != nil {
		return answer, pgremote.ErrorOf(ctx, c.Host, err)
	}

	reading, stop := context.WithCancel(ctx)
	defer stop()
	parameters := make([][]byte, len(values))
	for i, value := range values {
		parameters[i] = []byte(value)
	}
	rows := conn.PgConn().ExecPrepared(reading, "", parameters, nil, []int16{1})
	answer.Hash, err = c.save(rows, answer.Columns, columns, looks, file)
	if err != nil {
		stop() // the rest of the rows is not waited for
	}
	_, closed := rows.Close()
	if err == nil || ctx.Err() != nil {
		err = pgremote.ErrorOf(ctx, c.Host, closed)
	}
	return answer, err
}

// begin returns the statements that begin a run: nothing can be written, the statement ends with the task's time, and
// local times are those of the job's zone.
func begin(t *operators.Task) string {
	settings := []string{"BEGIN READ ONLY", "SET LOCAL standard_conforming_strings = on",
		"SET LOCAL datestyle = 'ISO, YMD'", "SET LOCAL extra_float_digits = 1", "SET LOCAL bytea_output = hex",
		// A scan that begins where another one is would return the same rows in another order
		"SET LOCAL synchronize_seqscans = off"}
	zone := t.PartitionBy.Timezone
	if zone == "" {
		zone = "UTC"
	}
	settings = append(settings, "SET LOCAL TimeZone = "+sqltext.Literal(zone))

	if !t.TimeoutAt.IsZero() {
		left := max(t.TimeoutAt.Sub(clock.Now()).Milliseconds(), 1)
		settings = append(settings, fmt.Sprintf("SET LOCAL statement_timeout = %d", min(left, math.MaxInt32)))
	}
	return strings.Join(settings, "; ")
}

// atLine adds the line of the query to an error that has a place in the statement around it.
func atLine(shown, err error, wrapped string) error {
	var e *pgconn.PgError
	if !errors.As(err, &e) || e.Position <= 0 || !fault.Is(shown, fault.Invalid) {
		return shown
	}
	before := []rune(wrapped)
	line := strings.Count(string(before[:min(int(e.Position)-1, len(before))]), "\n")
	return fault.New(fault.Invalid, "config.query, line %d: %s", line, shown)
}

// save writes rows to a new file and returns their hash.
func (c config) save(
	rows *pgconn.ResultReader, written []relations.Column, columns []column, looks []look, path string,
) (string, error) {
	f, err := remotequery.Create(path, written)
	if err != nil {
		return "", err
	}
	defer f.Close()

	w, err := pgcopy.NewRawWriter(f)
	if err != nil {
		return "", err
	}
	for number := 1; rows.NextRow(); number++ {
		row := rows.Values()
		if err := fits(row, columns, looks); err != nil {
			return "", fault.New(fault.Invalid, "row %d, %w", number, err)
		}
		if err := w.Row(row[:len(columns)]); err != nil {
			return "", err
		}
		if err := c.TooLarge(w.Written()); err != nil {
			return "", err
		}
	}
	if err := w.End(); err != nil {
		return "", err
	}
	return f.End()
}

// fits returns an error for a value that its column cannot hold.
func fits(row [][]byte, columns []column, looks []look) error {
	for _, l := range looks {
		c, said := columns[l.column], row[l.at]
		switch {
		case l.dimensions && len(said) == 4 && binary.BigEndian.Uint32(said) > 1:
			return fmt.Errorf("column %q has an array of %d dimensions, which is no %s", c.Name,
				binary.BigEndian.Uint32(said), c.Type)
		case !l.dimensions && (len(said) != 1 || said[0] != 1):
			return fmt.Errorf("column %q has a value that does not fit %s", c.Name, c.Type)
		}
	}

	for i, c := range columns {
		if strings.HasPrefix(c.Type, "DECIMAL(") && !strings.HasSuffix(c.Type, "[]") && !pgcopy.Finite(row[i]) {
			return fmt.Errorf("column %q has a numeric that is no number (NaN or infinite)", c.Name)
		}
		if strings.HasPrefix(c.Type, "TIMESTAMP") && !strings.HasSuffix(c.Type, "[]") && !pgcopy.Instant(row[i]) {
			return fmt.Errorf("column %q has a time after the year 294247, which no %s holds", c.Name, c.Type)
		}
	}
	return nil
}
