package inside

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/dagctl/dagctl/engine"
	"github.com/dagctl/dagctl/internal/duck"
	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/footer"
	"github.com/dagctl/dagctl/internal/relations"
	"github.com/dagctl/dagctl/internal/sqltext"
	"github.com/dagctl/dagctl/operators/textfile"
)

// open begins the work for one partition.
func (h *host) open(ctx context.Context, o engine.Open) (opened engine.Opened, err error) {
	if _, err := h.at(ctx, o.Scope, filesOf(o.Relations)...); err != nil {
		return opened, err
	}
	for _, relation := range o.Relations {
		columns, err := h.create(ctx, relation)
		if err != nil {
			return opened, err
		}
		opened.Columns = append(opened.Columns, columns)
	}
	return opened, nil
}

func filesOf(all []duck.Relation) (files []string) {
	for _, relation := range all {
		files = append(files, relation.Files...)
	}
	return files
}

// add creates one more relation.
func (h *host) add(ctx context.Context, a engine.Add) ([]duck.Column, error) {
	if h.session == nil {
		return nil, errors.New("nothing is open")
	}
	same := func(name string) bool { return sqltext.Same(name, a.Relation.Name) }
	if slices.ContainsFunc(h.known, same) {
		if err := h.session.Drop(ctx, a.Relation.Name); err != nil {
			return nil, err
		}
		h.known = slices.DeleteFunc(h.known, same)
	}
	return h.create(ctx, a.Relation)
}

func (h *host) create(ctx context.Context, relation duck.Relation) ([]duck.Column, error) {
	if err := h.session.Create(ctx, relation); err != nil {
		return nil, err
	}
	columns, err := h.describe(ctx, relation)
	h.known, h.columns[relation.Name] = append(h.known, relation.Name), columns
	return columns, err
}

// describe returns the columns of a relation: those of its file, which say what DuckDB would, in a tenth of the time.
func (h *host) describe(ctx context.Context, relation duck.Relation) ([]duck.Column, error) {
	if len(relation.Files) == 1 && !relation.Fill {
		if f, err := footer.Read(relation.Files[0]); err == nil {
			return f.Columns, nil
		}
	}
	columns, err := h.session.Describe(ctx, "FROM "+sqltext.Quote(relation.Name))
	return h.session.Shown(relation.Name, columns), err
}

// run runs a user's statement over the open relations.
func (h *host) run(ctx context.Context, s engine.Select) (selected engine.Selected, err error) {
	if h.session == nil {
		return selected, errors.New("nothing is open")
	}
	parsed, err := h.statement(ctx, s.SQL)
	if err != nil {
		return selected, err
	}
	if err := parsed.Check(h.known); err != nil {
		return selected, err
	}
	view, err := h.session.View(ctx, parsed)
	if err != nil {
		return selected, err
	}

	if selected.Columns, err = h.session.Describe(ctx, view); err != nil {
		return selected, err
	}
	if selected.Rows, err = h.session.CopyColumns(ctx, view, selected.Columns, s.Target); err != nil {
		return selected, err
	}
	selected.Origins = parsed.Lineage(h.columns, selected.Columns)
	return selected, nil
}

// mostParsed is how many statements an engine remembers.
const mostParsed = 64

// statement parses a statement, once.
func (h *host) statement(ctx context.Context, sql string) (*duck.Select, error) {
	if q := h.parsed[sql]; q != nil {
		return q, nil
	}
	q, err := h.session.Parse(ctx, sql)
	if err != nil {
		return nil, err
	}
	if h.parsed == nil || len(h.parsed) == mostParsed {
		h.parsed = map[string]*duck.Select{}
	}
	h.parsed[sql] = q
	return q, nil
}

func (h *host) export(ctx context.Context, e engine.Export) (none, error) {
	if h.session == nil {
		return none{}, errors.New("nothing is open")
	}
	return none{}, h.session.CopyTo(ctx, "FROM "+sqltext.Quote(e.Relation), e.Target, e.Format)
}

func (h *host) empty(ctx context.Context, e engine.Empty) (none, error) {
	session, err := h.any(ctx)
	if err != nil {
		return none{}, err
	}
	_, err = session.CopyToParquet(ctx, duck.Empty(e.Columns), e.Target)
	return none{}, err
}

// convert writes the rows of Parquet files that somebody else wrote.
func (h *host) convert(ctx context.Context, c engine.Convert) (converted engine.Converted, err error) {
	session, err := h.any(ctx, c.Files...)
	if err != nil {
		return converted, err
	}

	var selects []string
	for first := 0; first < len(c.Files); {
		files, have, err := h.alike(ctx, c.Files[first:])
		if err != nil {
			return converted, err
		}
		if err := checkTypes(c.Columns, have); err != nil {
			return converted, err
		}
		misfit, err := session.Misfit(ctx, files, c.Columns)
		if err != nil {
			return converted, err
		}
		if misfit != nil {
			if misfit, err = session.MisfitAt(ctx, files, c.Columns); err == nil {
				misfit.Part += first
			}
			return engine.Converted{Misfit: misfit}, err
		}

		query, err := session.Cast(ctx, files, have, c.Columns)
		if err != nil {
			return converted, err
		}
		selects, first = append(selects, query), first+len(files)
	}
	converted.Rows, err = session.CopyToParquet(ctx, strings.Join(selects, " UNION ALL "), c.Target)
	return converted, err
}

// checkTypes refuses columns whose types would go into a statement and are none.
func checkTypes(columns, have []duck.Column) error {
	for _, c := range columns {
		if !slices.Contains(have, c) && !sqltext.IsType(c.Type) {
			return fault.New(fault.Invalid, "types: %s: %q is not the name of a DuckDB type", c.Name, c.Type)
		}
	}
	return nil
}

// alike returns the first files, as far as they have the same columns.
func (h *host) alike(ctx context.Context, files []string) (same []string, columns []duck.Column, err error) {
	for i, file := range files {
		have, err := h.describe(ctx, duck.Relation{Files: []string{file}})
		if err != nil {
			return nil, nil, err
		}
		if i == 0 {
			columns = have
		}
		if !slices.Equal(have, columns) {
			return files[:i], columns, nil
		}
	}
	return files, columns, nil
}

// positions returns where a cursor column begins and ends.
func (h *host) positions(ctx context.Context, p engine.Positions) (found engine.Positioned, err error) {
	session, err := h.any(ctx, p.Files...)
	if err != nil {
		return found, err
	}
	name, from := sqltext.Quote(p.Column), duck.ReadParquet(p.Files)
	if err := session.Value(ctx, &found.Nulls, "SELECT count(*) - count("+name+") FROM "+from); err != nil {
		return found, err
	}
	if err := session.Value(ctx, &found.Lowest, "SELECT min("+name+")::BIGINT FROM "+from); err != nil {
		return found, err
	}
	err = session.Value(ctx, &found.Highest, "SELECT max("+name+")::BIGINT FROM "+from)
	return found, err
}

// fit looks for a value that does not fit its column.
func (h *host) fit(ctx context.Context, f engine.Fit) (*relations.Misfit, error) {
	session, err := h.any(ctx, slices.Concat(f.Parts...)...)
	if err != nil {
		return nil, err
	}
	for i, files := range f.Parts {
		if len(files) == 0 {
			continue
		}

		found, err := session.Misfit(ctx, files, f.Columns)
		if err != nil {
			return nil, err
		}
		if found != nil {
			found.Part = i
			return found, nil
		}
	}
	return nil, nil
}

// text reads text files.
func (h *host) text(ctx context.Context, t engine.Text) (read engine.TextRead, err error) {
	zone, err := time.LoadLocation(t.Zone)
	if err != nil {
		return read, err
	}
	keep := func(textfile.Bad) error { return nil }
	if t.Quarantine != "" {
		bad, err := textfile.NewQuarantine(t.Quarantine)
		if err != nil {
			return read, err
		}
		defer func() { err = errors.Join(err, bad.Close()) }()
		keep = bad.Add
	}

	job := textfile.Job{Declaration: t.Declaration, Zone: zone, Standing: t.Standing, Required: t.Required}
	read.Result, err = job.Convert(ctx, t.Files, t.Target, keep)
	if errors.Is(err, textfile.ErrUnknown) {
		return engine.TextRead{Unknown: true}, nil
	}
	return read, err
}
