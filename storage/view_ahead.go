package storage

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/dagctl/dagctl/internal/fault"
	"github.com/dagctl/dagctl/internal/pgcopy"
	"github.com/dagctl/dagctl/internal/sqltext"
)

// ViewAhead is what would become of a stable view if its dataset had other columns.
type ViewAhead struct {
	View    string   // its name, with the schema
	Becomes []string // what becomes of columns that it has and would not have any more; none: it stays
	Carried []string // users' views that would be defined over it again
	Refused string   // why users' objects keep it from changing
}

// ViewAhead looks at what a view that shows a dataset with some columns would become with those of the next generation,
// before that has a table. A column whose type is not known is taken to keep it.
func (s *Storage) ViewAhead(ctx context.Context, tx pgx.Tx, v View, was, next []Column) (ViewAhead, error) {
	if _, err := s.viewable(v); err != nil {
		return ViewAhead{}, err
	}
	schema, err := schemaOf(v.OrgSlug)
	if err != nil {
		return ViewAhead{}, err
	}
	relation := ViewName(v.Name)
	columns, err := pgColumns(ctx, tx, schema, []string{relation})
	if err != nil {
		return ViewAhead{}, fmt.Errorf("columns of view %s: %w", v.Name, err)
	}

	d := design{view: v, name: sqltext.Quote(schema) + "." + sqltext.Quote(relation), have: columns[relation]}
	for _, c := range d.have {
		at := slices.IndexFunc(next, func(n Column) bool { return sqltext.Same(n.Name, c.Name) })
		if at < 0 {
			continue
		}
		if c.Type, err = typeAhead(c, was, next[at]); err != nil {
			return ViewAhead{}, err
		}
		d.want = append(d.want, c)
	}
	if d.fits() {
		return ViewAhead{}, nil
	}

	ahead := ViewAhead{View: d.plainName()}
	for _, c := range d.gone() {
		ahead.Becomes = append(ahead.Becomes, d.becomes(c))
	}
	followers, err := d.followers(ctx, tx)
	if fault.Is(err, fault.Conflict) {
		ahead.Refused = err.Error()
		return ahead, nil
	}
	for _, f := range followers {
		ahead.Carried = append(ahead.Carried, f.object)
	}
	return ahead, err
}

// typeAhead returns the Postgres type that a column of a view would have.
func typeAhead(c pgColumn, was []Column, next Column) (string, error) {
	at := slices.IndexFunc(was, func(w Column) bool { return sqltext.Same(w.Name, c.Name) })
	if at < 0 || was[at].Type == next.Type || was[at].Type == "" || next.Type == "" {
		return c.Type, nil
	}

	before, err := pgcopy.TypeOf(was[at])
	if err != nil {
		return "", err
	}
	after, err := pgcopy.TypeOf(next)
	if err != nil {
		return "", err
	}
	if before == after {
		return c.Type, nil
	}
	return cmp.Or(sqlNames[after], after), nil
}

// sqlNames are the names that Postgres itself gives to types which have another one here.
var sqlNames = map[string]string{
	"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone",
	"time": "time without time zone",
}
