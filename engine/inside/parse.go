package inside

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/dag"
	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// parser returns a session that knows the variables of a run. DuckDB computes constants while it binds a statement, so
// some statements end its process.
func (h *host) parser(ctx context.Context) (*duck.Session, error) {
	if h.session != nil && !h.session.Lost() {
		return h.session, nil
	}
	if h.session != nil {
		_ = h.session.Close() // it held nothing but memory
		h.session = nil
	}
	session, err := duck.Open(ctx, h.parsing())
	if err == nil {
		h.session = session
	}
	return session, err
}

func (h *host) parsing() duck.Config {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return duck.Config{Threads: 1, MemoryLimit: h.begin.Limits.Memory,
		Variables: map[string]any{"partition": "", "start": at, "end": at.AddDate(0, 0, 1)}}
}

// binding returns the session that binds statements, as parser does.
func (h *host) binding(ctx context.Context) (*duck.Binder, error) {
	if h.binder != nil && !h.binder.Lost() {
		return h.binder, nil
	}
	h.closeBinder()
	binder, err := duck.OpenBinder(ctx, h.parsing())
	if err == nil {
		h.binder = binder
	}
	return binder, err
}

func (h *host) parse(ctx context.Context, sql string) (*duck.Session, *duck.Select, error) {
	session, err := h.parser(ctx)
	if err != nil {
		return nil, nil, err
	}
	q, err := session.Parse(ctx, sql)
	return session, q, err
}

func (h *host) canonical(ctx context.Context, c engine.Canonical) (engine.Form, error) {
	_, q, err := h.parse(ctx, c.SQL)
	if err != nil {
		return engine.Form{}, err
	}
	sum := sha256.Sum256(q.Canonical)
	form := engine.Form{Hash: hex.EncodeToString(sum[:])}
	form.Names = q.ResultNames()
	for _, name := range q.Relations {
		form.Reads = append(form.Reads, engine.Mention{Name: name, Place: q.Place(name)})
	}
	return form, nil
}

// readMacros are the macros of some files. The statements of a document come one by one, and have the same.
type readMacros struct {
	files  []string
	all    duck.Macros
	faults [][]*fault.Error
}

// expand writes macros out.
func (h *host) expand(ctx context.Context, e engine.Expand) (expanded dag.Expanded, err error) {
	session, err := h.parser(ctx)
	if err != nil {
		return expanded, err
	}
	if h.macros.all == nil || !slices.Equal(h.macros.files, e.Files) {
		all, faults, err := session.ReadMacros(ctx, e.Files)
		if err != nil {
			return expanded, err
		}
		h.macros = readMacros{e.Files, all, faults}
	}

	all := h.macros.all
	for file, of := range h.macros.faults {
		for _, f := range of {
			expanded.Faults = append(expanded.Faults, dag.MacroFault{File: file, Message: f.Message, Hint: f.Hint})
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		expanded.Macros = append(expanded.Macros, all[name].Name)
	}

	for _, statement := range e.Statements {
		written, err := session.Expand(ctx, statement, all)
		if refused, ok := errors.AsType[*fault.Error](err); ok {
			expanded.Statements = append(expanded.Statements, dag.ExpandedSQL{Refused: fault.Text(refused)})
			continue
		}
		if err != nil {
			return expanded, err
		}
		expanded.Statements = append(expanded.Statements, dag.ExpandedSQL{SQL: written})
	}
	return expanded, nil
}

func (h *host) shape(ctx context.Context, s engine.Shape) (engine.Shaped, error) {
	shaped := engine.Shaped{Read: map[string][]string{}, Named: true,
		Writes: make([][]duck.Column, len(s.Queries)), Failed: make([]*engine.Failure, len(s.Queries)),
		Lacks: make([]*relations.Lack, len(s.Queries))}
	for i, query := range s.Queries {
		session, q, err := h.parse(ctx, query)
		if err != nil {
			return shaped, err
		}
		for relation, columns := range q.Columns(s.Relations) {
			shaped.Read[relation] = append(shaped.Read[relation], columns...)
		}
		shaped.Named = shaped.Named && q.NamesColumns()

		if i >= len(s.Bind) || !s.Bind[i] {
			continue
		}
		columns, err := session.DescribeOver(ctx, q, s.Relations)
		if err != nil {
			shaped.Lacks[i] = duck.LackOf(err)
			continue // nothing else is known
		}
		if shaped.Writes[i], err = sqltext.WrittenAll(columns); err != nil {
			shaped.Failed[i] = failureOf(err)
		}
	}

	for _, check := range s.Checks {
		_, q, err := h.parse(ctx, check)
		if err != nil {
			return shaped, err
		}
		shaped.Checks = append(shaped.Checks, q.NamedColumns(s.Relations))
	}
	return shaped, nil
}

func (h *host) derive(ctx context.Context, d engine.Derive) (derived engine.Derived, err error) {
	_, q, err := h.parse(ctx, d.SQL)
	if err == nil {
		derived.Derivation, derived.Sure = q.Derive(d.Relations)
	}
	return derived, err
}

// explain follows a statement's columns. What cannot be bound is an error of the statement.
func (h *host) explain(ctx context.Context, e engine.Explain) (explained engine.Explained, err error) {
	session, q, err := h.parse(ctx, e.SQL)
	if known, ok := errors.AsType[*fault.Error](err); ok && known.Hint == "" {
		err = known.WithHint("write one SELECT, in DuckDB's SQL")
	}
	if err != nil {
		return explained, err
	}

	for _, name := range q.Relations {
		known := func(table string) bool { return sqltext.Same(table, name) }
		if !slices.ContainsFunc(slices.Collect(maps.Keys(e.Relations)), known) {
			return explained, fault.New(fault.Invalid, "there is no table %q%s", name, q.Place(name)).
				WithHint("the tables of the schema are %s", strings.Join(slices.Sorted(maps.Keys(e.Relations)), ", "))
		}
	}
	if err := session.CheckTypes(ctx, e.Relations); err != nil {
		return explained, err
	}

	columns, err := session.DescribeOver(ctx, q, e.Relations)
	if err != nil {
		return explained, duck.Unbound(err)
	}
	explained.Columns = q.Explain(e.Relations, columns)
	return explained, nil
}

func (h *host) counted(ctx context.Context, c engine.Counted) (engine.CountedColumns, error) {
	_, q, err := h.parse(ctx, c.SQL)
	if err != nil {
		return engine.CountedColumns{}, err
	}
	known := make([]duck.Column, len(c.Columns))
	for i, name := range c.Columns {
		known[i].Name = name
	}
	named, sure := q.CountedColumns(map[string][]duck.Column{c.Relation: known})
	return engine.CountedColumns{Names: named[c.Relation], Sure: sure || !q.Reads(c.Relation)}, nil
}
