package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// statements counts the statements of a world's pools and the time that clients waited for each. If pg_stat_statements
// is loaded, the time that PostgreSQL spent is shown beside it.
type statements struct {
	mu  sync.Mutex
	all map[string]*statement
}

type statement struct {
	sql    string
	calls  int
	waited time.Duration
}

func newStatements() *statements { return &statements{all: map[string]*statement{}} }

// traced is an option of a pool. It changes nothing if statements are not counted.
func (s *statements) traced(c *pgxpool.Config) {
	if s != nil {
		c.ConnConfig.Tracer = s
	}
}

type sent struct {
	sql string
	at  time.Time
}

type sentKey struct{}

// TraceQueryStart implements pgx.QueryTracer.
func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, sentKey{}, sent{data.SQL, time.Now()})
}

// TraceQueryEnd implements pgx.QueryTracer.
func (s *statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	q, ok := ctx.Value(sentKey{}).(sent)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.all[q.sql]
	if st == nil {
		st = &statement{sql: q.sql}
		s.all[q.sql] = st
	}
	st.calls++
	st.waited += time.Since(q.at)
}

// shown is how many statements are printed.
const shown = 25

// print writes the statements with the longest total wait.
func (s *statements) print(w io.Writer, title string, tasks int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	sorted := slices.SortedFunc(maps.Values(s.all), func(a, b *statement) int {
		return cmp.Compare(b.waited, a.waited)
	})
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(table, "%s, as the client waited\ncalls\tcalls/task\tms\tms/call\t  statement\n", title)
	for _, st := range sorted[:min(shown, len(sorted))] {
		ms := float64(st.waited) / float64(time.Millisecond)
		fmt.Fprintf(table, "%d\t%.3g\t%.0f\t%.3f\t  %s\n", st.calls, float64(st.calls)/float64(tasks), ms,
			ms/float64(st.calls), brief(st.sql))
	}
	_ = table.Flush() // to stderr; an error could not be reported
}

// resetServer resets PostgreSQL's own counts.
func (b *bench) resetServer(ctx context.Context) error {
	if !b.statements || !b.counts {
		return nil
	}
	return b.admin(ctx, func(conn *pgx.Conn) error {
		return errors.Join(execute(ctx, conn, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements`),
			execute(ctx, conn, `SELECT pg_stat_statements_reset()`))
	})
}

// printServer writes the most expensive statements of a database, if PostgreSQL counts them.
func (b *bench) printServer(ctx context.Context, dsn, title string, tasks int) {
	if !b.statements || !b.counts {
		return
	}
	err := b.admin(ctx, func(conn *pgx.Conn) error {
		name, err := databaseOf(dsn)
		if err != nil {
			return err
		}
		rows, err := conn.Query(ctx, `
			SELECT s.calls, s.total_exec_time, s.shared_blks_hit + s.shared_blks_read, s.wal_bytes::bigint, s.query
			FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
			WHERE d.datname = $1 ORDER BY s.total_exec_time DESC LIMIT $2`, name, shown)
		if err != nil {
			return err
		}

		table := tabwriter.NewWriter(b.stderr, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintf(table, "%s, as PostgreSQL executed\ncalls\tcalls/task\tms\tms/call\tpages/call\tWAL "+
			"bytes/task\t  statement\n", title)
		var (
			calls, pages, wal int64
			ms                float64
			sql               string
		)

		_, err = pgx.ForEachRow(rows, []any{&calls, &ms, &pages, &wal, &sql}, func() error {
			fmt.Fprintf(table, "%d\t%.3g\t%.0f\t%.3f\t%d\t%d\t  %s\n", calls, float64(calls)/float64(tasks), ms,
				ms/float64(calls), pages/calls, wal/int64(tasks), brief(sql))
			return nil
		})
		if err != nil {
			return err
		}
		return table.Flush()
	})
	if err != nil {
		fmt.Fprintf(b.stderr, "pg_stat_statements: %v\n", err)
	}
}

// brief returns a statement on one line.
func brief(sql string) string {
	line := strings.Join(strings.Fields(sql), " ")
	const most = 150
	if len(line) > most {
		line = line[:most] + "…"
	}
	return line
}
