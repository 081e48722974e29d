package storage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/late"
	"github.com/dagctl/dagctl/internal/pg"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// tables is rows in Postgres. The schema data_<org slug> has a table _g_<version> per generation, a staging table
// _s_<task>_<attempt>_<output>[_<part>] per attempt until it is published, and _revisions with the revision of each
// partition that the generation's table holds. Published names begin with a letter, so they cannot collide with these.
//
// The comment of a physical column has DuckDB's name of its type, so that reading restores the type. How values travel
// is in internal/pgcopy.
type tables struct {
	pool *pgxpool.Pool
	rows Rows
}

// Columns of the tables besides the dataset's own.
const (
	partitionColumn = "_partition"
	revisionColumn  = "_revision"
	rowColumn       = "_row" // the row's position in its partition
)

const tablePrefix = "postgres:"

var (
	slugPattern    = late.Pattern(`^[a-z][a-z0-9_]{0,39}$`)
	stagingPattern = late.Pattern(
		`^postgres:(data_[a-z][a-z0-9_]{0,39})\.(_s_[0-9a-f]{32}_[0-9]+_[0-9]+(?:_([0-9]+))?)$`)
)

func schemaOf(slug string) (string, error) {
	if !slugPattern.MatchString(slug) {
		return "", fault.New(fault.Invalid, "org slug %q cannot name a schema", slug)
	}
	return "data_" + slug, nil
}

func hexOf(id uuid.UUID) string { return strings.ReplaceAll(id.String(), "-", "") }

func (*tables) location(a Attempt) string {
	location := fmt.Sprintf("%sdata_%s._s_%s_%d_%d", tablePrefix, a.Generation.OrgSlug, hexOf(a.Task), a.Number,
		a.Output)
	if a.Part > 0 {
		location += fmt.Sprintf("_%d", a.Part)
	}
	return location
}

func (*tables) owns(location string) bool { return stagingPattern.MatchString(location) }

// staging returns the quoted name of a location's table.
func staging(location string) (string, error) {
	parts := stagingPattern.FindStringSubmatch(location)
	if parts == nil {
		return "", fault.New(fault.Invalid, "location %q is not a staging table", location)
	}
	return sqltext.Quote(parts[1]) + "." + sqltext.Quote(parts[2]), nil
}

// physical is a generation's table and its org's schema, quoted.
type physical struct {
	schema, table, revisions string
	generation               Generation
}

func physicalOf(g Generation) (physical, error) {
	schema, err := schemaOf(g.OrgSlug)
	if err != nil {
		return physical{}, err
	}
	q := sqltext.Quote(schema)
	return physical{schema: q, table: q + "." + sqltext.Quote("_g_"+hexOf(g.Version)), revisions: q + `."_revisions"`,
		generation: g}, nil
}

func (t *tables) seal(ctx context.Context, a Attempt, local []string, m Manifest) (Manifest, error) {
	m.Location, m.Files = t.location(a), nil
	stagingTable, err := staging(m.Location)
	if err != nil {
		return m, err
	}
	p, err := physicalOf(a.Generation)
	if err != nil {
		return m, err
	}

	if err := checkColumns(m.Schema); err != nil {
		return m, err
	}
	if err := t.ensureTable(ctx, p, m.Schema); err != nil {
		return m, err
	}

	source := outgoing{rows: t.rows, org: a.Generation.OrgID.String(), columns: m.Schema, local: local}
	err = pg.InTx(ctx, t.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("CREATE TABLE %s (%s, %s bigint NOT NULL)", stagingTable,
			columnList(m.Schema), rowColumn))
		if err != nil {
			return err
		}
		hash, err := source.copyTo(ctx, tx, stagingTable)
		if err != nil {
			return err
		}
		// The table's comment has the hash of its content: sealing the same content again is fine.
		_, err = tx.Exec(ctx, fmt.Sprintf("COMMENT ON TABLE %s IS '%s'", stagingTable, hash))
		return err
	})
	// A unique violation is one of the catalogue, when two create the table at once.
	if !hasCode(err, duplicateTable) && !hasCode(err, uniqueViolation) {
		return m, err
	}

	hash, err := source.write(ctx, io.Discard)
	if err != nil {
		return m, err
	}
	var there *string
	if err := t.pool.QueryRow(ctx, `SELECT obj_description(to_regclass($1), 'pg_class')`, stagingTable).
		Scan(&there); err != nil {
		return m, err
	}
	if there == nil || *there != hash {
		return m, fault.New(fault.Conflict, "attempt %d of task %s is already sealed", a.Number, a.Task)
	}
	return m, nil
}

func (t *tables) verify(ctx context.Context, m Manifest) error {
	table, err := staging(m.Location)
	if err != nil {
		return err
	}
	var there bool
	if err := t.pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, table).Scan(&there); err != nil {
		return fmt.Errorf("look for %s: %w", m.Location, err)
	}
	if !there {
		return fault.New(fault.NotFound, "staging table %s is missing", m.Location)
	}
	return nil
}

// publish moves the attempt's rows. It locks the row in _revisions first, so that two publications of a partition wait
// for each other.
func (t *tables) publish(ctx context.Context, tx pgx.Tx, a Attempt, revision int64, m Manifest) error {
	p, err := physicalOf(a.Generation)
	if err != nil {
		return err
	}
	from, err := staging(m.Location)
	if err != nil {
		return err
	}

	tag, err := tx.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s AS r (generation, partition, revision) VALUES ($1, $2, $3)
		ON CONFLICT (generation, partition) DO UPDATE SET revision = excluded.revision
			WHERE r.revision < excluded.revision`, p.revisions),
		a.Generation.Version, a.Partition, revision)
	if err != nil {
		return fmt.Errorf("publish partition %q: %w", a.Partition, err)
	}
	if tag.RowsAffected() == 0 {
		return fault.New(fault.Conflict, "partition %q of %s is already past revision %d", a.Partition,
			a.Generation.Version,
			revision)
	}

	moved, err := p.move(ctx, tx, from, m.Schema, a.Partition, revision)
	if err != nil {
		return fmt.Errorf("publish partition %q: %w", a.Partition, err)
	}
	if len(a.Generation.UniqueKey) == 0 && moved != m.Rows {
		return fault.New(fault.Conflict, "staging table %s has %d rows, but %d in its manifest", m.Location, moved,
			m.Rows)
	}
	if _, err := tx.Exec(ctx, "DROP TABLE "+from); err != nil {
		return fmt.Errorf("publish partition %q: %w", a.Partition, err)
	}
	return t.cover(ctx, tx, a.Generation)
}

// move replaces the partition's rows, or merges new rows if there is a unique key: the last row with a key wins.
func (p physical) move(
	ctx context.Context, tx pgx.Tx, from string, schema []Column, partition string, revision int64,
) (int64, error) {
	list := sqltext.QuoteAll(columnNames(schema))
	if len(p.generation.UniqueKey) == 0 {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`DELETE FROM %s WHERE _partition = $1`, p.table), partition); err != nil {
			return 0, err
		}
		tag, err := tx.Exec(ctx,
			fmt.Sprintf(`INSERT INTO %s (%s, _partition, _revision, _row) SELECT %s, $1, $2, _row FROM %s ORDER BY _row`,
				p.table, list, list, from), partition, revision)
		return tag.RowsAffected(), err
	}

	var set []string
	for _, c := range schema {
		set = append(set, fmt.Sprintf("%s = excluded.%[1]s", sqltext.Quote(c.Name)))
	}
	key := sqltext.QuoteAll(p.generation.UniqueKey)
	// The rows come after those that are there, in the order in which each key was last written.
	tag, err := tx.Exec(ctx, fmt.Sprintf(`
		INSERT INTO %s (%s, _partition, _revision, _row)
		SELECT %[2]s, $1, $2, _row + (SELECT coalesce(max(_row), 0) FROM %[1]s WHERE _partition = $1)
		FROM (SELECT DISTINCT ON (%[3]s) * FROM %[4]s ORDER BY %[3]s, _row DESC) AS last
			ORDER BY _row
		ON CONFLICT (_partition, %[3]s) DO UPDATE SET %[5]s, _revision = excluded._revision, _row = excluded._row`,
		p.table, list, key, from, strings.Join(set, ", ")), partition, revision)
	return tag.RowsAffected(), err
}

func (t *tables) discard(ctx context.Context, location string) error {
	table, err := staging(location)
	if err != nil {
		return err
	}
	if _, err := t.pool.Exec(ctx, "DROP TABLE IF EXISTS "+table); err != nil {
		return fmt.Errorf("discard %s: %w", location, err)
	}
	return nil
}

func columnNames(columns []Column) []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.Name
	}
	return names
}

// The SQLSTATE codes that are handled.
const (
	duplicateTable   = "42P07"
	undefinedColumn  = "42703"
	undefinedObject  = "42704"
	undefinedTable   = "42P01"
	lockNotAvailable = "55P03"
	uniqueViolation  = "23505"
	dependentObjects = "2BP01"
)

func hasCode(err error, code string) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == code
}
