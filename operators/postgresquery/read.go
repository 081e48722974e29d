package postgresquery

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/pgremote"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/operators/textfile"
)

// answer is what a query returned.
type answer struct {
	columns []column
	hash    string // of the columns and the rows, in their order
}

// read runs the query in a transaction that can only read, and writes its rows to a file in PostgreSQL's binary COPY
// format. They pass through row by row.
func (o *operator) read(
	ctx context.Context, t *operators.Task, c config, s statement, standing []textfile.Column, file string,
) (read answer, err error) {
	values, err := valuesOf(t, s)
	if err != nil {
		return read, err
	}
	word, err := t.SecretTo(c.URL(), c.Password, "config.password")
	if err != nil {
		return read, err
	}
	conn, err := c.Connect(ctx, o.dialer, word, "dagctl "+t.DAG+"/"+t.Job)
	if err != nil {
		return read, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	if _, err := conn.PgConn().Exec(ctx, begin(t)).ReadAll(); err != nil {
		return read, pgremote.ErrorOf(ctx, c.Host, err)
	}
	wrapped := fmt.Sprintf("SELECT * FROM (\n%s\n) AS q", s.text)
	described, err := conn.PgConn().Prepare(ctx, "", wrapped, nil)
	if err != nil {
		return read, atLine(pgremote.ErrorOf(ctx, c.Host, err), err, wrapped)
	}
	if read.columns, err = c.choose(slices.Clone(described.Fields), standing); err != nil {
		return read, err
	}

	selected, looks := selection(s.text, len(described.Fields), read.columns)
	if _, err = conn.PgConn().Prepare(ctx, "", selected, nil); err != nil {
		return read, pgremote.ErrorOf(ctx, c.Host, err)
	}

	reading, stop := context.WithCancel(ctx)
	defer stop()
	rows := conn.PgConn().ExecPrepared(reading, "", values, nil, []int16{1})
	read.hash, err = c.save(rows, read.columns, looks, file)
	if err != nil {
		stop() // the rest of the rows is not waited for
	}
	_, closed := rows.Close()
	if err == nil || ctx.Err() != nil {
		err = pgremote.ErrorOf(ctx, c.Host, closed)
	}
	return read, err
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

// valuesOf returns the parameters of a statement as text.
func valuesOf(t *operators.Task, s statement) ([][]byte, error) {
	p := t.Partition
	if p == nil {
		p = &operators.PartitionRange{Key: dag.WholeKey}
	}

	values := make([][]byte, len(s.uses))
	for i, name := range s.uses {
		at := map[string]*time.Time{"start": p.Start, "end": p.End}[name]
		switch {
		case name == "partition":
			values[i] = []byte(p.Key)
		case at == nil:
			return nil, operators.Permanent(fault.New(fault.Invalid, "partition %q has no {%s}", p.Key, name))
		default:
			values[i] = []byte(at.UTC().Format("2006-01-02 15:04:05.999999Z07:00"))
		}
	}
	return values, nil
}

// save writes rows to a new file and returns their hash.
func (c config) save(rows *pgconn.ResultReader, columns []column, looks []look, file string) (string, error) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer f.Close()
	limit := c.MaxBytes
	if limit == 0 {
		limit = defaultMaxBytes
	}

	hash := sha256.New()
	if err := json.NewEncoder(hash).Encode(named(columns)); err != nil {
		return "", err
	}
	to := bufio.NewWriterSize(io.MultiWriter(f, hash), 1<<16)
	w, err := pgcopy.NewRawWriter(to)
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
		if w.Written() > limit {
			return "", operators.Permanent(fault.New(fault.TooLarge, "the rows have more than %d bytes", limit).
				WithHint("select less, or raise config.max_bytes"))
		}
	}
	if err := errors.Join(w.End(), to.Flush(), f.Close()); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

func named(columns []column) (list [][2]string) {
	for _, c := range columns {
		list = append(list, [2]string{c.Name, c.Type})
	}
	return list
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
