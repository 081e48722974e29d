// Package duck runs DuckDB for the platform: locked-down sessions, relations over Parquet files, and the analysis of
// SELECT statements without running them.
//
// Vocabulary: a Session is one in-memory database with one connection, which can touch only the paths it was opened
// with. A relation is a view over Parquet files. A Select is a parsed statement, checked to be one SELECT over known
// relations. It owns no tables.
package duck

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"

	duckdb "github.com/duckdb/duckdb-go/v2"

	"github.com/dagctl/dagctl/internal/sqltext"
)

// Config lists what a session may use. With the zero value, it may use no file.
type Config struct {
	AnyPath      bool           // for the platform's own fixed statements only: every path may be read and written
	AllowedDirs  []string       // folders it may read and write, absolute
	AllowedPaths []string       // single files it may read and write, absolute
	TempDir      string         // where to spill; empty: it does not spill
	MemoryLimit  int64          // bytes; 0: 1 GiB
	Threads      int            // 0: as many as the machine has
	TimeZone     string         // IANA name that TIMESTAMPTZ values are shown and truncated in; empty: UTC
	Variables    map[string]any // for getvariable(): string, int64, bool, time.Time or nil

	errorsAsJSON bool // so that they say where in a statement they are
}

const defaultMemory = 1 << 30

// Session is an in-memory database that can reach only what its Config allows.
// It is for one goroutine, except for Parse, Describe and Value, which several may call.
type Session struct {
	db    *sql.DB
	conn  *sql.Conn
	views int
	set   map[string]any // variables
	made  []string       // views, since the last Reset
	keyed []string       // those of them that are keyed relations
	lost  atomic.Bool    // DuckDB has given the database up
}

// Open starts a session. It costs about 15 ms, nearly all of it DuckDB's own start.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	connector, err := duckdb.NewConnector("", nil)
	if err != nil {
		return nil, fmt.Errorf("open DuckDB: %w", err)
	}
	s := &Session{db: sql.OpenDB(connector)}
	if s.conn, err = s.db.Conn(ctx); err == nil {
		err = s.Exec(ctx, cfg.statements())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open DuckDB: %w", err), s.Close())
	}
	return s, nil
}

// statements returns the statements that lock a session down, in the order that withstood every attempt to escape:
// limits first, then what may be reached, then no external access, and the lock last, so that no later statement undoes
// any of it.
func (c Config) statements() string {
	var b strings.Builder
	set := func(name, value string) { fmt.Fprintf(&b, "SET %s = %s;\n", name, value) }
	set("memory_limit", fmt.Sprintf("'%dB'", cmp.Or(c.MemoryLimit, defaultMemory)))
	set("threads", fmt.Sprint(cmp.Or(c.Threads, runtime.NumCPU())))
	set("TimeZone", sqltext.Literal(cmp.Or(c.TimeZone, "UTC")))
	set("temp_directory", sqltext.Literal(c.TempDir))
	set("autoinstall_known_extensions", "false")
	set("autoload_known_extensions", "false")
	setVariables(&b, c.Variables)
	if c.errorsAsJSON {
		set("errors_as_json", "true")
	}

	if c.AnyPath {
		set("lock_configuration", "true")
		return b.String()
	}
	dirs := make([]string, len(c.AllowedDirs))
	for i, d := range c.AllowedDirs {
		dirs[i] = filepath.Clean(d) + "/"
	}
	set("allowed_directories", sqltext.Literals(dirs))
	set("allowed_paths", sqltext.Literals(c.AllowedPaths))
	set("enable_external_access", "false")
	set("lock_configuration", "true")
	return b.String()
}

func setVariables(b *strings.Builder, variables map[string]any) {
	for _, name := range sortedKeys(variables) {
		fmt.Fprintf(b, "SET VARIABLE %s = %s;\n", sqltext.Quote(name), sqltext.Literal(variables[name]))
	}
}

// Reset forgets the relations and views of the work before, and begins the work for another partition in the same zone.
func (s *Session) Reset(ctx context.Context, scope Scope) error {
	if s.Lost() {
		return errors.New("DuckDB has given the database up")
	}

	var b strings.Builder
	for _, name := range s.made {
		fmt.Fprintf(&b, "DROP VIEW IF EXISTS %s;\n", sqltext.Quote(name))
	}
	s.made, s.keyed = nil, nil
	next := variables(scope)
	changed := maps.Clone(next)
	maps.DeleteFunc(changed, func(name string, v any) bool { return s.set != nil && v == s.set[name] })
	setVariables(&b, changed)
	s.set = next
	if b.Len() == 0 {
		return nil
	}
	return s.Exec(ctx, b.String())
}

// Drop drops a relation.
func (s *Session) Drop(ctx context.Context, relation string) error {
	s.keyed = slices.DeleteFunc(s.keyed, func(name string) bool { return sqltext.Same(name, relation) })
	return s.Exec(ctx, "DROP VIEW "+sqltext.Quote(relation))
}

// Lost reports whether DuckDB has given the database up, after which it answers nothing any more.
func (s *Session) Lost() bool { return s.lost.Load() }

// Close ends the session and frees its memory.
func (s *Session) Close() error {
	var err error
	if s.conn != nil {
		err = s.conn.Close()
	}
	return errors.Join(err, s.db.Close())
}

// Exec runs statements. It stops soon after ctx ends.
func (s *Session) Exec(ctx context.Context, statements string, args ...any) error {
	_, err := s.conn.ExecContext(ctx, statements, args...)
	return s.ended(ctx, err)
}

// Query runs one statement that returns rows. The session is busy until they are closed.
func (s *Session) Query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := s.conn.QueryContext(ctx, query, args...)
	return rows, s.ended(ctx, err)
}

// Each runs a query and gives its rows as the driver has them, without database/sql's conversions, which cost more than
// the reading itself. The slice is used again for the next row.
func (s *Session) Each(ctx context.Context, query string, each func(row []driver.Value) error) error {
	err := s.conn.Raw(func(conn any) error {
		queryer, ok := conn.(driver.QueryerContext)
		if !ok {
			return errors.New("the driver of DuckDB runs no queries")
		}
		rows, err := queryer.QueryContext(ctx, query, nil)
		if err != nil {
			return err
		}

		row := make([]driver.Value, len(rows.Columns()))
		for err == nil {
			if err = rows.Next(row); err == nil {
				err = each(row)
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, rows.Close())
	})
	return s.ended(ctx, err)
}

// Append adds rows to a table of the session. fill calls add with each of them.
func (s *Session) Append(
	ctx context.Context, table string, fill func(add func(row ...driver.Value) error) error,
) error {
	err := s.conn.Raw(func(conn any) error {
		of, ok := conn.(driver.Conn)
		if !ok {
			return errors.New("the driver of DuckDB appends no rows")
		}
		appender, err := duckdb.NewAppenderFromConn(of, "", table)
		if err != nil {
			return err
		}
		return errors.Join(fill(appender.AppendRow), appender.Close())
	})
	return s.ended(ctx, err)
}

// Value runs a query of one row and one column into dest.
func (s *Session) Value(ctx context.Context, dest any, query string, args ...any) error {
	return s.ended(ctx, s.conn.QueryRowContext(ctx, query, args...).Scan(dest))
}

// ended returns the context's cause for an interrupted statement, and other errors without values.
func (s *Session) ended(ctx context.Context, err error) error {
	note(&s.lost, err)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return WithoutValues(err)
}

// Deterministic reports whether err lies in the statement or the data, so that running it again must fail again.
// Lack of memory, I/O errors and interruptions do not.
func Deterministic(err error) bool {
	var e *duckdb.Error
	if !errors.As(err, &e) {
		return false
	}
	return slices.Contains([]duckdb.ErrorType{
		duckdb.ErrorTypeOutOfRange, duckdb.ErrorTypeConversion, duckdb.ErrorTypeUnknownType,
		duckdb.ErrorTypeMismatchType, duckdb.ErrorTypeDivideByZero, duckdb.ErrorTypeInvalidType,
		duckdb.ErrorTypeNotImplemented, duckdb.ErrorTypeExpression, duckdb.ErrorTypeCatalog,
		duckdb.ErrorTypeParser, duckdb.ErrorTypePlanner, duckdb.ErrorTypeConstraint, duckdb.ErrorTypeSyntax,
		duckdb.ErrorTypeBinder, duckdb.ErrorTypeInvalidInput, duckdb.ErrorTypePermission,
		duckdb.ErrorTypeParameterNotResolved, duckdb.ErrorTypeParameterNotAllowed, duckdb.ErrorTypeMissingExtension,
	}, e.Type)
}

// OutOfMemory reports whether a statement needed more than a session's memory.
func OutOfMemory(err error) bool {
	var e *duckdb.Error
	return errors.As(err, &e) && e.Type == duckdb.ErrorTypeOutOfMemory
}

// OfStatement reports whether err is an error of DuckDB about a statement and not about a file.
func OfStatement(err error) bool {
	var e *duckdb.Error
	return errors.As(err, &e) && e.Type != duckdb.ErrorTypeIO && e.Type != duckdb.ErrorTypeInterrupt
}

// OfFile reports whether err is an error of DuckDB about a file.
func OfFile(err error) bool {
	var e *duckdb.Error
	return errors.As(err, &e) && e.Type == duckdb.ErrorTypeIO
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
