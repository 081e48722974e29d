package postgresload

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/internal/clock"
	"github.com/dagctl/dagctl/internal/dial"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/pgremote"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators"
	"github.com/dagctl/dagctl/storage"
)

// engines give the rows of Parquet files in PostgreSQL's binary COPY format, with their numbers.
type engines interface {
	CopyOut(ctx context.Context, org string, columns []storage.Column, files []string, to io.Writer) error
}

// load is the rows of a task on their way to the target.
type load struct {
	config
	task    *operators.Task
	files   []string
	columns []storage.Column
	engines engines

	rows    int64
	content string            // hash of the rows, with their numbers
	into    map[string]string // types of the target's columns
}

// staged is the temporary table that the rows go through. Nobody else waits for it.
const staged = "pg_temp._dagctl_rows"

// run does the load in one transaction. No lock is held while the rows travel, so that a process that stands still
// there keeps nobody waiting; from the lock of the ledger on there are only statements.
func (l *load) run(ctx context.Context, d *dial.Dialer) (done loaded, err error) {
	word, err := l.task.SecretTo(l.URL(), l.Password, "config.password")
	if err != nil {
		return done, err
	}
	l.task.Progress(10, "connecting to "+l.Host)
	conn, err := l.Connect(ctx, d, word, "dagctl "+l.task.DAG+"/"+l.task.Job)
	if err != nil {
		return done, err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := conn.PgConn().Exec(ctx, l.settings()).ReadAll(); err != nil {
			return err
		}
		if err := l.stage(ctx, tx); err != nil {
			return err
		}
		l.task.Progress(60, "writing "+l.Table)
		if done.Skip, err = l.enter(ctx, tx); err != nil || done.Skip {
			return err
		}
		return l.write(ctx, tx)
	})
	done.Table, done.Rows = l.Table, l.rows
	return done, pgremote.ErrorOf(ctx, l.Host, err)
}

// settings are the statements that a load begins with: it ends with the task's time, an idle one does not keep its
// locks, and local times are those of the job's zone.
func (l *load) settings() string {
	zone := l.task.PartitionBy.Timezone
	if zone == "" {
		zone = "UTC"
	}
	settings := []string{"SET LOCAL standard_conforming_strings = on", "SET LOCAL TimeZone = " + sqltext.Literal(zone),
		"SET LOCAL idle_in_transaction_session_timeout = '60s'"}
	if at := l.task.TimeoutAt; !at.IsZero() {
		left := max(at.Sub(clock.Now()).Milliseconds(), 1)
		settings = append(settings, fmt.Sprintf("SET LOCAL statement_timeout = %d", min(left, math.MaxInt32)))
	}
	return strings.Join(settings, "; ")
}

// stage copies the rows to the temporary table.
func (l *load) stage(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE _dagctl_rows (%s, %s bigint) ON COMMIT DROP",
		l.definitions(), rowColumn)); err != nil || len(l.files) == 0 {
		return err
	}
	from, to := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := l.engines.CopyOut(ctx, l.task.OrgID.String(), l.columns, l.files, to)
		to.CloseWithError(err)
		sent <- err
	}()

	hash := sha256.New()
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, io.TeeReader(from, hash), "COPY "+staged+" FROM STDIN (FORMAT binary)")
	from.CloseWithError(errors.Join(err, io.ErrClosedPipe))
	if failed := <-sent; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return failed
	}
	l.rows, l.content = tag.RowsAffected(), hex.EncodeToString(hash.Sum(nil))
	return err
}

// definitions are the columns of a table that holds the rows.
func (l *load) definitions() string {
	list := make([]string, len(l.columns))
	for i, c := range l.columns {
		of, _ := pgcopy.TypeOf(c) // check has looked at it
		list[i] = sqltext.Quote(c.Name) + " " + of
	}
	return strings.Join(list, ", ")
}

// write moves the staged rows to the target.
func (l *load) write(ctx context.Context, tx pgx.Tx) error {
	if err := l.describe(ctx, tx); err != nil {
		return err
	}
	if err := l.fits(ctx, tx); err != nil {
		return err
	}
	switch l.Mode {
	case upsert:
		return l.upsert(ctx, tx)
	case replace:
		return l.swap(ctx, tx)
	case replacePartition:
		return l.replacePartition(ctx, tx)
	}
	return l.insert(ctx, tx, l.target())
}

// describe looks at the target, and creates it if it is to be.
func (l *load) describe(ctx context.Context, tx pgx.Tx) error {
	there, err := exists(ctx, tx, l.target())
	if err != nil {
		return err
	}
	if !there && !l.Create {
		return fault.New(fault.Invalid, "there is no table %s", l.Table).
			WithHint("create it; or `create: true` creates it with the columns of the input")
	}
	if !there {
		if err := l.lockMaking(ctx, tx); err != nil {
			return err
		}
		definitions := l.definitions()
		if l.Mode == upsert {
			definitions += fmt.Sprintf(", PRIMARY KEY (%s)", sqltext.QuoteAll(l.Key))
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s)", l.target(),
			definitions)); err != nil {
			return err
		}
	}

	rows, err := tx.Query(ctx, `
		SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
		WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''`, l.target())
	if err != nil {
		return err
	}
	l.into = map[string]string{}
	var name, of string
	if _, err := pgx.ForEachRow(rows, []any{&name, &of}, func() error {
		l.into[name] = of
		return nil
	}); err != nil {
		return err
	}
	for _, c := range l.columns {
		if l.into[c.Name] == "" {
			return fault.New(fault.Invalid, "table %s has no column %q that can be written", l.Table, c.Name).
				WithHint("add it to the table, or leave it out in a sql job before this one")
		}
	}
	return nil
}

// jsonTypes are the types that hold the JSON of the others, though not its layout.
var jsonTypes = []string{"json", "jsonb"}

// fits refuses rows with a value that a column of the target would change.
func (l *load) fits(ctx context.Context, tx pgx.Tx) error {
	for _, c := range l.columns {
		of, _ := pgcopy.TypeOf(c)
		into := l.into[c.Name]
		if slices.Contains(jsonTypes, of) {
			if !slices.Contains(jsonTypes, into) && into != "text" {
				return fault.New(fault.Invalid, "column %q is %s, and in the table %s", c.Name, c.Type, into).
					WithHint("make it json, jsonb or text in the table")
			}
			continue
		}

		var row *int64
		name := sqltext.Quote(c.Name)
		err := tx.QueryRow(ctx, fmt.Sprintf(`SELECT min(%s) FROM %s WHERE %s::%s::%s IS DISTINCT FROM %[3]s`,
			rowColumn, staged, name, into, of)).Scan(&row)
		switch {
		case err != nil:
			return err
		case row != nil:
			return fault.New(fault.Invalid, "row %d, column %q has a value that does not fit %s, which the column is "+
				"in the table", *row, c.Name, into)
		}
	}
	return nil
}

// names and values are the lists of columns to write, and of the staged values as their types.
func (l *load) names() string {
	names := make([]string, len(l.columns))
	for i, c := range l.columns {
		names[i] = c.Name
	}
	return sqltext.QuoteAll(names)
}

func (l *load) values() string {
	list := make([]string, len(l.columns))
	for i, c := range l.columns {
		list[i] = sqltext.Quote(c.Name) + "::" + l.into[c.Name]
	}
	return strings.Join(list, ", ")
}

// insert adds the staged rows, in their order.
func (l *load) insert(ctx context.Context, tx pgx.Tx, into string) error {
	_, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s ORDER BY %s", into, l.names(), l.values(),
		staged, rowColumn))
	return err
}

// upsert inserts the last staged row of each key, or updates the row that has the key.
func (l *load) upsert(ctx context.Context, tx pgx.Tx) error {
	key := sqltext.QuoteAll(l.Key)
	for _, column := range l.Key {
		var row *int64
		if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT min(%s) FROM %s WHERE %s IS NULL", rowColumn, staged,
			sqltext.Quote(column))).Scan(&row); err != nil {
			return err
		}
		if row != nil {
			return fault.New(fault.Invalid, "row %d has no %s, which is of the key", *row, column)
		}
	}

	var set []string
	for _, c := range l.columns {
		if !slices.Contains(l.Key, c.Name) {
			set = append(set, fmt.Sprintf("%s = excluded.%[1]s", sqltext.Quote(c.Name)))
		}
	}
	then := "NOTHING"
	if len(set) > 0 {
		then = "UPDATE SET " + strings.Join(set, ", ")
	}
	_, err := tx.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s (%s) SELECT %s FROM (
			SELECT DISTINCT ON (%s) * FROM %s ORDER BY %[4]s, %[6]s DESC) AS last
		ORDER BY %[6]s
		ON CONFLICT (%[4]s) DO %[7]s`, l.target(), l.names(), l.values(), key, staged, rowColumn, then))
	return err
}

// replacePartition replaces the rows of the partition, a half-open range of the column or one value of it.
func (l *load) replacePartition(ctx context.Context, tx pgx.Tx) error {
	column := sqltext.Quote(l.PartitionColumn)
	condition, bounds, err := l.bounds(column)
	if err != nil {
		return err
	}
	var row *int64
	if err := tx.QueryRow(ctx, fmt.Sprintf("SELECT min(%s) FROM %s WHERE (%s) IS NOT TRUE", rowColumn, staged,
		condition), bounds...).Scan(&row); err != nil {
		return err
	}
	if row != nil {
		return fault.New(fault.Invalid, "column %s of row %d is not of partition %s", l.PartitionColumn, *row,
			partitionOf(l.task))
	}

	if _, err := tx.Exec(ctx, fmt.Sprintf("DELETE FROM %s WHERE %s", l.target(), condition), bounds...); err != nil {
		return err
	}
	return l.insert(ctx, tx, l.target())
}

// bounds returns the condition of the partition's rows, and its values.
func (l *load) bounds(column string) (condition string, values []any, err error) {
	p := l.task.Partition
	if p == nil {
		return "", nil, fault.New(fault.Invalid, "the task has no partition to replace")
	}
	switch {
	case p.Start != nil && p.End != nil:
		return fmt.Sprintf("%s >= $1::timestamptz AND %[1]s < $2::timestamptz", column), []any{*p.Start, *p.End}, nil
	case l.task.PartitionBy.Kind == dag.ByRange:
		from, to, err := l.task.PartitionBy.Range(p.Key)
		return fmt.Sprintf("%s >= $1::bigint AND %[1]s < $2::bigint", column), []any{from, to}, err
	}
	return column + "::text = $1::text", []any{p.Key}, nil
}
