package inside

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// reads names the relations of a statement, which is not run.
func (h *host) reads(ctx context.Context, q engine.Reads) ([]engine.Reading, error) {
	session, err := h.any(ctx)
	if err != nil {
		return nil, err
	}
	_, sql := duck.ShownOf(q.SQL)
	statement, err := session.Parse(ctx, sql)
	if err != nil {
		return nil, err
	}

	var list []engine.Reading
	for _, name := range statement.Relations {
		list = append(list, engine.Reading{Name: strings.ToLower(name), Place: statement.Place(name),
			Partitions: statement.Partitions(name)})
	}
	return list, nil
}

// rows runs a statement over the relations and streams its rows.
func (h *host) rows(ctx context.Context, q engine.Rows) (read engine.RowsRead, err error) {
	session, err := h.at(ctx, q.Scope)
	if err != nil {
		return read, err
	}
	for _, relation := range q.Relations {
		if _, err := h.create(ctx, relation); err != nil {
			return read, err
		}
	}

	_, sql := duck.ShownOf(q.SQL)
	statement, err := session.Parse(ctx, sql)
	if err != nil {
		return read, err
	}
	read.Read = statement.Columns(h.columns)
	if err := h.stream(ctx, statement, q, &read); err != nil {
		read.Failed = h.failure(err)
	}
	return read, nil
}

func (h *host) stream(ctx context.Context, statement *duck.Select, q engine.Rows, read *engine.RowsRead) error {
	view, err := h.session.View(ctx, statement)
	if err != nil {
		return err
	}
	shown, _ := duck.ShownOf(q.SQL)
	if view, err = h.session.Show(ctx, shown, view); err != nil {
		return err
	}

	write := streamJSON
	switch q.As {
	case engine.AsArrow:
		write = streamWith((*duck.Session).WriteArrow)
	case engine.AsParquet:
		write = streamWith((*duck.Session).WriteParquet)
	case engine.AsCSV:
		write = streamWith((*duck.Session).WriteCSV)
	case engine.AsNDJSON:
		write = streamWith((*duck.Session).WriteJSONLines)
	case engine.AsPlan:
		write = streamPlan
	case engine.AsNothing:
		read.Columns, err = h.session.Describe(ctx, view)
		return err
	}
	out := bufio.NewWriterSize(pieces{h.out}, engine.MaxPiece)
	return errors.Join(write(ctx, h.session, view, q, out, read), out.Flush())
}

// streamJSON writes rows as lines of JSON.
func streamJSON(
	ctx context.Context, session *duck.Session, view string, q engine.Rows, out io.Writer, read *engine.RowsRead,
) (err error) {
	size := int64(0)
	read.Columns, err = duck.EachJSONRow(ctx, session, view, q.Rows+1, 0, func(row []any) error {
		text, err := json.Marshal(row)
		if err != nil {
			return err
		}

		size += int64(len(text))
		if read.Count == q.Rows || size > q.Bytes && read.Count > 0 {
			read.Truncated = true
			return duck.ErrEnough
		}
		if size > q.Bytes {
			return fault.New(fault.TooLarge, "the first row alone has more than the %d MB that an answer may have",
				q.Bytes>>20)
		}
		read.Count++
		_, err = out.Write(append(text, '\n'))
		return err
	})
	return err
}

// streamWith streams rows in the form that a method of a session writes.
func streamWith(write func(s *duck.Session, ctx context.Context, query string, to io.Writer, most duck.ArrowLimits) (
	duck.Streamed, error),
) func(context.Context, *duck.Session, string, engine.Rows, io.Writer, *engine.RowsRead) error {
	return func(ctx context.Context, session *duck.Session, view string, q engine.Rows, out io.Writer,
		read *engine.RowsRead) error {
		done, err := write(session, ctx, view, out, duck.ArrowLimits{Rows: int64(q.Rows), Bytes: q.Bytes})
		read.Columns, read.Count, read.Truncated = done.Columns, int(done.Rows), done.Truncated
		return err
	}
}

// streamPlan writes how DuckDB would run the statement.
func streamPlan(
	ctx context.Context, session *duck.Session, view string, _ engine.Rows, out io.Writer, _ *engine.RowsRead,
) error {
	plan, err := session.Plan(ctx, view)
	if err != nil {
		return err
	}
	_, err = io.WriteString(out, plan)
	return err
}

// pieces writes what it is given as pieces of a stream.
type pieces struct{ out io.Writer }

func (p pieces) Write(b []byte) (int, error) {
	for at := 0; at < len(b); at += engine.MaxPiece {
		if err := engine.WritePiece(p.out, b[at:min(len(b), at+engine.MaxPiece)]); err != nil {
			return at, err
		}
	}
	return len(b), nil
}

// compare finds the keys that differ.
func (h *host) compare(ctx context.Context, q engine.Compare) (found engine.Compared, err error) {
	session, err := h.at(ctx, relations.UTC)
	if err != nil {
		return found, err
	}
	if err := session.Exec(ctx, "CREATE OR REPLACE TEMP TABLE diff AS "+keyDiffQuery(q)); err != nil {
		return found, err
	}
	defer func() { err = errors.Join(err, session.Exec(ctx, "DROP TABLE diff")) }()

	for change, into := range map[string]*int64{"only_from": &found.OnlyFrom, "only_to": &found.OnlyTo,
		"changed": &found.Changed} {
		count := "SELECT count(*) FROM diff WHERE dagctl_change = " + sqltext.Literal(change)
		if err := session.Value(ctx, into, count); err != nil {
			return found, err
		}
	}
	if q.Sample == 0 {
		return found, nil
	}
	_, err = duck.EachJSONRow(ctx, session, "SELECT * FROM diff ORDER BY ALL", q.Sample, 0, func(row []any) error {
		cells := make([]json.RawMessage, len(row))
		for i, value := range row {
			var err error
			if cells[i], err = json.Marshal(value); err != nil {
				return err
			}
		}
		found.Sample = append(found.Sample, cells)
		return nil
	})
	return found, err
}

// keyDiffQuery returns a query with a row for each key that differs: the kind of change and the key.
func keyDiffQuery(q engine.Compare) string {
	on, keys := make([]string, len(q.Key)), make([]string, len(q.Key))
	for i, k := range q.Key {
		on[i] = fmt.Sprintf("a.%[1]s IS NOT DISTINCT FROM b.%[1]s", sqltext.Quote(k))
		keys[i] = fmt.Sprintf("coalesce(a.%[1]s, b.%[1]s) AS %[1]s", sqltext.Quote(k))
	}

	differs := []string{"false"}
	for _, c := range q.Shared {
		differs = append(differs, fmt.Sprintf("a.%[1]s IS DISTINCT FROM b.%[1]s", sqltext.Quote(c)))
	}

	return fmt.Sprintf(`
		SELECT CASE WHEN b.dagctl_side IS NULL THEN 'only_from' WHEN a.dagctl_side IS NULL THEN 'only_to'
			ELSE 'changed' END AS dagctl_change, %s
		FROM (SELECT *, 1 AS dagctl_side FROM %s) AS a FULL JOIN (SELECT *, 1 AS dagctl_side FROM %s) AS b ON %s
		WHERE a.dagctl_side IS NULL OR b.dagctl_side IS NULL OR %s`,
		strings.Join(keys, ", "), duck.ReadParquet(q.From), duck.ReadParquet(q.To),
		strings.Join(on, " AND "), strings.Join(differs, " OR "))
}
