package inside

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// division splits the rows of files by the dates of a column.
type division struct {
	by      dag.Partitioning
	columns []duck.Column // of the files
	column  duck.Column   // that the rows are split by
	from    string        // the rows
}

func (h *host) division(ctx context.Context, files []string, column string, by dag.Partitioning) (division, error) {
	d := division{by: by, from: duck.ReadParquet(files)}
	var err error
	if d.columns, err = h.describe(ctx, duck.Relation{Files: files}); err != nil {
		return d, err
	}
	at := slices.IndexFunc(d.columns, func(c duck.Column) bool { return c.Name == column })
	if at < 0 {
		at = slices.IndexFunc(d.columns, func(c duck.Column) bool { return sqltext.Same(c.Name, column) })
	}
	if at >= 0 {
		d.column = d.columns[at]
	}
	return d, nil
}

// value is the column as a statement names it.
func (d division) value() string { return sqltext.Quote(d.column.Name) }

// key is the key of a row's partition, by what clocks in the zone show at its time. It is NULL without a finite time.
func (d division) key() string {
	clock, key := d.clock(), ""
	switch minutes := d.by.Unit.Minutes(); {
	case d.by.Unit == dag.Quarter:
		key = fmt.Sprintf("strftime(%s, '%%Y-Q') || quarter(%[1]s)", clock)
	default:
		if minutes > 0 {
			clock = fmt.Sprintf("time_bucket(INTERVAL %d MINUTES, %s, TIMESTAMP '2000-01-01')", minutes, clock)
		}
		key = fmt.Sprintf("strftime(%s, '%s')", clock, keyFormats[d.by.Unit.Named()])
	}
	return fmt.Sprintf("CASE WHEN isfinite(%s) THEN %s END", d.value(), key)
}

// keyFormats are the formats of keys, by the unit that names them.
var keyFormats = map[dag.TimeUnit]string{dag.Minute: "%Y-%m-%dT%H:%M", dag.Hour: "%Y-%m-%dT%H", dag.Day: "%Y-%m-%d",
	dag.Week: "%G-W%V", dag.Month: "%Y-%m", dag.Year: "%Y"}

// clock is what clocks in the zone show at a row's time. A DATE and a TIMESTAMP are that already.
//
// Where clocks are set back, they show the same times twice, but have parts of an hour once: the last of them lasts
// until clocks go on. A time is the second of its kind if clocks were set back by so much in the hours before that they
// showed it then, too.
func (d division) clock() string {
	if d.column.Type != "TIMESTAMP WITH TIME ZONE" {
		return d.value() + "::TIMESTAMP"
	}
	at := func(instant string) string {
		return fmt.Sprintf("timezone(%s, %s)", sqltext.Literal(d.by.Timezone), instant)
	}
	clock, before := at(d.value()), at(d.value()+" - INTERVAL 3 HOURS")
	if minutes := d.by.Unit.Minutes(); minutes == 0 || minutes >= 60 {
		return clock
	}

	back := fmt.Sprintf("(%s + INTERVAL 3 HOURS - %s)", before, clock)
	return fmt.Sprintf("CASE WHEN %s > INTERVAL 0 HOURS AND %s = %s THEN date_trunc('hour', %[3]s) + "+
		"INTERVAL 59 MINUTES ELSE %[3]s END", back, at(d.value()+" - "+back), clock)
}

// free returns a name that no column has.
func (d division) free(name string) string {
	for slices.ContainsFunc(d.columns, func(c duck.Column) bool { return sqltext.Same(c.Name, name) }) {
		name += "_"
	}
	return sqltext.Quote(name)
}

// parts counts and hashes the rows of each partition. The hash is that of the columns and of the rows in any order: of
// two sums over hashes of rows, the one takes what the other lets pass.
func (h *host) parts(ctx context.Context, p engine.Parts) (parted engine.Parted, err error) {
	session, err := h.any(ctx, p.Files...)
	if err != nil {
		return parted, err
	}
	d, err := h.division(ctx, p.Files, p.Column, p.By)
	switch {
	case err != nil:
		return parted, err
	case p.Column == "":
		return whole(ctx, session, d)
	case d.column.Name == "":
		return engine.Parted{Missing: true}, nil
	case p.By.SplitMismatch(d.column.Type) != "":
		return engine.Parted{Type: d.column.Type}, nil
	}

	row := d.free("row")
	rows, err := session.Query(ctx, fmt.Sprintf(`
		SELECT coalesce(k, ''), count(*), sum(h)::VARCHAR, sum(hash(h, 1))::VARCHAR,
			count(*) FILTER (v IS NULL), epoch_us(min(v)), epoch_us(max(v))
		FROM (SELECT %s AS k, hash(%s) AS h, %s::%s AS v FROM %s AS %[2]s) GROUP BY k ORDER BY 1`,
		d.key(), row, d.value(), d.instant(), d.from))
	if err != nil {
		return parted, err
	}
	defer rows.Close()

	var (
		part        engine.Part
		first, more string
		nulls       int64
		low, high   *int64
	)
	for rows.Next() {
		if err := rows.Scan(&part.Key, &part.Rows, &first, &more, &nulls, &low, &high); err != nil {
			return parted, err
		}
		parted.Rows += part.Rows
		if part.Key == "" {
			parted.Nulls, parted.Infinite = nulls, part.Rows-nulls
			continue
		}
		if parted.Outside == "" && !d.holds(part.Key, low, high) {
			parted.Outside = part.Key
		}
		part.Hash = hashOf(part.Rows, first, more)
		parted.Parts = append(parted.Parts, part)
	}
	if err := rows.Err(); err != nil {
		return parted, duck.WithoutValues(err)
	}

	if len(parted.Parts) > p.Most {
		parted.Count = len(parted.Parts)
	}
	if parted.Nulls+parted.Infinite > 0 || parted.Outside != "" || parted.Count > 0 {
		parted.Parts = nil
	}
	return parted, nil
}

// whole counts and hashes all rows, as parts does those of each partition.
func whole(ctx context.Context, session *duck.Session, d division) (engine.Parted, error) {
	rows, err := session.Query(ctx, fmt.Sprintf(`
		SELECT count(*), coalesce(sum(h)::VARCHAR, ''), coalesce(sum(hash(h, 1))::VARCHAR, '')
		FROM (SELECT hash(%s) AS h FROM %s AS %[1]s)`, d.free("row"), d.from))
	if err != nil {
		return engine.Parted{}, err
	}
	defer rows.Close()

	var (
		part        engine.Part
		first, more string
	)
	for rows.Next() {
		if err := rows.Scan(&part.Rows, &first, &more); err != nil {
			return engine.Parted{}, err
		}
	}
	if err := rows.Err(); err != nil {
		return engine.Parted{}, duck.WithoutValues(err)
	}
	part.Hash = hashOf(part.Rows, first, more)
	return engine.Parted{Rows: part.Rows, Parts: []engine.Part{part}}, nil
}

// hashOf is the hash of rows by their number and two sums.
func hashOf(rows int64, first, more string) string {
	return fmt.Sprintf("rows:%d:%s:%s", rows, first, more)
}

// instant is the type of the column whose values are counted in microseconds.
func (d division) instant() string {
	if d.column.Type == "TIMESTAMP WITH TIME ZONE" {
		return "TIMESTAMPTZ"
	}
	return "TIMESTAMP"
}

// holds reports whether there is a partition of a key, and whether it holds the instants from low to high. Where clocks
// were set back over the end of a partition, they show it once more, in what is the next one already.
func (d division) holds(key string, low, high *int64) bool {
	if d.by.Valid(key) != nil {
		return false
	}
	if d.instant() != "TIMESTAMPTZ" || low == nil || high == nil {
		return true
	}
	return d.by.KeyAt(time.UnixMicro(*low)) == key && d.by.KeyAt(time.UnixMicro(*high)) == key
}

// cut writes the rows of some partitions to a file each. It sorts them first, so that each file is written from the few
// blocks that have its rows.
func (h *host) cut(ctx context.Context, c engine.Cut) (none, error) {
	session, err := h.any(ctx, c.Files...)
	if err != nil {
		return none{}, err
	}
	d, err := h.division(ctx, c.Files, c.Column, c.By)
	if err != nil {
		return none{}, err
	}
	if d.column.Name == "" || len(c.Keys) != len(c.Targets) {
		return none{}, fault.New(fault.Internal, "rows of %d partitions cannot be cut by column %q into %d files",
			len(c.Keys), c.Column, len(c.Targets))
	}

	key, number := d.free("key"), d.free("number")
	if _, err := session.CopyToParquet(ctx, fmt.Sprintf(`
		SELECT * FROM (SELECT *, %s AS %s, row_number() OVER () AS %s FROM %s)
		WHERE %[2]s IN (SELECT unnest(%[5]s)) ORDER BY %[2]s, %[3]s`,
		d.key(), key, number, d.from, sqltext.Literals(c.Keys)), c.Sorted); err != nil {
		return none{}, err
	}

	names := make([]string, len(d.columns))
	for i, column := range d.columns {
		names[i] = sqltext.Quote(column.Name)
	}
	for i, target := range c.Targets {
		if _, err := session.CopyColumns(ctx, fmt.Sprintf("SELECT %s FROM %s WHERE %s = %s", strings.Join(names, ", "),
			duck.ReadParquet([]string{c.Sorted}), key, sqltext.Literal(c.Keys[i])), d.columns, target); err != nil {
			return none{}, err
		}
	}
	return none{}, nil
}
